// Package child starts the host's processes and reaps everything that becomes
// the host's child.
//
// The host is a subreaper (PR_SET_CHILD_SUBREAPER, Linux 3.4): what a dead
// supervisor leaves, its stubs and sandboxes, becomes the host's. So one
// goroutine waits for any child, tells those that were started here their
// status and drops the others'. Nothing else in the process may wait for
// children, and os/exec must not be used in it.
//
// A child is killed when the host is (PR_SET_PDEATHSIG). The kernel takes the
// thread that started it for its parent, so each child has a thread of its own
// that lives as long. The thread also takes the privileges away that the child
// must not have, since some can only be inherited: no_new_privs and the
// capability bounding set.
package child
