package process

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// messageQueues has PID 1, which is in the incarnation's IPC namespace, make and open
// POSIX message queues. One without a name has its own for a while, or another one if
// that is taken.
type messageQueues struct {
	init  Init
	taken map[string]bool // names that queues have in the end
	names map[int]string  // by object
	gone  []string        // names of those that have none
}

func newMessageQueues(init Init, files []*image.File) *messageQueues {
	q := &messageQueues{init: init, taken: map[string]bool{}, names: map[int]string{}}
	for _, f := range files {
		if f.Queue != nil && !f.Deleted {
			q.taken[strings.TrimPrefix(f.Path, "/")] = true
		}
	}
	return q
}

func (q *messageQueues) Make(f *image.File) (int, error) {
	name := strings.TrimPrefix(f.Path, "/")
	for i := 0; ; i++ {
		if f.Deleted && q.taken[name] {
			name = fmt.Sprintf(".restored-%d", i)
			continue
		}
		b := tracee.NewBatch()
		attr := b.PutWords(0, uint64(f.Queue.MaxMessages), uint64(f.Queue.MessageSize), 0, 0, 0, 0, 0)
		fd := b.Call(unix.SYS_MQ_OPEN, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600, attr)
		at, err := q.take(b, fd)
		if errors.Is(err, unix.EEXIST) && f.Deleted {
			q.taken[name] = true
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("make message queue %s: %w", f.Path, err)
		}
		q.names[f.Object] = name
		if f.Deleted {
			q.gone = append(q.gone, name)
		}
		return at, nil
	}
}

func (q *messageQueues) Open(f *image.File) (int, error) {
	b := tracee.NewBatch()
	fd := b.Call(unix.SYS_MQ_OPEN, q.names[f.Object], f.Flags&(unix.O_ACCMODE|unix.O_NONBLOCK|unix.O_CLOEXEC), 0, nil)
	at, err := q.take(b, fd)
	if err != nil {
		return -1, fmt.Errorf("open message queue %s: %w", f.Path, err)
	}
	return at, nil
}

// take gets a descriptor that a batch opens.
func (q *messageQueues) take(b *tracee.Batch, fd tracee.Ref) (int, error) {
	b.SendFDs(fd)
	b.Call(unix.SYS_CLOSE, fd)
	fds, err := q.init.DoReceive(b, 1)
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}

func (q *messageQueues) Finish() error {
	for _, name := range q.gone {
		b := tracee.NewBatch()
		b.Call(unix.SYS_MQ_UNLINK, name)
		if err := q.init.Do(b); err != nil {
			return fmt.Errorf("take the name away from message queue %s: %w", name, err)
		}
	}
	return nil
}
