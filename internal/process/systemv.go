package process

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/linux/sysv"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// maxMessages bounds the bytes of messages that are kept of all queues.
const maxMessages = 64 << 20

// withinIPC runs f with this thread in the incarnation's IPC namespace.
func (l *Live) withinIPC(f func() error) error {
	if l.ipc < 0 {
		fd, err := namespace.Open(l.cfg.Init, namespace.IPC)
		if err != nil {
			return err
		}
		l.ipc = fd
	}
	return sysv.Within(l.ipc, f)
}

// readSystemV captures the objects of System V IPC. The content of segments is
// read through a mapping of some process's where there is one, so that
// nothing can be seen of it; others are attached for a moment.
func (l *Live) readSystemV(t *image.Tree) error {
	return l.withinIPC(func() error {
		any, err := sysv.Any()
		if !any || err != nil {
			return err
		}
		inside, err := readIDMaps(l.cfg.Init)
		if err != nil {
			return err
		}
		object := func(p sysv.Perm) image.Object {
			return image.Object{
				ID: p.ID, Key: p.Key, Mode: p.Mode & 0o777, UID: inside.uid(p.UID), GID: inside.gid(p.GID),
				CreatorUID: inside.uid(p.CreatorU), CreatorGID: inside.gid(p.CreatorG),
			}
		}
		segments, err := sysv.Segments()
		if err != nil {
			return err
		}
		for _, s := range segments {
			content, err := l.segmentContent(&s)
			if err != nil {
				return err
			}
			t.SystemV.Segments = append(t.SystemV.Segments, image.Segment{
				Object: object(s.Perm), Size: int64(s.Size), Content: content,
				Locked: s.Mode&sysv.ModeLocked != 0, Removed: s.Mode&sysv.ModeRemoved != 0,
			})
		}
		sets, err := sysv.Sets()
		if err != nil {
			return err
		}
		for i := range sets {
			v, err := sets[i].Values()
			if err != nil {
				return err
			}
			t.SystemV.Sets = append(t.SystemV.Sets, image.SemaphoreSet{Object: object(sets[i].Perm), Values: v, Operated: sets[i].Operated != 0})
		}
		return l.readQueues(t, object)
	})
}

func (l *Live) readQueues(t *image.Tree, object func(sysv.Perm) image.Object) error {
	queues, err := sysv.Queues()
	if err != nil {
		return err
	}
	sum := 0
	for _, q := range queues {
		m := image.MessageQueue{Object: object(q.Perm), MaxBytes: q.MaxBytes}
		for i := range int(q.Messages) {
			got, err := sysv.Peek(q.ID, i, int(min(q.MaxBytes, maxMessages)))
			if err != nil {
				return err
			}
			if sum += len(got.Text); sum > maxMessages {
				return fault.New(fault.Uncapturable, "the System V message queues of the sandbox hold more than %d MiB", maxMessages>>20).
					WithHint("receive some messages, then try again")
			}
			m.Messages = append(m.Messages, image.QueueMessage{Type: got.Type, Text: slices.Clone(got.Text)})
		}
		t.SystemV.Queues = append(t.SystemV.Queues, m)
	}
	return nil
}

// segmentContent copies the populated parts of a segment.
func (l *Live) segmentContent(s *sysv.Segment) (*image.Blob, error) {
	from := -1
	for _, p := range l.order {
		for i := range p.memory.VMAs() {
			if v := &p.memory.VMAs()[i]; from < 0 && isSegment(v) && v.Ino == uint64(s.ID) {
				fd, err := p.openMapped(v)
				if err != nil {
					return nil, fmt.Errorf("open shared memory at %#x of %s: %w", v.Start, describe(p), err)
				}
				from = fd
			}
		}
	}
	if from < 0 {
		fd, err := sysv.OpenSegment(s.ID, s.Size, false)
		if err != nil {
			return nil, err
		}
		from = fd
	}
	defer unix.Close(from)
	to, err := copyFile(from)
	if err != nil {
		return nil, fmt.Errorf("copy segment %d: %w", s.ID, err)
	}
	return &image.Blob{File: os.NewFile(uintptr(to), "segment"), Size: int64(s.Size)}, nil
}

// isSegment reports whether a mapping is of a System V segment, whose inode
// number is the segment's.
func isSegment(v *image.VMA) bool {
	return v.Kind == image.SharedAnonymous && strings.HasPrefix(v.Path, "/SYSV")
}

// refuseSegments refuses attachments that are not whole any more: no call
// attaches a part.
func (l *Live) refuseSegments(t *image.Tree) error {
	for _, p := range l.order {
		vmas := p.memory.VMAs()
		for i := range vmas {
			v := &vmas[i]
			if !isSegment(v) {
				continue
			}
			at := slices.IndexFunc(t.SystemV.Segments, func(s image.Segment) bool { return uint64(s.ID) == v.Ino })
			if at < 0 {
				return fault.New(fault.Uncapturable, "%s maps System V shared memory of another sandbox at %#x", describe(p), v.Start).
					WithHint("end it, then try again")
			}
			if !wholeSegment(vmas, v, uint64(t.SystemV.Segments[at].Size)) {
				return fault.New(fault.Uncapturable, "%s has unmapped a part of the System V shared memory %d that it attached at %#x",
					describe(p), v.Ino, v.Start-v.Offset).WithHint("have it detach the rest, or end it, then try again")
			}
		}
	}
	return nil
}

// wholeSegment reports whether all of the attachment that v is part of is
// mapped.
func wholeSegment(vmas []image.VMA, v *image.VMA, size uint64) bool {
	at := v.Start - v.Offset
	end := at + (size+4095)&^4095
	for i := range vmas {
		if w := &vmas[i]; at < end && isSegment(w) && w.Ino == v.Ino && w.Start == at {
			at = w.End
		}
	}
	return at == end
}

// idMaps translate the numbers of the host into those inside.
type idMaps struct{ users, groups []idRange }

type idRange struct{ inside, outside, count uint32 }

// readIDMaps reads the maps of an incarnation's user namespace.
func readIDMaps(init int) (m idMaps, err error) {
	for name, to := range map[string]*[]idRange{"uid_map": &m.users, "gid_map": &m.groups} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", init, name))
		if err != nil {
			return m, fmt.Errorf("users of the sandbox: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			var r idRange
			if _, err := fmt.Sscan(line, &r.inside, &r.outside, &r.count); err != nil {
				return m, fmt.Errorf("%s of process %d: line %q: %w", name, init, line, err)
			}
			*to = append(*to, r)
		}
	}
	return m, nil
}

func (m idMaps) uid(host uint32) int { return inRange(m.users, host) }
func (m idMaps) gid(host uint32) int { return inRange(m.groups, host) }

// inRange is the number inside; root's for one that has none.
func inRange(rs []idRange, host uint32) int {
	for _, r := range rs {
		if host-r.outside < r.count {
			return int(r.inside + host - r.outside)
		}
	}
	return 0
}

func (m idMaps) host(rs []idRange, inside int) uint32 {
	for _, r := range rs {
		if uint32(inside)-r.inside < r.count {
			return r.outside + uint32(inside) - r.inside
		}
	}
	return 0
}

// makeSystemV makes the objects of System V IPC anew. Each is made by a process
// of its creator's, which passes, so that the creator's rights are right too.
func (r *restore) makeSystemV() error {
	s := &r.tree.SystemV
	if len(s.Segments)+len(s.Sets)+len(s.Queues) == 0 {
		return nil
	}
	ids, err := readIDMaps(r.live.cfg.Init)
	if err != nil {
		return err
	}
	return r.live.withinIPC(func() error {
		for i := range s.Segments {
			g := &s.Segments[i]
			if err := r.makeObject(sysv.SegmentObject, ids, &g.Object, 0, unix.SYS_SHMGET, g.Key, g.Size); err != nil {
				return err
			}
			if err := fillSegment(g); err != nil {
				return err
			}
		}
		for i := range s.Sets {
			g := &s.Sets[i]
			if err := r.makeObject(sysv.SetObject, ids, &g.Object, 0, unix.SYS_SEMGET, g.Key, len(g.Values)); err != nil {
				return err
			}
			if err := sysv.SetValues(g.ID, g.Values, g.Operated); err != nil {
				return err
			}
		}
		for i := range s.Queues {
			q := &s.Queues[i]
			if err := r.makeObject(sysv.QueueObject, ids, &q.Object, q.MaxBytes, unix.SYS_MSGGET, q.Key); err != nil {
				return err
			}
			for _, m := range q.Messages {
				if err := sysv.Send(q.ID, sysv.Message{Type: m.Type, Text: m.Text}); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// makeObject has a process of the creator's make an object, with the arguments
// before its flags, and gives it its owner.
func (r *restore) makeObject(kind sysv.Object, ids idMaps, o *image.Object, queueBytes uint64, nr int, args ...any) error {
	if err := kind.Next(o.ID); err != nil {
		return err
	}
	b := tracee.NewBatch()
	var made tracee.Ref
	pass, child := b.Fork(tracee.CloneArgs{
		Flags: unix.CLONE_VM | unix.CLONE_VFORK, SetTID: []int32{r.spawned.spare},
	}, tracee.EndExit, func(c *tracee.Batch) {
		c.Call(unix.SYS_SETGROUPS, 0, nil)
		c.Call(unix.SYS_SETRESGID, o.CreatorGID, o.CreatorGID, o.CreatorGID)
		c.Call(unix.SYS_SETRESUID, o.CreatorUID, o.CreatorUID, o.CreatorUID)
		made = c.Call(nr, append(args, unix.IPC_CREAT|unix.IPC_EXCL|int(o.Mode))...)
	})
	b.Call(unix.SYS_WAIT4, pass, nil, unix.WALL, nil)
	err := r.target.Init.Do(b)
	if err == nil {
		err = child.Err()
	}
	if err != nil {
		return fmt.Errorf("make System V object %d: %w", o.ID, err)
	}
	if id := child.Value(made); id != o.ID {
		return fault.New(fault.Internal, "System V object %d got the number %d", o.ID, id)
	}
	return kind.SetPerm(sysv.Perm{ID: o.ID, UID: ids.host(ids.users, o.UID), GID: ids.host(ids.groups, o.GID), Mode: o.Mode}, queueBytes)
}

func fillSegment(g *image.Segment) error {
	to, err := sysv.OpenSegment(g.ID, uint64(g.Size), true)
	if err != nil {
		return err
	}
	defer unix.Close(to)
	// An opening of our own: others may restore from the same blob.
	from, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", g.Content.File.Fd()), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("content of segment %d: %w", g.ID, err)
	}
	defer unix.Close(from)
	if err := CopyData(to, from, g.Size); err != nil {
		return fmt.Errorf("content of segment %d: %w", g.ID, err)
	}
	if g.Locked {
		return sysv.Lock(g.ID)
	}
	return nil
}

// removeSegments removes those that were removed at the checkpoint and lived by
// their mappings, which are there again.
func (r *restore) removeSegments() error {
	removed := slices.DeleteFunc(slices.Clone(r.tree.SystemV.Segments), func(g image.Segment) bool { return !g.Removed })
	if len(removed) == 0 {
		return nil
	}
	return r.live.withinIPC(func() error {
		for _, g := range removed {
			if err := sysv.SegmentObject.Remove(g.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// attach queues the attachment that a mapping is part of, once, by its first.
func attach(b *tracee.Batch, vmas []image.VMA, v *image.VMA) {
	const readOnly, execute = 0o10000, 0o100000 // SHM_RDONLY, SHM_EXEC
	if v.Offset != 0 {
		return
	}
	at, flags := v.Start, readOnly
	var parts []*image.VMA
	for i := range vmas {
		w := &vmas[i]
		if !isSegment(w) || w.Ino != v.Ino || w.Start-w.Offset != at {
			continue
		}
		parts = append(parts, w)
		if w.Prot&unix.PROT_WRITE != 0 || w.Advice&image.MayWrite != 0 {
			flags &^= readOnly
		}
		if w.Prot&unix.PROT_EXEC != 0 {
			flags |= execute
		}
	}
	b.Call(unix.SYS_SHMAT, v.Ino, at, flags)
	for _, w := range parts {
		b.Call(unix.SYS_MPROTECT, w.Start, w.Len(), w.Prot)
	}
}
