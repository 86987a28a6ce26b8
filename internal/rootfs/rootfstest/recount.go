package rootfstest

import "github.com/sandtree/sandtree/internal/fault"

// recount moves a mounted upper from one quota to another: what it writes from
// then on, and the snapshots taken of it, count and are bounded there.
func recount(e *env) {
	const limit = 24 << 20
	first, err := e.s.NewQuota(0)
	e.must(err)
	second, err := e.s.NewQuota(limit)
	if fault.Is(err, fault.Unsupported) {
		e.t.Skip(err)
	}
	e.must(err)
	e.must(e.s.CreateUpper("sb.0", first))
	fd, err := e.s.MountRoot("sb.0")
	e.must(err)
	r := NewRoot(e.t, fd)
	fill := func(path string, n int64) (got int64) {
		e.t.Helper()
		r.Do(func() (err error) { got, err = Fill(r.Path(path), n); return err })
		return got
	}
	if n := fill("/one", 8<<20); n != 8<<20 {
		e.t.Fatalf("wrote %d of 8 MiB", n)
	}
	e.must(e.s.Presync()) // what is not written back is not counted yet
	e.must(e.s.Recount("sb.0", second))
	e.must(e.s.Recount("sb.0", second)) // again changes nothing
	if u, err := e.s.QuotaUsage(first); err != nil || u.Bytes != 0 {
		e.t.Errorf("the first quota still counts %+v, %v", u, err)
	}
	if u, err := e.s.QuotaUsage(second); err != nil || u.Bytes < 8<<20 || u.Bytes > 9<<20 {
		e.t.Errorf("the second quota counts %+v, %v", u, err)
	}
	if n := fill("/two", 32<<20); n < 8<<20 || n > limit-8<<20 {
		e.t.Errorf("wrote %d bytes beside 8 MiB under a limit of 24", n)
	}
	// A snapshot counts where its upper does: the files stay counted when the
	// upper lets go of them.
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	r.Close()
	e.must(e.s.Remove("sb.0"))
	e.must(e.s.DropQuota(first))
	e.eventually("the first quota is gone", func() bool {
		_, err := e.s.QuotaUsage(first)
		return fault.Is(err, fault.NotFound)
	})
	if u, err := e.s.QuotaUsage(second); err != nil || u.Bytes < 16<<20 {
		e.t.Errorf("after its upper was removed the second quota counts %+v, %v", u, err)
	}
	if err := e.s.Recount("sb.0", first); !fault.Is(err, fault.NotFound) {
		e.t.Errorf("recount of a removed upper: %v", err)
	}
}
