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
// A terminal's master cannot be spliced to a file (EINVAL; only to a pipe,
// whose contents would die with this process). It is read(2) into a shared
// mapping of the log: the bytes land in the log's page cache by the call that
// takes them from the terminal. For that the file is longer than the log, and
// its end is zeros; after a kill the log ends at the last byte that is not zero.
// Only NUL bytes at the very end of a terminal's output can be lost so. Each read
// is made under a lock, the terminal's guard, which a checkpoint holds while it
// takes out what is unread and puts it back.
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
