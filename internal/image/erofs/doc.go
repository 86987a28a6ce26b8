// Package erofs makes read-only file trees out of directories and tar
// streams, and writes them as uncompressed EROFS images.
//
// # The tree
//
// A [Tree] is a root of [Node]s in memory; a name that occurs twice for one
// node is a hard link. File contents are not in memory: a node knows how to
// open its content, which lies in the directory the tree was made from or in
// a [Spool]. [Scan] makes a tree from a directory, [Layers] from a sequence
// of tar streams under the rules of OCI image layers.
//
// # The image
//
// [Write] goes through the tree once, in the order of names, so equal trees
// give equal bytes. It appends to the image: content goes to data blocks,
// inodes to metadata segments that are reserved between them and grow with
// the image. A directory's inode is reserved before its entries are written
// and filled in last, since it names theirs. The order on disk is
//
//	block 0      superblock at byte 1024, then the root's inode
//	then         metadata segments and data blocks as they came
//
// with meta_blkaddr 0, so the number of an inode is its byte offset divided by
// 32. Every inode has the extended form, which alone has an mtime. Small
// tails of files lie behind their inode; files with long runs of zeros are
// chunk-based and leave the zeros out. The format is that of the kernel's
// Documentation/filesystems/erofs.rst and fs/erofs/erofs_fs.h; chunks came
// with Linux 5.15, mounting from a file without a loop device with 6.12.
package erofs
