"""SQLite in WAL mode with two writing processes and a reader. Each transaction
adds a row and counts it, so rows and counts are equal in every snapshot.

All connections are there before the checkpoint: so it works where device
numbers change, too. reopen.py opens others."""

import multiprocessing as mp
import os
import sqlite3
import tempfile

import driver

load = driver.Load()
KEEP = 50  # rows of each writer


def connect(path):
    db = sqlite3.connect(path, timeout=600, isolation_level=None, check_same_thread=False)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma wal_autocheckpoint=50")
    return db


def write(path, name, done):
    db = connect(path)
    n = 0
    while True:
        n += 1
        db.execute("begin immediate")
        db.execute("insert into rows values (?, ?, ?)", (name, n, os.urandom(200)))
        db.execute("delete from rows where name = ? and n <= ?", (name, n - KEEP))
        db.execute("update counts set n = n + 1 where name = ?", (name,))
        db.execute("commit")
        with done.get_lock():
            driver.ensure(done.value == n - 1, "row", n, "after", done.value)
            done.value = n


if __name__ == "__main__":
    path = os.path.join(tempfile.mkdtemp(), "db")
    alone = mp.get_context("spawn")  # a connection must not be carried over a fork
    db = connect(path)
    db.execute("create table rows (name, n, data)")
    db.execute("create table counts (name primary key, n)")
    db.execute("create table kept (name)")
    writers = []
    for name in "ab":
        db.execute("insert into counts values (?, 0)", (name,))
        done = alone.Value("Q", 0)
        p = alone.Process(target=write, args=(path, name, done), daemon=True)
        p.start()
        writers.append((p, done))

    mine = connect(path)

    def read():
        for name, n, rows, last in mine.execute("""select c.name, c.n, (select count(*) from rows r where r.name = c.name),
                (select max(n) from rows r where r.name = c.name) from counts c where c.n > 0""").fetchall():
            driver.ensure(n == last and rows == min(n, KEEP), "of", name, n, "are counted, the last is", last, "and there are", rows)

    def check():
        load.more(1)
        for p, done in writers:
            goal = done.value + 2
            while done.value < goal:  # a row takes a while: this asks the writer, not the clock
                driver.ensure(p.is_alive(), "a writer has ended with", p.exitcode)
                load.more(1)
        said = db.execute("pragma integrity_check").fetchall()
        driver.ensure(said == [("ok",)], "integrity:", said)
        return [n for n, in db.execute("select name from kept order by rowid")]

    load.run(read)
    driver.serve(lambda name: db.execute("insert into kept values (?)", (name,)), check)
