package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) completionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell's completion script",
		Long: `Print a script that makes a shell complete commands, flags, and the names of sandboxes,
checkpoints, templates and images.`,
		Example: `  source <(sandtree completion bash)
  sandtree completion zsh > "${fpath[1]}/_sandtree"
  sandtree completion fish > ~/.config/fish/completions/sandtree.fish`,
		Args:      exactly(1),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(inv.out, true)
			case "zsh":
				return root.GenZshCompletion(inv.out)
			case "fish":
				return root.GenFishCompletion(inv.out, true)
			}
			return usageError(cmd, fault.New(fault.Invalid, "no completion for %q; there is bash, zsh and fish", args[0]))
		},
	}
}

// complete asks the daemon for names. A daemon that is not running is not
// started for it: it would have nothing to name.
func (inv *invocation) complete(cmd *cobra.Command, typed string, names func(c *client.Client, add func(name, id, about string)) error) ([]string, cobra.ShellCompDirective) {
	c, err := client.Dial(inv.socketPath())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer func() { _ = c.Close() }()
	var found []string
	err = names(c, func(name, id, about string) {
		// The id is offered where there is no name, or where one was begun.
		offer := named(name, id)
		if strings.HasPrefix(id, typed) && typed != "" && !strings.HasPrefix(name, typed) {
			offer = id
		}
		if strings.HasPrefix(offer, typed) {
			found = append(found, offer+"\t"+printable(about))
		}
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

func (inv *invocation) completeSandbox(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return inv.completeSandboxes(cmd, nil, typed)
}

func (inv *invocation) completeSandboxes(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	return inv.complete(cmd, typed, func(c *client.Client, add func(name, id, about string)) error {
		all, err := c.Sandboxes(cmd.Context())
		for _, s := range all {
			add(s.Name, s.ID, s.Template+" "+string(s.State))
		}
		return err
	})
}

// completeCheckpoint completes a sandbox and then checkpoints of its tree.
func (inv *invocation) completeCheckpoint(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return inv.completeSandbox(cmd, args, typed)
	}
	return inv.complete(cmd, typed, func(c *client.Client, add func(name, id, about string)) error {
		t, err := c.SandboxHandle(args[0]).Tree(cmd.Context())
		for _, k := range t.Checkpoints {
			add(k.Name, k.ID, k.Created.Local().Format("15:04:05"))
		}
		return err
	})
}

// completeSession completes the ids of sessions that run.
func (inv *invocation) completeSession(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return inv.complete(cmd, typed, func(c *client.Client, add func(name, id, about string)) error {
		sandboxes, err := c.Sandboxes(cmd.Context())
		if err != nil {
			return err
		}
		for _, sb := range sandboxes {
			sessions, err := sb.Sessions(cmd.Context())
			if err != nil {
				continue // removed meanwhile, or lost
			}
			for _, s := range sessions {
				if !s.Ended {
					add("", s.ID, named(sb.Name, sb.ID)+": "+strings.Join(s.Argv, " "))
				}
			}
		}
		return nil
	})
}

func (inv *invocation) completeTemplate(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return inv.complete(cmd, typed, func(c *client.Client, add func(name, id, about string)) error {
		all, err := c.Templates(cmd.Context())
		for _, t := range all {
			add(t.Name, t.ID, t.Image)
		}
		return err
	})
}

func (inv *invocation) completeImage(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return inv.complete(cmd, typed, func(c *client.Client, add func(name, id, about string)) error {
		all, err := c.Images(cmd.Context())
		for _, i := range all {
			add(i.Name, i.ID, formatBytes(i.SizeBytes))
		}
		return err
	})
}
