"""Reads the clock in a loop, and says when asked how long the longest time
between two readings was since it was asked last, in nanoseconds."""

import select
import sys
import time

now = time.monotonic_ns
longest, last = 0, now()


def read():
    global longest, last
    this = now()
    if this - last > longest:
        longest = this - last
    last = this


while True:
    for _ in range(500):
        read()
    if select.select([0], [], [], 0)[0]:
        word = sys.stdin.readline().strip()
        if not word:
            break
        read()  # it may have stood since the last time
        answer = "%s %d" % (word, longest)
        longest = 0
        print(answer, flush=True)  # it may stand at once
