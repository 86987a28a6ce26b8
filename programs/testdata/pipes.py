"""subprocess: a filter that goes on, a pipeline of many short ones, children
that are waited for, and a child on a terminal."""

import os
import pty
import subprocess

import driver

kept = []
load = driver.Load()
tr = subprocess.Popen(["tr", "a-z", "A-Z"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
awk = subprocess.Popen(["sh", "-c", "while read -r a b; do echo $((a + b)); done"],
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
pid, terminal = pty.fork()
if pid == 0:
    os.execlp("sh", "sh", "-c", "stty -echo; echo set; while read -r a; do echo \"got $a\"; done")
lines = os.fdopen(terminal, "r+b", buffering=0)
buffered = os.fdopen(os.dup(terminal), "rb")
buffered.readline()
count = {"add": 0, "tty": 0}


def add():
    count["add"] += 1
    n = count["add"]
    print(n, 2 * n, file=awk.stdin)
    got = awk.stdout.readline()
    driver.ensure(got == f"{3 * n}\n", "the shell added", n, "and", 2 * n, "to", got)


def short():
    out = subprocess.run("seq 1000 | sort -rn | head -1; exit 3", shell=True, capture_output=True, text=True)
    driver.ensure((out.returncode, out.stdout) == (3, "1000\n"), "a pipeline ended with", out)


def tty():
    count["tty"] += 1
    lines.write(b"%d\n" % count["tty"])
    got = buffered.readline()
    driver.ensure(got == b"got %d\r\n" % count["tty"], "the terminal said", got)


def check():
    load.more(20)
    driver.ensure(tr.poll() is None, "tr has ended")
    return kept


load.run(add, short, tty)
driver.serve(kept.append, check)
