"""The test process of the demo: it holds pytest and the project imported,
applies edits to the project when told so, and scores it by its tests.

Requests and replies are JSON, one a line, on the standard streams. The process
never restarts and never forks: what it has become after an edit is kept and
brought back from outside, by checkpoint and rollback of its sandbox.
"""

import importlib.util
import json
import os
import pathlib
import sys
import time

import pytest

ROOT = pathlib.Path(sys.argv[1])
PACKAGE = sys.argv[2]
DESELECT = sys.argv[3:]


class Outcomes:
    """Collects the outcome of each test."""

    def __init__(self):
        self.passed = 0
        self.failed = []
        self.broken = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:
            self.passed += 1
        elif report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed:
            self.broken.append(report.nodeid)


def apply(edits):
    """Apply edits of the form {path, old, new}, all or none."""
    texts = {}
    for e in edits:
        path = ROOT / e["path"]
        text = texts.get(path) or path.read_text()
        if text.count(e["old"]) != 1:
            return f"{e['path']}: the text to replace is there {text.count(e['old'])} times"
        texts[path] = text.replace(e["old"], e["new"])
    for path, text in texts.items():
        path.write_text(text)
        # An edit within the same second must not meet the old bytecode.
        pathlib.Path(importlib.util.cache_from_source(path)).unlink(missing_ok=True)
    return None


def forget():
    """Drop the project and its tests, so that the next run imports them anew."""
    for name in list(sys.modules):
        if name.split(".")[0] in (PACKAGE, "tests"):
            del sys.modules[name]


def score():
    outcomes = Outcomes()
    args = ["-q", "-p", "no:cacheprovider", "--tb=no", "--no-header", "tests"]
    for d in DESELECT:
        args += ["--deselect", d]
    begin = time.monotonic()
    pytest.main(args, plugins=[outcomes])
    return {
        "passed": outcomes.passed,
        "failed": sorted(outcomes.failed),
        "broken": sorted(outcomes.broken),
        "test_ns": int((time.monotonic() - begin) * 1e9),
    }


def main():
    # What the tests print is not a reply.
    replies = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    while line := sys.stdin.readline():
        request = json.loads(line)
        error = apply(request["edits"])
        if error:
            reply = {"error": error}
        else:
            if request["edits"]:
                forget()
            reply = score()
        reply["id"] = request["id"]
        print(json.dumps(reply), file=replies, flush=True)


main()
