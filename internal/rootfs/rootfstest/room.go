package rootfstest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Fill writes up to n bytes that do not compress into a file of a root, and
// returns how many went in. Running out of room is no error.
func Fill(path string, n int64) (written int64, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if NoRoom(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i * i >> 3)
	}
	for written < n {
		m, err := f.Write(block[:min(int64(len(block)), n-written)])
		written += int64(m)
		if NoRoom(err) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
	// What was promised must be kept: no error at writing back.
	return written, f.Sync()
}

// NoRoom reports whether an error is what a program inside sees when the store
// is full.
func NoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// manySnapshots makes and removes 200 snapshots, and looks at what remains.
func manySnapshots(e *env) {
	r := e.upper("sb.0")
	for i := range 200 {
		e.write(r, fmt.Sprintf("/etc/f%d", i%10), fmt.Sprint(i))
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("cp-%d", i)))
	}
	e.wantFile(e.clone("cp-123", "sb.1"), "/etc/f3", "123")
	for i := range 200 {
		if i != 123 && i != 57 {
			e.must(e.s.Remove(fmt.Sprintf("cp-%d", i)))
		}
	}
	e.wantFile(e.clone("cp-57", "sb.2"), "/etc/f7", "57")
	e.wantFile(e.clone("cp-123", "sb.3"), "/etc/f3", "123")
	e.wantFile(r, "/etc/f9", "199")
	got, err := e.s.List()
	e.must(err)
	if len(got) != 6 {
		e.t.Errorf("left in the store: %v", got)
	}
}

func quota(e *env) {
	mount := func(id string) Root { // until it is removed
		e.t.Helper()
		fd, err := e.s.MountRoot(id)
		e.must(err)
		return NewRoot(e.t, fd)
	}
	const limit = 24 << 20
	q, err := e.s.NewQuota(limit)
	if fault.Is(err, fault.Unsupported) {
		e.t.Skip(err)
	}
	e.must(err)
	e.must(e.s.CreateUpper("sb.0", q))
	r := mount("sb.0")
	fill := func(r Root, path string, n int64) (got int64) {
		e.t.Helper()
		r.Do(func() (err error) { got, err = Fill(r.Path(path), n); return err })
		return got
	}
	if n := fill(r, "/one", 16<<20); n != 16<<20 {
		e.t.Fatalf("wrote %d of 16 MiB under a limit of 24", n)
	}
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	r.Do(func() error { return os.Remove(r.Path("/one")) })
	// The checkpoint still holds the 16 MiB.
	if n := fill(r, "/two", 16<<20); n >= 10<<20 {
		e.t.Errorf("wrote %d bytes where a checkpoint holds 16 MiB of 24", n)
	}
	u, err := e.s.QuotaUsage(q)
	e.must(err)
	if u.Limit != limit || u.Bytes < 16<<20 || u.Bytes > limit {
		e.t.Errorf("usage %+v", u)
	}
	// So it does for the sandbox after a rollback, but not for a fork.
	e.must(e.s.Clone("cp-1", "sb.1", q))
	back := mount("sb.1")
	if n := fill(back, "/three", 16<<20); n >= 10<<20 {
		e.t.Errorf("a rollback wrote %d bytes past the limit", n)
	}
	q2, err := e.s.NewQuota(limit)
	e.must(err)
	e.must(e.s.Clone("cp-1", "fork", q2))
	fork := mount("fork")
	if n := fill(fork, "/three", 16<<20); n != 16<<20 {
		e.t.Errorf("a fork wrote only %d bytes", n)
	}
	// A raised limit counts at once.
	e.must(e.s.SetQuota(q, 64<<20))
	if n := fill(r, "/four", 16<<20); n != 16<<20 {
		e.t.Errorf("wrote %d of 16 MiB after the limit was raised", n)
	}
	for _, r := range []Root{r, back, fork} {
		r.Close()
	}
	// A dropped quota is forgotten when the last that it counts is freed, and
	// not before, whichever is removed first.
	e.must(e.s.DropQuota(q))
	e.must(e.s.Remove("sb.0"))
	e.must(e.s.Remove("sb.1"))
	e.eventually("the uppers are freed", func() bool {
		u, err := e.s.QuotaUsage(q)
		e.must(err) // the checkpoint is still there
		return u.Bytes < 20<<20
	})
	e.must(e.s.Remove("fork"))
	e.must(e.s.Remove("cp-1"))
	e.eventually("the quota is gone", func() bool {
		_, err := e.s.QuotaUsage(q)
		return fault.Is(err, fault.NotFound)
	})
}

// discount fills a quota and rolls back again and again: what is rolled back stands in
// the way of nobody, what snapshots hold does, and in the end the limit is what it was.
func discount(e *env) {
	const limit, least, most = 8 << 20, 4 << 20, 6 << 20 // beside /kept
	q, err := e.s.NewQuota(limit)
	if fault.Is(err, fault.Unsupported) {
		e.t.Skip(err)
	}
	e.must(err)
	root := func(id string) Root {
		e.t.Helper()
		fd, err := e.s.MountRoot(id)
		e.must(err)
		return NewRoot(e.t, fd)
	}
	fill := func(r Root, path string, n int64) (got int64) {
		e.t.Helper()
		r.Do(func() (err error) { got, err = Fill(r.Path(path), n); return err })
		return got
	}
	e.must(e.s.CreateUpper("sb.0", q))
	r := root("sb.0")
	if n := fill(r, "/kept", 2<<20); n != 2<<20 {
		e.t.Fatalf("wrote %d of 2 MiB", n)
	}
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	if n := fill(r, "/more", limit); n < least || n >= most {
		e.t.Fatalf("wrote %d bytes beside 2 MiB under a limit of 8", n)
	}
	e.s.Hold() // nothing is freed from here on
	for i := range 3 {
		old, next := fmt.Sprintf("sb.%d", i), fmt.Sprintf("sb.%d", i+1)
		e.must(e.s.Clone("cp-1", next, q))
		undo, err := e.s.Discount(old)
		e.must(err)
		if i == 1 { // a rollback that fails in the end
			undo()
			if n := fill(r, "/again", 1<<20); n == 1<<20 {
				e.t.Error("wrote past the limit after the rollback had failed")
			}
			_, err = e.s.Discount(old)
			e.must(err)
		}
		r.Close()
		r = root(next)
		e.must(e.s.Remove(old))
		n := fill(r, "/more", limit)
		if n < least || n >= most {
			e.t.Errorf("rollback %d: wrote %d bytes beside 2 MiB under a limit of 8", i, n)
		}
		if u, err := e.s.QuotaUsage(q); err != nil || u.Limit != limit {
			e.t.Errorf("rollback %d: usage %+v, %v", i, u, err)
		}
	}
	e.s.Release()
	e.eventually("what was rolled back is freed", func() bool {
		r.Do(func() error { return os.Remove(r.Path("/more")) })
		n := fill(r, "/more", limit)
		return n >= least && n < most
	})
	// What a snapshot holds is not discounted.
	e.must(e.s.Snapshot("sb.3", "cp-2"))
	e.must(e.s.Clone("cp-1", "sb.4", q))
	_, err = e.s.Discount("sb.3")
	e.must(err)
	r.Close()
	r = root("sb.4")
	defer r.Close()
	if n := fill(r, "/more", limit); n > 1<<20 {
		e.t.Errorf("wrote %d bytes beside two full snapshots", n)
	}
}

// hold checks that nothing is deleted while somebody holds the store, and that
// it is afterwards.
func hold(e *env) {
	q, err := e.s.NewQuota(0)
	e.must(err)
	if q == 0 {
		e.t.Skip("without quotas it cannot be seen what is deleted")
	}
	e.must(e.s.CreateUpper("sb.0", q))
	fd, err := e.s.MountRoot("sb.0")
	e.must(err)
	r := NewRoot(e.t, fd)
	r.Do(func() error { _, err := Fill(r.Path("/x"), 8<<20); return err })
	r.Close()
	e.must(e.s.Presync())
	used := func() int64 {
		u, err := e.s.QuotaUsage(q)
		e.must(err)
		return u.Bytes
	}
	e.s.Hold()
	e.s.Hold()
	e.must(e.s.Remove("sb.0"))
	for range 3 { // commits, at which the kernel would free it
		e.must(e.s.Presync())
		time.Sleep(50 * time.Millisecond)
	}
	e.s.Release()
	e.must(e.s.Presync())
	if n := used(); n < 8<<20 {
		e.t.Errorf("%d bytes are left of 8 MiB that were removed under a hold", n)
	}
	e.s.Release()
	e.eventually("the bytes are freed", func() bool { return used() < 1<<20 })
}

// stillOpen removes what is in use: it goes on for those who have it open, and
// is in nobody's way.
func stillOpen(e *env) {
	q, err := e.s.NewQuota(0)
	e.must(err)
	content := bytes.Repeat([]byte("sandtree"), 1<<20)
	var roots []Root
	for i := range 8 { // more than are deleted at a time
		id := fmt.Sprintf("sb.%d", i)
		e.must(e.s.CreateUpper(id, q))
		fd, err := e.s.MountRoot(id)
		e.must(err)
		r := NewRoot(e.t, fd)
		e.write(r, "/f", string(content))
		roots = append(roots, r)
	}
	e.must(e.s.Presync())
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	fd, err := e.s.SnapshotFD("cp-1")
	e.must(err)
	f := e.openFile(NewRoot(e.t, fd), "/f", os.O_RDONLY)
	e.must(unix.Close(fd))
	e.must(e.s.Remove("cp-1"))
	for i := range 8 {
		e.must(e.s.Remove(fmt.Sprintf("sb.%d", i)))
	}
	// One that is not in use is freed beside them.
	other, err := e.s.NewQuota(0)
	e.must(err)
	e.must(e.s.CreateUpper("other", other))
	e.must(e.s.Remove("other"))
	e.must(e.s.DropQuota(other))
	if other != 0 {
		e.eventually("another upper is freed", func() bool {
			_, err := e.s.QuotaUsage(other)
			return fault.Is(err, fault.NotFound)
		})
	}
	// Not from the cache.
	e.must(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	if read(f) != string(content) {
		e.t.Error("a file of a removed snapshot changed while it was open")
	}
	e.wantFile(roots[3], "/f", string(content))
	e.write(roots[3], "/g", "still written to")
	e.wantFile(roots[3], "/g", "still written to")
	for _, r := range roots {
		r.Close()
	}
	e.must(f.Close())
	if q != 0 {
		e.eventually("all is freed in the end", func() bool {
			e.must(e.s.Presync()) // or the kernel takes its time
			u, err := e.s.QuotaUsage(q)
			e.must(err)
			return u.Bytes == 0
		})
	}
}

// reopen closes the store under mounted roots, as a killed process does, and
// goes on with a new one.
func reopen(e *env) {
	e.must(e.s.CreateUpper("sb.0", 0))
	fd, err := e.s.MountRoot("sb.0")
	e.must(err)
	r := NewRoot(e.t, fd)
	e.write(r, "/etc/motd", "kept")
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	e.write(r, "/etc/motd", "later")
	e.must(e.s.CreateUpper("sb.9", 0))
	e.must(e.s.Remove("sb.9"))
	r.Close()
	e.stop()
	e.start()
	e.wantFile(e.mount("sb.0"), "/etc/motd", "later")
	e.wantFile(e.clone("cp-1", "sb.1"), "/etc/motd", "kept")
	e.must(e.s.Snapshot("sb.0", "cp-2"))
	got, err := e.s.List()
	e.must(err)
	if len(got) != 4 {
		e.t.Errorf("in the store: %v", got)
	}
}
