// Package engine couples files and processes: checkpoint, rollback and fork of
// whole sandboxes.
//
// An [Engine] is one family's. What its sandboxes share is in the family: the
// seed that bodies are booted from, the store of their files, the walls. A
// sandbox has a tree of checkpoints and at most one live body, an incarnation
// with all that belongs to it on this side.
//
// # A checkpoint
//
//	presync · stop · capture ∥ snapshot · resume · zygotes · commit
//
// From stop to resume the processes stand. If any step fails, the live tree
// goes on as if nothing had happened, and nothing of the checkpoint is left.
// The zygotes are brought up to date while the tree runs again: one base for
// each lineage of processes follows the live tree, and the checkpoint keeps a
// fork of it.
//
// # Rollback and fork
//
// Both make a new body from a checkpoint: a clone of the snapshot, booted, the
// processes restored from the zygotes and standing. A rollback then lets it go
// in place of the old body, which ends behind it; a fork gives it to a new
// sandbox. The old body is untouched until the new one stands complete.
//
// # Threads and locks
//
// All ptrace of one body is done by one OS thread, the body's own, which
// exists from its first checkpoint or restore on. A box's lock is held for
// reading by what starts or asks something inside, and for writing by what
// stops or replaces the body; no lock of another box is taken meanwhile.
package engine
