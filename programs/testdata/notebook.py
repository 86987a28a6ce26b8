"""A Jupyter kernel and its client, which runs cells one after another: variables
keep their values, a thread of the kernel's goes on, and a plot is drawn the same
to the byte. The names are in a variable of the kernel's."""

import threading

import driver
from jupyter_client.manager import KernelManager

load = driver.Load()
one = threading.Lock()
km = KernelManager(kernel_name="python3")
km.start_kernel()
client = km.blocking_client()
client.start_channels()
client.wait_for_ready(timeout=None)


def cell(code):
    """Runs a cell, and returns what it prints."""
    said = []

    def hook(message):
        if message["msg_type"] == "stream":
            said.append(message["content"]["text"])
    with one:
        reply = client.execute_interactive(code, timeout=None, output_hook=hook, allow_stdin=False)["content"]
    driver.ensure(reply["status"] == "ok", "a cell fails:", "\n".join(reply.get("traceback", [])))
    return "".join(said).strip()


cell("""
import hashlib, threading, time
import numpy as np
from PIL import Image, ImageDraw

kept, total, seen = [], 0, 0
def count():
    global seen
    while True:
        seen += 1
        time.sleep(0.001)
threading.Thread(target=count, daemon=True).start()

def plot(points):
    image = Image.new("RGB", (600, 400), "white")
    draw = ImageDraw.Draw(image)
    draw.line(list(zip(points * 100, 200 - 150 * np.sin(points))), fill="blue", width=3)
    draw.text((250, 10), "a wave", fill="black")
    return hashlib.sha256(image.tobytes()).hexdigest()

points = np.linspace(0, 6, 500)
""")
drawn = cell("print(plot(points))")
n = 0


def add():
    global n
    n += 1
    said = cell("total += 1\nprint(total, In[-1] == _ih[-1])")
    driver.ensure(said == f"{n} True", "cell", n, "says", said)


def check():
    load.more(3)
    said = cell("print(plot(points))")
    driver.ensure(said == drawn, "the plot is", said, "and was", drawn)
    cell("before = seen\nwhile seen < before + 2: time.sleep(0.001)")
    driver.ensure(km.is_alive(), "the kernel has ended")
    with one:
        driver.ensure(client.is_alive(), "the kernel's heart does not beat")
    return cell("print(*kept)").split()


load.run(add)
driver.serve(lambda name: cell(f"kept.append({name!r})"), check)
