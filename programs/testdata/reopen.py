"""SQLite with connections that come and go, beside some that stay, in threads of
one process and in another process: each adds to a counter, holding the write lock
for a while. Where a lock is lost, an addition is, or the database is damaged."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import threading

import driver

load = driver.Load()
added = 0
adding = threading.Lock()  # of the threads' sum alone: the database has locks of its own


def connect(path):
    return sqlite3.connect(path, timeout=600, isolation_level=None, check_same_thread=False)


def add(db):
    db.execute("begin immediate")
    n, = db.execute("select n from counter").fetchone()
    other = connect(where)  # it comes and goes while the first holds its lock
    driver.ensure(other.execute("select n from counter").fetchone() == (n,), "another connection reads another number")
    other.close()
    db.execute("update counter set n = ?", (n + 1,))
    db.execute("commit")


def thread(stays):
    def step():
        global added
        db = stays or connect(where)
        with adding:
            add(db)
            added += 1
        if not stays:
            db.close()
    return step


if __name__ == "__main__" and sys.argv[1:]:
    where = sys.argv[1]
    for line in sys.stdin:
        db = connect(where)
        db.execute("begin immediate")
        db.execute("update other set n = n + 1")
        db.execute("commit")
        db.close()
        print("added", flush=True)
elif __name__ == "__main__":
    where = os.path.join(tempfile.mkdtemp(), "db")
    db = connect(where)
    db.execute("pragma journal_mode=wal")
    db.execute("create table counter (n)")
    db.execute("insert into counter values (0)")
    db.execute("create table other (n)")
    db.execute("insert into other values (0)")
    db.execute("create table kept (name)")
    p = subprocess.Popen([sys.executable, __file__, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    asked = 0

    def elsewhere():
        global asked
        p.stdin.write("add\n")
        p.stdin.flush()
        driver.ensure(p.stdout.readline() == "added\n", "the other process ended with", p.poll())
        asked += 1

    def check():
        load.more(10)
        with adding:
            new = connect(where)
            driver.ensure(new.execute("select n from counter").fetchone() == (added,), "of", added, "additions there are", new.execute("select n from counter").fetchone())
            n, = new.execute("select n from other").fetchone()
            driver.ensure(asked <= n <= asked + 1, "the other process has", n, "of", asked)
            said = new.execute("pragma integrity_check").fetchall()
            driver.ensure(said == [("ok",)], "integrity:", said)
            kept = [name for name, in new.execute("select name from kept order by rowid")]
            new.close()
        return kept

    marks = connect(where)
    load.run(thread(db), thread(connect(where)), thread(None), elsewhere)
    driver.serve(lambda name: marks.execute("insert into kept values (?)", (name,)), check)
