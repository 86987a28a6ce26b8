package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// openTerminal is a restored terminal.
type openTerminal struct {
	image         *image.Terminal
	master, slave int // -1 once taken or closed
	// used is set if the slave was ever open: a master whose slave was not is
	// another thing than one whose slave was closed.
	used bool
}

func (t *openTerminal) close() {
	for _, fd := range []*int{&t.master, &t.slave} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// Slave is this process's descriptor of a terminal's slave, by the terminal's
// index, for TIOCSCTTY and TIOCSPGRP in a process of its session; it stays
// Opened's. It is -1 if nothing inside had the slave open.
func (o *Opened) Slave(terminal int) int { return o.terminals[terminal].slave }

// TakeMaster gives the caller the master of a session's terminal.
func (o *Opened) TakeMaster(terminal int) int {
	t := o.terminals[terminal]
	fd := t.master
	t.master = -1
	return fd
}

// openTerminals opens masters in the new devpts until every captured number
// has come: each gets the lowest that is free.
func (o *Opened) openTerminals(terminals []*image.Terminal) error {
	missing, highest := 0, -1
	for _, t := range terminals {
		highest = max(highest, t.Number)
		o.terminals = append(o.terminals, &openTerminal{
			image: t, master: -1, slave: -1, used: t.SlaveGone || t.Session != 0 || t.SessionID != "",
		})
		missing++
	}
	for _, f := range o.files {
		if f.Kind == image.PTYSlave || f.Kind == image.CtlTTY {
			o.terminals[f.Terminal].used = true
		}
	}
	var spare []int
	defer func() {
		for _, fd := range spare {
			_ = unix.Close(fd)
		}
	}()
	for missing > 0 {
		fd, err := openIn(o.target.Root, "/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY)
		if err == unix.ENOSPC {
			return fault.New(fault.Exhausted, "restore terminals: open /dev/pts/ptmx: %w", err).
				WithHint("raise kernel.pty.max of the host")
		}
		if err != nil {
			return fmt.Errorf("restore terminals: open /dev/pts/ptmx: %w", err)
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err != nil {
			_ = unix.Close(fd)
			return fmt.Errorf("restore terminals: TIOCGPTN: %w", err)
		}
		t := o.numbered(n)
		if t == nil {
			if spare = append(spare, fd); n > highest {
				return fault.New(fault.Internal, "restore terminals: a captured number is taken in the new devpts")
			}
			continue
		}
		t.master = fd
		missing--
		if err := t.set(); err != nil {
			return fmt.Errorf("restore terminal /dev/pts/%d: %w", n, err)
		}
	}
	return nil
}

func (o *Opened) numbered(n int) *openTerminal {
	for _, t := range o.terminals {
		if t.image.Number == n {
			return t
		}
	}
	return nil
}

// set gives a new terminal its captured state and content.
func (t *openTerminal) set() error {
	m := t.image
	if err := unix.IoctlSetPointerInt(t.master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("TIOCSPTLCK: %w", err)
	}
	if t.used {
		if err := t.openSlave(); err != nil {
			return err
		}
	}
	if m.MasterGone {
		return nil
	}
	if err := unix.IoctlSetWinsize(t.master, unix.TIOCSWINSZ, &m.Winsize); err != nil {
		return fmt.Errorf("TIOCSWINSZ: %w", err)
	}
	if err := unix.IoctlSetTermios(t.master, unix.TCSETS2, &m.Termios); err != nil {
		return fmt.Errorf("TCSETS2: %w", err)
	}
	if len(m.Input) > 0 {
		if err := putInput(t.slave, t.master, &m.Termios, m.Input); err != nil {
			return err
		}
	}
	if len(m.Output) > muchOutput {
		if err := growBuffers(t.slave, t.master, m); err != nil {
			return fmt.Errorf("prepare it for %d bytes of output: %w", len(m.Output), err)
		}
	}
	if len(m.Output) > 0 || m.Stopped {
		if err := putOutput(t.slave, t.master, m, m.Output); err != nil {
			return err
		}
	}
	if err := hold(t.slave, m); err != nil {
		return err
	}
	if m.Packet {
		if err := unix.IoctlSetPointerInt(t.master, unix.TIOCPKT, 1); err != nil {
			return fmt.Errorf("TIOCPKT: %w", err)
		}
	}
	return nil
}

func (t *openTerminal) openSlave() (err error) {
	if t.slave, err = openPeer(t.master); err != nil {
		return fmt.Errorf("TIOCGPTPEER: %w", err)
	}
	if err := unix.Fchown(t.slave, int(t.image.UID), int(t.image.GID)); err != nil {
		return fmt.Errorf("fchown: %w", err)
	}
	if err := unix.Fchmod(t.slave, t.image.Mode&0o7777); err != nil {
		return fmt.Errorf("fchmod: %w", err)
	}
	return nil
}

// finishTerminals closes the ends that were closed, after all descriptions
// were opened.
func (o *Opened) finishTerminals() error {
	for _, t := range o.terminals {
		if t.image.MasterGone {
			_ = unix.Close(t.master)
			t.master = -1
		}
	}
	return nil
}

// lockTerminals has nobody open the terminals any more that were so, after processes
// have opened /dev/tty.
func (o *Opened) lockTerminals() error {
	for _, t := range o.terminals {
		if t.image.Exclusive && t.slave >= 0 {
			if err := unix.IoctlSetInt(t.slave, unix.TIOCEXCL, 0); err != nil {
				return fmt.Errorf("restore terminal /dev/pts/%d: TIOCEXCL: %w", t.image.Number, err)
			}
		}
		if t.image.Locked && t.master >= 0 {
			if err := unix.IoctlSetPointerInt(t.master, unix.TIOCSPTLCK, 1); err != nil {
				return fmt.Errorf("restore terminal /dev/pts/%d: TIOCSPTLCK: %w", t.image.Number, err)
			}
		}
	}
	return nil
}
