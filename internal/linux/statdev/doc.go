// Package statdev shows programs other device numbers than their files have:
// what stat(2) and its kin say in st_dev.
//
// The kernel numbers each file system without a device of its own (overlay,
// tmpfs, proc) when it is mounted, and nobody can choose the number. A sandbox
// that is restored has new ones, under programs that remember the old:
// SQLite finds its locks by device and inode, fts(3) tells by them whether it is
// still where it was, ld.so whether it has loaded a library already.
//
// So [Attach] puts small programs behind the kernel's stat calls (BPF, fexit).
// When a call has succeeded, they look its device up in a map, and where it is
// there, they write the number to show over it in the caller's memory.
//
// # Whose calls
//
// The map's keys are a device and a range of 65536 user ids, which is a
// family's alone. So programs with other users (this daemon's own above all) see what
// is true and pay little; and a family can never change what another one sees,
// whatever its supervisor has left behind when it was killed. A key that outlives its mount
// harms nobody: whatever is mounted in a sandbox is claimed before
// anything runs there, which puts the new number in the old one's place.
//
// # Who owns what
//
// Map and programs live as long as somebody holds their descriptors: the host,
// which makes them, and each supervisor, which is given them. There is one set
// for each daemon, however many sandboxes it has. A [Table] is a family's part of
// the map.
//
// # What it cannot do
//
// The program writes without faulting. Where the page that the kernel has just
// written is gone a moment later (another thread forks in that very instant, or the
// page is swapped out), the true number stays. Two copies of each program stand behind
// each other, since the kernel passes over a program that it has preempted on the same
// processor in its middle.
//
// /proc (maps, mountinfo, fdinfo) goes on to show true numbers.
package statdev
