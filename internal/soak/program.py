"""The program of the soak: it keeps checksums of all that it holds, in memory,
in files, in an open file, in a thread and in a child process, and says
whether all is whole.

A line is a word and a command; the answer begins with the word.
"""

import os
import random
import sys
import threading
import zlib

PAGE = 4096
HERE = "/root/soak"


class Heap:
    """Pages whose checksums are kept beside them."""

    def __init__(self, pages):
        self.bytes = bytearray(pages * PAGE)
        self.sums = [zlib.crc32(bytes(PAGE))] * pages

    def write(self, rng, n):
        for _ in range(n):
            i = rng.randrange(len(self.sums))
            page = rng.randbytes(64) * (PAGE // 64)
            self.bytes[i * PAGE : (i + 1) * PAGE] = page
            self.sums[i] = zlib.crc32(page)

    def differs(self):
        view = memoryview(self.bytes)
        for i, s in enumerate(self.sums):
            if zlib.crc32(view[i * PAGE : (i + 1) * PAGE]) != s:
                return "page %d" % i
        return ""

    def digest(self):
        return zlib.crc32(repr(self.sums).encode())


def child(r, w):
    """Holds a heap of its own and answers its parent."""
    heap = Heap(64)
    for line in os.fdopen(r):
        command, seed = line.split()
        if command == "write":
            heap.write(random.Random(int(seed)), 4)
        os.write(w, ("%s %d\n" % (heap.differs() or "whole", heap.digest())).encode())


heap = Heap(512)
files = {}
os.makedirs(HERE, exist_ok=True)
log = open(HERE + "/log", "w+")
gone = open(HERE + "/gone", "w+")
os.unlink(HERE + "/gone")
logged = ""
steps = 0

ours, theirs = os.pipe(), os.pipe()
if os.fork() == 0:
    os.close(ours[1])
    os.close(theirs[0])
    child(ours[0], theirs[1])
    os._exit(0)
os.close(ours[0])
os.close(theirs[1])
answers = os.fdopen(theirs[0])

beats = 0
ending = threading.Event()


def beat():
    global beats
    while not ending.wait(0.05):
        beats += 1


side = threading.Thread(target=beat, daemon=True)
side.start()


def ask(command, seed=0):
    os.write(ours[1], ("%s %d\n" % (command, seed)).encode())
    return answers.readline().strip()


def write(step, seed):
    """Step N after N-1 and nothing else, so that it may be asked for twice."""
    global steps, logged
    if step != steps + 1:
        return "at %d" % steps
    rng = random.Random(seed)
    heap.write(rng, rng.randrange(1, 40))
    ask("write", seed)
    for _ in range(rng.randrange(4)):
        name = "f%d" % rng.randrange(30)
        if rng.random() < 0.2 and name in files:
            os.unlink(HERE + "/" + name)
            del files[name]
        else:
            content = rng.randbytes(rng.randrange(1, 20000))
            with open(HERE + "/" + name, "wb") as f:
                f.write(content)
            files[name] = zlib.crc32(content)
    text = "step %d\n" % step
    log.write(text)
    log.flush()
    gone.write(text)
    gone.flush()
    logged += text
    steps = step
    return "at %d" % steps


def broken():
    if heap.differs():
        return "memory: " + heap.differs()
    there = {n for n in os.listdir(HERE) if n[0] == "f"}
    if there != set(files):
        return "files: %s, not %s" % (sorted(there), sorted(files))
    for name, s in files.items():
        with open(HERE + "/" + name, "rb") as f:
            if zlib.crc32(f.read()) != s:
                return "file " + name
    for f in log, gone:
        if f.tell() != len(logged):
            return "offset %d of %s, not %d" % (f.tell(), f.name, len(logged))
        f.seek(0)
        text = f.read()
        if text != logged:
            return "%s has %d bytes, not %d" % (f.name, len(text), len(logged))
    if not side.is_alive():
        return "the thread is gone"
    return ""


def verify():
    said = ask("verify")
    if not said.startswith("whole"):
        return "broken: child: " + said
    wrong = broken()
    if wrong:
        return "broken: " + wrong
    parts = [heap.digest(), sorted(files.items()), said, logged]
    return "whole %d %d" % (steps, zlib.crc32(repr(parts).encode()))


print("ready", flush=True)
for line in sys.stdin:
    word, command, *args = line.split()
    answer = write(int(args[0]), int(args[1])) if command == "write" else verify()
    print(word, answer, flush=True)
