// Package output keeps what sessions print: logs that only grow, filled from
// pipes and terminals so that the death of this process loses no byte.
//
// # No byte in this process's memory alone
//
// A pipe is drained with splice(2): the kernel takes bytes out of the pipe and
// puts them into the log's page cache in one call, which a SIGKILL does not
// tear: bytes that were not written stay in the pipe. Whoever holds another
// descriptor of the pipe (the supervisor) keeps what is in it for the next
// process, which goes on at the log's end.
//
// A terminal's master can be spliced to a pipe alone. It goes through one that
// the supervisor holds too, the terminal's guard, and the next process begins
// with what it finds in it. (A read(2) into a shared mapping of the log would do
// without, but a fatal signal ends a page fault in its middle, and up to 64
// bytes that the terminal gave out already are lost.) The guard is locked while
// bytes are taken from the terminal: a checkpoint holds it while it takes out
// what is unread and puts it back.
//
// # Bounds
//
// While readers follow a log, it is filled no further than [Window] bytes
// ahead of the slowest, so a slow reader stops the command, as a pipe would,
// and loses nothing. While nobody follows, it goes on, and keeps the last
// [Keep] bytes: holes are punched into the file before them. Offsets count from the
// session's start and never change.
//
// A full disk stops the filling until there is room again; the bytes wait in
// the pipe or terminal.
package output
