"""pytest in the middle of its run: tornado's own tests, with their servers,
clients, processes, threads and timers, over and over. Each run passes as many
as the first, and fails none."""

import os
import re
import subprocess
import tempfile

import driver

kept = []
load = driver.Load()
MODULES = ["httpserver", "iostream", "process", "queues", "locks", "gen", "concurrent", "template", "websocket", "httputil", "util", "tcpserver"]
env = {**os.environ, "ASYNC_TEST_TIMEOUT": "600", "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}
passed = None
runs = 0


def step():
    """Makes a generator's steps the load's."""
    next(tests)


def run():
    global passed, runs
    while True:
        with tempfile.TemporaryDirectory() as where:
            p = subprocess.Popen(["python3", "-m", "pytest", "-v", "-p", "no:cacheprovider", "--basetemp", where + "/t", "--pyargs",
                                  *(f"tornado.test.{m}_test" for m in MODULES)],
                                 env=env, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
            said, n = [], 0
            for line in p.stdout:
                said.append(line)
                if re.search(r" (PASSED|SKIPPED|XFAIL)\b", line):
                    n += "PASSED" in line
                    yield
            driver.ensure(p.wait() == 0, "pytest ended with", p.returncode, "".join(said[-100:]))
            driver.ensure(n > 100 and passed in (None, n), n, "tests passed, in the first run", passed)
            passed = n
            runs += 1


tests = run()


def check():
    load.more(5)
    return kept


next(tests)  # it has collected them
load.run(step)
driver.serve(kept.append, check)
