package programs_test

// packaged are the programs that need packages, which scripts/programs-rootfs
// lists: `make test-programs` runs them. The comment of each driver says what it
// checks; what is asked after each step is asked by a process that comes anew.
var packaged = []program{
	{name: "zsh with jobs", argv: []string{"zsh", "-f", "jobs.zsh"}},
	{name: "pytest", argv: []string{"python3", "pytests.py"}},
	{name: "apt-get", argv: []string{"python3", "install.py"}},
	{name: "git", argv: []string{"python3", "repository.py"}},
	{name: "make", argv: []string{"python3", "build.py"}},
	{name: "redis", argv: []string{"python3", "redis.py"}, after: []string{"redis-cli", "ping"}},
	{name: "nginx", argv: []string{"python3", "nginx.py"}, load: true},
	{name: "postgres", argv: []string{"python3", "postgres.py"}, load: true},
	{name: "node", argv: []string{"nodejs", "node.js"}, load: true},
	{name: "tmux and vim", argv: []string{"python3", "editor.py"}},
}
