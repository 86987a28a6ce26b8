"""make -j2 of a C program in the middle of its build, over and over: the program
that comes of it says what its sources say."""

import os
import subprocess
import tempfile

import driver

where = tempfile.mkdtemp()
kept = []
load = driver.Load()
FILES = 12
for i in range(FILES):
    with open(f"{where}/f{i}.c", "w") as f:
        f.write(f"#include <stdio.h>\n#include <stdlib.h>\nint f{i}(int n) {{ return n + {i}; }}\n")
with open(where + "/main.c", "w") as f:
    f.write("#include <stdio.h>\n" + "".join(f"int f{i}(int);\n" for i in range(FILES)))
    f.write("int main(void) { int n = 0;\n" + "".join(f"n = f{i}(n);\n" for i in range(FILES)) + 'printf("%d\\n", n); return 0; }\n')
with open(where + "/Makefile", "w") as f:
    f.write("objects := main.o " + " ".join(f"f{i}.o" for i in range(FILES)) + "\nprogram: $(objects)\n\tcc -o $@ $^\n"
            "%.o: %.c\n\tcc -O1 -c -o $@ $<\nclean:\n\trm -f program *.o\n.PHONY: clean\n")


def build():
    for argv in ["make", "-s", "clean"], ["make", "-s", "-j2"], ["./program"]:
        p = subprocess.run(argv, cwd=where, capture_output=True, text=True)
        driver.ensure(p.returncode == 0 and p.stderr == "", argv, "ended with", p.returncode, p.stderr)
    driver.ensure(p.stdout == f"{sum(range(FILES))}\n", "the program says", p.stdout)


def check():
    load.more(1)
    return kept


load.run(build)
driver.serve(kept.append, check)
