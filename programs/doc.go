// Package programs proves on real programs that they survive checkpoint,
// rollback and fork. Its tests run the daemon and speak to it as any client
// does.
//
// A case is a driver, which runs in a sandbox, starts a program there and puts
// it under load. The test asks the driver, over its standard streams, to let
// the program keep a name, and to look whether the program is whole, has gone
// on, and which names it keeps. The names are how the test tells one state from
// another: after a rollback the program keeps those that it kept at the
// checkpoint and no later one, and each copy those that were given to it. All
// waiting is for replies.
//
// Command try, below it, does the same for any command, without knowing what the
// command keeps: it compares what the kernel says of the processes.
package programs
