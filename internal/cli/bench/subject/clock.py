"""Reads the clock in a loop, and says when asked how long the longest time
between two readings was since it was asked last, in nanoseconds."""

import select
import sys
import time

now = time.monotonic_ns
longest, last = 0, now()
while True:
    for _ in range(500):
        this = now()
        if this - last > longest:
            longest = this - last
        last = this
    if select.select([0], [], [], 0)[0]:
        word = sys.stdin.readline().strip()
        if not word:
            break
        print(word, longest, flush=True)
        longest, last = 0, now()
