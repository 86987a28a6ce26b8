// Package process captures and restores trees of processes.
//
// A [Live] follows the processes of one incarnation, all but its PID 1. At a
// checkpoint it stops every thread, reads what there is to know, and lets them
// go on; nothing it does can be felt by them but the time they stood. [Restore]
// makes the captured tree anew inside an incarnation that has no processes yet:
// the same numbers, parents, sessions, memory, descriptors.
//
// Capture, in order (all threads stopped from the second step on):
//
//  1. stop: seize and interrupt every thread of the cgroup, again until no new
//     one is found;
//  2. read from outside: registers and signals by ptrace, mappings, the state of
//     the tree from the sandbox's own /proc, which speaks in its numbers;
//  3. refuse what cannot be captured, before anything is touched;
//  4. descriptors (package descriptor); from here on no file is looked at, so that
//     a snapshot of them can be taken beside;
//  5. read from inside: batches run by all threads beside each other, for
//     handlers, credentials and what else only the thread itself can ask;
//  6. memory (package memory);
//  7. resume.
//
// All ptrace of one incarnation is done by one OS thread, to which the caller
// has locked its goroutine. Everything that is read from a stopped process is
// hostile input.
package process
