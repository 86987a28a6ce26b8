"""An asyncio server with clients over TCP and a unix socket, timers and a child
process: each client has its answers in their order, and no connection ends."""

import asyncio
import os
import tempfile
import threading

import driver

kept = []
load = driver.Load()


async def answer(reader, writer):
    while line := await reader.readline():
        writer.write(line.upper())
        await writer.drain()


async def client(name, connect):
    reader, writer = await connect()
    n = 0
    while True:
        n += 1
        writer.write(f"{name} {n} {'x' * (n % 5000)}\n".encode())
        got = await reader.readline()
        driver.ensure(got.split()[:2] == [name.upper().encode(), str(n).encode()], name, n, "answered by", got[:40])
        stepped()
        await asyncio.sleep(0.001)


async def child():
    p = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    n = 0
    while True:
        n += 1
        p.stdin.write(f"{n}\n".encode())
        got = await p.stdout.readline()
        driver.ensure(got == f"{n}\n".encode(), "cat said", got, "for", n)
        stepped()
        await asyncio.sleep(0.001)


def stepped():
    with load.changed:
        load.steps += 1
        load.changed.notify_all()


async def main():
    path = os.path.join(tempfile.mkdtemp(), "socket")
    unix = await asyncio.start_unix_server(answer, path)
    tcp = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    await asyncio.gather(
        child(),
        *(client(f"tcp{i}", lambda: asyncio.open_connection("127.0.0.1", port)) for i in range(3)),
        client("unix", lambda: asyncio.open_unix_connection(path)),
    )


def check():
    load.more(100)
    return kept


load.run(lambda: asyncio.run(main()))
driver.serve(kept.append, check)
