// Package durable keeps checkpoints on disk, in a format that outlives the
// processes, the daemon and the machine that made them. docs/format.md
// specifies it.
//
// # Words
//
//   - A repository is a directory with the checkpoints of one family.
//   - A record is one checkpoint in it: the image of the processes, their
//     memory, the file delta, and sections that are the engine's own.
//   - A chunk is a piece of content, named by its SHA-256. Chunks are shared by
//     all records of a repository, and kept in packs.
//   - A lease keeps what is in a repository from being collected while it is
//     held. Each write and each open record holds one.
//
// # Guarantees
//
// When [Repository.Write] returns without error, the record survives a crash of
// the process and of the machine, and reads back byte for byte. Until then it
// is not listed. Nothing that is read is believed before its checksum was
// compared. Several processes may use one repository at a time: one that is
// killed at any instant leaves nothing that others take for whole, and nothing
// that [Repository.Collect] does not find.
//
// # Incremental writes
//
// A record may be written against a parent in the same repository: the caller
// says which pages changed ([Pages]), and what did not change is taken from the
// parent's record without being read. A record does not need its parent
// afterwards: either may be removed at any time.
//
// All methods may be called at the same time.
package durable
