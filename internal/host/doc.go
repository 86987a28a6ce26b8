// Package host is the root part of the daemon: it owns what must outlive a
// node or a supervisor, starts them, and cleans up after them.
//
// # Processes
//
// [Serve] runs in the first process. It executes itself again in a mount
// namespace of its own, so that pools and layers are mounted for the daemon
// alone and vanish with its last process, however that ends. Mounts and
// unmounts of the host still come in (MS_SLAVE), so that the daemon does not
// keep a disk busy that is taken out.
//
// From there it starts one node, unprivileged, and at the node's request one
// supervisor per family. Both end with the host. A node that dies is started
// again; the listening socket stays open meanwhile, and the new node asks for
// the families. A supervisor that dies takes its family with it: the host ends
// all processes below the family's cgroup, the supervisor's own stubs
// included, unmounts and deletes the pool, and tells the node.
//
// The host reads nothing that a client or a sandbox wrote: names and digests
// in requests are checked, layers are handed to the kernel unread.
//
// # What a killed host leaves
//
// Everything that has a name on the machine is derived from the state
// directory (package layout), so the next start finds and removes it: cgroups
// with what may still run in them, pool files, mount points, the socket. It
// waits until the last process of the earlier daemon is gone.
package host
