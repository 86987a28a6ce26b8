// Package upper keeps the file delta of a checkpoint: the upper directory of an
// overlay, as it is on disk. Whiteouts, opaque directories and redirects are
// devices and attributes there like any others, so it needs to know nothing of
// overlays.
//
// A [Manifest] lists every name with the attributes of its inode; contents are
// chunks. The list is cut into segments, which are chunks themselves, at places
// that depend on the names there, so that a change leaves most segments as they
// are.
//
// # Files that did not change
//
// are not looked at, if the snapshot and the parent's are of one btrfs. All that
// a file is stands in the items of its inode: the inode itself, attributes,
// extents, and links as an extent. Equal items, byte by byte, are an equal file.
// Extents are never overwritten while a snapshot holds them, not by mmap and not
// in files without copy-on-write either: the first write after a snapshot goes to
// a new extent, and its item has the transaction that made it. So a file of which
// something else changed, as the time of access, has the same content if the items
// of its extents are equal, and is not read. Reading all items of a subvolume is a
// few ioctls. On other file systems everything is read.
package upper
