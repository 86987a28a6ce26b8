package process

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// thpButAdvised is the flag of PR_SET_THP_DISABLE that leaves huge pages to memory that asks
// for them (PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18).
const thpButAdvised = 1 << 1

// ownPipes gives pipes to those inside who may open them again.
func (r *restore) ownPipes() error {
	for _, n := range r.procs {
		if n.image.State != image.Zombie {
			return r.files.OwnPipes(n.tracee.TID)
		}
	}
	return nil
}

// makeSockets has the processes make all sockets.
func (r *restore) makeSockets() error {
	var makers []descriptor.Maker
	defer func() {
		for _, m := range makers {
			_ = unix.Close(m.PIDFD)
		}
	}()
	if !slices.ContainsFunc(r.tree.Files, func(f *image.File) bool { return f.Socket != nil }) {
		return nil
	}
	err := r.each(func(n *newProcess) error {
		pidfd, err := unix.PidfdOpen(n.tracee.TID, 0)
		if err != nil {
			return fmt.Errorf("pidfd: %w", err)
		}
		makers = append(makers, descriptor.Maker{
			PID: n.image.PID, Host: n.tracee.TID, PIDFD: pidfd, Table: n.image.Descriptors, Control: n.control, Run: n.tracee.Run,
			Limit: func(count int) error { return r.target.Live.raiseDescriptors(n.tracee.TID, count) },
		})
		return nil
	})
	if err != nil {
		return err
	}
	return r.files.MakeSockets(makers)
}

// install gives a process its descriptors.
func (r *restore) install(n *newProcess) (err error) {
	n.control, err = r.files.Install(func(in descriptor.Installation) error { return r.runInstallation(n, in) }, n.image.Descriptors, n.control)
	if err != nil {
		return fmt.Errorf("install descriptors: %w", err)
	}
	return nil
}

// openLate has it open those files that nobody else can open, but those of threads.
func (r *restore) openLate(n *newProcess) error { return r.openInside(n, false) }

// openOfThreads has it open files of threads, which are there now, and ends the use of its control socket.
func (r *restore) openOfThreads(n *newProcess) error {
	if err := r.openInside(n, true); err != nil {
		return err
	}
	b := tracee.NewBatch()
	b.Call(unix.SYS_CLOSE, n.control)
	return n.tracee.Run(b)
}

func (r *restore) openInside(n *newProcess, threads bool) error {
	if !r.files.OpensLate(n.image.Descriptors, threads) {
		return nil
	}
	pidfd, err := unix.PidfdOpen(n.tracee.TID, 0)
	if err != nil {
		return fmt.Errorf("pidfd: %w", err)
	}
	r.pidfds = append(r.pidfds, pidfd) // others may fetch what it opens
	err = r.files.OpenLate(func(in descriptor.Installation) error { return r.runInstallation(n, in) }, descriptor.Opening{
		Table: n.image.Descriptors, PIDFD: pidfd, Terminal: n.image.Terminal, Control: n.control, PID: n.image.PID, Threads: threads, Other: r.other,
	})
	if err != nil {
		return fmt.Errorf("open files inside: %w", err)
	}
	return nil
}

// completeAdrift has a process complete the descriptors that no process has.
func (r *restore) completeAdrift() error {
	var by *newProcess
	var tables [][]image.Descriptor
	_ = r.each(func(n *newProcess) error {
		if by == nil {
			by = n
		}
		tables = append(tables, n.image.Descriptors)
		return nil
	})
	if by == nil {
		return nil
	}
	err := r.files.CompleteAdrift(func(in descriptor.Installation) error { return r.runInstallation(by, in) }, by.control, tables)
	if err != nil {
		return fmt.Errorf("complete descriptors on their way: %w", err)
	}
	return nil
}

// complete does what needs the descriptors of all processes to be there.
func (r *restore) complete(n *newProcess) error {
	err := r.files.Complete(func(in descriptor.Installation) error { return r.runInstallation(n, in) }, descriptor.Completion{
		Table: n.image.Descriptors, Control: n.control,
	})
	if err != nil {
		return fmt.Errorf("complete descriptors: %w", err)
	}
	return nil
}

// other gives a process by its number, for what it alone can do for another one.
func (r *restore) other(pid int) (run func(b *tracee.Batch) error, pidfd int, ok bool) {
	n := r.procs[pid]
	if n == nil || n.image.State == image.Zombie {
		return nil, -1, false
	}
	pidfd, err := unix.PidfdOpen(n.tracee.TID, 0)
	if err != nil {
		return nil, -1, false
	}
	r.pidfds = append(r.pidfds, pidfd)
	return n.tracee.Run, pidfd, true
}

func (r *restore) runInstallation(n *newProcess, in descriptor.Installation) error {
	if err := r.target.Live.raiseDescriptors(n.tracee.TID, in.Limit); err != nil {
		return err
	}
	for _, m := range in.Messages {
		if err := n.send(m...); err != nil {
			return err
		}
	}
	return n.tracee.Run(in.Batch)
}

// foregrounds sets the foreground process groups of terminals. The kernel lets
// only a process of the terminal's session do that.
func (r *restore) foregrounds() error {
	for i, t := range r.tree.Terminals {
		n := r.procs[t.Session]
		if t.Group == 0 || n == nil || n.image.State == image.Zombie || n.image.Terminal != i {
			continue
		}
		b := tracee.NewBatch()
		fd := b.ReceiveFD(n.control)
		b.Try(unix.SYS_IOCTL, fd, unix.TIOCSPGRP, int32Bytes(t.Group)) // the group may be gone
		b.Call(unix.SYS_CLOSE, fd)
		if err := r.runWith(n, b, []int{r.files.Slave(i)}); err != nil {
			return fmt.Errorf("foreground group of terminal %d: %w", t.Number, err)
		}
	}
	return nil
}

// makeThreads sets what belongs to a whole process and clones its threads.
func (r *restore) makeThreads(n *newProcess) error {
	p := n.image
	b := tracee.NewBatch()
	for s, h := range p.Handlers {
		if sig := s + 1; h != (image.Handler{}) && sig != int(unix.SIGKILL) && sig != int(unix.SIGSTOP) {
			b.Call(unix.SYS_RT_SIGACTION, sig, b.PutWords(h.Action, h.Flags, h.Restorer, h.Mask), nil, 8)
		}
	}
	b.Call(unix.SYS_UMASK, p.Umask)
	if p.CwdFile > 0 {
		if err := n.send(r.files.FD(p.CwdFile - 1)); err != nil {
			return fmt.Errorf("working directory: %w", err)
		}
		fd := b.ReceiveFD(n.control)
		b.Call(unix.SYS_FCHDIR, fd)
		b.Call(unix.SYS_CLOSE, fd)
	} else {
		b.Call(unix.SYS_CHDIR, p.Cwd)
	}
	if p.Root != "/" { // paths are those of the sandbox's root until here
		b.Call(unix.SYS_CHROOT, p.Root)
	}
	if p.NoHugePages {
		flags := 0
		if p.ButAdvised {
			flags = thpButAdvised
		}
		b.Call(unix.SYS_PRCTL, unix.PR_SET_THP_DISABLE, 1, flags, 0, 0)
	}
	for command := uint32(1); command != 0 && command <= p.Membarrier; command <<= 1 {
		if p.Membarrier&command != 0 {
			b.Call(unix.SYS_MEMBARRIER, command, 0, 0)
		}
	}
	b.Call(unix.SYS_PERSONALITY, p.Personality)
	if p.Subreaper {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	}
	fd := b.Call(unix.SYS_USERFAULTFD, uffd.Flags)
	if common := commonFilters(p); common > 0 {
		c := tracee.NewBatch()
		c.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		c, err := queueFilters(n.tracee, c, p.Threads[0].Filters[:common])
		if err == nil {
			err = n.tracee.Run(c)
		}
		if err != nil {
			return err
		}
	}
	if alikeThreads(p) { // threads inherit what they have in common, and set the rest themselves
		r.target.Walls.Assume(b, credentials(&p.Threads[0].Creds), confine.CheckpointRestore)
	}
	if len(p.Threads) > 1 {
		r.lower(n)
	}
	for _, t := range p.Threads[1:] {
		b.Clone3(tracee.CloneArgs{
			Flags: unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD |
				unix.CLONE_SYSVSEM | unix.CLONE_SETTLS | unix.CLONE_CHILD_CLEARTID,
			ChildTID: t.ClearTID, TLS: threadPointer(t), SetTID: []int32{int32(t.TID)},
		})
	}
	born, err := r.clones(n, b, len(p.Threads)-1)
	if err != nil {
		return err
	}
	n.threads = append(n.threads, born...)
	r.raise(n)
	pidfd, err := unix.PidfdOpen(n.tracee.TID, 0)
	if err != nil {
		return fmt.Errorf("pidfd: %w", err)
	}
	defer unix.Close(pidfd)
	there := b.Value(fd)
	own, err := unix.PidfdGetfd(pidfd, there, 0)
	if err != nil {
		return fmt.Errorf("userfaultfd: %w", err)
	}
	if err := r.track(n, own); err != nil {
		return err
	}
	c := tracee.NewBatch()
	c.Call(unix.SYS_CLOSE, there)
	if !r.files.OpensLate(p.Descriptors, true) {
		c.Call(unix.SYS_CLOSE, n.control)
	}
	return n.tracee.Run(c)
}
