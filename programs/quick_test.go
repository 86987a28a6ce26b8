package programs_test

// quick are the programs that need nothing but a shell, python3 and the usual
// tools: `make test` runs them. The comment of each driver says what it checks.
var quick = []program{
	{name: "bash with jobs", argv: []string{"bash", "jobs.sh"}},
	{name: "python threads", argv: []string{"python3", "threads.py"}},
	{name: "python asyncio", argv: []string{"python3", "aio.py"}},
	{name: "python multiprocessing", argv: []string{"python3", "processes.py"}},
	{name: "python subprocess", argv: []string{"python3", "pipes.py"}},
	{name: "sqlite WAL", argv: []string{"python3", "wal.py"}},
	{name: "walks", argv: []string{"python3", "walk.py"}},
	{name: "sqlite connections", argv: []string{"python3", "reopen.py"}, needs: "device numbers"},
	{name: "find, du and rm", argv: []string{"python3", "find.py"}, needs: "device numbers"},
	{name: "file locks", argv: []string{"python3", "filelocks.py"}},
	{name: "test suite", argv: []string{"python3", "suite.py"}},
	{name: "sleepers", argv: []string{"python3", "sleepers.py"}},
	{name: "go http server", argv: []string{"./httpload"}, build: "programs/httpload"},
}
