// Package tracee runs system calls in other processes.
//
// Everything that must happen inside a sandbox is done by such remote system
// calls. They are queued in a [Batch] and run by a loop of a few dozen
// instructions in the target, which stops at the first call that fails. A
// later call may take an earlier one's result as an argument, and a clone may
// be given calls of its own for the child to go on with.
//
// There are two ways to have a batch run:
//
//   - A [Server] is a stub: a tiny static program that consists of the loop
//     and of a wait for the next batch on its control socket. Seeds, zygotes
//     and the PID 1 of every incarnation are stubs. Nothing traces them, so any
//     thread of the supervisor may use them, one at a time.
//   - A [Tracee] is a process stopped by ptrace. It belongs to the OS thread
//     that seized it, which must be locked to its goroutine. Capture and restore
//     use it; the loop is then in a stub that parks, or in a page injected into
//     the program.
//
// The batch itself is written to the target's memory with process_vm_writev(2)
// and its results are read back with process_vm_readv(2). What is read from a
// sandboxed process is hostile input.
//
// In a stub all signals are blocked, since one would end a batch in its middle.
// Stubs are not dumpable: a process inside the sandbox, root there or not,
// must not open their memory.
//
// Lock order: a Server's mutex is taken for the time of one request and no other
// lock is taken while it is held.
package tracee

//go:generate stub/generate.sh
