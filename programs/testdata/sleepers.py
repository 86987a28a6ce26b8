"""Sleepers, as cron and its like are: loops of sleep in a shell, timeout, sched,
times of day that are waited for, an interval timer, and a sleep that never ends.
No sleep is shorter than it was to be, none is cut off, and all go on."""

import os
import sched
import select
import signal
import subprocess
import tempfile
import threading
import time

import driver

where = tempfile.mkdtemp()
kept = []
load = driver.Load()


def slept(least, function, *args):
    begin = time.monotonic()
    said = function(*args)
    took = time.monotonic() - begin
    driver.ensure(took >= least, function, args, "took", took, "seconds")
    return said


def thread_sleep():
    slept(0.02, time.sleep, 0.02)


def waiting():
    driver.ensure(slept(0.019, select.select, [], [], [], 0.02) == ([], [], []), "select came back with something")


def timeout():
    """timeout ends what sleeps too long, and waits for what does not."""
    driver.ensure(slept(0.05, subprocess.call, ["timeout", "0.05", "sleep", "1000"]) == 124, "timeout has not come")
    driver.ensure(slept(0.03, subprocess.call, ["timeout", "1000", "sleep", "0.03"]) == 0, "timeout came early")


def schedule():
    """Jobs at times, the later one entered first, come in their order."""
    came = []
    s = sched.scheduler()
    begin = s.timefunc()
    for at in 0.04, 0.02:
        s.enterabs(begin + at, 1, came.append, (at,))
    s.run()
    driver.ensure(s.timefunc() >= begin + 0.04, "the jobs came early")
    driver.ensure(came == [0.02, 0.04], "the jobs came as", came)


def of_day():
    """The next hundredth of a second, as cron waits for the next minute: the
    clock of the day may jump at a rollback, but a job does not come before its time."""
    at = (time.time_ns() // 10_000_000 + 2) * 10_000_000
    while (now := time.time_ns()) < at:
        time.sleep((at - now) / 1e9)


ticks = 0


def tick(*_):
    global ticks
    ticks += 1


signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)

# Each line is a sleep that a shell has slept; a reader that keeps up counts them.
shells = []
for i in range(3):
    p = subprocess.Popen(["sh", "-c", f"n=0; while sleep 0.0{i + 1}; do n=$((n+1)); echo $n; done; echo ended"],
                         stdout=subprocess.PIPE, text=True)
    shells.append(p)


def lines(p):
    n = 0

    def step():
        nonlocal n
        n += 1
        said = p.stdout.readline()
        driver.ensure(said == f"{n}\n", "a shell says", said, "for", n)
    return step


long = subprocess.Popen(["sleep", "100000"])


def check():
    before = ticks
    load.more(40)
    driver.ensure(long.poll() is None, "the long sleep has ended with", long.returncode)
    while ticks < before + 2:
        load.more(1)
    return kept


load.run(thread_sleep, waiting, timeout, schedule, of_day, *map(lines, shells))
driver.serve(kept.append, check)
