// Package supervisor is the process that owns one family: it hosts the engine
// and serves it to the node.
//
// The host starts the process with a connection ([control.FDControl]) and a
// configuration ([control.FDConfig]). Over that connection it hands in the
// sockets of clients: the node's, and the next node's after a restart. All
// clients see the same sandboxes and get all events. The process ends when
// the host's connection does, and takes the incarnations with it; it outlives
// its other clients.
//
// Nothing else runs in it: what would disturb a frozen window belongs to
// another process.
package supervisor
