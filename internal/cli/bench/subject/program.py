"""The program that bench checkpoints: it holds a heap, changes part of it and
some files when told so, and answers each word.

argv: bytes of heap, bytes changed a turn, files changed a turn, "dense" or
"scattered", files made at the start, processes, threads.
"""

import os
import sys
import threading

HEAP, DIRTY, FILES, PATTERN, UPPER, PROCESSES, THREADS = (
    v if i == 3 else int(v) for i, v in enumerate(sys.argv[1:])
)
PAGE = 4096
PIECE = 512 << 20  # a mapping of more than 4 GiB would not be tracked
AT = "/tmp/bench"

os.makedirs(AT + "/many", exist_ok=True)
for i in range(UPPER):
    with open("%s/many/%d" % (AT, i), "wb") as f:
        f.write(b"%d\n" % i)

heap = []
for at in range(0, HEAP, PIECE):
    piece = bytearray(min(PIECE, HEAP - at))
    piece[::PAGE] = b"\1" * len(range(0, len(piece), PAGE))
    heap.append(piece)
pages = HEAP // PAGE
count = min(DIRTY // PAGE, pages)
stride = max(pages // max(count, 1), 1) if PATTERN == "scattered" else 1


def dirty(turn):
    """Changes one byte in each of count pages, side by side or far apart."""
    start = (turn if PATTERN == "scattered" else turn * count) % pages
    value = turn % 256
    for n in range(count):
        at = (start + n * stride) % pages * PAGE
        heap[at // PIECE][at % PIECE] = value
    for i in range(FILES):
        with open("%s/%d" % (AT, i), "wb") as f:
            f.write(os.urandom(PAGE))


for _ in range(PROCESSES - 1):
    if os.fork() == 0:
        while True:
            threading.Event().wait()
for _ in range(THREADS - 1):
    threading.Thread(target=threading.Event().wait, daemon=True).start()

turn = 0
while word := sys.stdin.readline().strip():
    if word.startswith("dirty"):
        turn += 1
        dirty(turn)
    print(word, flush=True)
