"""git in the middle of commits of hundreds of files, and a second repository of
which each commit is a name: both are whole, and no commit is lost."""

import os
import random
import subprocess
import tempfile
import threading

import driver

where = tempfile.mkdtemp()
env = {**os.environ, "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b", "HOME": where}
load = driver.Load()
n = 0
steady = threading.Lock()  # fsck complains of a commit that is made meanwhile


def git(repo, *argv):
    p = subprocess.run(["git", "-C", f"{where}/{repo}", *argv], env=env, capture_output=True, text=True)
    driver.ensure(p.returncode == 0, argv, "ended with", p.returncode, p.stderr)
    return p.stdout


for repo in "work", "names":
    os.mkdir(f"{where}/{repo}")
    git(repo, "init", "-q", "-b", "main")
    # Behind a commit's back it would pack what fsck is about to read.
    git(repo, "config", "gc.autoDetach", "false")


def commit():
    with steady:
        commit_steadily()


def commit_steadily():
    global n
    n += 1
    for i in range(200):
        os.makedirs(f"{where}/work/{i % 10}", exist_ok=True)
        with open(f"{where}/work/{i % 10}/{i}", "w") as f:
            f.write(f"{n}\n{random.random()}\n" * 20)
    git("work", "add", "-A")
    git("work", "commit", "-q", "-m", f"number {n}")
    driver.ensure(git("work", "status", "--porcelain") == "", "files were changed")
    driver.ensure(git("work", "rev-list", "--count", "HEAD") == f"{n}\n", "not", n, "commits")


def check():
    load.more(1)
    with steady:
        git("work", "fsck", "--full")
        git("names", "fsck", "--full")
    return git("names", "log", "--format=%s").split()


def mark(name):
    git("names", "commit", "-q", "--allow-empty", "-m", name)


mark("first-of-all")
load.run(commit)
driver.serve(mark, lambda: [x for x in check() if x != "first-of-all"])
