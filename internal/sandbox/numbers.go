package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/statdev"
)

// ownNumbers are mounts whose numbers to show are their places in this list.
// The numbers of the others follow from their paths. Programs remember them in
// checkpoints on disk: they stay as they are.
var ownNumbers = []string{"/", "/proc", "/sys", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys/fs/cgroup"}

// firstHashed is the first number of the others.
const firstHashed = 0x100

// numbers are those that one incarnation's mounts show: by path, each another
// one.
type numbers map[string]int

// of returns the number of a mount by its path inside.
func (n numbers) of(path string) int {
	if x, ok := n[path]; ok {
		return x
	}
	x := slices.Index(ownNumbers, path)
	if x < 0 {
		const count = statdev.Numbers - firstHashed
		h := fnv.New32a()
		_, _ = h.Write([]byte(path))
		x = int(h.Sum32() % count)
		for n.taken(firstHashed + x) { // by a path that came before
			x = (x + 1) % count
		}
		x += firstHashed
	}
	n[path] = x
	return x
}

func (n numbers) taken(x int) bool {
	for _, y := range n {
		if x == y {
			return true
		}
	}
	return false
}

// showStage shows the numbers of all mounts but the root, which stand on the
// stage. Nothing runs there yet.
func (i *Incarnation) showStage() error {
	if i.seed.devices == nil {
		return nil
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", i.pid))
	if err != nil {
		return fault.New(fault.Unavailable, "boot: see PID 1's mounts: %w", err)
	}
	all, err := parseMountinfo(text)
	if err != nil {
		return err
	}
	n := numbers{}
	for _, m := range all {
		path, ok := strings.CutPrefix(m.path, stageDir)
		if !ok {
			continue
		}
		if err := i.seed.devices.Claim(&i.shows, m.device, n.of(path)); err != nil {
			return fmt.Errorf("boot: %w", err)
		}
	}
	return nil
}

// showRoot shows the root's number.
func (i *Incarnation) showRoot(root int) error {
	if i.seed.devices == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return fault.New(fault.Internal, "boot: stat the root: %w", err)
	}
	if err := i.seed.devices.Claim(&i.shows, st.Dev, numbers{}.of("/")); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	return nil
}

// mounted is a line of mountinfo.
type mounted struct {
	device uint64
	path   string
}

// parseMountinfo reads what /proc/PID/mountinfo says of each mount
// (proc_pid_mountinfo(5)), in its order: "36 35 0:57 / /stage/dev rw … - tmpfs …".
func parseMountinfo(text []byte) (all []mounted, err error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var (
			major, minor uint32
			f            = strings.Fields(lines.Text())
		)
		if len(f) < 5 {
			return nil, fault.New(fault.Internal, "mountinfo: line %.200q has too few fields", lines.Text())
		}
		if _, err := fmt.Sscanf(f[2], "%d:%d", &major, &minor); err != nil {
			return nil, fault.New(fault.Internal, "mountinfo: line %.200q: device: %w", lines.Text(), err)
		}
		all = append(all, mounted{unix.Mkdev(major, minor), f[4]})
	}
	return all, lines.Err()
}
