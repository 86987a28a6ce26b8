package engine

import (
	osthread "github.com/sandtree/sandtree/internal/linux/thread"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// thread is the OS thread that does all ptrace of one body, with what belongs
// to it. It starts with the first job and ends when it is closed.
type thread struct {
	jobs    chan func()
	done    chan struct{}
	scratch *memory.Scratch
}

func newThread() *thread {
	t := &thread{jobs: make(chan func()), done: make(chan struct{}), scratch: memory.NewScratch()}
	go t.run()
	return t
}

// run ends with the OS thread, which lets go of whatever it still traced.
func (t *thread) run() {
	defer close(t.done)
	_ = osthread.Own(func() error {
		for job := range t.jobs {
			job()
		}
		return nil
	})
}

// do runs f on the thread and waits for it.
func (t *thread) do(f func() error) error {
	result := make(chan error, 1)
	t.jobs <- func() { result <- f() }
	return <-result
}

func (t *thread) close() {
	close(t.jobs)
	<-t.done
}
