package process

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// stat is what is needed of /proc/PID/stat (proc_pid_stat(5)), read from the
// sandbox's own /proc: numbers are those inside.
type stat struct {
	pid                    int
	comm                   string
	state                  byte
	parent, group, session int
	terminal               uint64 // device number of the controlling terminal
	foreground             int    // its foreground process group
	threads                int
	exitSignal             int
	exitCode               int
	mm                     image.MM
}

// Fields by number, as the man page counts them.
const (
	fieldState = 3 + iota
	fieldParent
	fieldGroup
	fieldSession
	fieldTerminal
	fieldForeground
)

const (
	fieldThreads    = 20
	fieldStartCode  = 26
	fieldEndCode    = 27
	fieldStartStack = 28
	fieldExitSignal = 38
	fieldStartData  = 45
	fieldEndData    = 46
	fieldStartBrk   = 47
	fieldArgStart   = 48
	fieldArgEnd     = 49
	fieldEnvStart   = 50
	fieldEnvEnd     = 51
	fieldExitCode   = 52
)

// parseStat parses the text. A name may hold any byte, the last parenthesis
// ends it.
func parseStat(text []byte) (s stat, err error) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 2 || end < open {
		return s, fault.New(fault.Internal, "stat: no name in %q", text)
	}
	if s.pid, err = number(text[:open-1]); err != nil {
		return s, err
	}
	s.comm = string(text[open+1 : end])
	var words [fieldExitCode + 1]uint64
	n := fieldState
	for _, f := range bytes.Fields(text[end+1:]) {
		if n > fieldExitCode {
			break
		}
		if n == fieldState {
			s.state = f[0]
		} else {
			neg := f[0] == '-'
			if neg {
				f = f[1:]
			}
			for _, c := range f {
				if c < '0' || c > '9' {
					return s, fault.New(fault.Internal, "stat: field %d is %q", n, f)
				}
				words[n] = words[n]*10 + uint64(c-'0')
			}
			if neg {
				words[n] = -words[n]
			}
		}
		n++
	}
	if n <= fieldExitCode {
		return s, fault.New(fault.Internal, "stat: only %d fields", n-1)
	}
	in := func(i int) int { return int(int64(words[i])) }
	s.parent, s.group, s.session = in(fieldParent), in(fieldGroup), in(fieldSession)
	s.terminal, s.foreground = words[fieldTerminal], in(fieldForeground)
	s.threads, s.exitSignal, s.exitCode = in(fieldThreads), in(fieldExitSignal), in(fieldExitCode)
	s.mm = image.MM{
		StartCode: words[fieldStartCode], EndCode: words[fieldEndCode],
		StartData: words[fieldStartData], EndData: words[fieldEndData],
		StartBrk: words[fieldStartBrk], StartStack: words[fieldStartStack],
		ArgStart: words[fieldArgStart], ArgEnd: words[fieldArgEnd],
		EnvStart: words[fieldEnvStart], EnvEnd: words[fieldEnvEnd],
	}
	return s, nil
}

// readStat reads the state of a process by its number inside.
func (l *Live) readStat(pid int) (stat, error) {
	var buf [2048]byte
	name := fmt.Sprintf("%d/stat", pid)
	fd, err := unix.Openat(l.cfg.Proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return stat{}, fmt.Errorf("open stat of process %d: %w", pid, err)
	}
	n, err := unix.Read(fd, buf[:])
	_ = unix.Close(fd)
	if err != nil {
		return stat{}, fmt.Errorf("read stat of process %d: %w", pid, err)
	}
	return parseStat(buf[:n])
}

// pids lists all processes inside, zombies among them.
func (l *Live) pids() (out []int, err error) {
	if _, err := unix.Seek(l.cfg.Proc, 0, unix.SEEK_SET); err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	for {
		n, err := unix.Getdents(l.cfg.Proc, l.buf)
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		if n == 0 {
			return out, nil
		}
		for at := 0; at < n; {
			size := int(l.buf[at+16]) | int(l.buf[at+17])<<8
			entry := l.buf[at+19 : at+size]
			if i := bytes.IndexByte(entry, 0); i > 0 && entry[0] >= '1' && entry[0] <= '9' {
				if pid, err := number(entry[:i]); err == nil {
					out = append(out, pid)
				}
			}
			at += size
		}
	}
}
