"""looking.py: what the tests of stacks share: programs to look at, and the one promise that is checked after each look:
the process goes on."""
import ctypes
import json
import os
import re
import struct
import subprocess
import sys
import time
import unittest

from support import Case, DAEMON, until

TESTS = os.environ["ROLL_STACK_TESTS"]


def program(name):
    return os.path.join(TESTS, name)


def skip_if(condition, why):
    """A skip that is seen: it stands in the output of the test, and ctest calls a program that ran nothing else
    skipped."""
    if condition:
        print(f"left out: {why}", file=sys.stderr)
        raise unittest.SkipTest(why)


def hold(pid, during):
    """Traces the main thread, as a debugger does, while during() runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    seize, interrupt, detach, wall = 0x4206, 0x4207, 17, 0x40000000
    if libc.ptrace(seize, pid, None, None) != 0:
        raise OSError(ctypes.get_errno(), "PTRACE_SEIZE")
    libc.ptrace(interrupt, pid, None, None)
    os.waitpid(pid, wall)
    try:
        return during()
    finally:
        libc.ptrace(detach, pid, None, None)


def status(pid, field):
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith(field + ":"):
                return line.split(":", 1)[1].split()[0]
    return None


def gone(pid):
    """The process has ended, whether somebody has waited for it or not."""
    try:
        return status(pid, "State") in ("Z", "X", None)
    except (FileNotFoundError, ProcessLookupError):
        return True


class Looking(Case):
    def run_program(self, *argv, env=None, ready="ready", **kwargs):
        """Starts a program and waits until it says that it is ready."""
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**self.env, **(env or {})}, **kwargs)
        self.started.append(process)
        line = process.stdout.readline()
        self.assertEqual(line.strip(), ready, process.stderr.read() if not line else line)
        return process

    def threads_program(self, mode, n=0, name="stack_threads"):
        self.counter = self.path(f"counter-{len(self.started)}")
        process = self.run_program(program(name), self.counter, mode, str(n))
        if mode != "exit":  # it says that it is ready before its last step
            self.assertTrue(until(lambda: "futex" in self.wchan(process.pid)), self.wchan(process.pid))
        return process

    def wchan(self, pid):
        """What the main thread sleeps in, or its system call's number where the kernel does not tell."""
        with open(f"/proc/{pid}/wchan") as f:
            where = f.read()
        if where.strip("0"):
            return where
        with open(f"/proc/{pid}/syscall") as f:
            return {"202": "futex", "230": "nanosleep"}.get(f.read().split()[0], "?")

    def count(self, path=None):
        with open(path or self.counter, "rb") as f:
            return struct.unpack("Q", f.read(8))[0]

    def assert_goes_on(self, pid, path=None):
        """Not stopped, not traced, and its counting thread counts."""
        before = self.count(path)
        self.assertTrue(until(lambda: status(pid, "State") in "SR"), status(pid, "State"))
        self.assertEqual(status(pid, "TracerPid"), "0")
        self.assertTrue(until(lambda: self.count(path) > before + 3), "its counting thread stands still")

    def rollcall(self, *args, **kwargs):
        """Waits for stacks as long as a loaded machine may need, unless the test says how long."""
        if args[0] == "stacks" and "--timeout" not in args:
            args = ("stacks", "--timeout", "110", *args[1:])
        return super().rollcall(*args, **kwargs)

    def stacks(self, *args, code=0, env=None):
        """rollcall stacks --json, parsed."""
        r = self.rollcall("stacks", "--json", *args, env=env)
        self.assertEqual(r.returncode, code, r.stderr + r.stdout[:2000])
        return json.loads(r.stdout)

    def of_pids(self, *pids, options=(), code=0, env=None):
        return self.stacks("--pid", *options, *map(str, pids), code=code, env=env)


def answers(result):
    return {a["rank"]: a["stack"] for a in result["answers"]}


def frames(stack, thread, sample=-1):
    """One thread's frames at one sample, outermost first; None where there was none."""
    number = thread["samples"][sample]
    return None if number is None else [stack["frames"][i] for i in stack["stacks"][number]]


def names(stack, thread, sample=-1):
    return [f["fn"] for f in frames(stack, thread, sample) or []]


def from_libc(stack, thread, function):
    """Is it seen to the end: was this function called by libc's own start of a thread? That one has a name only where
    libc has its debug symbols."""
    outer = frames(stack, thread)[:names(stack, thread).index(function)]
    return bool(outer) and all(re.search(r"/libc[.-]", f.get("module", "")) for f in outer)


def main_thread(stack):
    return next(t for t in stack["threads"] if t["tid"] == stack["pid"])


def in_order(wanted, have):
    """Do the wanted names appear in this order (others may stand between)?"""
    rest = iter(have)
    return all(any(w == h for h in rest) for w in wanted)


def nodes(tree):
    """All nodes of a merged tree."""
    for node in tree:
        yield node
        yield from nodes(node["children"])
