"""find, du, cp and rm over a tree, over and over: none stops in the middle, and
each sees all of the tree. They compare device and inode numbers of the
directories that they come back to."""

import json
import os
import shutil
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
tree = where + "/tree"
kept = where + "/kept"
os.mkdir(kept)
for i in range(20):
    shutil.copytree(os.path.dirname(json.__file__), f"{tree}/{i % 4}/{i}/deeper")
load = driver.Load()
all = sorted(os.path.join(d, f) for d, ds, fs in os.walk(tree) for f in ds + fs)


def run(*argv):
    p = subprocess.run(argv, capture_output=True, text=True)
    driver.ensure(p.returncode == 0 and not p.stderr, argv, "ended with", p.returncode, p.stderr)
    return sorted(p.stdout.splitlines())


def find():
    driver.ensure(run("find", tree, "-mindepth", "1", "-xdev") == all, "find does not see all")


def du():
    driver.ensure(sorted(line.split("\t")[1] for line in run("du", "-ax", tree)) == [tree, *all], "du does not see all")


def copy():
    run("cp", "-a", tree, where + "/copy")
    run("diff", "-r", tree, where + "/copy")
    run("rm", "-r", where + "/copy")
    driver.ensure(not os.path.exists(where + "/copy"), "rm has left something")


def mark(name):
    with open(f"{kept}/{name}", "x"):
        pass


def check():
    load.more(6)
    return os.listdir(kept)


load.run(find, du, copy)
driver.serve(mark, check)
