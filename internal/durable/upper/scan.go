package upper

// inode is what is known of an inode from the file system's own tables.
type inode struct {
	generation uint64
	extents    digest
}

// digest sums up extent items.
type digest struct{ s [16]byte }

func (d digest) sum() [16]byte { return d.s }

// scan reads the inodes of the file system that a directory is in, if it is one
// that tells.
func scan(dir int) (Source, map[uint64]inode, error) { return Source{}, nil, nil }
