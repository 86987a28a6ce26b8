package machine

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Here describes this machine.
func Here() (Machine, error) { return here() }

var here = sync.OnceValues(read)

func read() (Machine, error) {
	m := Machine{Arch: runtime.GOARCH}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return m, fmt.Errorf("uname: %w", err)
	}
	m.Kernel = unix.ByteSliceToString(u.Release[:])
	var err error
	if m.VDSO, err = vdso(); err != nil {
		return m, fmt.Errorf("read the vDSO: %w", err)
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return m, err
	}
	m.Features = features(string(info))
	m.Components, m.StateSize, m.State = state()
	return m, nil
}

// features reads /proc/cpuinfo. Processors of one machine have the same.
func features(cpuinfo string) []string {
	for line := range strings.SplitSeq(cpuinfo, "\n") {
		name, value, _ := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); name != "flags" && name != "Features" {
			continue
		}
		out := slices.DeleteFunc(strings.Fields(value), func(f string) bool { return kernelOnly[f] })
		slices.Sort(out)
		return slices.Compact(out)
	}
	return nil
}

// vdso sums up the functions of this process's own vDSO, which all processes
// have.
func vdso() (string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(string(maps), "\n") {
		f := strings.Fields(line)
		if len(f) != 6 || f[5] != "[vdso]" {
			continue
		}
		from, to, _ := strings.Cut(f[0], "-")
		start, err := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err := errors.Join(err, err2); err != nil {
			return "", err
		}
		mem, err := os.Open("/proc/self/mem")
		if err != nil {
			return "", err
		}
		defer mem.Close()
		image := make([]byte, end-start)
		if _, err := io.ReadFull(io.NewSectionReader(mem, int64(start), int64(end-start)), image); err != nil {
			return "", err
		}
		return functions(image)
	}
	return "", nil // switched off
}

func functions(image []byte) (string, error) {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return "", err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return "", err
	}
	slices.SortFunc(symbols, func(a, b elf.Symbol) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
	})
	h := sha256.New()
	for _, s := range symbols {
		fmt.Fprintf(h, "%s %#x %d\n", s.Name, s.Value, s.Size)
	}
	fmt.Fprintf(h, "%d\n", len(image))
	return hex.EncodeToString(h.Sum(nil)), nil
}
