"""nginx with two workers, and clients that keep their connections: each answer
is whole, and no connection is made twice."""

import http.client
import os
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
os.chmod(where, 0o755)
os.mkdir(where + "/root")
with open(where + "/root/big", "wb") as f:
    f.write(bytes(range(256)) * 4000)
with open(where + "/nginx.conf", "w") as f:
    f.write(f"""
worker_processes 2;
daemon off;
pid {where}/pid;
error_log {where}/errors warn;
events {{ worker_connections 64; }}
http {{
    access_log {where}/access;
    keepalive_requests 1000000000;
    keepalive_timeout 1d;
    server {{
        listen 127.0.0.1:8080;
        root {where}/root;
    }}
}}
""")
server = subprocess.Popen(["nginx", "-e", where + "/errors", "-c", where + "/nginx.conf"])
load = driver.Load()


class Client:
    def __init__(self):
        self.connection = http.client.HTTPConnection("127.0.0.1", 8080)
        while True:
            try:
                self.connection.connect()  # nginx is listening before it says anything
                break
            except ConnectionRefusedError:
                driver.ensure(server.poll() is None, "nginx has ended with", server.poll())
        self.connection.auto_open = 0  # it is the same connection for ever

    def get(self, name="/big"):
        self.connection.request("GET", name)
        r = self.connection.getresponse()
        return r.status, r.read()

    def big(self):
        status, body = self.get()
        driver.ensure(status == 200 and body == bytes(range(256)) * 4000, "the answer is", status, len(body))


other = Client()


def mark(name):
    with open(where + "/root/kept", "a") as f:
        f.write(name + "\n")


def check():
    load.more(10)
    with open(where + "/errors") as f:
        said = f.read()
    driver.ensure(said == "", "nginx says", said)
    driver.ensure(server.poll() is None, "nginx has ended")
    status, body = other.get("/kept")
    driver.ensure(status == 200, "the answer is", status)
    return body.decode().split()


load.run(*(Client().big for _ in range(4)))
driver.serve(mark, check, lambda: load.steps)
