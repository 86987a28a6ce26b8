// Package control holds the verbs of a supervisor's socket: what the node
// asks of the process that owns one family's incarnations, and what that
// process reports by itself.
//
// Requests and replies are JSON; descriptors travel beside them in the order
// that each type's comment states. Times are nanoseconds where a field's name
// ends in "_ns". All ids are chosen by the caller, so that a request that was
// interrupted can be asked about by name.
package control

// Verbs of a supervisor.
const (
	VerbCreate           = "create"            // CreateRequest → Sandbox
	VerbRemove           = "remove"            // SandboxRequest → nothing
	VerbHalt             = "halt"              // SandboxRequest: its processes end, its checkpoints stay; nothing
	VerbList             = "list"              // nothing → ListReply
	VerbExec             = "exec"              // ExecRequest → Session, with its descriptors
	VerbSignal           = "signal"            // SignalRequest → nothing
	VerbResize           = "resize"            // ResizeRequest → nothing
	VerbCloseStdin       = "close_stdin"       // SessionRequest → nothing
	VerbAdopt            = "adopt"             // SessionRequest → Session, with duplicates of its descriptors
	VerbForget           = "forget"            // SessionRequest: an ended session's status was recorded; nothing
	VerbCheckpoint       = "checkpoint"        // CheckpointRequest → Checkpoint
	VerbCheckpointRemove = "checkpoint_remove" // CheckpointRef → nothing
	VerbTree             = "tree"              // SandboxRequest → TreeReply
	VerbRollback         = "rollback"          // CheckpointRef → Rebirth, with descriptors of all its sessions
	VerbStandby          = "standby"           // StandbyRequest → nothing
	VerbFork             = "fork"              // ForkRequest → ForkReply, with descriptors of sessions
	VerbDiff             = "diff"              // DiffRequest → DiffReply
	VerbStats            = "stats"             // SandboxRequest → Stats
	VerbKept             = "kept"              // CheckpointRef → Checkpoint, when it is durable or cannot be
	VerbFinished         = "finished"          // CheckpointRef → Checkpoint, when its memory is ready
	VerbSuspend          = "suspend"           // SuspendRequest → Checkpoint
	VerbRecover          = "recover"           // RecoverRequest → RecoverReply
	VerbVerify           = "verify"            // VerifyRequest → VerifyReply
	VerbExport           = "export"            // ExportRequest, with a file that is written → nothing
	VerbImport           = "import"            // ImportRequest, with a file that is read → TreeReply
	VerbFile             = "file"              // FileRequest → FileReply, for open and create with one descriptor
)

// Events that a supervisor sends by itself.
const (
	EventSessionEnded     = "session_ended"     // Session
	EventSandboxEnded     = "sandbox_ended"     // SandboxEnded
	EventCheckpointFailed = "checkpoint_failed" // CheckpointFailed
	EventCheckpointKept   = "checkpoint_kept"   // Checkpoint, whose durability has changed
)
