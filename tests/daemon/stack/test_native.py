"""test_native.py: native stacks of real processes: right, bounded, and never at the cost of the process."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from looking import (Looking, answers, frames, from_libc, hold, in_order, main_thread, names, nodes, program, skip_if,
                     status)
from support import DAEMON, ROLLCALL, until


class Native(Looking):
    def test_known_frames_in_several_threads(self):
        p = self.threads_program("stuck", 3)
        stack = answers(self.of_pids(p.pid))[p.pid]
        self.assertTrue(in_order(["main", "level_one", "level_two", "level_three"], names(stack, main_thread(stack))),
                        names(stack, main_thread(stack)))
        waiting = [t for t in stack["threads"] if "waits_here" in names(stack, t)]
        self.assertEqual(len(waiting), 3)
        for t in waiting:
            self.assertTrue(in_order(["waiter", "waits_here"], names(stack, t)))
            self.assertEqual(len(set(t["samples"])), 1, "it did not move")
        # Function, file and line, the line being that of the call.
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "program_threads.c")) as f:
            line = 1 + next(i for i, text in enumerate(f) if "return level_two(x)" in text)
        frame = next(f for f in frames(stack, main_thread(stack)) if f["fn"] == "level_one")
        self.assertTrue(frame["file"].endswith("program_threads.c"), frame)
        self.assertEqual(frame["line"], line)
        self.assert_goes_on(p.pid)

    def test_stuck_and_moving_differ(self):
        p = self.threads_program("moving")
        result = self.of_pids(p.pid, options=("--samples", "8", "--interval", "35"))
        marks = {n["fn"]: n["stuck"] for n in nodes(result["main"] + result["others"])}
        self.assertTrue(marks["level_three"])
        self.assertFalse(marks["step_a"])
        self.assertFalse(marks["step_b"])
        text = self.rollcall("stacks", "-n", "8", "-i", "35", "--pid", str(p.pid))
        self.assertRegex(text.stdout, r"\(1 process\)  moving: here in \d of 8 looks\n *step_[ab]")
        self.assertRegex(text.stdout, r"\(1 process\)  stuck\n(.*\n)*  level_three")
        self.assertNotIn("\x1b", text.stdout)
        self.assert_goes_on(p.pid)

    def test_cxx_names_templates_and_inlined_frames(self):
        skip_if(not os.path.exists(program("stack_names")), "stack_names was not built: no C++ compiler")
        p = self.run_program(program("stack_names"))
        stack = answers(self.of_pids(p.pid))[p.pid]
        wanted = ["main", "job::train(job::Layer<double>&)", "inlined_step", "job::Layer<double>::forward(double)"]
        self.assertTrue(in_order(wanted, names(stack, main_thread(stack))), names(stack, main_thread(stack)))
        other = next(t for t in stack["threads"] if t["tid"] != p.pid)
        self.assertTrue(in_order(wanted[1:], names(stack, other)), names(stack, other))

    def test_a_stripped_program_gives_module_and_offset(self):
        p = self.threads_program("stuck", 1, name="stack_stripped")
        stack = answers(self.of_pids(p.pid))[p.pid]
        own = [f for f in frames(stack, main_thread(stack)) if f.get("module", "").endswith("stack_stripped")]
        self.assertGreaterEqual(len(own), 4)
        # The places are those of the program with names.
        offsets = {f["offset"] for f in own}
        q = self.threads_program("stuck", 1)
        twin = answers(self.of_pids(q.pid))[q.pid]
        named = {f["fn"]: f["offset"] for f in frames(twin, main_thread(twin))
                 if f.get("module", "").endswith("stack_threads")}
        self.assertTrue({named[n] for n in ("level_one", "level_two", "level_three")} <= offsets, (named, offsets))
        self.assertFalse([f for f in own if f["fn"] in ("level_one", "level_two")])

    def test_code_without_loaded_unwind_tables(self):
        p = self.threads_program("stuck", 1, name="stack_tableless")
        stack = answers(self.of_pids(p.pid, options=("-n", "1")))[p.pid]
        self.assertTrue(in_order(["main", "level_one", "level_two", "level_three"], names(stack, main_thread(stack))),
                        names(stack, main_thread(stack)))
        self.assertTrue(any(in_order(["waiter", "waits_here"], names(stack, t)) and from_libc(stack, t, "waiter")
                            for t in stack["threads"]), "libdwfl goes on where libunwind ends")
        self.assert_goes_on(p.pid)

    def test_files_that_became_something_else(self):
        """What a rank runs lies no longer where it was: a FIFO would hang whoever opens it."""
        tricked = []
        for name in ("stack_threads", "stack_tableless"):
            copy = self.path(name)
            shutil.copy(program(name), copy)
            tricked.append(self.run_program(copy, self.path(name + ".counter"), "stuck", "1"))
            os.unlink(copy)
            os.mkfifo(copy + " (deleted)")  # the name that the kernel tells from now on
        sound = self.threads_program("stuck", 1)
        # A process that hangs has no threads.
        got = answers(self.of_pids(*(p.pid for p in tricked), sound.pid, options=("-n", "1")))
        self.assertIn("level_three", names(got[sound.pid], main_thread(got[sound.pid])))
        for p in tricked:
            self.assertTrue(got[p.pid].get("threads"), got[p.pid])

    def test_each_process_is_announced_before_it_is_looked_at_and_before_it_is_named(self):
        pids = [self.threads_program("stuck", 1).pid for _ in range(2)]
        r = subprocess.run([DAEMON, "--stack", json.dumps({"pids": pids, "samples": 2, "interval_ms": 1})],
                           capture_output=True, text=True, env=self.env)
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        told = [line.get("begin") or ("named", line["pid"]) for line in lines]
        once = [t for i, t in enumerate(told) if i == 0 or t != told[i - 1]]  # told again while naming takes long
        self.assertEqual(once,
                         pids * 2 + [pids[0], ("named", pids[0]), pids[1], ("named", pids[1])])

    def test_a_process_that_ends_meanwhile(self):
        p = self.threads_program("exit", 150)
        q = self.threads_program("stuck", 1)
        r = self.rollcall("stacks", "-n", "6", "-i", "100", "--json", "--pid", str(p.pid), str(q.pid))
        self.assertIn(r.returncode, (0, 4), r.stderr)
        both = answers(json.loads(r.stdout))
        self.assertIn("level_three", names(both[q.pid], main_thread(both[q.pid])))
        self.assertTrue("error" in both[p.pid] or main_thread(both[p.pid])["samples"][-1] is None)
        self.assertEqual(p.wait(300), 0, "it ended as it would have anyway")
        r = self.rollcall("stacks", "--pid", str(p.pid))
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, f"pid {p.pid}: no stacks: the process has ended")

    def test_a_stopped_process_is_looked_at_and_stays_stopped(self):
        p = self.threads_program("stuck", 1)
        os.kill(p.pid, signal.SIGSTOP)
        self.assertTrue(until(lambda: status(p.pid, "State") == "T"))
        stack = answers(self.of_pids(p.pid))[p.pid]
        self.assertIn("level_three", names(stack, main_thread(stack)))
        self.assertEqual(main_thread(stack)["state"], "T")
        time.sleep(0.1)
        self.assertEqual((status(p.pid, "State"), status(p.pid, "TracerPid")), ("T", "0"))
        os.kill(p.pid, signal.SIGCONT)
        self.assert_goes_on(p.pid)

    def test_hundreds_of_threads_are_bounded(self):
        p = self.threads_program("stuck", 400)
        result = self.of_pids(p.pid)
        stack = answers(result)[p.pid]
        self.assertGreaterEqual(len(stack["threads"]) + stack.get("left_out", 0), 402)
        group = next(n for n in nodes(result["others"]) if n["fn"] == "waits_here")
        self.assertGreater(group["threads"], 100)
        self.assertLess(len(stack["frames"]), 100, "equal stacks are kept once")
        self.assert_goes_on(p.pid)

    def test_a_deep_recursion_is_cut(self):
        p = self.threads_program("deep", 20000)
        stack = answers(self.of_pids(p.pid))[p.pid]
        have = names(stack, main_thread(stack))
        self.assertEqual(have[0], "... outer frames not read ...")
        self.assertGreater(have.count("recurse"), 100)
        self.assertLess(len(have), 400)
        text = self.rollcall("stacks", "--pid", str(p.pid)).stdout
        self.assertRegex(text, r"recurse  .*program_threads.c:\d+  \(\d+ times\)")
        self.assert_goes_on(p.pid)

    def test_a_killed_reader_leaves_nothing_stopped(self):
        p = self.threads_program("stuck", 60)
        wish = json.dumps({"pids": [p.pid], "samples": 16, "interval_ms": 1})
        for i in range(15):
            reader = subprocess.Popen([DAEMON, "--stack", wish], stdout=subprocess.DEVNULL, env=self.env)
            time.sleep(0.004 * i)
            reader.kill()
            reader.wait()
            self.assert_goes_on(p.pid)

    def test_no_system_call_is_cut_short(self):
        p = self.run_program(program("stack_threads"), self.path("counter"), "calls", stdin=subprocess.PIPE)
        calls = {"in_epoll": "epoll_wait", "in_recv": "recv", "in_read": "read", "in_recv_all": "recv",
                 "in_write": "write"}
        task = f"/proc/{p.pid}/task"
        self.assertTrue(until(lambda: len(os.listdir(task)) == 2 + len(calls)
                              and all(status(t, "State") == "S" for t in os.listdir(task))))
        for _ in range(2):
            stack = answers(self.of_pids(p.pid, options=("-n", "16", "--interval", "5")))[p.pid]
            for function, call in calls.items():
                thread = next(t for t in stack["threads"] if function in names(stack, t))
                self.assertTrue(from_libc(stack, thread, function), frames(stack, thread))
                self.assertIn(call, names(stack, thread)[-1])
        p.stdin.close()
        self.assertEqual(p.wait(300), 0, "a call of it ended" if p.returncode == 9 else p.stderr.read())

    def test_a_traced_process(self):
        p = self.threads_program("stuck", 1)
        r = hold(p.pid, lambda: self.rollcall("stacks", "--pid", str(p.pid)))
        self.assertEqual(r.returncode, 3, r.stdout)
        self.assert_one_line(r.stderr, f"pid {os.getpid()} traces it already")
        self.assert_goes_on(p.pid)

    def test_another_users_process_is_refused_with_one_line(self):
        skip_if(os.getuid() != 0, "only root can make a process of another user")
        p = self.threads_program("stuck", 1)
        os.chmod(self.tmp, 0o711)
        wish = json.dumps({"pids": [p.pid], "samples": 1})
        copy = self.path("rollcalld")
        subprocess.run(["cp", DAEMON, copy], check=True)
        os.chmod(copy, 0o755)
        # Nor by who was given the capability alone: it would read everybody's memory for whoever may start it.
        for capability in ([], ["--inh-caps", "+sys_ptrace", "--ambient-caps", "+sys_ptrace"]):
            r = subprocess.run(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", *capability, copy,
                                "--stack", wish], capture_output=True, text=True, env=self.env)
            self.assertEqual(r.returncode, 0, r.stderr)
            answer = json.loads(r.stdout.splitlines()[-1])
            self.assertRegex(answer["error"],
                             r"belongs to user 0 and rollcalld runs as user 65534: "
                             r"run rollcalld as that user, or as root")
        self.assert_goes_on(p.pid)

    def test_yama(self):
        path = "/proc/sys/kernel/yama/ptrace_scope"
        skip_if(not os.access(path, os.W_OK),
                "this kernel has no Yama, or it cannot be set: refusals of Yama are only tested as text")
        with open(path) as f:
            before = f.read()
        p = self.threads_program("stuck", 1)
        try:
            with open(path, "w") as f:
                f.write("1")
            r = subprocess.run(["setpriv", "--bounding-set", "-sys_ptrace", "--inh-caps", "-sys_ptrace", ROLLCALL,
                                "stacks", "--pid", str(p.pid)], capture_output=True, text=True, env=self.env)
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, "ptrace_scope is 1")
        finally:
            with open(path, "w") as f:
                f.write(before)

    def test_bad_operands(self):
        for operands, part in ((["x"], "'x' is not the number of a process"),
                               (["0"], "'0' is not the number of a process"), (["7", "7"], "named twice"),
                               ([], "needs the numbers")):
            r = self.rollcall("stacks", "--pid", *operands)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assert_one_line(r.stderr, part)
        for operands in (["0-x"], ["--threads", "some"], ["--samples", "99"], ["1", "2"]):
            self.assertEqual(self.rollcall("stacks", *operands).returncode, 2)
        for wish in ("", "x", "[]", '{"pids":[]}', '{"pids":["a"]}', '{"pids":[-1]}', '{"pids":{}}'):
            r = subprocess.run([DAEMON, "--stack", wish], capture_output=True, text=True, env=self.env)
            self.assertEqual((r.returncode, r.stdout), (2, ""), wish)


if __name__ == "__main__":
    unittest.main(verbosity=2)
