"""What the drivers share: counting a load's steps, and answering the test.

A driver starts a program and a load on it, says that it is ready, and answers
requests, one a line: "N mark NAME" makes the program keep a name, "N check"
waits until the load has gone on, looks whether the program is whole, and lists
the names that it keeps; "N steps" tells how much the load has done so far. A reply
begins with the request's number.
"""

import sys
import threading
import traceback


class Load:
    """Steps of a load that goes on in threads, and the first failure of one."""

    def __init__(self):
        self.changed = threading.Condition()
        self.steps = 0
        self.failure = None

    def run(self, *functions):
        """Calls each function over and over, in a thread of its own."""
        for f in functions:
            threading.Thread(target=self._loop, args=(f,), daemon=True).start()

    def _loop(self, f):
        try:
            while True:
                f()
                with self.changed:
                    self.steps += 1
                    self.changed.notify_all()
        except BaseException:
            with self.changed:
                self.failure = self.failure or traceback.format_exc()
                self.changed.notify_all()

    def more(self, n=10):
        """Waits until n more steps were made, and raises if one has failed."""
        with self.changed:
            goal = self.steps + n
            self.changed.wait_for(lambda: self.failure or self.steps >= goal)
            if self.failure:
                raise RuntimeError("the load failed: " + self.failure)


def serve(mark, check, steps=None):
    """Answers requests until the standard input ends."""
    print("0 ready", flush=True)
    while line := sys.stdin.readline():
        number, verb, *rest = line.split()
        try:
            if verb == "mark":
                mark(rest[0])
                said = ["ok"]
            elif verb == "steps":
                said = ["ok", steps()]
            else:
                said = ["ok", *check()]
        except Exception:
            said = ["bad", repr(traceback.format_exc())]
        print(number, *said, flush=True)


def ensure(true, *what):
    """Raises with what was found unless it is true."""
    if not true:
        raise AssertionError(" ".join(str(w) for w in what))
