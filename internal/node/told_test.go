package node_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A node that is told to end while its host has not taken its word that it serves
// ends in order, and does not say that it serves.
func TestToldToEndBeforeItIsReady(t *testing.T) {
	d := newDaemon(t, func(string) {})
	defer d.listener.Close()
	var log bytes.Buffer
	cmd := exec.Command(os.Args[0], "node", "verbose")
	cmd.Stderr = &log
	asked := make(chan struct{})
	d.run(cmd, func(ctx context.Context) {
		close(asked)
		<-ctx.Done() // the node gives up, or is gone
	})
	select {
	case <-asked:
	case <-time.After(30 * time.Second):
		t.Error("the node does not get ready")
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ended with: %v", err)
	}
	if s := log.String(); strings.Contains(s, "node serves") || !strings.Contains(s, "told to end") {
		t.Errorf("it said: %s", s)
	}
}
