package sched_test

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/linux/sched"
)

func TestCrewRunsBesideEachOther(t *testing.T) {
	var c sched.Crew
	c.Prepare(2)
	failed := errors.New("failed")
	for range 100 {
		meet := make(chan int)
		first := c.Beside(func() error { meet <- unix.Gettid(); return nil })
		second := c.Beside(func() error { // comes to nothing unless both run at once
			if other := <-meet; other == unix.Gettid() {
				t.Error("two jobs share a thread")
			}
			return failed
		})
		if err := first(); err != nil {
			t.Fatal(err)
		}
		if err := second(); !errors.Is(err, failed) {
			t.Fatalf("the outcome is %v", err)
		}
	}
	c.Close()
	if err := c.Beside(func() error { return failed })(); !errors.Is(err, failed) {
		t.Errorf("the outcome of a closed crew is %v", err)
	}
}

func TestCrewGrowsAndLeavesNothing(t *testing.T) {
	before := descriptors(t)
	var c sched.Crew
	var wg sync.WaitGroup
	for range 40 {
		wg.Go(func() {
			if err := c.Beside(func() error { return nil })(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	c.Close()
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

func TestCrewGivesItsPriorityBack(t *testing.T) {
	needRealtime(t)
	var c sched.Crew
	defer c.Close()
	policy := func() (p uint32) {
		_ = c.Beside(func() error {
			a, e := sched.Get(0)
			if e != 0 {
				return e
			}
			p = a.Policy
			return nil
		})()
		return p
	}
	if p := policy(); p != sched.FIFO {
		t.Errorf("policy %d", p)
	}
	lowered := make(chan uint32, 1)
	_ = c.Beside(func() error { // as long as it takes until the bound is felt
		for {
			if a, e := sched.Get(0); e != 0 || a.Policy == sched.Other {
				lowered <- a.Policy
				return nil
			}
			time.Sleep(time.Millisecond)
		}
	})()
	if p := <-lowered; p != sched.Other {
		t.Errorf("policy %d after the bound", p)
	}
	if p := policy(); p != sched.FIFO {
		t.Errorf("policy %d for the next job", p)
	}
}

func TestUrgently(t *testing.T) {
	needRealtime(t)
	type pair struct{ in, out uint32 }
	got := make(chan pair)
	go func() {
		runtime.LockOSThread() // what it was before, and is afterwards, is this thread's
		var p pair
		p.in = sched.Urgently(func() uint32 {
			a, _ := sched.Get(0)
			return a.Policy
		})
		a, _ := sched.Get(0)
		p.out = a.Policy
		got <- p
	}()
	if p := <-got; p != (pair{sched.FIFO, sched.Other}) {
		t.Errorf("policies in it and afterwards: %+v", p)
	}
}

// Another thread is hastened until that is taken back, or for a bounded time.
func TestHasten(t *testing.T) {
	needRealtime(t)
	tid, end := make(chan int), make(chan bool)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		tid <- unix.Gettid()
		<-end
	}()
	other := <-tid
	defer close(end)
	policy := func() uint32 {
		a, e := sched.Get(other)
		if e != 0 {
			t.Fatal(e)
		}
		return a.Policy
	}
	sched.Urgently(func() bool { // this thread waits for no processor meanwhile
		back := sched.Hasten(other)
		sched.Hasten(other)() // changes nothing
		if p := policy(); p != sched.FIFO {
			t.Errorf("policy %d when it is hastened", p)
		}
		back()
		return true
	})
	if p := policy(); p != sched.Other {
		t.Errorf("policy %d when that was taken back", p)
	}
	defer sched.Hasten(other)()
	for late := time.Now().Add(time.Minute); policy() != sched.Other; time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("it has real-time priority after a minute")
		}
	}
}

// needRealtime skips the test where threads may not have real-time priority.
func needRealtime(t *testing.T) {
	t.Helper()
	refused := make(chan unix.Errno)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		refused <- sched.Realtime(0, true)
	}()
	if e := <-refused; e == unix.EPERM {
		featuretest.SkipIfMissing(t, feature.Missing("real-time priority", e))
	} else if e != 0 {
		t.Fatal(e)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}
