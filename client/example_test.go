package client_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/sandtree/sandtree/client"
)

// A sandbox is created, a command run in it, its state kept, spoiled and
// brought back, and eight copies made.
func Example() {
	ctx := context.Background()
	c, err := client.Dial("/run/sandtree/default/api.sock")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "debian", Resources: client.Resources{MemoryBytes: 512 << 20}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = sb.Remove(ctx, true) }()

	end, err := sb.Run(ctx, client.Command{Argv: []string{"git", "--version"}}, client.Stdio{Out: os.Stdout, Err: os.Stderr})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("exit code", end.ExitCode)

	cp, err := sb.Checkpoint(ctx, "clean")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sb.Run(ctx, client.Command{Argv: []string{"rm", "-rf", "/usr"}}, client.Stdio{}); err != nil {
		log.Fatal(err)
	}
	if _, err := sb.Rollback(ctx, cp.ID); err != nil {
		log.Fatal(err)
	}
	copies, err := cp.Fork(ctx, 8)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range copies.Sandboxes {
		_ = s.Remove(ctx, true)
	}
}
