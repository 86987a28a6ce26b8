package engine

import (
	"math"
	"os"
	"strconv"
	"strings"
)

// room is the memory that the machine has, in bytes.
type room struct{ total, available int64 }

// machineMemory reads /proc/meminfo (proc_meminfo(5)). A machine that does not
// tell has no bounds.
func machineMemory() room {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return room{math.MaxInt64, math.MaxInt64}
	}
	value := func(key string) int64 {
		_, rest, _ := strings.Cut(string(text), key+":")
		f := strings.Fields(rest)
		if len(f) == 0 {
			return math.MaxInt64
		}
		kb, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return math.MaxInt64
		}
		return kb << 10
	}
	return room{value("MemTotal"), value("MemAvailable")}
}

// toSpare reports whether a tenth of the machine's memory is available: less is
// left to what must have it.
func (m room) toSpare() bool { return m.available >= m.total/10 }

// short reports whether what is available is so little that processes which wait
// for memory may wait for the machine's.
func (m room) short() bool { return m.available < m.total/4 }

// forCapture is how much memory one capture may take. Its pages stand in an
// arena until they are in zygotes as well, and a third is left to others.
func (m room) forCapture() int64 { return m.available / 3 }
