// Package cgroup limits, freezes, kills and measures the process trees of
// sandboxes, on machines with cgroup v2 alone, with v1 controllers beside a
// bare v2 tree (hybrid), and anything between.
//
// # Mechanism
//
// Version 2 is always used, as it alone has cgroup.freeze (5.2),
// cgroup.kill (5.14), CLONE_INTO_CGROUP (5.7) and change notification. It has
// these files even where all controllers are bound to v1. [Detect] finds, per
// controller that we need, the hierarchy that has it. A [Parent] is one
// directory of the same relative path in each hierarchy used, and a [Group]
// one more below it that holds the processes of one incarnation.
//
// A process comes into the v2 part by CLONE_INTO_CGROUP with [Group.FD]; it
// costs nothing. It must be put into the v1 parts by [Group.Add], and does so
// by inheritance when its parent is in them already. Do it before the process
// unshares its cgroup namespace, or the namespace is rooted elsewhere.
//
// # The cost of moving
//
// A write to cgroup.procs takes the write side of a lock that every fork and
// exit takes for reading; by default the kernel waits for an RCU grace period
// to get it, 8 to 14 ms when moves are rare. [FavorDynamicMoves] turns that
// off.
//
// # What is not limited
//
// Bandwidth of disks is not: the v1 controller does not see buffered writes,
// and v2 counts them to the loop device of the pool. Devices are closed by a
// BPF program on v2 in every layout, see [Group.RestrictDevices].
//
// # What stays with the host
//
// Directories outlive the process that made them. After a crash the host
// opens the same parent again and calls [Parent.Remove], which kills what is
// left in it and removes it in every hierarchy.
//
// Documentation of the files: Documentation/admin-guide/cgroup-v2.rst and
// cgroup-v1/*.rst of the kernel.
package cgroup

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// Controller is a resource controller's name, as in /proc/cgroups.
type Controller string

// The controllers that limits need. CPU time used and pressure are read from
// v2, which counts them without a controller.
const (
	Memory Controller = "memory"
	CPU    Controller = "cpu"
	PIDs   Controller = "pids"
)

var controllers = []Controller{Memory, CPU, PIDs}

// gone reports that a directory or file vanished: the group was removed.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}
