package tracee

import (
	"fmt"
	"strings"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/sys/unix"
)

// CallError is a failed call of a batch.
type CallError struct {
	Name  string // of the call
	Args  string // as text
	Index int    // among the batch's operations
	Errno unix.Errno
}

func (e *CallError) Error() string {
	return fmt.Sprintf("%s(%s): %v", e.Name, e.Args, e.Errno)
}

// Unwrap returns the error number.
func (e *CallError) Unwrap() error { return e.Errno }

func (b *Batch) callError(i int, errno unix.Errno) *CallError {
	o := b.ops[i]
	nr := int(o.nr &^ (flagFork | flagTry | flagCopy))
	last := 6
	for last > 0 && o.args[last-1] == 0 {
		last--
	}
	args := make([]string, 0, last)
	for _, v := range o.args[:last] {
		args = append(args, b.argText(v))
	}
	return &CallError{Name: callName(nr), Args: strings.Join(args, ", "), Index: i, Errno: errno}
}

// argText shows an argument as a number, or as text if it points to some.
func (b *Batch) argText(v uint64) string {
	if at := v - b.area.Data; v >= b.area.Data && at < uint64(len(*b.data)) {
		s := (*b.data)[at:]
		for i, c := range s {
			if c == 0 && i > 0 {
				return fmt.Sprintf("%q", s[:i])
			}
			if c < ' ' || c > '~' || i > 200 {
				break
			}
		}
	}
	if int64(v) > -4096 && int64(v) < 4096 {
		return fmt.Sprint(int64(v))
	}
	return fmt.Sprintf("%#x", v)
}

// firstError is that of the first call that ended the batch.
func (b *Batch) firstError() error {
	for i, o := range b.ops {
		if o.nr&(flagCopy|flagTry) != 0 {
			continue
		}
		if r := int64(o.ret); r < 0 && r >= -4095 {
			return b.callError(i, unix.Errno(-r))
		}
	}
	return nil
}

func callName(nr int) string {
	if s, ok := arch.X86_64.SyscallNumbers[nr]; ok {
		return s
	}
	return fmt.Sprintf("syscall %d", nr)
}
