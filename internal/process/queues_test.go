package process

import (
	"testing"

	"golang.org/x/sys/unix"
)

// That the list of message queues could not be opened once, where descriptors had run out, say, is no
// reason why later stops fail.
func TestQueuesAreListedAfterAFailure(t *testing.T) {
	l := &Live{cfg: Config{Root: -1}}
	if _, err := l.openQueues(); err == nil {
		t.Fatal("they were listed without a root")
	}
	root, err := unix.Open(t.TempDir(), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(root)
	l.cfg.Root = root
	if q, err := l.openQueues(); q != nil || err != nil || !l.lists {
		t.Errorf("%v, %v where none are", q, err)
	}
}
