"""Threads that move money under locks and hand work through queues: none is
lost, no lock stays locked."""

import queue
import random
import threading

import driver

ACCOUNTS, EACH = 16, 1000
accounts = [EACH] * ACCOUNTS
locks = [threading.Lock() for _ in accounts]
there, back = queue.Queue(8), queue.Queue(8)
names = threading.local()
kept = []
load = driver.Load()


def transfer():
    a, b = sorted(random.sample(range(ACCOUNTS), 2))
    with locks[a], locks[b]:
        n = random.randrange(accounts[a] + 1)
        accounts[a] -= n
        accounts[b] += n


def produce():
    names.sent = getattr(names, "sent", 0) + 1  # of this thread
    there.put(names.sent)
    driver.ensure(back.get() == -names.sent, "a reply to another number")


def consume():
    back.put(-there.get())


def check():
    load.more(100)
    for l in locks:
        l.acquire()
    total = sum(accounts)
    for l in locks:
        l.release()
    driver.ensure(total == ACCOUNTS * EACH, "the accounts hold", total)
    return kept


load.run(transfer, transfer, transfer, produce, consume)
driver.serve(kept.append, check)
