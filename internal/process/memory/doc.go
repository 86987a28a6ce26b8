// Package memory captures and restores address spaces.
//
// A [Tracker] follows one live process: at each checkpoint it finds the pages
// that were written since the last one and copies them into an [Arena]. Write
// tracking is the kernel's (userfaultfd in asynchronous mode and PAGEMAP_SCAN);
// the order of questions in scan.go is what makes it exact, since mappings come,
// go, move and are replaced between checkpoints.
//
// A [Zygote] is a stub on the host side that holds the address spaces of one
// root process and all its descendants. Restore clones it: the clone leaves what
// is not its own and moves the rest into place, and page tables are shared
// copy on write. One base zygote is brought up to date after each checkpoint,
// and each checkpoint keeps a fork of it. Forks of forks would decay: every one
// links each mapping to all its living ancestors.
//
// Pages that processes share since a fork are captured once and stand in the
// window of one of them, from which the others have them again when they are
// restored; see [Tracker.Borrow] and loans.go.
//
// File mappings of a zygote are of files in a layer, or in a snapshot: never of a
// live overlay, which they would pin.
//
// A Tracker and its Arena belong to the thread that stops the process. Between
// stop and resume nothing here allocates more than the first checkpoint needed.
package memory
