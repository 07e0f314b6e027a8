"""test_interpreters.py: Python stacks, by every rung of the ladder, of every CPython from 3.9 on that this machine
has."""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

from looking import Looking, answers, frames, in_order, main_thread, names, program, skip_if, status
from support import DAEMON, ROLLCALL, until

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "python_program.py")


def interpreters():
    """One of each version: from PATH, and where pyenv keeps them."""
    found = {}
    roots = [os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions", "*", "bin")]
    places = os.environ.get("PATH", "").split(":") + [p for root in roots for p in glob.glob(root)]
    for minor in range(9, 15):
        for place in places:
            path = os.path.join(place, f"python3.{minor}")
            same = {os.path.realpath(other) for other in found.get(minor, [])}
            if os.access(path, os.X_OK) and "shims" not in place and os.path.realpath(path) not in same:
                found.setdefault(minor, []).append(path)
    return found


FOUND = interpreters()


def line_of(text):
    with open(PROGRAM) as f:
        return 1 + next(i for i, line in enumerate(f) if text in line)


class Reader(Looking):
    """The first rung: reading the memory."""

    def start_each(self, *arguments):
        """Every interpreter runs a program, all at the same time, and all are looked at together: [(minor, path,
        process)]."""
        skip_if(not FOUND, "no CPython from 3.9 on is installed")
        running = []
        for minor in range(9, 15):
            if minor not in FOUND:
                print(f"left out: CPython 3.{minor} is not installed: its layout is only tested on written bytes",
                      file=sys.stderr)
            for path in FOUND.get(minor, []):
                p = subprocess.Popen([path, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                     env=self.env)
                self.started.append(p)
                running.append((minor, path, p))
        for minor, path, p in running:
            self.assertEqual(p.stdout.readline().strip(), "ready", path)
        return running

    def look(self, running, *options):
        return answers(self.of_pids(*(p.pid for _, _, p in running), options=options))

    def asleep(self, running, call="nanosleep"):
        """Has each got to its last step?"""
        for _, path, p in running:
            self.assertTrue(until(lambda: call in self.wchan(p.pid)), f"{path}: {self.wchan(p.pid)}")

    def test_a_thread_that_holds_the_gil_in_c(self):
        running = self.start_each(PROGRAM, "gil")
        self.asleep(running)
        stacks = self.look(running, "--interval", "20")
        for minor, path, p in running:
            with self.subTest(python=path):
                self.check_gil(minor, p, stacks[p.pid])

    def check_gil(self, minor, p, stack):
        self.assertEqual(stack["python"], {"version": f"3.{minor}", "by": "reader"}, stack.get("python_error"))
        have = frames(stack, main_thread(stack))
        fns = [f["fn"] for f in have]
        self.assertTrue(in_order(["<module>", "schön", "schön", "schön", "schön", "hold"], fns), fns)
        # Merged: the C function that was called stands behind the Python line that called it.
        self.assertLess(fns.index("hold"), len(fns) - 1)
        self.assertTrue(any("nanosleep" in f for f in fns[fns.index("hold"):]), fns)
        self.assertFalse([f for f in fns if f.startswith("_PyEval_EvalFrame")], fns)
        hold = have[fns.index("hold")]
        self.assertEqual((hold["kind"], hold["line"]), ("python", line_of("the line of the sleep")))
        self.assertTrue(hold["file"].endswith("python_program.py"))
        self.assertTrue(main_thread(stack)["samples"][0] == main_thread(stack)["samples"][-1], "stuck")
        self.assertEqual((status(p.pid, "State"), status(p.pid, "TracerPid")), ("S", "0"))

    def test_threads_methods_generators_and_their_numbers(self):
        running = self.start_each(PROGRAM, "threads")
        self.asleep(running)
        both, python, native = self.look(running, "-n", "2", "--interval",
                                         "20"), self.look(running, "--python", "-n",
                                                          "1"), self.look(running, "--native", "-n", "1")
        for minor, path, p in running:
            with self.subTest(python=path):
                stack = both[p.pid]
                self.assertEqual({t["tid"] for t in stack["threads"]},
                                 {int(t) for t in os.listdir(f"/proc/{p.pid}/task")},
                                 "each thread once, with its number")
                by = [names(stack, t) for t in stack["threads"]]
                method = "Worker.wait_日本" if minor >= 11 else "wait_日本"
                run = "Worker.run" if minor >= 11 else "run"
                self.assertTrue(any(in_order([run, method], n) for n in by), by)
                self.assertTrue(any(in_order(["consume", "numbers"], n) for n in by), by)
                # Python alone stops nobody and shows nothing else.
                self.assertEqual(python[p.pid]["stopped_us"], 0)
                self.assertEqual({f["kind"] for f in python[p.pid]["frames"]}, {"python"})
                self.assertEqual({f["kind"] for f in native[p.pid]["frames"]}, {"native"})

    def test_deep_recursion(self):
        running = self.start_each(PROGRAM, "deep", "900")
        self.asleep(running)
        stacks = self.look(running, "--python", "-n", "1")
        for minor, path, p in running:
            with self.subTest(python=path):
                have = names(stacks[p.pid], main_thread(stacks[p.pid]))
                self.assertEqual((have[0], have[-1]), ("<module>", "hold"), have[:3])
                self.assertIn("... frames left out ...", have)
                self.assertGreater(have.count("recurse"), 150)
                self.assertLess(len(have), 250)

    def test_a_moving_program_gives_only_frames_that_it_has(self):
        skip_if(not FOUND, "no CPython from 3.9 on is installed")
        code = ("import sys\ndef leaf(n):\n    return n + 1\ndef middle(n):\n    return leaf(n)\ndef top():\n    n = "
                "0\n    while True:\n        n = middle(n)\nprint('ready', flush=True)\ntop()\n")
        for path in sum(FOUND.values(), []):  # one by one: each takes a whole core
            with self.subTest(python=path):
                p = self.run_program(path, "-c", code)
                stack = answers(self.of_pids(p.pid, options=("--python", "-n", "16", "-i", "3")))[p.pid]
                p.kill()
                seen = {tuple(names(stack, main_thread(stack), i)) for i in range(16)} - {()}
                chains = {("<module>", "top"), ("<module>", "top", "middle"), ("<module>", "top", "middle", "leaf")}
                # Two moments may meet in one chain, but never a frame that is none.
                self.assertTrue({n for s in seen for n in s} <= {"<module>", "top", "middle", "leaf"}, seen)
                self.assertTrue(seen & chains, seen)

    def test_the_layout_of_3_14(self):
        p = self.run_program(program("stack_fake_python"))
        stack = answers(self.of_pids(p.pid, options=("--python", "-n", "1")))[p.pid]
        self.assertEqual(stack["python"], {"version": "3.14", "by": "reader"}, stack.get("python_error"))
        self.assertEqual([(f["fn"], f["file"], f["line"]) for f in frames(stack, main_thread(stack))],
                         [("main", "train.py", 12), ("schön", "train.py", 20)])


class OtherRungs(Looking):
    """Memory that may not be read."""

    def unreadable(self, pid, directory, **wish):
        """What a helper without the right to look gets: its last line, parsed."""
        prefix = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"] if os.getuid() == 0 else []
        text = json.dumps({"pids": [pid], "samples": 1, "dir": directory, **wish})
        r = subprocess.run([*prefix, DAEMON, "--stack", text], capture_output=True, text=True, env=self.env,
                           timeout=300)
        self.assertEqual(r.returncode, 0, r.stderr)
        return json.loads(r.stdout.splitlines()[-1])

    def test_nothing_is_announced_so_nothing_is_sent(self):
        p = self.run_program(sys.executable, PROGRAM, "undumpable")
        answer = self.unreadable(p.pid, self.rings)
        self.assertIn("error", answer)
        self.assertRegex(answer["error"], "undumpable|belongs to|not permitted|SYS_PTRACE")
        # A file that lies: of another process, of a signal that is not caught, of one that is not ours to send.
        for head in (f"rollcall python stacks 1 pid {p.pid + 1} signal 41\n",
                     f"rollcall python stacks 1 pid {p.pid} signal 41\n",
                     f"rollcall python stacks 1 pid {p.pid} signal 9\n", "rollcall python stacks 1 pid x", ""):
            with open(f"{self.rings}/{p.pid}.pystacks", "w") as f:
                f.write(head)
            self.assertIn("error", self.unreadable(p.pid, self.rings))
            self.assertIsNone(p.poll(), head)
        os.unlink(f"{self.rings}/{p.pid}.pystacks")

    def test_by_the_signal_of_the_preload_library(self):
        skip_if(sys.version_info >= (3, 13), "this interpreter's dumper is not exported")
        self.need_nccl()
        job = self.start("run", "-n", "1", "--hostnccl", "--", sys.executable, PROGRAM, "nccl")
        _, pid, directory = job.stdout.readline().split()
        self.assertTrue(until(lambda: "nanosleep" in self.wchan(int(pid))))
        announcement = f"{directory}/{pid}.pystacks"
        self.assertTrue(os.path.exists(announcement))
        self.assertEqual(os.stat(announcement).st_mode & 0o777, 0o600)
        for _ in range(2):
            answer = self.unreadable(int(pid), directory)
            self.assertEqual(answer.get("python", {}).get("by"), "signal", answer)
            have = names(answer, main_thread(answer))
            self.assertTrue(in_order(["<module>", "schön", "hold"], have), have)
            self.assertIn("native_error", answer)
        # A signal without the cookie is not ours: nothing is written, nobody dies.
        size = os.path.getsize(announcement)
        os.kill(int(pid), signal.SIGRTMIN + 7)
        time.sleep(0.2)
        self.assertEqual(os.path.getsize(announcement), size)
        self.assertIsNone(job.poll())
        job.terminate()
        job.wait(300)

    def test_a_signal_that_is_taken_is_left_alone(self):
        self.need_nccl()
        code = ("import signal, runpy, sys\nsignal.signal(signal.SIGRTMIN + 7, lambda *a: None)\n"
                f"sys.argv = ['x', 'nccl']\nrunpy.run_path({PROGRAM!r}, run_name='__main__')\n")
        job = self.start("run", "-n", "1", "--hostnccl", "--", sys.executable, "-c", code)
        _, pid, directory = job.stdout.readline().split()
        self.assertTrue(until(lambda: "nanosleep" in self.wchan(int(pid))))
        self.assertFalse(os.path.exists(f"{directory}/{pid}.pystacks"))
        job.terminate()
        job.wait(300)

    def test_by_faulthandler_under_run_python_stacks(self):
        skip_if(not FOUND, "no CPython from 3.9 on is installed")
        path = FOUND[max(FOUND)][0]
        os.mkdir(self.path("own"))
        with open(self.path("own/sitecustomize.py"), "w") as f:
            f.write("import os; os.environ['OWN_SITE'] = 'ran'\n")
        code = ("import os, sys, runpy\nprint(os.getpid(), os.environ['ROLLCALL_DIR'], os.environ.get('OWN_SITE'), "
                f"flush=True)\nsys.argv = ['x', 'undumpable']\nrunpy.run_path({PROGRAM!r}, run_name='__main__')\n")
        job = self.start("run", "-n", "1", "--hostnccl", "--python-stacks", "--", path, "-c", code,
                         env={"PYTHONPATH": self.path("own")})
        pid, directory, own = job.stdout.readline().split()
        self.assertEqual(own, "ran", "the job's own sitecustomize runs too")
        self.assertEqual(job.stdout.readline().strip(), "ready")
        self.assertTrue(until(lambda: "nanosleep" in self.wchan(int(pid))))
        answer = self.unreadable(int(pid), directory)
        self.assertEqual(answer.get("python", {}).get("by"), "signal", answer)
        self.assertTrue(in_order(["<module>", "schön", "hold"], names(answer, main_thread(answer))))
        job.terminate()
        job.wait(300)

    def test_py_spy(self):
        skip_if(not shutil.which("py-spy"), "py-spy is not installed: its rung is only tested on a recorded answer")
        p = self.run_program(sys.executable, PROGRAM, "gil")
        r = subprocess.run(["py-spy", "dump", "--json", "--nonblocking", "--pid", str(p.pid)], capture_output=True,
                           text=True)
        self.assertEqual(r.returncode, 0, r.stderr)
        spied = [f["name"] for f in json.loads(r.stdout)[0]["frames"]][::-1]
        stack = answers(self.of_pids(p.pid, options=("--python", "-n", "1")))[p.pid]
        self.assertEqual([n.split(".")[-1] for n in names(stack, main_thread(stack))], spied)


if __name__ == "__main__":
    unittest.main(verbosity=2)
