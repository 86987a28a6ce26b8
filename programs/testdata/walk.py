"""A tree that is copied, read and removed, over and over, in the middle of the
walk: the copy has the content of the tree, and nothing is left of it.

The walks are Python's, and work where device numbers change, too. find.py has
those of find, du and rm."""

import hashlib
import json
import os
import shutil
import tempfile

import driver

where = tempfile.mkdtemp()
tree = os.path.dirname(json.__file__)
kept = where + "/kept"
os.mkdir(kept)
load = driver.Load()


def content(top):
    h = hashlib.sha256()
    for dir, dirs, files in os.walk(top):
        dirs.sort()
        for name in sorted(files):
            with open(os.path.join(dir, name), "rb") as f:
                h.update(f"{os.path.relpath(dir, top)}/{name}\0".encode() + f.read())
    return h.hexdigest()


def walk():
    copy = where + "/copy"
    os.mkdir(copy)
    for i in range(10):
        shutil.copytree(tree, f"{copy}/{i}")
    for i in range(10):
        driver.ensure(content(f"{copy}/{i}") == want, "the copy differs from the tree")
    for dir, dirs, files in os.walk(copy, topdown=False):
        for name in files:
            os.unlink(os.path.join(dir, name))
        for name in dirs:
            os.rmdir(os.path.join(dir, name))
    os.rmdir(copy)
    driver.ensure(not os.path.exists(copy), "it is still there")


def mark(name):
    with open(f"{kept}/{name}", "x"):
        pass


def check():
    load.more(2)
    return os.listdir(kept)


want = content(tree)
load.run(walk)
driver.serve(mark, check)
