"""multiprocessing: a pool, a queue, and values in shared memory under locks that
are semaphores of /dev/shm. What each process adds is there once."""

import multiprocessing as mp
import os
from multiprocessing import shared_memory

import driver

WORKERS = 2
kept = []
load = driver.Load()


def square(n):
    return os.getpid(), n * n


def add(total, mine, shm, gate, line):
    """Adds to the total and to its own count, under the total's lock."""
    while True:
        with total.get_lock():
            total.value += 1
            mine.value += 1
            shm.buf[0] = (shm.buf[0] + 1) % 251
        gate.wait()  # all processes, and the driver, meet after each round
        line.put(os.getpid())


if __name__ == "__main__":
    total = mp.Value("Q", 0)
    each = [mp.Value("Q", 0) for _ in range(WORKERS)]
    shm = shared_memory.SharedMemory(create=True, size=4096)
    gate, line = mp.Barrier(WORKERS + 1), mp.Queue()
    adders = [mp.Process(target=add, args=(total, e, shm, gate, line), daemon=True) for e in each]
    for a in adders:
        a.start()
    pool = mp.Pool(WORKERS)
    rounds = 0

    def barrier():
        global rounds
        gate.wait()
        came = {line.get() for _ in adders}
        driver.ensure(came == {a.pid for a in adders}, "from the queue came", came)
        rounds += 1

    def squares():
        got = pool.map(square, range(64), chunksize=4)
        driver.ensure([n for _, n in got] == [n * n for n in range(64)], "the pool said", got)

    def check():
        load.more(20)
        with total.get_lock():
            values = [total.value, *(e.value for e in each)]
            byte = shm.buf[0]
        driver.ensure(values[0] == sum(values[1:]), "total and parts:", values)
        driver.ensure(byte == values[0] % 251, "shared memory", byte, "for", values[0])
        return kept

    load.run(barrier, squares)
    driver.serve(kept.append, check)
