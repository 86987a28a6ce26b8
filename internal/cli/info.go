package cli

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) infoCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "info",
		Short:   "Show the daemon: version, state directory, socket, what runs",
		Long:    `Show the daemon: version, state directory, socket, and what runs in it.`,
		Example: "  sandtree info",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			i, err := c.Info(ctx)
			if err != nil {
				return err
			}
			v := struct {
				ID string `json:"id"` // the node's tag
				client.Info
			}{i.Tag, i}
			return inv.show(v, func(w io.Writer) {
				facts(w, "version", i.Version, "kernel", i.Kernel, "state directory", i.StateDirectory, "socket", i.Socket,
					"node", i.Tag, "pid", i.PID, "started", i.Started.Local().Format(time.DateTime),
					"images", i.Images, "templates", i.Templates, "sandboxes", i.Running, "lost", i.Lost, "sessions", i.Sessions)
				for _, f := range i.Families {
					facts(w, "family "+f.ID, f.Template+", sandboxes: "+formatCount(f.Sandboxes))
				}
			})
		}),
	}
}
