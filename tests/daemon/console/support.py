"""support.py: what the integration tests of `rollcall` share: the built programs, a ring directory of their own, and
what is left behind.

The programs come through the environment, set by ctest: ROLL_BIN (rollcall), ROLL_DAEMON_BIN (rollcalld),
ROLL_CATALOGUE (a program that calls NCCL; absent when hostnccl is not built). Every process that a test starts carries
ROLL_TEST_MARK, so that leftovers can be found without looking at names.
"""
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import unittest
import uuid

ROLLCALL = os.environ["ROLL_BIN"]
DAEMON = os.environ["ROLL_DAEMON_BIN"]
CATALOGUE = os.environ.get("ROLL_CATALOGUE", "")


END_S = 300  # the end of whatever should have ended by itself: so late that only a hang reaches it


def until(condition, step=0.02):
    """Waits until condition() is true; returns its last value."""
    end = time.monotonic() + END_S
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)


def marked(mark):
    """Processes whose environment holds the mark, zombies excluded."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark.encode() not in f.read():
                    continue
            with open(f"/proc/{pid}/stat") as f:
                if f.read().rsplit(")", 1)[1].split()[0] != "Z":
                    found.append(int(pid))
        except OSError:
            pass
    return found


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "?"


class Case(unittest.TestCase):
    """One test: a ring directory of its own that must be empty at the end, and no process left."""

    def setUp(self):
        self.mark = f"ROLL_TEST_MARK={uuid.uuid4()}"
        self.rings = tempfile.mkdtemp(prefix="rollcall-console-", dir="/dev/shm")
        self.tmp = tempfile.mkdtemp(prefix="rollcall-console-")
        name, value = self.mark.split("=")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_", "LD_PRELOAD"))}
        self.env.update({name: value, "ROLLCALL_DIR": self.rings, "NO_COLOR": "1",
                         "ROLLCALL_COOKIE": os.path.join(self.tmp, "cookie")})
        self.started = []
        self.addCleanup(self.check_and_remove)  # not tearDown: that is left out when a subclass's setUp fails

    def check_and_remove(self):
        try:
            for process in self.started:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                for stream in (process.stdout, process.stderr):
                    if stream:
                        stream.close()
            until(lambda: not marked(self.mark))
            left = [f"{p}: {command_of(p)}" for p in marked(self.mark)]
            for line in left:
                os.kill(int(line.split(":")[0]), signal.SIGKILL)
            self.assertEqual(left, [], "processes left behind")
            self.assertEqual(os.listdir(self.rings), [], "left behind in the ring directory")
        finally:
            shutil.rmtree(self.rings, ignore_errors=True)
            shutil.rmtree(self.tmp, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.tmp, name)

    def rollcall(self, *args, timeout=END_S, env=None, **kwargs):
        """Runs rollcall to its end."""
        return subprocess.run([ROLLCALL, *args], capture_output=True, text=True, timeout=timeout,
                              env={**self.env, **(env or {})}, stdin=kwargs.pop("stdin", subprocess.DEVNULL), **kwargs)

    def start(self, *args, env=None, **kwargs):
        """Starts rollcall and returns at once."""
        process = subprocess.Popen([ROLLCALL, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, **kwargs)
        self.started.append(process)
        return process

    def in_terminal(self, *args, columns=0, streams=("stderr",), env=None):
        """Runs rollcall where these streams are a terminal of so many columns (0: it does not say how wide it is).
        What the terminal shows, and the exit code."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        to = {name: theirs if name in streams else subprocess.DEVNULL for name in ("stdout", "stderr")}
        p = subprocess.Popen([ROLLCALL, *args], stdin=subprocess.DEVNULL, env={**self.env, **(env or {})}, **to)
        self.started.append(p)
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # the end of a terminal
        os.close(ours)
        return shown.decode().replace("\r\n", "\n"), p.wait(END_S)

    def assert_one_line(self, text, part):
        """Exactly one line, by rollcall, that holds part; beside the one that says how the job is bound."""
        lines = [line for line in text.splitlines() if not line.startswith("rollcall: bound by ")]
        self.assertEqual(len(lines), 1, text)
        self.assertTrue(lines[0].startswith("rollcall: "), text)
        self.assertIn(part, lines[0])

    def need_nccl(self):
        self.assertTrue(CATALOGUE and os.path.exists(CATALOGUE),
                        "ROLL_CATALOGUE names no program: hostnccl is not built")


def summary_of(text):
    """The summary line of a run, as numbers; None when there is none."""
    m = re.search(
        r"rollcall: ([\d,]+) ranks?, ([\d,]+) calls? on ([\d,]+) communicators?: ([\d,]+) findings?, (nothing|[\d,]+)",
        text)
    if not m:
        return None
    names = ("ranks", "calls", "comms", "findings", "lost")
    return {n: 0 if v == "nothing" else int(v.replace(",", "")) for n, v in zip(names, m.groups())}
