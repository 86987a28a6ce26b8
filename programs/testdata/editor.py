"""vim in a pane of tmux, on terminals of tmux's: names are lines that are typed
into it and not written to a file; a second pane counts."""

import os
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
env = {**os.environ, "TMUX_TMPDIR": where, "TERM": "xterm", "LC_ALL": "C.UTF-8"}


def tmux(*argv):
    p = subprocess.run(["tmux", "-f", "/dev/null", *argv], env=env, capture_output=True, text=True)
    driver.ensure(p.returncode == 0, argv, "ended with", p.returncode, p.stderr)
    return p.stdout


def signalled(*keys):
    """Types keys, then has vim say that it has done all of them."""
    tmux("send-keys", "-t", "one:0.0", *keys)
    tmux("send-keys", "-t", "one:0.0", "Escape", ":silent !tmux wait-for -S typed", "Enter")
    tmux("wait-for", "typed")


tmux("new-session", "-d", "-s", "one", "-x", "80", "-y", "24", "vi -u NONE -n " + where + "/text")
tmux("split-window", "-d", "-t", "one:0.0",
     "i=0; while :; do i=$((i+1)); echo count $i; [ $((i % 10)) != 0 ] || tmux wait-for -S counted; sleep 0.01; done")
count = -1


def mark(name):
    signalled("G", "o" + name)


def check():
    out = where + "/out"
    if os.path.exists(out):
        os.unlink(out)
    signalled(":w " + out, "Enter")
    with open(out) as f:
        names = f.read().split()
    tmux("wait-for", "counted")
    tmux("wait-for", "counted")
    shown = [l for l in tmux("capture-pane", "-p", "-t", "one:0.1").splitlines() if l.startswith("count ")]
    numbers = [int(l.split()[1]) for l in shown]
    driver.ensure(numbers and numbers == list(range(numbers[0], numbers[0] + len(numbers))), "the pane shows", shown)
    return names


driver.serve(mark, check)
