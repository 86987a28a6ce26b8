// Package inotify takes unread events out of inotify instances and puts them back.
//
// The kernel has no call for either without a trace: an event can only be read away,
// and only what happens to a watched file makes one (inotify(7)). So [Scratch.Put] makes
// the same things happen again, in the same order, to files of a file system that nobody
// else sees, while watches on these have the numbers of the events. What remains is to
// take these watches away again, since each one that is removed leaves an event
// (IN_IGNORED) at the end of the queue. Two properties of the kernel's queue
// (fs/notify/notification.c, unchanged since Linux 2.6) give the way:
//
//   - In a full queue, an event comes to nothing if the one that tells of that
//     (IN_Q_OVERFLOW) is in the queue already, wherever it stands there.
//   - Reading takes events from the front, and as many as the reader has room for.
//
// So the queue is filled with events that nobody needs until it overflows, as many are
// read as are to be put back, those are made, the watches are removed in silence, and the
// rest of the filling is read. It takes some milliseconds for a queue of the usual size
// (fs.inotify.max_queued_events, 16384).
//
// Whoever waits for the instance may wake up meanwhile, and it must not be read by anybody else:
// its users are to be stopped.
package inotify
