"""An X desktop: Xvfb, openbox, an editor and a terminal into which keys are typed,
and a second terminal that counts. The screen shows, to the pixel, what it has
shown after the last key; the editor says what its text is when its selection is
asked for, and the terminal has read what was typed."""

import os
import struct
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
WIDTH, LEFT = 800, 500  # of the screen, and of the part that is compared
env = {**os.environ, "DISPLAY": ":7", "HOME": where, "LC_ALL": "C.UTF-8", "XDG_RUNTIME_DIR": where, "XDG_CACHE_HOME": where}
load = driver.Load()
picture = None
typed = []


def run(*argv):
    p = subprocess.run(argv, env=env, capture_output=True, stdin=subprocess.DEVNULL)
    driver.ensure(p.returncode == 0, argv, "ended with", p.returncode, p.stderr)
    return p.stdout


def background(*argv, **more):
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)


log = open(where + "/log", "w")
# The terminal's reader: a line, and then two answers of the terminal's to "are
# you well", of which the second comes when what it drew before is with the server.
reader = f"""
stty -echo
exec 3>{where}/typed
well() {{ printf '\\033[5n'; IFS= read -r -n 4 -d '' answer; }}
echo ready >&3
while IFS= read -r line; do echo "typed $line"; well; well; echo "$line" >&3; done
"""
counter = f"i=0; exec 3>{where}/counted; while :; do i=$((i+1)); echo count $i; echo $i >&3; sleep 0.01; done"
for name, text in ("reader", reader), ("counter", counter):
    with open(f"{where}/{name}", "w") as f:
        f.write(text)
os.mkfifo(where + "/typed")
os.mkfifo(where + "/counted")
open(where + "/text", "w").close()

# -r: on a busy machine a key may be down for so long that it repeats.
r, w = os.pipe()
server = background("Xvfb", ":7", "-screen", "0", f"{WIDTH}x400x24", "-nolisten", "tcp", "-noreset", "-r", "-displayfd", str(w), pass_fds=[w])
os.close(w)
driver.ensure(os.fdopen(r).readline() == "7\n", "X does not start:", open(where + "/log").read())
started = [server, background("openbox")]
# The window manager is there when it says so on the root window.
while b"_NET_SUPPORTING_WM_CHECK(WINDOW)" not in run("xprop", "-root", "_NET_SUPPORTING_WM_CHECK"):
    driver.ensure(started[-1].poll() is None, "openbox has ended:", open(where + "/log").read())
started += [
    background("xedit", "-geometry", "400x210+10+10", where + "/text"),
    background("xterm", "-xrm", "*font: fixed", "-T", "reader", "-geometry", "60x7+10+270", "-e", "bash", where + "/reader"),
    background("xterm", "-xrm", "*font: fixed", "-T", "counter", "-geometry", "30x20+520+10", "-e", "bash", where + "/counter"),
]
lines, counts = open(where + "/typed"), open(where + "/counted")
driver.ensure(lines.readline() == "ready\n", "the terminal's reader is not ready")


def window(*how):
    return run("xdotool", "search", "--sync", "--onlyvisible", *how).split()[0].decode()


editor, terminal = window("--class", "xedit"), window("--name", "^reader$")
place = {k.strip(): v for k, _, v in (l.partition(":") for l in run("xwininfo", "-id", editor).decode().splitlines())}
x, y, width, height = (int(place[k]) for k in ("Absolute upper-left X", "Absolute upper-left Y", "Width", "Height"))


def screen():
    """The pixels of the screen's left part."""
    shot = run("xwd", "-root", "-silent")
    head = struct.unpack(">25I", shot[:100])
    size, high, per_line, colours = head[0], head[5], head[12], head[19]
    pixels = shot[size + 12 * colours:]
    return b"".join(pixels[i * per_line:i * per_line + LEFT * head[11] // 8] for i in range(high))


def text():
    """What the editor has: its text is selected with the mouse, which
    leaves the cursor at its end, and the selection asked for. It answers when it has drawn all that came before."""
    run("xdotool", "mousemove", str(x + 17), str(y + height - 80), "mousedown", "1",
        "mousemove", str(x + width - 30), str(y + height - 10), "mouseup", "1")
    while True:  # typing has given the selection up, and nobody has it until the editor sees the mouse
        p = subprocess.run(["xclip", "-o", "-selection", "primary"], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if p.returncode == 0:
            return p.stdout.split()
        driver.ensure("not available" in p.stderr, "xclip says", p.stderr)


def mark(name):
    global picture
    run("xdotool", "windowactivate", "--sync", terminal, "type", "--delay", "1", name + "\n")
    said = lines.readline()
    driver.ensure(said == name + "\n", "the terminal has read", said, "for", name)
    typed.append(name)
    run("xdotool", "windowactivate", "--sync", editor, "type", "--delay", "1", name + " ")
    got = text()
    driver.ensure(got == typed, "the editor has", got, "where", typed, "was typed")
    before, picture = picture, screen()
    driver.ensure(picture != before, "the screen shows nothing of", name)


n = 0


def count():
    global n
    n += 1
    said = counts.readline()
    driver.ensure(said == f"{n}\n", "the other terminal counts", said, "where", n, "is right")


def check():
    load.more(20)
    for p in started:
        driver.ensure(p.poll() is None, p.args, "has ended:", open(where + "/log").read())
    shown = screen()
    driver.ensure(shown == picture, sum(a != b for a, b in zip(shown, picture)), "bytes of the screen differ")
    # The editor was asked for the text that this shows. Asked once more, without typing in between, it takes
    # the mouse for a double click if that is soon enough, and selects otherwise.
    return typed


load.run(count)
driver.serve(mark, check)
