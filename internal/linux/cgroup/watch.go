package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Watcher tells when the kernel kills processes of groups for memory. One
// watcher serves any number of groups, by one goroutine that holds no thread
// while nothing happens.
type Watcher struct {
	epoll *os.File
	done  chan struct{}

	mu      sync.Mutex
	watches map[int32]*watch // by epoll's token
	next    int32
	closed  bool
}

type watch struct {
	group  *Group
	fds    []int
	early  bool // the event comes before the kill (v1)
	notify func(kills uint64)

	mu    sync.Mutex // held during notify, so that stop waits for it
	ended bool
	kills uint64
}

// NewWatcher starts a watcher. Close it.
func NewWatcher() (*Watcher, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		// Go's poller takes descriptors that are non-blocking only.
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "watch cgroups: %w", err)
	}
	w := &Watcher{
		epoll:   os.NewFile(uintptr(fd), "cgroup watcher"),
		done:    make(chan struct{}),
		watches: map[int32]*watch{},
	}
	go w.run()
	return w, nil
}

// OOM calls notify with the group's count of kills whenever it has grown,
// from the watcher's goroutine: it must be quick and may not call stop. The
// returned stop ends it and waits for a running notify. Stop before the group
// is removed. A group without the memory controller is never notified.
//
// Version 2 wakes pollers of memory.events; version 1 writes to an eventfd
// that cgroup.event_control has bound to memory.oom_control when the group
// runs out, which is before the kill, and tells of the kill itself in no way:
// after an event the count is read again a few times within a second.
func (w *Watcher) OOM(g *Group, notify func(kills uint64)) (stop func(), err error) {
	dir, version := g.dirOf(Memory)
	if version == 0 {
		return func() {}, nil
	}
	h := &watch{group: g, notify: notify, early: version == 1}
	var event uint32
	if version == 2 {
		h.fds, err = openEvents(dir)
		event = unix.EPOLLPRI
	} else {
		h.fds, err = bindOOM(dir)
		event = unix.EPOLLIN
	}
	if err != nil {
		return nil, fault.New(fault.Internal, "watch memory of cgroup %s: %w", g.id, err)
	}
	if h.kills, err = g.oomKills(); err != nil {
		h.close()
		return nil, fault.New(fault.Internal, "watch memory of cgroup %s: %w", g.id, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		h.close()
		return nil, fault.New(fault.Conflict, "watch memory of cgroup %s: the watcher is closed", g.id)
	}
	w.next++
	token := w.next
	w.watches[token] = h
	if err := w.control(unix.EPOLL_CTL_ADD, h.fds[0], token, event); err != nil {
		delete(w.watches, token)
		h.close()
		return nil, fault.New(fault.Internal, "watch memory of cgroup %s: %w", g.id, err)
	}
	return sync.OnceFunc(func() {
		w.mu.Lock()
		if _, ok := w.watches[token]; ok {
			delete(w.watches, token)
			_ = w.control(unix.EPOLL_CTL_DEL, h.fds[0], token, 0)
		}
		w.mu.Unlock()
		h.check() // a kill whose event has not come yet
		h.close()
	}), nil
}

func (w *Watcher) control(op, fd int, token int32, events uint32) error {
	rc, err := w.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var ctlErr error
	err = rc.Control(func(ep uintptr) {
		ctlErr = unix.EpollCtl(int(ep), op, fd, &unix.EpollEvent{Events: events | unix.EPOLLET, Fd: token})
	})
	if err != nil {
		return err
	}
	return ctlErr
}

// openEvents opens memory.events and reads it once, which arms POLLPRI.
func openEvents(dir string) ([]int, error) {
	fd, err := unix.Open(filepath.Join(dir, "memory.events"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var buf [512]byte
	if _, err := unix.Pread(fd, buf[:], 0); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return []int{fd}, nil
}

// bindOOM binds a new eventfd to the group's out-of-memory event (v1).
func bindOOM(dir string) ([]int, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	control, err := unix.Open(filepath.Join(dir, "memory.oom_control"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer unix.Close(control)
		err = write(filepath.Join(dir, "cgroup.event_control"), fmt.Sprintf("%d %d", event, control))
	}
	if err != nil {
		_ = unix.Close(event)
		return nil, err
	}
	return []int{event}, nil
}

func (w *Watcher) run() {
	defer close(w.done)
	rc, err := w.epoll.SyscallConn()
	if err != nil {
		return
	}
	events := make([]unix.EpollEvent, 64)
	for {
		var n int
		err := rc.Read(func(ep uintptr) bool {
			var err error
			n, err = unix.EpollWait(int(ep), events, 0)
			return err == nil && n > 0
		})
		if err != nil {
			return // closed
		}
		for _, e := range events[:n] {
			w.mu.Lock()
			h := w.watches[e.Fd]
			w.mu.Unlock()
			if h != nil && !h.check() && h.early {
				h.checkAgain(10 * time.Millisecond)
			}
		}
	}
}

// checkAgain checks after a while, and once more after each while that is
// twice as long, up to a second in all.
func (h *watch) checkAgain(after time.Duration) {
	time.AfterFunc(after, func() {
		if !h.check() && after < time.Second/2 {
			h.checkAgain(2 * after)
		}
	})
}

// check reads the count and reports it if it has grown. It returns true when
// it has, or the watch has ended.
func (h *watch) check() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return true
	}
	var buf [512]byte
	_, _ = unix.Pread(h.fds[0], buf[:], 0) // v2: arms the next event
	_, _ = unix.Read(h.fds[0], buf[:8])    // v1: empties the eventfd
	if n, err := h.group.oomKills(); err == nil && n > h.kills {
		h.kills = n
		h.notify(n)
		return true
	}
	return false
}

func (h *watch) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, fd := range h.fds {
		_ = unix.Close(fd)
	}
	h.fds = nil
}

// Close ends the watcher and all its watches.
func (w *Watcher) Close() error {
	w.mu.Lock()
	w.closed = true
	hs := w.watches
	w.watches = map[int32]*watch{}
	w.mu.Unlock()
	err := w.epoll.Close()
	<-w.done
	for _, h := range hs {
		h.close()
	}
	return err
}
