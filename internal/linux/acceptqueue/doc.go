// Package acceptqueue reads what connections have received that wait in a listening
// socket and that nobody has accepted.
//
// No call of the kernel tells that: data can be read and peeked at by a descriptor
// alone, and such a connection has none. Accepting it would give one, but there is no way back into the
// queue. So the queue is read where it is, in the kernel's memory, by a BPF program
// of a dozen instructions that copies bytes from an address ([Reader]). It changes nothing.
//
// # Where things are
//
// The kernel's types (CONFIG_DEBUG_INFO_BTF) tell where the members of its structures
// are. The way leads from the calling thread's table of descriptors to the listening socket, to its queue, to
// the buffers of each socket in it. What TCP has received stands in pages, of
// which a buffer has the struct page; the constant that leads from there to the
// page's address is found by looking for a page with known content (pages_amd64.go).
//
// # Whom to trust
//
// Nothing is locked: the caller has stopped everybody who could send or accept. A read
// of an address that is none is an error and no fault (copy_from_kernel_nofault), walks are
// bounded, and what has come together is compared with what the kernel says of its length.
package acceptqueue
