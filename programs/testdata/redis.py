"""Redis with an append-only file, and two clients that count: no reply is wrong,
no key is lost, and the file is whole."""

import socket
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
path = where + "/socket"
server = subprocess.Popen(
    ["redis-server", "--port", "6379", "--unixsocket", path, "--dir", where, "--appendonly", "yes",
     "--appendfsync", "always", "--save", "", "--daemonize", "no"],
    stdout=subprocess.PIPE, text=True)
for line in server.stdout:
    if "ready to accept connections" in line.lower():
        break
load = driver.Load()


class Client:
    def __init__(self, family, address):
        self.socket = socket.socket(family)
        self.socket.connect(address)
        self.replies = self.socket.makefile("rb")
        self.n = 0

    def ask(self, *words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in map(str.encode, words)))
        return self.read()

    def read(self):
        line = self.replies.readline()
        kind, rest = line[:1], line[1:-2].decode()
        if kind == b"$":
            return self.replies.read(int(rest) + 2)[:-2].decode() if rest != "-1" else None
        if kind == b"*":
            return [self.read() for _ in range(int(rest))]
        driver.ensure(kind in b"+:" and kind, "redis says", line)
        return rest

    def count(self):
        self.n += 1
        name = str(id(self))
        got = self.ask("INCR", "count" + name)
        driver.ensure(got == str(self.n), "count", self.n, "is", got)
        self.ask("SET", f"key{name}{self.n % 100}", str(self.n))
        got = self.ask("GET", f"key{name}{self.n % 100}")
        driver.ensure(got == str(self.n), "key", self.n, "is", got)


other = Client(socket.AF_INET, ("127.0.0.1", 6379))


def check():
    load.more(50)
    driver.ensure(server.poll() is None, "the server has ended")
    driver.ensure("aof_last_write_status:ok" in other.ask("INFO", "persistence"), "the file is not written")
    return other.ask("LRANGE", "kept", "0", "-1")


load.run(Client(socket.AF_INET, ("127.0.0.1", 6379)).count, Client(socket.AF_UNIX, path).count)
driver.serve(lambda name: other.ask("RPUSH", "kept", name), check)
