package node_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// local is an engine for tests: its sandboxes are directories, and its
// sessions are processes of this machine with real pipes and terminals. A
// checkpoint remembers which sessions run; a rollback ends all of them and
// starts those of the checkpoint again.
//
// It makes nothing durable: those verbs it does not have.
type local struct {
	supervisor.Engine

	events control.Events
	dir    string

	mu    sync.Mutex
	boxes map[string]*box
}

type box struct {
	control.Sandbox
	tree     []control.Checkpoint
	saved    map[string][]*proc // sessions of a checkpoint
	sessions map[string]*proc
}

type proc struct {
	control.Session
	req   control.ExecRequest
	cmd   *exec.Cmd
	outer []*os.File // the ends that the node gets
	quiet bool       // its end is no news
}

func newLocal(cfg control.Config, events control.Events, _ *slog.Logger) (supervisor.Engine, error) {
	dir, err := os.MkdirTemp(cfg.Pool, cfg.Family+"-")
	return &local{events: events, dir: dir, boxes: map[string]*box{}}, err
}

func (l *local) Recover(context.Context, control.RecoverRequest) (control.RecoverReply, error) {
	return control.RecoverReply{}, fault.New(fault.Unsupported, "this supervisor keeps nothing")
}

func (l *local) box(id string) (*box, error) {
	b := l.boxes[id]
	if b == nil {
		return nil, fault.New(fault.NotFound, "the supervisor has no sandbox %s", id)
	}
	return b, nil
}

func (l *local) Create(_ context.Context, req control.CreateRequest) (control.Sandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.newBox(req.Sandbox, req.Hostname)
	b.Resources = req.Resources
	return b.Sandbox, os.Mkdir(filepath.Join(l.dir, req.Sandbox), 0o755)
}

func (l *local) newBox(id, hostname string) *box {
	b := &box{
		Sandbox: control.Sandbox{ID: id, Hostname: hostname, Created: time.Now(), Alive: true},
		saved:   map[string][]*proc{}, sessions: map[string]*proc{},
	}
	l.boxes[id] = b
	return b
}

func (l *local) Remove(_ context.Context, req control.SandboxRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return err
	}
	for _, p := range b.sessions {
		p.end()
	}
	delete(l.boxes, req.Sandbox)
	return os.RemoveAll(filepath.Join(l.dir, req.Sandbox))
}

// Halt ends all sessions and keeps the checkpoints.
func (l *local) Halt(_ context.Context, req control.SandboxRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return err
	}
	for id, p := range b.sessions {
		p.end()
		p.Ended, p.ExitCode, p.Reason = true, 137, "sandbox ended"
		l.events.SessionEnded(p.Session)
		delete(b.sessions, id)
	}
	b.Alive = false
	return nil
}

// end kills a session without telling.
func (p *proc) end() {
	p.quiet = true
	_ = syscall.Kill(-p.PID, syscall.SIGKILL)
	for _, f := range p.outer {
		_ = f.Close()
	}
}

func (b *box) describe() control.Sandbox {
	s := b.Sandbox
	for _, id := range slices.Sorted(maps.Keys(b.sessions)) {
		s.Sessions = append(s.Sessions, b.sessions[id].Session)
	}
	return s
}

func (l *local) List(context.Context) (control.ListReply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r control.ListReply
	for _, b := range l.boxes {
		r.Sandboxes = append(r.Sandboxes, b.describe())
	}
	return r, nil
}

func (l *local) Exec(_ context.Context, req control.ExecRequest) (control.Session, []*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return control.Session{}, nil, err
	}
	p, err := l.spawn(b, req)
	if err != nil {
		return control.Session{}, nil, err
	}
	return p.Session, p.copies(), nil
}

func (p *proc) copies() []*os.File {
	var fs []*os.File
	for _, f := range p.outer {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			panic(err)
		}
		fs = append(fs, os.NewFile(uintptr(fd), f.Name()))
	}
	return fs
}

// spawn starts a process. l.mu is held.
func (l *local) spawn(b *box, req control.ExecRequest) (*proc, error) {
	cmd := exec.Command(req.Argv[0], req.Argv[1:]...)
	cmd.Env, cmd.Dir = req.Env, filepath.Join(l.dir, req.Sandbox)
	p := &proc{req: req, cmd: cmd, Session: control.Session{
		ID: req.Session, Sandbox: req.Sandbox, Argv: req.Argv, TTY: req.TTY, Started: time.Now(), Generation: b.Generation,
	}}
	var inner []*os.File
	if req.TTY {
		m, s, err := openTerminal(req.Window)
		if err != nil {
			return nil, err
		}
		guard, err := openGuard()
		if err != nil {
			return nil, err
		}
		p.outer, inner = []*os.File{m, guard}, []*os.File{s}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s, s, s
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	} else {
		var ends [6]int
		for i := 0; i < 6; i += 2 {
			if err := unix.Pipe2(ends[i:i+2], unix.O_CLOEXEC); err != nil {
				return nil, err
			}
		}
		file := func(i int) *os.File { return os.NewFile(uintptr(ends[i]), "pipe") }
		inner = []*os.File{file(0), file(3), file(5)}
		p.outer = []*os.File{file(1), file(2), file(4)}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = inner[0], inner[1], inner[2]
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if req.StdinClosed {
			cmd.Stdin = nil
		}
	}
	err := cmd.Start()
	for _, f := range inner {
		_ = f.Close()
	}
	if err != nil {
		for _, f := range p.outer {
			_ = f.Close()
		}
		return nil, fault.New(fault.NotFound, "command %q: %w", req.Argv[0], err)
	}
	p.PID = cmd.Process.Pid
	b.sessions[p.ID] = p
	go l.wait(p)
	return p, nil
}

func (l *local) wait(p *proc) {
	_ = p.cmd.Wait()
	st := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.quiet {
		return
	}
	p.Ended, p.ExitCode = true, st.ExitStatus()
	if st.Signaled() {
		p.ExitCode = 128 + int(st.Signal())
	}
	l.events.SessionEnded(p.Session)
}

// openGuard opens a terminal's guard: both ends of a pipe in one.
func openGuard() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", r.Fd()), os.O_RDWR, 0)
}

func openTerminal(w control.Window) (master, slave *os.File, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil && w.Rows > 0 {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: w.Rows, Col: w.Cols})
	}
	if err != nil {
		return nil, nil, errors.Join(err, master.Close())
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return master, slave, err
}

func (l *local) session(sandbox, id string) (*proc, error) {
	b, err := l.box(sandbox)
	if err != nil {
		return nil, err
	}
	p := b.sessions[id]
	if p == nil {
		return nil, fault.New(fault.NotFound, "the supervisor has no session %s", id)
	}
	return p, nil
}

func (l *local) Signal(_ context.Context, req control.SignalRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.session(req.Sandbox, req.Session)
	if err != nil || p.Ended {
		return err
	}
	return syscall.Kill(-p.PID, syscall.Signal(req.Signal))
}

func (l *local) Resize(_ context.Context, req control.ResizeRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.session(req.Sandbox, req.Session)
	if err != nil {
		return err
	}
	return unix.IoctlSetWinsize(int(p.outer[0].Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: req.Window.Rows, Col: req.Window.Cols})
}

func (l *local) CloseStdin(_ context.Context, req control.SessionRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.session(req.Sandbox, req.Session)
	if err != nil {
		return err
	}
	_ = p.outer[0].Close()
	// The place in the list stays: adoption hands out a dead end.
	r, w, err := os.Pipe()
	if err == nil {
		_ = r.Close()
		p.outer[0] = w
	}
	return err
}

func (l *local) Adopt(_ context.Context, req control.SessionRequest) (control.Session, []*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, err := l.session(req.Sandbox, req.Session)
	if err != nil {
		return control.Session{}, nil, err
	}
	return p.Session, p.copies(), nil
}

func (l *local) Forget(_ context.Context, req control.SessionRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return err
	}
	if p := b.sessions[req.Session]; p != nil && p.Ended {
		p.end()
		delete(b.sessions, req.Session)
	}
	return nil
}

func (l *local) Diff(_ context.Context, req control.DiffRequest) (control.DiffReply, error) {
	return control.DiffReply{Changes: []control.Change{{Path: "/" + req.From + ".." + req.To, Kind: "A"}}}, nil
}

func (l *local) Stats(_ context.Context, req control.SandboxRequest) (control.Stats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return control.Stats{}, err
	}
	return control.Stats{Sandbox: b.ID, PIDs: int64(len(b.sessions)), Checkpoints: len(b.tree)}, nil
}

func (l *local) File(_ context.Context, req control.FileRequest) (r control.FileReply, files []*os.File, err error) {
	root, err := os.OpenRoot(filepath.Join(l.dir, req.Sandbox))
	if err != nil {
		return r, nil, fault.New(fault.NotFound, "%w", err)
	}
	defer root.Close()
	name := strings.TrimPrefix(filepath.Clean("/"+req.Path), "/")
	if name == "" {
		name = "."
	}
	var f *os.File
	switch req.Op {
	case control.FileStat:
		var i fs.FileInfo
		if req.NoFollow {
			i, err = root.Lstat(name)
		} else {
			i, err = root.Stat(name)
		}
		if err == nil {
			r.Entry = entryOf(i)
		}
	case control.FileList:
		var es []fs.DirEntry
		es, err = fs.ReadDir(root.FS(), name)
		for _, e := range es {
			if i, err := e.Info(); err == nil {
				r.Entries = append(r.Entries, entryOf(i))
			}
		}
	case control.FileOpen:
		f, err = root.Open(name)
	case control.FileCreate:
		if f, err = root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600); err == nil {
			err = errors.Join(unix.Fchown(int(f.Fd()), req.UID, req.GID), unix.Fchmod(int(f.Fd()), req.Mode))
		}
	case control.FileMkdir:
		if err = root.Mkdir(name, fs.FileMode(req.Mode)); err == nil {
			err = root.Chown(name, req.UID, req.GID)
		}
	case control.FileSymlink:
		err = root.Symlink(req.Target, name)
	case control.FileReadlink:
		r.Entry.Target, err = root.Readlink(name)
	case control.FileRename:
		err = root.Rename(name, strings.TrimPrefix(filepath.Clean("/"+req.Target), "/"))
	case control.FileRemove:
		err = root.Remove(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fault.New(fault.NotFound, "%w", err)
	case errors.Is(err, fs.ErrExist):
		err = fault.New(fault.Exists, "%w", err)
	case err != nil:
		err = fault.New(fault.Invalid, "%w", err)
	}
	if f != nil {
		files = append(files, f)
	}
	return r, files, err
}

func entryOf(i fs.FileInfo) control.Entry {
	st := i.Sys().(*syscall.Stat_t)
	return control.Entry{Name: i.Name(), Mode: st.Mode, UID: int(st.Uid), GID: int(st.Gid), Size: st.Size, MTime: i.ModTime()}
}

func (l *local) Close(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.boxes {
		for _, p := range b.sessions {
			p.end()
		}
	}
	return os.RemoveAll(l.dir)
}
