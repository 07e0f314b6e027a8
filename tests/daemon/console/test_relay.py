"""test_relay.py: who asks a relay is answered by its root, and told so; or why not, where the root cannot be asked."""
import json
import os
import subprocess
import unittest

from support import Case, CATALOGUE, DAEMON, END_S, until


class Relay(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.root, self.outer, self.inner = (f"ipc://{self.path(name)}" for name in ("root", "outer", "inner"))

    def daemon(self, *args):
        process = subprocess.Popen([DAEMON, *args], env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def relay(self, below, above):
        process = self.daemon("--relay", "--listen", below, "--connect", above)
        self.assertTrue(until(lambda: os.path.exists(below[len("ipc://"):])))
        return process

    def levels(self):
        """A root, a relay below it, and one below that."""
        root = self.daemon("--root", "--digest", "--listen", self.root)
        return [root, self.relay(self.outer, self.root), self.relay(self.inner, self.outer)]

    def end(self, *processes):
        for process in processes:
            process.terminate()
            process.communicate(timeout=END_S)

    def sent_on(self, r, relay):
        self.assertIn(f"{relay} is a relay, which judges nothing; its root, {self.root}, answers\n", r.stderr)
        self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)

    def test_a_run_at_a_relay_tells_the_verdicts_of_the_root(self):
        levels = self.levels()
        p = self.start("run", "-n", "4", "--hostnccl", "--grace", "1", "--daemon", self.inner, "--", CATALOGUE,
                       "skipped", "sick")
        self.assertTrue(until(lambda: "call-skipped" in self.rollcall("verdicts", "--daemon", self.root).stdout))
        p.terminate()
        said = p.communicate(timeout=END_S)[1]
        self.assertIn(f"{self.inner} is a relay; its root, {self.root}, tells the verdicts", said)
        self.assertIn("call-skipped", said)
        self.assertNotIn("did not send its last verdicts", said)
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--fail-on-finding", "--daemon", self.inner, "--", CATALOGUE,
                          "skipped", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("did not send its last verdicts", r.stderr)
        self.end(*levels)

    def test_every_face_is_answered_by_the_root(self):
        levels = self.levels()
        p = self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", "--daemon", self.inner, "--",
                       CATALOGUE, "skipped", "sick")
        self.assertTrue(until(lambda: "call-skipped" in self.rollcall("verdicts", "--daemon", self.root).stdout))
        for relay in (self.inner, self.outer):
            verdicts = self.rollcall("verdicts", "--daemon", relay)
            self.assertIn("call-skipped", verdicts.stdout)
            top = self.rollcall("top", "--once", "--json", "--daemon", relay)
            self.assertEqual(len(json.loads(top.stdout)["ranks"]), 4, top.stdout)
            why = self.rollcall("why", "0", "--daemon", relay)
            self.assertRegex(" ".join(why.stdout.split()), r"\b[Rr]ank 3\b")
            stacks = self.rollcall("stacks", "0", "--daemon", relay)
            for r in (verdicts, top, why, stacks):
                self.sent_on(r, relay)
            jobs = self.rollcall("jobs", "--json", env={"ROLLCALL_DAEMON": relay})
            self.assertEqual([job["daemon"] for job in json.loads(jobs.stdout)["jobs"]], [self.root], jobs.stdout)
            self.sent_on(jobs, relay)
            doctor = self.rollcall("doctor", env={"ROLLCALL_DAEMON": relay})
            self.assertIn(f"{relay} is a relay; its root answers: {self.root}", doctor.stdout)
        self.end(p, *levels)

    def test_a_root_that_cannot_be_asked_is_named(self):
        relay = self.relay(self.inner, self.root)
        said = f"{self.inner} is a relay, which judges nothing, and its root cannot be asked from here: " \
               f"no answer from {self.root} within"
        for command in (("top", "--once"), ("why",), ("verdicts",)):
            r = self.rollcall(*command, "--daemon", self.inner)
            self.assertNotEqual(r.returncode, 0)
            self.assert_one_line(r.stderr, said)
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--daemon", self.inner, "--", CATALOGUE, "skipped", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn(said, r.stderr)
        self.assertIn("the job runs on", r.stderr)
        self.end(relay)

    def test_relays_that_name_each_other_are_not_asked_for_ever(self):
        relays = [self.relay(self.inner, self.outer), self.relay(self.outer, self.inner)]
        r = self.rollcall("top", "--once", "--daemon", self.inner)
        self.assert_one_line(r.stderr, "relays name each other")
        self.end(*relays)


if __name__ == "__main__":
    unittest.main()
