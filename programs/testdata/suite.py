"""A test runner in the middle of its run: suites with temporary directories,
processes, threads and sockets, one after another. None fails."""

import io
import os
import socket
import subprocess
import tempfile
import threading
import unittest

import driver

kept = []
load = driver.Load()


def remove(top):
    # Not by rmtree, which compares st_dev: that changes at a restore where the kernel does not
    # let it be kept (docs/limits.md).
    for name in os.listdir(top):
        os.unlink(os.path.join(top, name))
    os.rmdir(top)


class Suite(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(remove, self.dir)

    def test_files(self):
        for i in range(20):
            with open(os.path.join(self.dir, str(i)), "w") as f:
                f.write(str(i))
        self.assertEqual(len(os.listdir(self.dir)), 20)
        for i in range(20):
            with open(os.path.join(self.dir, str(i))) as f:
                self.assertEqual(f.read(), str(i))

    def test_process(self):
        self.assertEqual(subprocess.check_output(["sh", "-c", "echo $$; exit 0"]).strip().isdigit(), True)

    def test_threads(self):
        seen = []
        threads = [threading.Thread(target=seen.append, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(sorted(seen), list(range(8)))

    def test_socket(self):
        with socket.create_server(("127.0.0.1", 0)) as s, socket.create_connection(s.getsockname()) as c:
            a, _ = s.accept()
            with a:
                c.sendall(b"x" * 1000)
                c.shutdown(socket.SHUT_WR)
                got = b""
                while part := a.recv(4096):
                    got += part
                self.assertEqual(got, b"x" * 1000)

    def test_numbers(self):
        self.assertEqual(sum(i * i for i in range(20000)), 2666466670000)


def run():
    out = io.StringIO()
    result = unittest.TextTestRunner(out).run(unittest.defaultTestLoader.loadTestsFromTestCase(Suite))
    driver.ensure(result.wasSuccessful() and result.testsRun == 5, out.getvalue())


def check():
    load.more(3)
    return kept


load.run(run)
driver.serve(kept.append, check)
