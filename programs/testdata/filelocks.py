"""Processes that count in a file which all map, under POSIX locks of its bytes:
one waits for the lock, others ask for it until they have it. At no time do two
have it, and no count is lost."""

import fcntl
import mmap
import multiprocessing as mp
import os
import struct
import tempfile

import driver

WORKERS = 3
SIZE = 4096
kept = []


def counter(at):
    return struct.unpack_from("<Q", shared, 8 * at)[0]


def add(at):
    struct.pack_into("<Q", shared, 8 * at, counter(at) + 1)


def lock(fd, wait):
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 120)
            return
        except BlockingIOError:
            pass


def work(path, me):
    global shared
    fd = os.open(path, os.O_RDWR)
    shared = mmap.mmap(fd, SIZE)
    mine = 0
    while True:
        lock(fd, me == 0)
        owner = counter(100)
        if owner:
            struct.pack_into("<Q", shared, 8 * 101, owner)
        struct.pack_into("<Q", shared, 8 * 100, me + 1)
        add(99)
        mine += 1
        for _ in range(50):
            pass
        add(me)
        if counter(me) != mine:
            struct.pack_into("<Q", shared, 8 * 102, me + 1)
        struct.pack_into("<Q", shared, 8 * 100, 0)
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, 120)


if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "counts")
    with open(path, "wb") as f:
        f.truncate(SIZE)
    for i in range(WORKERS):
        mp.get_context("spawn").Process(target=work, args=(path, i), daemon=True).start()
    fd = os.open(path, os.O_RDWR)
    shared = mmap.mmap(fd, SIZE)

    def check():
        goals = [counter(i) + 10 for i in range(WORKERS)]
        while any(counter(i) < g for i, g in enumerate(goals)):
            driver.ensure(not counter(101), "two processes had the lock, one of them", counter(101))
            driver.ensure(not counter(102), "counts of", counter(102), "are lost")
        lock(fd, True)
        try:
            got = [counter(i) for i in range(WORKERS)], counter(99)
            driver.ensure(sum(got[0]) == got[1], "parts and total are", got)
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, 120)
        return kept

    driver.serve(kept.append, check)
