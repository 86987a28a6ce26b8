package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Kill kills every process of the group, also those that fork meanwhile
// (cgroup.kill, 5.14). It returns before they have ended.
func (g *Group) Kill() error {
	if err := optional(write(filepath.Join(g.unified, "cgroup.kill"), "1")); err != nil {
		return fault.New(fault.Internal, "kill cgroup %s: %w", g.id, err)
	}
	return nil
}

// WaitEmpty waits until no process of the group is left; zombies, which a
// parent or tracer has still to reap, do not count.
func (g *Group) WaitEmpty(ctx context.Context) error {
	if err := waitEmpty(ctx, g.unified); err != nil && !gone(err) {
		return waitError(g.id, err)
	}
	return nil
}

// Remove waits until the group is empty and removes it from all hierarchies.
// It kills nothing. Removing what is gone already is no error.
func (g *Group) Remove(ctx context.Context) error {
	if err := g.WaitEmpty(ctx); err != nil {
		return err
	}
	dirs := []string{g.unified}
	for _, d := range g.v1 {
		dirs = append(dirs, d.path)
	}
	for _, dir := range dirs {
		if err := removeDir(ctx, dir, false); err != nil {
			return err
		}
	}
	return nil
}

// Remove kills every process below the parent, in every hierarchy, waits for
// their end and removes the parent with all groups in it. It is also how the
// host cleans up what an earlier daemon of the same name left.
func (p *Parent) Remove(ctx context.Context) error {
	if err := optional(write(filepath.Join(p.Path(), "cgroup.kill"), "1")); err != nil {
		return fault.New(fault.Internal, "kill cgroup %s: %w", p.rel, err)
	}
	if err := waitEmpty(ctx, p.Path()); err != nil && !gone(err) {
		return waitError(p.rel, err)
	}
	for _, h := range p.layout.all() {
		if err := removeTree(ctx, p.dir(h)); err != nil {
			return err
		}
	}
	return nil
}

func removeTree(ctx context.Context, dir string) error {
	es, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fault.New(fault.Internal, "list cgroup: %w", err)
	}
	for _, e := range es {
		if e.IsDir() {
			if err := removeTree(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return removeDir(ctx, dir, true)
}

// removeDir removes one directory that has no children. A process that is in
// it and in no v2 group of ours (it was being placed when its maker died)
// keeps it busy: v1 tells nobody when a group empties, so we wait for the
// processes themselves, by pidfd, after killing them if kill is set.
func removeDir(ctx context.Context, dir string, kill bool) error {
	for {
		err := unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			return fault.New(fault.Internal, "remove cgroup %s: %w", dir, err)
		}
		pids, err := readPIDs(filepath.Join(dir, "cgroup.procs"))
		if gone(err) {
			return nil
		}
		if err != nil {
			return fault.New(fault.Internal, "remove cgroup %s: %w", dir, err)
		}
		if slices.Contains(pids, os.Getpid()) {
			return fault.New(fault.Conflict, "remove cgroup %s: this process itself is in it", dir)
		}
		for _, pid := range pids {
			if err := waitProcess(ctx, pid, kill, dir); err != nil {
				return waitError(dir, err)
			}
		}
		if err := ctx.Err(); err != nil {
			return waitError(dir, err)
		}
		if len(pids) == 0 {
			// Nothing is listed and yet it is busy: a process is between its
			// last listing and the end of its exit, which takes microseconds.
			if _, err := unix.Poll(nil, 1); err != nil && err != unix.EINTR {
				return waitError(dir, err)
			}
		}
	}
}

// waitProcess waits until a process of the group has ended. A number that was
// reused in between is recognised by its group and left alone.
func waitProcess(ctx context.Context, pid int, kill bool, dir string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	now, err := readPIDs(filepath.Join(dir, "cgroup.procs"))
	if err != nil || !slices.Contains(now, pid) {
		return nil
	}
	if kill {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
			return err
		}
	}
	return pollUntil(ctx, fd, unix.POLLIN, func() (bool, error) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			return false, nil
		}
		return n == 1, err
	})
}

func waitError(what string, err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Deadline, "wait for the processes of cgroup %s to end: %w", what, err)
	case errors.Is(err, context.Canceled):
		return fault.New(fault.Canceled, "wait for the processes of cgroup %s to end: %w", what, err)
	}
	return fault.New(fault.Internal, "wait for the processes of cgroup %s to end: %w", what, err)
}

// AppendThreads appends the ids of the group's threads, in our pid namespace,
// to dst. It does not allocate while dst has room for them. Threads that are
// born or end meanwhile may be missing or too many: list again until stable.
func (g *Group) AppendThreads(dst []int) ([]int, error) {
	g.fence.mu.Lock()
	defer g.fence.mu.Unlock()
	n, partial := 0, false
	for off := int64(0); ; {
		k, err := unix.Pread(g.threads, g.fence.buf, off)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return dst, fault.New(fault.Internal, "list threads of cgroup %s: %w", g.id, err)
		}
		if k == 0 {
			break
		}
		off += int64(k)
		for _, c := range g.fence.buf[:k] {
			if c == '\n' {
				if partial && n > 0 { // 0: not in our pid namespace
					dst = append(dst, n)
				}
				n, partial = 0, false
				continue
			}
			n, partial = n*10+int(c-'0'), true
		}
	}
	return dst, nil
}
