package fault

// Codes are one kind's codes in the protocols that carry it.
type Codes struct {
	// Exit is the exit code of a command that failed so. Commands that run a
	// program of the user's (run, exec) pass on that program's own code
	// instead; 125 to 127 mean the same as they do for other runtimes.
	Exit int
	// HTTP is the status of a plain HTTP reply.
	HTTP int
	// RPC is the code of the Connect protocol.
	RPC string
}

// table maps each kind to its codes; it is the only such mapping.
var table = map[Kind]Codes{
	Internal:     {Exit: 1, HTTP: 500, RPC: "internal"},
	Invalid:      {Exit: 2, HTTP: 400, RPC: "invalid_argument"},
	NotFound:     {Exit: 3, HTTP: 404, RPC: "not_found"},
	Exists:       {Exit: 4, HTTP: 409, RPC: "already_exists"},
	Conflict:     {Exit: 5, HTTP: 409, RPC: "failed_precondition"},
	Exhausted:    {Exit: 6, HTTP: 507, RPC: "resource_exhausted"},
	Unsupported:  {Exit: 7, HTTP: 501, RPC: "unimplemented"},
	Uncapturable: {Exit: 8, HTTP: 422, RPC: "failed_precondition"},
	Lost:         {Exit: 9, HTTP: 410, RPC: "data_loss"},
	Unavailable:  {Exit: 10, HTTP: 503, RPC: "unavailable"},
	Canceled:     {Exit: 11, HTTP: 499, RPC: "canceled"},
	Deadline:     {Exit: 124, HTTP: 504, RPC: "deadline_exceeded"},
	Permission:   {Exit: 12, HTTP: 403, RPC: "permission_denied"},
}

// Code returns the codes of a kind; an unknown kind has those of [Internal].
func Code(k Kind) Codes {
	if c, ok := table[k]; ok {
		return c
	}
	return table[Internal]
}

// Kinds lists all kinds, in no order.
func Kinds() []Kind {
	ks := make([]Kind, 0, len(table))
	for k := range table {
		ks = append(ks, k)
	}
	return ks
}
