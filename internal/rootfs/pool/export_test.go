package pool

// WriteEmpty lets tests make a btrfs without mkfs.
var WriteEmpty = writeEmpty
