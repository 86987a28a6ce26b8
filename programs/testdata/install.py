"""apt-get in the middle of installing and purging packages from a file: repository,
over and over. dpkg finds no package half installed and no file changed, and what
apt-get says of each package comes once."""

import glob
import os
import subprocess

import driver

kept = []
load = driver.Load()
env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def run(*argv):
    p = subprocess.run(argv, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    driver.ensure(p.returncode == 0, argv, "ended with", p.returncode, p.stdout[-2000:], p.stderr)
    return p.stdout


def installed():
    have = run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n").splitlines()
    return {h.split()[0] for h in have if h.endswith(" installed")}


for old in ["/etc/apt/sources.list", *glob.glob("/etc/apt/sources.list.d/*")]:
    if os.path.exists(old):
        os.unlink(old)
with open("/etc/apt/sources.list", "w") as f:
    f.write("deb [trusted=yes] file:/srv/repository ./\n")
run("apt-get", "update")
before = installed()
names = {l.split()[1] for l in open("/srv/repository/Packages") if l.startswith("Package: ")} - before
driver.ensure(len(names) >= 6, "the repository has", names)


def apt(verb, *says):
    """Yields at each package that apt-get says something of."""
    p = subprocess.Popen(["apt-get", "-y", "--no-install-recommends", verb, *names], env=env, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    said, times = [], dict.fromkeys(says, 0)
    for line in p.stdout:
        said.append(line)
        for s in says:
            if line.startswith(s):
                times[s] += 1
                yield
    driver.ensure(p.wait() == 0, "apt-get", verb, "ended with", p.returncode, "".join(said[-50:]))
    driver.ensure(set(times.values()) == {len(names)}, "of", len(names), "packages it says", times, "".join(said))


def turn():
    while True:
        yield from apt("install", "Unpacking ", "Setting up ")
        driver.ensure(installed() == before | names, "installed are", installed() - before, "where", names, "is right")
        driver.ensure(run("dpkg", "--audit") == "", "packages are half installed")
        # The image has no documentation, which dpkg knows of.
        bad = [l for l in run("dpkg", "--verify", *names).splitlines() if " /usr/share/" not in l]
        driver.ensure(not bad, "files were changed:", bad)
        yield from apt("purge", "Removing ")
        driver.ensure(installed() == before, "left are", installed() ^ before)


turns = turn()


def check():
    load.more(4)
    return kept


next(turns)
load.run(lambda: next(turns))
driver.serve(kept.append, check)
