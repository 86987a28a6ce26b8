package process

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// makeQueue has PID 1, which is in the incarnation's IPC namespace, make an empty
// POSIX message queue. One without a name has its own for a moment, or another one if
// that is taken.
func (r *restore) makeQueue(f *image.File) (int, error) {
	name := strings.TrimPrefix(f.Path, "/")
	for i := 0; ; i++ {
		b := tracee.NewBatch()
		attr := b.PutWords(0, uint64(f.Queue.MaxMessages), uint64(f.Queue.MessageSize), 0, 0, 0, 0, 0)
		fd := b.Call(unix.SYS_MQ_OPEN, name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600, attr)
		if f.Deleted {
			b.Call(unix.SYS_MQ_UNLINK, name)
		}
		b.SendFDs(fd)
		b.Call(unix.SYS_CLOSE, fd)
		fds, err := r.target.Init.DoReceive(b, 1)
		if errors.Is(err, unix.EEXIST) && f.Deleted {
			name = fmt.Sprintf(".restored-%d", i)
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("make message queue %s: %w", f.Path, err)
		}
		return fds[0], nil
	}
}
