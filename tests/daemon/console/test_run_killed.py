"""test_run_killed.py: `rollcall run` killed with SIGKILL while it starts, at instants that are picked at random, and
with its warden: no process and no directory stays, and nothing that is not the run's own is touched.

A run that was killed has been cleaned up when its warden has ended, however long that takes: this is the condition
that is waited for, and then nothing may be left. ROLL_KILLS says how many runs are killed; docs/CONSOLE.md has the
long form.
ROLL_SEED repeats the instants, as far as a machine repeats itself.
"""
import ctypes
import errno
import os
import random
import signal
import struct
import subprocess
import sys
import time
import unittest

from support import Case, END_S, ROLLCALL, command_of, marked, until

KILLS = int(os.environ.get("ROLL_KILLS", "24"))
SEED = int(os.environ.get("ROLL_SEED", str(random.SystemRandom().randrange(1 << 32))))
FIRST_S = 0.1  # the part of a run's life in which it sets up what must not stay
SPACE = ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
if os.geteuid() == 0:
    SPACE = SPACE[2:]
PASSING = ("rollcall-warden", "ld-linux", "ld-musl")


def be_older():
    """Makes the kernel answer like one before 6.9, which refuses flags of pidfd_send_signal, to this process and what
    it starts (seccomp)."""
    load, equal, end, number, flags = 0x20, 0x15, 0x06, 0, 16 + 3 * 8
    program = b"".join(struct.pack("=HBBI", *line) for line in (
        (load, 0, 0, number), (equal, 0, 3, 424), (load, 0, 0, flags), (equal, 1, 0, 0),
        (end, 0, 0, 0x00050000 | errno.EINVAL), (end, 0, 0, 0x7FFF0000)))
    text = ctypes.create_string_buffer(program, len(program))
    libc = ctypes.CDLL(None, use_errno=True)
    whole = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(text)))
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, whole, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return ""


class Killed(Case):
    def pids(self, *names):
        """Processes of this test, those of these names."""
        return [pid for pid in marked(self.mark) if not names or name_of(pid) in names]

    def launch(self, *command, n=2, before=None):
        return subprocess.Popen([ROLLCALL, "run", "-q", "--hostnccl", "-n", str(n), "--", *command], env=self.env,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=before)

    def said(self, pid, name):
        """A number of /proc/PID/status; 0 when the process has ended."""
        try:
            with open(f"/proc/{pid}/status", encoding="utf-8") as f:
                return next((int(line.split()[1]) for line in f if line.startswith(name + ":")), 0)
        except OSError:
            return 0

    def settle(self):
        """Waits until neither a run nor a warden is left, which have the names of the program, nor a loader that lists
        the libraries of the command for the run, as ldd does: it ends by itself."""
        self.assertTrue(until(lambda: not [pid for pid in self.pids() if name_of(pid) == "rollcall" or
                                       name_of(pid).startswith(PASSING)], 0.005),
                        "a warden stays")

    def left(self):
        return [command_of(pid) for pid in self.pids()], os.listdir(self.rings)

    def test_killed_while_it_starts(self):
        random.seed(SEED)
        processes = directories = 0
        for _ in range(KILLS):
            run = self.launch("/bin/sleep", "600")
            time.sleep(random.uniform(0, FIRST_S))  # the instant: no condition is meant by it
            run.kill()
            run.wait()
            self.settle()
            here, rings = self.left()
            processes += bool(here)
            directories += bool(rings)
            if here or rings:
                print(f"left: {here} {rings}", file=sys.stderr)
            for pid in self.pids():
                os.kill(pid, signal.SIGKILL)
            until(lambda: not self.pids())
            for name in os.listdir(self.rings):
                subprocess.run(["rm", "-rf", os.path.join(self.rings, name)], check=True)
        print(f"{KILLS} kills (seed {SEED}): processes left by {processes}, a directory by {directories}",
              file=sys.stderr)
        self.assertEqual((processes, directories), (0, 0))

    def test_the_next_run_clears_what_a_dead_one_left(self):
        dead, alive = (self.launch("/bin/sleep", "600") for _ in range(2))
        folders = [f"run-{run.pid}" for run in (dead, alive)]
        self.assertTrue(until(lambda: len(self.pids("sleep")) == 4 and set(os.listdir(self.rings)) == set(folders)))
        wardens = {self.said(pid, "PPid"): pid for pid in self.pids("rollcall-warden")}
        ranks = [pid for pid in self.pids("sleep") if self.said(pid, "PPid") == dead.pid]
        daemons = [pid for pid in self.pids("rollcalld") if self.said(pid, "PPid") == dead.pid]
        for pid in (wardens[dead.pid], dead.pid):
            os.kill(pid, signal.SIGKILL)
        dead.wait()
        self.assertTrue(until(lambda: wardens[dead.pid] not in self.pids()))
        self.assertEqual((len(ranks), len(daemons)), (2, 1))
        os.kill(daemons[0], signal.SIGKILL)
        until(lambda: daemons[0] not in self.pids())
        self.assertEqual(self.launch("/bin/true").wait(), 0)
        self.assertEqual(set(os.listdir(self.rings)), set(folders))  # its ranks live
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
        until(lambda: not set(ranks) & set(self.pids()))
        self.assertEqual(self.launch("/bin/true").wait(), 0)
        self.assertEqual(os.listdir(self.rings), folders[1:])  # that of the run that lives
        alive.kill()
        alive.wait()
        self.settle()
        self.assertEqual(self.left(), ([], []))

    def test_an_older_kernel_knows_no_groups_by_pidfd(self):
        # What a rank leaves in its group when its leader has been reaped: at the end of the run, and when it is killed.
        for is_killed in (False, True):
            other = "exec sleep 601" if is_killed else "exit 0"
            script = f'if [ "$RANK" = 0 ]; then sleep 600 & else {other}; fi'
            run = self.launch("/bin/sh", "-c", script, before=be_older)
            if is_killed:
                self.assertTrue(until(lambda: len(self.pids("sleep")) == 2 and not self.pids("sh")))
                run.kill()
            run.wait()
            self.settle()
            self.assertEqual(self.left(), ([], []))

    def test_the_number_of_a_rank_that_has_ended_is_anothers(self):
        # The world of this test is a pid namespace, where numbers can be chosen.
        if subprocess.run(["unshare", *SPACE, "sh", "-c", "echo 99 > /proc/sys/kernel/ns_last_pid"],
                          stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no pid namespace in which numbers can be chosen (unshare, CONFIG_CHECKPOINT_RESTORE)")
        for how in ("SIGKILL", "SIGTERM"):
            for _ in range(10):
                r = subprocess.run(["unshare", *SPACE, sys.executable, __file__, "--reuse", how],
                                   env=self.env, capture_output=True, text=True, timeout=END_S, check=False)
                if r.stdout != "taken\n":
                    break
            self.assertEqual((r.returncode, r.stdout), (0, "untouched\n"), f"{how}: {r.stderr}")


def names():
    """The names of the processes of this namespace, zombies excluded, which nobody reaps here."""
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return {name_of(pid) for pid in pids if command_of(pid) not in ("", "?")}


def reuse(how):
    """Takes the number of a rank that has ended, then ends its run; says whether that has touched the new owner."""
    script = 'if [ "$RANK" = 0 ]; then echo $$; else exec sleep 600; fi'
    run = subprocess.Popen([ROLLCALL, "run", "-q", "-n", "2", "--", "/bin/sh", "-c", script], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True)
    number = int(run.stdout.readline())
    until(lambda: not os.path.exists(f"/proc/{number}") and "sleep" in names())
    pid = tries = 0
    while pid != number:
        tries += 1
        if tries > 100:  # a thread of the daemon has taken it
            run.terminate()
            run.wait()
            print("taken")
            return
        with open("/proc/sys/kernel/ns_last_pid", "w", encoding="ascii") as f:
            f.write(str(number - 1))
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.pause()
        if pid != number:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    until(lambda: os.getpgid(number) == number)
    run.send_signal(signal.Signals[how])
    run.wait()
    ended = until(lambda: not names() & {"rollcall", "rollcall-warden", "sleep"})
    print("untouched" if ended and os.waitpid(number, os.WNOHANG) == (0, 0) else "signalled")
    os.kill(number, signal.SIGKILL)
    os.waitpid(number, 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reuse"]:
        reuse(sys.argv[2])
    else:
        unittest.main()
