package bench

import (
	"context"
	"time"
)

// figure is one line of the table.
type figure struct {
	name, about string
	floorAbout  string
	// floor takes the floor once; nil if the measurement brings it.
	floor  func(f *floors) (time.Duration, error)
	memory bool // samples are bytes
}

// samples of one figure. Floor is set where the floor is taken beside, stages
// where the daemon tells them.
type samples struct {
	values, floor []time.Duration
	stages        []map[string]int64
}

// measurement takes one or more figures in one go; samples come in the
// figures' order.
type measurement struct {
	figures []figure
	take    func(ctx context.Context, r *runner) ([]samples, error)
	busy    bool // also taken beside busy neighbours
}

const (
	aboutCapture = "process_vm_readv of the dirty bytes, snapshot of the dirty files"
	aboutRestore = "fork of the heap, snapshot of the files"
)

// measurements in the order of the table. They are those of the design that
// exist.
var measurements = []measurement{
	{figures: []figure{
		{name: "create", about: "create a sandbox and run true in it", floorAbout: "clone into new namespaces, exec true", floor: (*floors).namespaces},
	}, take: takeCreate},
	{figures: []figure{
		{name: "exec", about: "run true in a sandbox", floorAbout: "fork and exec true", floor: (*floors).exec},
	}, take: takeExec},
	{figures: []figure{
		{name: "checkpoint_frozen", about: "time the processes stand still for a checkpoint", floorAbout: aboutCapture, floor: (*floors).capture},
		{name: "checkpoint", about: "the whole call of a checkpoint", floorAbout: aboutCapture, floor: (*floors).capture},
	}, take: takeCheckpoint, busy: true},
	{figures: []figure{
		{name: "frozen_seen_inside", about: "the longest time between two readings of the clock inside, around a checkpoint", floorAbout: "what those checkpoints reported as frozen"},
		{name: "unfrozen_seen_inside", about: "the same over as long a time without a checkpoint", floorAbout: "none, so the same", floor: nil},
	}, take: takeSeen, busy: true},
	{figures: []figure{
		{name: "rollback", about: "roll back, to the first reply of the process", floorAbout: aboutRestore, floor: (*floors).restore},
	}, take: takeRollback, busy: true},
	{figures: []figure{
		{name: "rollback_standby", about: "the same after 200 ms of work, when a standby is ready", floorAbout: aboutRestore, floor: (*floors).restore},
		{name: "rollback_standby_daemon", about: "what the daemon took of it", floorAbout: aboutRestore, floor: (*floors).restore},
	}, take: takeRollbackStandby, busy: true},
	{figures: []figure{
		{name: "fork", about: "fork, to the first reply of the copy", floorAbout: aboutRestore, floor: (*floors).restore},
	}, take: takeFork, busy: true},
	{figures: []figure{
		{name: "fork_standby", about: "the same after 200 ms of work, when a standby is ready", floorAbout: aboutRestore, floor: (*floors).restore},
	}, take: takeForkStandby, busy: true},
	{figures: []figure{
		{name: "fork_100", about: "fork 100 copies in one call", floorAbout: "100 times: " + aboutRestore, floor: (*floors).restore100},
		{name: "fork_100_replied", about: "the same, until each copy has replied", floorAbout: "the same", floor: (*floors).restore100},
	}, take: takeFork100},
	{figures: []figure{
		{name: "memory_idle", about: "memory of the machine that an idle sandbox takes", floorAbout: "a sleep in new namespaces", memory: true},
	}, take: takeMemoryIdle},
	{figures: []figure{
		{name: "workload", about: "a program that makes files, processes and memory, inside", floorAbout: "the same program outside, on the disk of the state directory"},
	}, take: takeWorkload},
}
