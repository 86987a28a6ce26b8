// Package store keeps images on disk: records, and the EROFS layers they share.
//
// Below the store's directory lie
//
//	layers/<sha256>.erofs  layers, named by the digest of their bytes
//	images/<id>.json       records, each with its image's name
//	tmp/                   what is being written
//	lock                   held shared by every Import, exclusively by GC
//	records.lock           held while records are changed
//
// A record is the only truth about an image: its name stands in it and nowhere
// else, so a crash cannot leave a name without an image. Layers and records
// are written to tmp, synced, renamed into place, and the directory is synced.
// A layer belongs to the records that list it; one that no record lists is an
// orphan, and goes with the next GC. GC runs when the store is opened, after
// a Remove and at the end of an Import, and waits for nobody: while an Import
// holds the lock it does nothing, because layers of an unfinished Import look
// like orphans. The last to finish cleans up.
//
// All of this also holds between processes.
package store
