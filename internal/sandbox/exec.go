package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Exec starts a command with the given standard input, output and error, which
// stay the caller's. It returns when the command's program runs.
//
// An [ExecError] says that the command itself could not be started; the error's
// kind is NotFound or Invalid then. Unavailable: the incarnation has ended;
// Exhausted: a limit on processes or memory was reached.
func (i *Incarnation) Exec(c Command, stdio [3]int) (*Process, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if err := i.ownStdio(c, stdio); err != nil {
		return nil, err
	}
	paths := c.candidates()
	if len(paths) == 0 {
		return nil, notStarted(&c, "", unix.ENOENT)
	}
	b := tracee.NewBatch()
	queueReceive(b, 3)
	var dir tracee.Ref
	var tries []tracee.Ref
	pid, child := b.Fork(tracee.CloneArgs{
		Flags:      unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_CLEAR_SIGHAND,
		ExitSignal: uint64(unix.SIGCHLD),
	}, tracee.EndExit, func(b *tracee.Batch) {
		dir = i.queueStart(b, &c)
		argv, env := b.PutStrings(c.Argv), b.PutStrings(c.Env)
		for _, p := range paths {
			tries = append(tries, b.Try(unix.SYS_EXECVE, p, argv, env))
		}
	})
	mark := b.PutWords(uint64(uint32(1<<32 + started)))
	b.Store(mark+4, pid, 4)
	b.Call(unix.SYS_WRITE, tracee.ControlFD, mark, 8)
	if _, err := doAndTidy(i, b, 0, stdio[:]...); err != nil {
		return nil, notForked(&c, err)
	}
	p := i.claim(b.Value(pid))
	if err := child.Err(); err != nil {
		return nil, setupError(&c, child, dir, err)
	}
	if path, errno := execResult(child, paths, tries); errno != 0 {
		return nil, notStarted(&c, path, errno)
	}
	if p == nil {
		return nil, fault.New(fault.Unavailable, "command %q: the sandbox's processes have ended", c.Argv[0])
	}
	return p, nil
}

// queueStart is all that the command's process does before execve.
func (i *Incarnation) queueStart(b *tracee.Batch, c *Command) (dir tracee.Ref) {
	b.Call(unix.SYS_CLOSE_RANGE, 3, uint32(1<<32-1), unix.CLOSE_RANGE_CLOEXEC)
	b.Call(unix.SYS_SETSID)
	if c.TTY {
		b.Call(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0)
	}
	b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, b.PutWords(0), 0, 8)
	if c.Dir != "" {
		dir = b.Call(unix.SYS_CHDIR, c.Dir)
	} else if c.User.Home != "" {
		b.Try(unix.SYS_CHDIR, c.User.Home)
	}
	i.walls.Exec(b, c.User.User)
	// The memory is still PID 1's, and a change of ids may have opened it.
	confine.Undumpable(b)
	return dir
}

// ownStdio gives pipes and the terminal to the command's user, who may open
// them again by name, as /dev/stdout.
func (i *Incarnation) ownStdio(c Command, stdio [3]int) error {
	uid, _ := i.seed.idmap.Outside(c.User.UID) // checked before
	for n, fd := range stdio {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fault.New(fault.Internal, "command %q: descriptor %d: %w", c.Argv[0], n, err)
		}
		if st.Uid == uid || st.Mode&unix.S_IFMT != unix.S_IFIFO && !c.TTY {
			continue
		}
		if err := unix.Fchown(fd, int(uid), -1); err != nil {
			return fault.New(fault.Internal, "command %q: descriptor %d: %w", c.Argv[0], n, err)
		}
	}
	return nil
}

// claim takes the process that a batch has started; nil if PID 1 died.
func (i *Incarnation) claim(pid int) *Process {
	i.mu.Lock()
	defer i.mu.Unlock()
	p := i.claims[pid]
	delete(i.claims, pid)
	return p
}

// notForked is the error of a batch whose child did not come to be.
func notForked(c *Command, err error) error {
	if errors.Is(err, tracee.ErrGone) {
		return doError("command "+c.Argv[0], err)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) {
		return fault.New(fault.Exhausted, "command %q: %w", c.Argv[0], err).
			WithHint("the sandbox has reached its limit of processes or memory")
	}
	return fault.New(fault.Internal, "command %q: %w", c.Argv[0], err)
}

// ExecError says why a command's program did not start.
type ExecError struct {
	Command string // Argv[0]
	Path    string // the file that was found, if one was
	Dir     string // set if it is the working directory that failed
	Errno   unix.Errno
}

func (e *ExecError) Error() string {
	switch {
	case e.Dir != "":
		return fmt.Sprintf("working directory %q: %v", e.Dir, e.Errno)
	case e.Path == "":
		return fmt.Sprintf("command %q is not in PATH", e.Command)
	case e.Errno == unix.ENOENT && e.Path != e.Command:
		return fmt.Sprintf("command %q: its interpreter is missing", e.Path)
	}
	return fmt.Sprintf("command %q: %v", e.Path, e.Errno)
}

// Unwrap returns the error number.
func (e *ExecError) Unwrap() error { return e.Errno }

// ExitCode is what shells and other runtimes exit with: 127 for a command that
// was not found, else 126.
func (e *ExecError) ExitCode() int {
	if e.Dir == "" && (e.Errno == unix.ENOENT || e.Errno == unix.ENOTDIR) {
		return 127
	}
	return 126
}

func notStarted(c *Command, path string, errno unix.Errno) error {
	kind := fault.Invalid
	if errno == unix.ENOENT || errno == unix.ENOTDIR {
		kind = fault.NotFound
	}
	return fault.New(kind, "%w", &ExecError{Command: c.Argv[0], Path: path, Errno: errno})
}

// setupError is the failure of a call before execve.
func setupError(c *Command, child *tracee.Batch, dir tracee.Ref, err error) error {
	var call *tracee.CallError
	if !errors.As(err, &call) {
		return fault.New(fault.Internal, "command %q: %w", c.Argv[0], err)
	}
	if call.Errno == unix.EAGAIN || call.Errno == unix.ENOMEM {
		return fault.New(fault.Exhausted, "command %q: %w", c.Argv[0], err)
	}
	if dir != 0 {
		if _, e := child.Result(dir); e != nil && call.Name == "chdir" {
			kind := fault.Invalid
			if call.Errno == unix.ENOENT {
				kind = fault.NotFound
			}
			return fault.New(kind, "%w", &ExecError{Command: c.Argv[0], Dir: c.Dir, Errno: call.Errno})
		}
	}
	return fault.New(fault.Internal, "command %q: %w", c.Argv[0], err)
}

// execResult finds out which execve succeeded: the one that did not return. If
// all did, it returns the error that says most, as execvp(3) does: the first
// that is not about a missing file.
func execResult(child *tracee.Batch, paths []string, tries []tracee.Ref) (path string, errno unix.Errno) {
	errno = unix.ENOENT
	for n, r := range tries {
		_, err := child.Result(r)
		var e unix.Errno
		switch {
		case !errors.As(err, &e), e == unix.ENOSYS: // not reached, or gone for good
			return paths[n], 0
		case e == unix.ENOENT || e == unix.ENOTDIR:
			if len(paths) == 1 {
				path, errno = paths[n], e
			}
		case errno == unix.ENOENT || errno == unix.ENOTDIR:
			path, errno = paths[n], e
		}
	}
	return path, errno
}
