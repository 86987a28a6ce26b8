package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) templateCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "template",
		Short:   "Manage what sandboxes are created from",
		Long:    `A template is an image with a start command, an environment and limits.`,
		Example: "  sandtree template create web --image debian --start ./serve --memory 1G\n  sandtree template ls",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(inv.templateCreateCmd(), inv.templateLsCmd(), inv.templateShowCmd(), inv.templateRmCmd())
	return cmd
}

func (inv *invocation) templateCreateCmd() *cobra.Command {
	var (
		cfg    client.TemplateConfig
		env    []string
		limits limitFlags
	)
	cmd := &cobra.Command{
		Use:   "create NAME --image IMAGE",
		Short: "Make a template from an image",
		Long: `Make a template from an image. The limits hold for each sandbox that does not ask for
its own. Without --setuid no program inside gains privilege by a setuid bit.

With --start, the command runs once, in a golden sandbox: with the template's variables,
user, directory and limits. When it is ready, a checkpoint is taken, and each sandbox of
the template is a fork of that: what the command has started runs in it already.
It is ready when the command of --ready, which is run again and again beside it, ends
with status 0. Without --ready it is ready when it has ended with status 0, or when it has
run for 2 seconds. If it ends with another status, or is not ready in time, there is no
template, and the error shows the end of its output. The golden checkpoint is durable as
others are: after a restart the command does not run again.`,
		Example: `  sandtree template create debian --image debian
  sandtree template create web --image debian --start 'exec ./serve' --ready 'test -e /run/serve.up' \
    --env PORT=80 --user www-data --workdir /srv --memory 4G --cpus 2 --pids 2000 --disk 10G`,
		Args: exactly(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cfg.Image == "" {
				return usageError(cmd, errors.New("--image is needed"))
			}
			cfg.Name = args[0]
			var err error
			if cfg.Env, err = environment(env); err != nil {
				return err
			}
			if cfg.Resources, err = limits.resources(); err != nil {
				return err
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			report, done := inv.progress()
			if cfg.Start != "" {
				report(client.Progress{Stage: "the start command runs"})
			}
			t, err := c.CreateTemplate(cmd.Context(), cfg)
			done()
			if err != nil {
				return err
			}
			return inv.show(t, func(w io.Writer) { fmt.Fprintln(w, t.ID) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.Image, "image", "", "image, by name or id")
	f.StringVar(&cfg.Start, "start", "", "shell command to run once; new sandboxes begin where it was ready")
	f.StringVar(&cfg.Ready, "ready", "", "shell command that succeeds when the start command is ready")
	f.DurationVar(&cfg.ReadyTimeout, "ready-timeout", 0, "how long to wait until it is ready (default 1m)")
	f.StringArrayVarP(&env, "env", "e", nil, "set a variable for all commands, K=V; may be repeated")
	f.StringVarP(&cfg.User, "user", "u", "", "user that commands run as (default: the image's)")
	f.StringVarP(&cfg.Dir, "workdir", "w", "", "directory that commands start in (default: the image's)")
	f.BoolVar(&cfg.Setuid, "setuid", false, "let setuid programs, such as sudo, gain privilege inside")
	f.BoolVar(&cfg.Reseed, "reseed", false, "give each sandbox an identity of its own; see fork --reseed")
	limits.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("image", inv.completeImage)
	return cmd
}

func (inv *invocation) templateLsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the templates",
		Long:    `List the templates by name.`,
		Example: "  sandtree template ls",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Templates(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			return inv.showTable(all, "ID NAME IMAGE AGE LIMITS START", func(row func(...any)) {
				for _, t := range all {
					row(t.ID, t.Name, t.Image, formatAge(t.Created, now), limitText(t.Resources), t.Start)
				}
			})
		}),
	}
}

func (inv *invocation) templateShowCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "show TEMPLATE",
		Short:             "Describe a template",
		Long:              `Describe a template: its image and layers, start command, environment and limits.`,
		Example:           "  sandtree template show debian",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeTemplate,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			t, err := c.Template(ctx, args[0])
			if err != nil {
				return err
			}
			return inv.show(t, func(w io.Writer) {
				facts(w, "id", t.ID, "name", t.Name, "image", t.Image, "start", t.Start, "ready", t.Ready,
					"golden", goldenText(t.Golden), "env", envText(t.Env),
					"user", t.User, "workdir", t.Dir, "limits", limitText(t.Resources), "setuid", yesNo(t.Setuid), "reseed", yesNo(t.Reseed),
					"created", t.Created.Local().Format(time.DateTime))
				for _, l := range t.Layers {
					facts(w, "layer", l)
				}
			})
		}),
	}
}

// goldenText describes a golden checkpoint.
func goldenText(g *client.Golden) string {
	switch {
	case g == nil:
		return ""
	case g.State == client.GoldenReady:
		return fmt.Sprintf("ready, of %s: %d processes, %s of memory",
			g.Created.Local().Format(time.DateTime), g.Processes, formatBytes(g.MemoryBytes))
	case g.State == client.GoldenMaking:
		return "being made"
	}
	return "not there, made for the next sandbox"
}

func (inv *invocation) templateRmCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:               "rm [-f] TEMPLATE",
		Short:             "Remove a template",
		Long:              `Remove a template. While sandboxes use it this is refused; with -f they are removed too.`,
		Example:           "  sandtree template rm web",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeTemplate,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			t, err := c.Template(ctx, args[0])
			if err != nil {
				return err
			}
			if err := c.RemoveTemplate(ctx, t.ID, force); err != nil {
				return err
			}
			return inv.showRemoved([]removed{{t.ID}}, 1)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove also the sandboxes that use it")
	return cmd
}
