// Package sandbox boots, enters and ends incarnations: the living bodies of
// sandboxes.
//
// # Mechanism
//
// A family has one [Seed], a stub of package tracee on the host side, in a
// mount namespace that holds nothing but an empty directory and whole /proc
// and /sys. [Seed.Boot] has it clone a PID 1 into new namespaces of every kind
// and into the incarnation's cgroup. PID 1 is a stub too: no program of the
// image runs until the first [Incarnation.Exec]. It mounts the incarnation's
// file systems and moves into its root by batches of system calls, and goes on
// to serve such batches: commands, terminals, files and signals are all made
// by PID 1, inside.
//
// PID 1 reaps what ends and says so. It dies with its supervisor, whose end of
// the control socket then closes, and the kernel ends its pid namespace with
// it.
//
// # What is trusted
//
// Nothing that is inside. Root there is an unprivileged user of the host's,
// and PID 1's memory is closed to it: stubs are not dumpable. Whoever stops an
// exec's child in its first microseconds can keep PID 1 from serving, so every
// request to it has a time limit, after which the incarnation is killed. Files
// are opened by PID 1, never by this process, and no data is read from what
// could block or act: FIFOs, devices, the kernel's own file systems.
//
// # Locks
//
// Boots of one seed meet in the seed's request lock, and everything in one
// incarnation in its PID 1's. Incarnation.mu guards the table of processes and
// is held for map operations only; the goroutine that takes PID 1's reports
// needs it.
package sandbox
