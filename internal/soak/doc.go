// Package soak holds a test that goes through thousands of random operations
// over many sandboxes of a real daemon, whose programs keep checksums of all
// that they hold, with kills of clients, of the daemon and of its parts in between,
// and orderly stops. A sandbox may come back where a model says that it may, nothing else
// may differ, and in the end nothing may be left.
//
//	go test ./internal/soak                                     a short one
//	make soak                                                   10,000 operations over 20 sandboxes
//	go test ./internal/soak -run Soak -args -soak 500 -soakseed N    one that failed, again
//
// Operations run in several workers at once, each with sandboxes of its own, so
// a seed gives the same operations, but not the same order between workers.
package soak
