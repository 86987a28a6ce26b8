"""Processes that have of everything that /proc shows, and stand still."""

import ctypes
import fcntl
import mmap
import os
import pty
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback

import driver

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
where = "/root/fields"
os.makedirs(where + "/dir/gone")
kept = []  # what would be closed otherwise
ready, tell = os.pipe()


def call(f, *a):
    r = f(*a)
    driver.ensure(r != -1, f.__name__, a, os.strerror(ctypes.get_errno()))
    return r


def rest():
    while True:
        signal.pause()


def child(f):
    """A process that does something, and then rests."""
    pid = os.fork()
    if pid == 0:
        try:
            f()
            os.write(tell, b"+")
            rest()
        except BaseException:
            traceback.print_exc()
        os.write(tell, b"-")
        os._exit(1)
    driver.ensure(os.read(ready, 1) == b"+", f)
    return pid


def keep(f):
    kept.append(f)
    return f


def area(size=1 << 16, prot=3, flags=0x22, fd=-1, advice=None):
    at = call(libc.mmap, None, size, prot, flags, fd, 0)
    if advice is not None:
        call(libc.madvise, at, size, advice)
    if prot & 2:
        ctypes.memset(at, 7, 4096)
    return at


def memory():
    for advice in (1, 2, 10, 16, 14, 15, 12, 18):  # random, sequential, dontfork, dontdump, (no) huge pages, mergeable, wipeonfork
        area(1 << 21, advice=advice)
    area(prot=0)
    area(prot=1)
    area(prot=5)
    area(flags=0x21)
    area(flags=0x4022)  # without reserve
    area(flags=0x122)  # a stack that grows
    call(libc.mlock, area(), 1 << 16, 0)
    call(libc.mlock2, ctypes.c_void_p(area()), ctypes.c_size_t(1 << 16), 1)  # on fault
    for flags in (0x01, 0x02):
        f = os.open(f"{where}/map{flags}", os.O_RDWR | os.O_CREAT)
        os.ftruncate(f, 1 << 16)
        area(flags=flags, fd=f)
        area(prot=1, flags=flags, fd=f)
        os.close(f)
    m = os.memfd_create("mapped", 2)
    os.ftruncate(m, 1 << 16)
    area(flags=1, fd=m)
    fcntl.fcntl(m, 1033, 2 | 4)
    segment = call(libc.shmget, 0, 1 << 16, 0o1600)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat(segment, None, 0)
    with open("/dev/shm/fields", "wb+") as f:
        f.truncate(1 << 16)
        keep(mmap.mmap(f.fileno(), 1 << 16))


def descriptors():
    r, w = os.pipe2(os.O_NONBLOCK)
    os.write(w, b"unread")
    keep(r)
    fcntl.fcntl(w, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(w, 10, 34)  # F_SETSIG
    e = os.eventfd(5, os.EFD_SEMAPHORE)
    inner, outer = keep(select.epoll()), keep(select.epoll())
    inner.register(r, select.EPOLLIN | select.EPOLLET)
    inner.register(e, select.EPOLLOUT)
    outer.register(inner.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
    for clock, flags, value in ((1, 0, 1000), (0, 1, 4000000000), (7, 0, 0)):
        t = call(libc.timerfd_create, clock, 0o4000)
        call(libc.timerfd_settime, t, flags, struct.pack("4q", 7, 5, value, 0), None)
    call(libc.signalfd, -1, ctypes.byref(ctypes.c_uint64(1 << 9 | 1 << 40)), 0)
    i = call(libc.inotify_init)
    for name in ("", "/dir", "/map1"):
        call(libc.inotify_add_watch, i, (where + name).encode(), 0xc0000fff & ~0x21)
    os.chmod(where + "/dir", 0o711)  # unread events
    m = os.memfd_create("sealed", 2)
    os.write(m, b"content")
    fcntl.fcntl(m, 1033, 1 | 2 | 4 | 8)
    os.pidfd_open(os.getppid())
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        a, b = keep(socket.socketpair(socket.AF_UNIX, kind))
        a.send(b"unread")
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        listener = keep(socket.create_server((host, 0), family=family))
        client = keep(socket.create_connection(listener.getsockname()[:2]))
        server = keep(listener.accept()[0])
        client.send(b"unread")
        select.select([server], [], [])
        u = keep(socket.socket(family, socket.SOCK_DGRAM))
        u.bind((host, 0))
        u.sendto(b"unread", u.getsockname())
    s = keep(socket.socket(socket.AF_UNIX))
    s.bind(where + "/socket")
    s.listen(3)
    keep(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)).bind((0, 1))
    master, slave = pty.openpty()
    os.write(master, b"unread\n")
    os.write(slave, b"unread\n")
    with open(where + "/deleted", "w") as f:
        f.write("deleted")
        os.dup(f.fileno())
        os.remove(f.name)
    os.lseek(os.open(where + "/map1", os.O_RDWR | os.O_APPEND), 100, 0)
    os.open(where, os.O_PATH)
    os.open(where, os.O_TMPFILE | os.O_RDWR)
    d = os.open("/usr/bin", os.O_RDONLY | os.O_DIRECTORY)
    libc.getdents64(d, ctypes.create_string_buffer(1024), 1024)
    os.read(os.open("/proc/self/status", os.O_RDONLY), 10)
    for device in ("null", "zero", "full", "random", "urandom"):
        os.open("/dev/" + device, os.O_RDWR)
    os.mkfifo(where + "/fifo")
    os.write(os.open(where + "/fifo", os.O_RDWR), b"unread")
    call(libc.mq_open, b"/fields", 0o102, 0o600, None)
    locks = [os.open(f"{where}/lock{n}", os.O_RDWR | os.O_CREAT) for n in range(4)]
    fcntl.flock(locks[0], fcntl.LOCK_EX)
    fcntl.lockf(locks[1], fcntl.LOCK_EX, 10, 100)
    fcntl.fcntl(locks[2], 37, struct.pack("hhlli4x", 1, 0, 5, 6, 0))
    fcntl.fcntl(locks[3], 1024, fcntl.F_WRLCK)
    os.dup2(r, 900)


def threads():
    began = threading.Barrier(4)

    def run(n):
        tid = threading.get_native_id()
        call(libc.prctl, 15, b"thread %d" % n, 0, 0, 0)
        call(libc.prctl, 29, 100000 * (n + 1), 0, 0, 0)  # timer slack
        os.setpriority(os.PRIO_PROCESS, tid, n)
        if n:
            os.sched_setaffinity(tid, {0})
        if n == 1:
            os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, 40 + n})
        signal.pthread_kill(threading.get_ident(), 40 + n)
        began.wait()
        signal.sigwait({signal.SIGWINCH})

    for n in range(3):
        threading.Thread(target=run, args=(n,), daemon=True).start()
    began.wait()


def timers():
    event = struct.pack("Qiii", 11, 34, 0, 0) + bytes(44)  # SIGEV_SIGNAL
    for clock in (0, 1, 7):
        number = ctypes.c_int()
        call(libc.syscall, 222, clock, event, ctypes.byref(number))
        call(libc.syscall, 223, number, 0, struct.pack("4q", 0, 0, 100000, 0), None)
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 100000, 3)
    signal.setitimer(signal.ITIMER_VIRTUAL, 100000)


def signals():
    for n in (signal.SIGUSR1, 34, 35):
        signal.signal(n, lambda *_: None)
    for n in (signal.SIGHUP, signal.SIGQUIT, 50):
        signal.signal(n, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2, 36, 37})
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), 37)
    os.kill(os.getpid(), 37)


def settings():
    os.umask(0o027)
    os.nice(3)
    resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 21))
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, 1000))
    for name, value in (("coredump_filter", "0x7f"), ("oom_score_adj", "300")):
        with open("/proc/self/" + name, "w") as f:
            f.write(value)
    call(libc.prctl, 29, 123456, 0, 0, 0)
    call(libc.prctl, 36, 1, 0, 0, 0)  # child subreaper
    call(libc.prctl, 38, 1, 0, 0, 0)  # no new privileges
    call(libc.prctl, 41, 1, 0, 0, 0)  # no huge pages
    call(libc.syscall, 251, 1, 0, 2 << 13 | 6)  # ioprio_set


def other_user():
    os.chroot(where + "/dir")
    os.chdir("/")
    os.setgroups([5, 6, 70])
    call(libc.prctl, 8, 1, 0, 0, 0)  # keep capabilities
    os.setresgid(11, 12, 13)
    os.setresuid(21, 22, 23)
    header, sets = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", 0x1, 0xb, 0x3, 0, 0, 0)
    call(libc.capset, header, sets)
    call(libc.prctl, 47, 2, 1, 0, 0)  # ambient


def bounds():
    for capability in (5, 10, 12):
        call(libc.prctl, 24, capability, 0, 0, 0)
    call(libc.prctl, 28, 1 << 4 | 1, 0, 0, 0)  # secure bits
    call(libc.prctl, 1, signal.SIGTERM, 0, 0, 0)
    call(libc.prctl, 4, 0, 0, 0, 0)  # not dumpable


def on_terminal():
    master, slave = pty.openpty()
    os.setsid()
    fcntl.ioctl(slave, 0x540E, 0)
    group = os.fork()
    if group == 0:
        os.setpgid(0, 0)
        os.write(tell, b"+")
        rest()
    driver.ensure(os.read(ready, 1) == b"+")
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(slave, group)


def orphan():
    if os.fork() != 0:
        os.write(tell, b"+")
        os._exit(0)
    os.setsid()
    os.write(tell, b"+")
    rest()


def moved():
    os.chdir(where + "/dir/gone")
    os.rmdir(where + "/dir/gone")


def family():
    for f in (memory, descriptors, threads, timers, signals, settings, other_user, bounds, on_terminal, moved):
        child(f)
    zombie = os.fork()
    if zombie == 0:
        os.setgroups([7, 8])
        os.setresgid(100, 101, 102)
        os.setresuid(1000, 1001, 1002)
        os._exit(5)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    killed = child(lambda: None)
    os.kill(killed, signal.SIGKILL)
    os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
    stopped = child(lambda: None)
    os.kill(stopped, signal.SIGSTOP)
    os.waitid(os.P_PID, stopped, os.WSTOPPED | os.WNOWAIT)
    first = os.fork()
    if first == 0:
        orphan()
    os.waitpid(first, 0)
    driver.ensure(os.read(ready, 1) == b"+" and os.read(ready, 1) == b"+")
    program = where + "/program"
    with open("/bin/sleep", "rb") as f, open(program, "wb") as g:
        g.write(f.read())
    os.chmod(program, 0o755)
    sleeper = os.fork()
    if sleeper == 0:
        os.execve(program, ["a program", "100000"], {"A": "1", "B": "2"})
    while "program" not in os.readlink(f"/proc/{sleeper}/exe") or open(f"/proc/{sleeper}/syscall").read()[:3] not in ("230", "35 "):
        time.sleep(0.01)
    os.remove(program)


family()
driver.serve(lambda name: None, lambda: [])
