// Package descriptor captures the open files of a stopped process tree and
// opens them again in another incarnation.
//
// # Capture
//
// A [Capturer] takes a duplicate of every descriptor with pidfd_getfd(2) and
// works on those from outside. A duplicate shares the live open file
// description, so nothing is read, sought or set through it that the owner
// could notice: content is read through openings of the capturer's own. It
// has two phases. The first finds out what every description is and refuses
// what no checkpoint can keep, by process and descriptor, before anything is
// touched. The second reads content. Unread data of pipes is copied with
// tee(2), which leaves it where it is; that of terminals has to be taken out
// and is put back at once, last of all. Sockets are looked through by peeking,
// what they carry becomes descriptions like the others, and what sock_diag(7)
// lists tells how they are connected. All duplicates are closed before
// Capture returns, since one held longer would hide an end of file.
//
// # Restore
//
// [Open] makes every description in this process: files are looked up below
// the new root with openat2(2), so that no link inside leads out of it; pipes
// are made and filled; terminals are opened until they have the numbers they
// had. [Opened.MakeSockets] has processes make the sockets, which it then
// binds, connects and fills through duplicates; a socket belongs for good to the
// network namespace, cgroup and credentials of who made it. [Opened.Install]
// has one process take its descriptors from its control socket to their old
// numbers. [Opened.Complete] does what only a process itself can do once the
// others exist: opening files of /proc with its own rights, /dev/tty, and
// filling epoll interest lists, whose entries carry descriptor numbers of the
// process that added them.
//
// # Kinds
//
// Each kind of file is one implementation of the interface kind in a file of
// its own, listed in kinds. What none of them claims is refused.
package descriptor
