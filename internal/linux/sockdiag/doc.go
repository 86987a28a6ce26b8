// Package sockdiag asks the kernel about all sockets of a network namespace
// (sock_diag(7)): what no descriptor of a socket tells, such as the other end
// of a unix socket or the connections that wait to be accepted.
package sockdiag
