package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/tarball"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) imageCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Short:   "Manage images",
		Long:    `An image is a set of read-only layers with a configuration, as other container tools have them.`,
		Example: "  sandtree image pull debian:12\n  sandtree image ls",
		Args:    cobra.ArbitraryArgs,
		RunE:    group,
	}
	cmd.AddCommand(inv.imageImportCmd(), inv.imagePullCmd(), inv.imageLsCmd(), inv.imageRmCmd())
	return cmd
}

func (inv *invocation) imageImportCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "import NAME SRC",
		Short: "Make an image of a local tar or directory",
		Long: `Make an image of an OCI layout (a directory or tar), of what "docker save" wrote, or of
a root file system (a plain directory or tar). "-" reads a tar from the input. Tars may
be compressed with gzip or zstd.`,
		Example: `  sandtree image import web ./web-layout
  docker save web | sandtree image import web -
  sandtree image import minimal root.tar`,
		Args: exactly(2),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			src, err := inv.openImage(args[1])
			if err != nil {
				return err
			}
			defer func() { _ = src.Close() }()
			report, done := inv.progress()
			image, err := c.ImportImage(ctx, client.ImportConfig{
				Name: args[0], Kind: src.kind, TotalBytes: src.size, OnProgress: report,
			}, src)
			done()
			if err != nil {
				return err
			}
			return inv.show(image, func(w io.Writer) { fmt.Fprintln(w, image.ID) })
		}),
	}
}

// imageSource is a tar of an image.
type imageSource struct {
	io.ReadCloser
	kind client.ImageKind
	size int64 // 0 if unknown
}

// openImage makes a tar of what is named: a file, a directory or the input.
func (inv *invocation) openImage(src string) (*imageSource, error) {
	if src == "-" {
		if onTerminal(inv.in) {
			return nil, fault.New(fault.Invalid, "the input is a terminal, not a tar")
		}
		r, _, err := tarball.Decompress(io.NopCloser(inv.in))
		return &imageSource{ReadCloser: r}, err
	}
	info, err := os.Stat(src)
	if err != nil {
		return nil, localError(err)
	}
	if !info.IsDir() {
		f, err := os.Open(src)
		if err != nil {
			return nil, localError(err)
		}
		r, compressed, err := tarball.Decompress(f)
		if err != nil {
			_ = f.Close()
			return nil, err
		}
		s := &imageSource{ReadCloser: r}
		if !compressed {
			s.size = info.Size()
		}
		return s, nil
	}
	s := &imageSource{kind: client.RootImage}
	if _, err := os.Stat(filepath.Join(src, "oci-layout")); err == nil {
		s.kind = client.OCIImage
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(tarball.Pack(w, src, ".")) }()
	s.ReadCloser = r
	return s, nil
}

func (inv *invocation) imagePullCmd() *cobra.Command {
	var cfg client.PullConfig
	cmd := &cobra.Command{
		Use:     "pull REFERENCE",
		Short:   "Fetch an image from a registry",
		Long:    `Fetch an image from a registry. The credentials are those of the docker configuration of the user the daemon runs as.`,
		Example: "  sandtree image pull debian:12\n  sandtree image pull --name web ghcr.io/example/web:1.2",
		Args:    exactly(1),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			cfg.Reference = args[0]
			var done func()
			cfg.OnProgress, done = inv.progress()
			image, err := c.PullImage(ctx, cfg)
			done()
			if err != nil {
				return err
			}
			return inv.show(image, func(w io.Writer) { fmt.Fprintln(w, image.ID) })
		}),
	}
	cmd.Flags().StringVar(&cfg.Name, "name", "", "name of the image here (default: the reference)")
	cmd.Flags().BoolVar(&cfg.Insecure, "insecure", false, "allow a registry without TLS")
	return cmd
}

func (inv *invocation) imageLsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the images",
		Long:    `List the images by name.`,
		Example: "  sandtree image ls",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Images(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			return inv.showTable(all, "ID NAME LAYERS SIZE AGE", func(row func(...any)) {
				for _, i := range all {
					row(i.ID, i.Name, len(i.Layers), formatBytes(i.SizeBytes), formatAge(i.Created, now))
				}
			})
		}),
	}
}

func (inv *invocation) imageRmCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "rm IMAGE",
		Short:             "Remove an image",
		Long:              `Remove an image. While a template uses it this is refused.`,
		Example:           "  sandtree image rm web",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeImage,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			id := args[0]
			all, err := c.Images(ctx)
			if err != nil {
				return err
			}
			for _, i := range all {
				if i.Name == args[0] {
					id = i.ID
				}
			}
			if err := c.RemoveImage(ctx, args[0]); err != nil {
				return err
			}
			return inv.showRemoved([]removed{{id}}, 1)
		}),
	}
}
