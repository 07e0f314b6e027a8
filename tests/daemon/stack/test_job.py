"""test_job.py: stacks of the ranks of a real job, by way of root and agents: merged, on suspicion, in part, and without
a trace in the verdicts."""
import json
import os
import re
import signal
import subprocess
import time
import unittest

from looking import Looking, answers, hold, main_thread, names, nodes, status
from support import CATALOGUE, DAEMON, until

TRAIN = os.path.join(os.path.dirname(os.environ["ROLL_BIN"]), "moe_train")


class Job(Looking):
    def start_job(self, n, *command, options=()):
        """A job that hangs, once its first verdict is there. Returns the launcher and the path of its verdicts."""
        self.need_nccl()
        live = self.path("live.json")
        job = self.start("run", "-n", str(n), "--hostnccl", "--timeout", "300", "--json", live, *options, "--",
                         *command)
        self.assertTrue(until(lambda: os.path.exists(live) and os.path.getsize(live) > 0), "no verdict")
        return job, live

    def end_job(self, job):
        job.terminate()
        self.assertIsNotNone(job.wait(300))

    def verdicts(self, live):
        with open(live) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]

    def pids(self):
        r = self.rollcall("top", "--once", "--json")
        return {rank["rank"]: rank["pid"] for rank in json.loads(r.stdout)["ranks"]}

    def whole_look(self):
        """The stacks of all ranks as text; None when a look did not see one of them."""
        r = self.rollcall("stacks", "--threads", "main")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return None if "seen in" in r.stdout else r

    def test_eight_ranks_merged_while_one_is_busy_elsewhere(self):
        job, live = self.start_job(8, TRAIN, "--steps", "40", "--timeout", "300", "--inject", "sleep:rank=3",
                                   options=("--stacks", "auto"))
        before = [(v["code"], v["culprits"]) for v in self.verdicts(live)]
        self.assertEqual(before, [("rank-busy", [3])])
        # A rank that is not given a processor in time is missed by a look: on a loaded machine another one is taken.
        r = until(self.whole_look)
        self.assertTrue(r, "some rank was missed in each look")
        # The first line is the program's own, not what every program begins with.
        self.assertRegex(r.stdout, r"^\[0-7\] \(8 ranks\)  stuck\n  (main|run_rank)  train/main.c:\d+\n")
        self.assertRegex(r.stdout, r"\n  \[0-2,4-7\] \(7 ranks\)  stuck\n")
        self.assertRegex(r.stdout, r"\n  \[3\] \(1 rank\)  stuck\n(    .*\n)*    inject_process  train/inject.c:\d+\n")
        self.assertRegex(r.stdout, r"\n *busy_in_host_code  train/inject.c:\d+\n")
        some = self.stacks("0,3")
        self.assertEqual(set(answers(some)), {0, 3})
        self.assertIn("busy_in_host_code", names(answers(some)[3], main_thread(answers(some)[3])))
        # On suspicion: taken by the root when it said rank-busy, of that rank alone; kept with the verdict, told by
        # why.
        kept = until(lambda: [v for v in self.all_verdicts() if "stacks" in v])
        self.assertEqual([s["rank"] for s in kept[0]["stacks"]], [3])
        self.assertTrue(any("busy_in_host_code" in f for f in kept[0]["stacks"][0]["top"]), kept[0]["stacks"])
        # The lines of the text break where the durations in it let them.
        why = " ".join(self.rollcall("why", "3").stdout.split())
        self.assertRegex(why,
                         r"Stack of rank 3, taken at \d\d:\d\d:\d\d UTC: "
                         r"the main thread is at busy_in_host_code \(inject.c:\d+\), called from inject_process "
                         r"\(inject.c:\d+\), from \w+ \(\w+.c:\d+\)[.;]")
        self.assertRegex(kept[0]["stacks"][0]["own"][0], r"^busy_in_host_code \(")
        self.assertIn(" Ranks 0-2,4-7 wait for it.", why)
        # Looking has stopped nobody, and above all has not been taken for the fault.
        self.stacks("-n", "16", "-i", "10")
        hold(self.pids()[3], lambda: time.sleep(0.4))
        time.sleep(1.2)
        for pid in self.pids().values():
            self.assertIn(status(pid, "State"), "SR")
            self.assertEqual(status(pid, "TracerPid"), "0")
        self.assertEqual([(v["code"], v["culprits"]) for v in self.verdicts(live)], before)
        # A debugger that stays is another matter.
        hold(self.pids()[3],
             lambda: self.assertTrue(until(lambda: "rank-stopped" in [v["code"] for v in self.verdicts(live)])))
        self.end_job(job)

    def all_verdicts(self):
        r = self.rollcall("verdicts", "--json")
        return [json.loads(line) for line in r.stdout.splitlines()]

    def test_without_auto_nobody_is_looked_at(self):
        job, live = self.start_job(2, CATALOGUE, "skipped", "sick")
        time.sleep(0.5)
        self.assertFalse([v for v in self.all_verdicts() if "stacks" in v])
        self.assertNotIn("Stacks taken", self.rollcall("why").stdout)
        r = self.rollcall("stacks", "7")
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "no such rank")
        threads = self.stacks("--threads", "nccl", "0")
        self.assertTrue(any("libnccl" in n.get("module", "") for n in nodes(threads["main"])), "inside NCCL")
        self.end_job(job)

    def test_a_rank_names_its_agent_as_tracer(self):
        self.need_nccl()
        for setting, wanted in ((None, "agent"), ("any", -1), ("off", None)):
            log = self.path(f"prctl-{setting}")
            env = {"LD_PRELOAD": os.path.join(os.environ["ROLL_STACK_TESTS"], "libstack_prctl_log.so"),
                   "PRCTL_LOG": log}
            env.update({"ROLLCALL_PTRACER": setting} if setting else {})
            job = self.start("run", "-n", "2", "--hostnccl", "--timeout", "300", "--", CATALOGUE, "skipped", "sick",
                             env=env)
            self.assertTrue(until(lambda: self.rollcall("stacks", "-n", "1").returncode == 0))
            agents = json.loads(self.rollcall("top", "--once", "--json").stdout)["agents"]
            named = []
            if os.path.exists(log):
                with open(log) as f:
                    named = [int(line) for line in f]
            self.end_job(job)
            want = [] if wanted is None else [agents[0]["pid"] if wanted == "agent" else wanted] * 2
            self.assertEqual(named, want, setting)

    def test_ranks_that_do_not_answer_are_named_with_the_reason(self):
        job, live = self.start_job(4, CATALOGUE, "skipped", "sick")
        pids = self.pids()
        os.kill(pids[1], signal.SIGKILL)
        self.assertTrue(until(lambda: not os.path.exists(f"/proc/{pids[1]}")))
        r = self.rollcall("stacks", "0-2")
        self.assertEqual(r.returncode, 4, r.stderr)
        self.assert_one_line(r.stderr, "rank 1: no stacks: the process has ended")
        self.assertRegex(r.stdout, r"\[0,2\] \(2 ranks\)")
        self.end_job(job)

    def test_a_gone_agent(self):
        """The root outlives the agent of a node: its ranks are refused with one line, at once."""
        self.need_nccl()
        root = self.start_daemon("--root", "--listen", f"ipc://{self.tmp}/r")
        agent = self.start_daemon("--agent", "--connect", f"ipc://{self.tmp}/r", "--dir", self.rings)
        job = self.start("run", "-n", "2", "--hostnccl", "--daemon", f"ipc://{self.tmp}/r", "--timeout", "300", "--",
                         CATALOGUE, "skipped", "sick")
        at = ("--daemon", f"ipc://{self.tmp}/r")
        self.assertTrue(until(lambda: self.rollcall("stacks", "-n", "1", *at).returncode == 0))
        agents = [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if self.is_agent(p)]
        for p in agents:
            os.kill(p, signal.SIGKILL)
        r = self.rollcall("stacks", "-n", "1", "--timeout", "2", *at)
        self.assertEqual(r.returncode, 3, r.stderr)
        self.assert_one_line(r.stderr, "ranks 0-1: no stacks: its agent")
        job.terminate()
        job.wait(300)
        for p in (agent, root):
            p.terminate()
            p.wait(300)
        for name in os.listdir(self.rings):  # of an agent that was killed, which nothing else cleans up
            if name == "agent.lock" or name.endswith((".ring", ".ctl")):
                os.unlink(os.path.join(self.rings, name))

    def is_agent(self, pid):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f, open(f"/proc/{pid}/cmdline", "rb") as g:
                return self.mark.encode() in f.read() and b"\0--agent\0" in g.read()
        except OSError:
            return False

    def start_daemon(self, *args):
        ready, write = os.pipe()
        p = subprocess.Popen([DAEMON, *args, "--ready-fd", str(write)], pass_fds=[write], env=self.env,
                             stderr=subprocess.DEVNULL)
        os.close(write)
        self.started.append(p)
        self.assertTrue(os.read(ready, 1))
        os.close(ready)
        return p


if __name__ == "__main__":
    unittest.main(verbosity=2)
