"""trial.py: runs a program with one fault in it, and says what it did; and how many faults there are to try.

A fault is (kind, nth, site, variant, onwards): the n-th call of a kind (of a site, when that is not 0) fails with one
of its errors, and with onwards every later one, too.
"""
import collections
import os
import re
import shutil
import signal
import subprocess

from state import State, is_call

HANG_S = int(os.environ.get("ROLL_HANG_S", 120))  # only a hang reaches it

Fault = collections.namedtuple("Fault", "kind nth site variant onwards", defaults=(1, 0, 0, False))
Outcome = collections.namedtuple("Outcome", "code out err state files")


def environment(library, state, **more):
    """That of a program in which something may fail: nothing of this user's own, and quick to be reproduced."""
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env.update(LD_PRELOAD=library, ROLL_FAIL_STATE=state.path, LC_ALL="C.UTF-8", **more)
    return env


def run(argv, fault, place, library, **more):
    """Runs argv to its end in a fresh folder `place`/work; the files of it are a part of the outcome."""
    work, tmp, state = fresh(place, "work"), fresh(place, "tmp"), settings(place, fault)
    env = environment(library, state, HOME=tmp, TMPDIR=tmp, **more)
    process = subprocess.Popen(argv, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        out, err = process.communicate()
        return Outcome("hang", out, err, state.read(), contents(work))
    return Outcome(process.returncode, out, err.decode(errors="replace"), state.read(),
                   {**contents(work), **{"tmp/" + name: data for name, data in contents(tmp).items()}})


def contents(folder):
    """What lies in a folder and below it: {name: bytes}; of sockets and pipes, none."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            found[os.path.relpath(path, folder)] = b""
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    found[os.path.relpath(path, folder)] = file.read()
    return found


def fresh(*parts):
    """A folder of this name, with nothing in it. Returns its path."""
    path = os.path.join(*parts)
    shutil.rmtree(path, ignore_errors=True)
    os.makedirs(path, 0o700)
    return path


def settings(place, fault):
    return State(os.path.join(place, "state"), *(fault or ()))


def every_nth(clean, variants=4):
    """Each n of a run without a fault, with each error, once alone and once as the first of many."""
    for kind, wanted in (("alloc", False), ("call", True)):
        total = sum(n for key, n in clean.sites.items() if is_call(key) == wanted)
        for nth in range(1, total + 1):
            for variant in range(variants if wanted else 1):
                for onwards in (False, True):
                    yield Fault(kind, nth, 0, variant, onwards)


def every_site(clean, variants=4, later=()):
    """The first call of each place in our code, with each error, and some later ones."""
    for key, n in sorted(clean.sites.items()):
        kind = "call" if is_call(key) else "alloc"
        for nth in sorted({1} | {at for at in later if at <= n}):
            for variant in range(variants if kind == "call" else 1):
                yield Fault(kind, nth, key, variant, False)


def mended(clean, functions, name_of, variants=4):
    """The first calls of each place in these functions of the program: {function: faults}."""
    found = {}
    for key, n in sorted(clean.sites.items()):
        name = name_of(key)
        if name in functions:
            kind = "call" if is_call(key) else "alloc"
            found.setdefault(name, []).extend(
                Fault(kind, nth, key, variant, False) for nth in range(1, min(n, 5) + 1)
                for variant in range(variants if kind == "call" else 1))
    return found


def is_double(state, fault):
    """Whether the function has fewer errors than the fault asks for: another fault was this one already; so it is with
    the first of many that stayed alone."""
    return state.failed > 0 and (fault.variant >= state.variants or
                                 fault.onwards and state.failed == 1)


def plain(text):
    """Without what differs from run to run: numbers, with the units of times; and that a loaded machine was late."""
    text = re.sub(r",? ?[Ss]een late \([^)]*\)\.?", "", text)
    return re.sub(r"[0-9][0-9.,]*( ?(ns|us|ms|s|min|h)\b)?", "#", text)
