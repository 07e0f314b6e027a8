"""bundle.py: daemon and console with every library that they need, as one folder that runs where none of these is
installed.

Layout: libexec/ holds the programs, stripped; deps/ their libraries, libc included; bin/ a shell wrapper for each, and
the loader beside it; lib/ librollcall.so, for a machine where it cannot be built, and the files that rollcall looks for
in lib/rollcall. A wrapper names loader and library path itself, so nothing of the environment and no run path matters,
and the jobs that rollcall starts inherit neither. The loader stands in bin/ because that is where rollcall looks for
rollcalld: beside its own executable, which the kernel says is the loader.
"""
import os
import shutil
import subprocess

import place

PROGRAMS = ("rollcall", "rollcalld")
MOST_BYTES = 60 << 20
LOADER = "ld-linux-x86-64.so.2"
WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
export ROLLCALL_BIN="$here/rollcalld"
exec "$here/%s" --library-path "$here/../deps" "$here/../libexec/%s" "$@"
"""


def libraries(program):
    """The files that the loader maps for a program, by soname."""
    found = {}
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        words = line.split()
        if "not found" in line:
            raise place.Missing(f"{program}: {line.strip()}")
        if len(words) > 2 and words[1] == "=>":
            found[words[0]] = os.path.realpath(words[2])
        elif words and words[0].endswith(LOADER):
            found[LOADER] = os.path.realpath(words[0])
    return found


def size_of(folder):
    return sum(os.lstat(os.path.join(d, f)).st_size for d, _, files in os.walk(folder) for f in files)


def make(build, target=place.BUNDLE):
    """Makes the folder anew from a finished build tree; returns its size in bytes."""
    fresh = target + ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    for part in ("bin", "libexec", "deps", "lib"):
        os.makedirs(os.path.join(fresh, part))
    wanted = {}
    for name in PROGRAMS:
        program = os.path.join(build, "bin", name)
        if not os.path.exists(program):
            raise place.Missing(f"{program} is not there: build the tree first, or name it with --build")
        wanted.update(libraries(program))
        inside = os.path.join(fresh, "libexec", name)
        subprocess.run(["strip", "-o", inside, program], check=True)
        wrapper = os.path.join(fresh, "bin", name)
        with open(wrapper, "w") as f:
            f.write(WRAPPER % (LOADER, name))
        os.chmod(wrapper, 0o755)
    if LOADER not in wanted:
        raise place.Missing(f"the loader {LOADER} was not found: the bundle is made on x86-64 Linux with glibc")
    shutil.copy2(wanted.pop(LOADER), os.path.join(fresh, "bin", LOADER))
    for soname, path in wanted.items():
        shutil.copy2(path, os.path.join(fresh, "deps", soname))
    subprocess.run(["strip", "-o", os.path.join(fresh, "lib", "librollcall.so"),
                    os.path.join(build, "lib", "librollcall.so")], check=True)
    python = os.path.join(build, "lib", "rollcall", "python")
    if os.path.isdir(python):
        shutil.copytree(python, os.path.join(fresh, "lib", "rollcall", "python"))
    size = size_of(fresh)
    if size > MOST_BYTES:
        raise place.Missing(f"the bundle has {size >> 20} MiB, more than {MOST_BYTES >> 20}")
    shutil.rmtree(target, ignore_errors=True)
    os.rename(fresh, target)
    return size
