"""PostgreSQL with pgbench at work and a transaction that stays open: the names
are rows of that transaction, which nobody else sees, and the sums of pgbench's
tables are equal in every snapshot. An argument is how many transactions a second
pgbench makes; without one it makes as many as it can."""

import glob
import os
import subprocess
import sys
import tempfile

import driver

bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
where = tempfile.mkdtemp()
os.chmod(where, 0o777)
data = where + "/data"
user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
env = {**os.environ, "PGHOST": where, "PGDATABASE": "postgres", "PGUSER": "postgres", "LC_ALL": "C"}


def run(*argv):
    return subprocess.run([*user, *argv], env=env, check=True, capture_output=True, text=True, cwd=where).stdout


run(bin + "/initdb", "-D", data, "-A", "trust", "--no-sync")
run(bin + "/pg_ctl", "-D", data, "-w", "-l", where + "/log", "-o",
    f"-k {where} -c listen_addresses=127.0.0.1 -c shared_buffers=16MB -c max_connections=20 -c log_min_messages=warning", "start")
run(bin + "/pgbench", "-i", "-q", "-s", "1")
run(bin + "/psql", "-c", "create table kept (name text)")
load = driver.Load()


class Client:
    """A psql that stays: each statement's rows come before a line that ends them."""

    def __init__(self, *flags):
        self.psql = subprocess.Popen([*user, bin + "/psql", "-XqAt", "-v", "ON_ERROR_STOP=1", *flags], env=env, text=True, bufsize=1,
                                     stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=where)

    def ask(self, statement):
        print(statement + ";\n\\echo end of rows", file=self.psql.stdin)
        rows = []
        while (line := self.psql.stdout.readline()) != "end of rows\n":
            driver.ensure(line, "psql has ended and said", rows)
            rows.append(line.rstrip("\n"))
        return rows


open_one = Client()
open_one.ask("begin")
over_tcp = Client("-h", "127.0.0.1")
seen = [0]


def count():
    """pgbench's sums, and how many transactions it has made."""
    sums, n = over_tcp.ask("""select (select sum(abalance) from pgbench_accounts) || ' ' || (select sum(tbalance) from pgbench_tellers)
        || ' ' || (select sum(bbalance) from pgbench_branches) || ' ' || (select coalesce(sum(delta), 0) from pgbench_history),
        (select count(*) from pgbench_history)""")[0].split("|")
    driver.ensure(len(set(sums.split())) == 1, "the sums are", sums)
    driver.ensure(int(n) >= seen[0], n, "transactions, after", seen[0])
    seen[0] = int(n)
    return int(n)


rate = ["-R", sys.argv[1]] if sys.argv[1:] else []
bench = subprocess.Popen([*user, bin + "/pgbench", "-n", "-c", "2", "-T", "100000", *rate], env=env, cwd=where,
                         stdout=subprocess.DEVNULL, stderr=open(where + "/bench", "w"))


def check():
    goal = count() + 10
    while count() < goal:
        driver.ensure(bench.poll() is None, "pgbench has ended:", open(where + "/bench").read())
    driver.ensure(over_tcp.ask("select count(*) from kept") == ["0"], "others see the open transaction")
    said = open(where + "/bench").read() + open(where + "/log").read()
    driver.ensure("ERROR" not in said and "FATAL" not in said and "PANIC" not in said and "abort" not in said, said)
    return open_one.ask("select name from kept")


driver.serve(lambda name: open_one.ask(f"insert into kept values ('{name}')"), check, count)
