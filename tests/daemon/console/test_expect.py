"""test_expect.py: a live job beside what was rehearsed of it: `rollcall run --expect` and `analyze --expect`."""
import json
import os
import subprocess
import unittest

from support import Case, END_S

JOB = os.environ["ROLL_TEST_REHEARSE_JOB"]


class Expect(Case):
    def keep(self, ranks, *how):
        path = self.path(f"expected-{ranks}.rollcall")
        r = self.rollcall("rehearse", "--timeout", "120", "-n", str(ranks), "--quiet", "--save", path, "--", JOB,
                          *how)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return path

    def run_beside(self, kept, ranks, *how, steps=9, options=(), patience=60):
        """The exit code, and what was said as (certainty, code, ranks), with what it is about."""
        said = self.path("verdicts.ndjson")
        r = self.rollcall("run", "--hostnccl", "-n", str(ranks), "--timeout", str(patience), "--fail-on-finding",
                          "--expect", kept, "--json", said, *options, "--", JOB, *how,
                          env={"STEPS": str(steps), "HOSTNCCL_DATA": "skip"})
        with open(said) as f:
            verdicts = [json.loads(line) for line in f]
        return r, [(v["certainty"], v["code"], v["culprits"]) for v in verdicts], verdicts

    def test_a_job_that_does_what_was_rehearsed(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                r, said, _ = self.run_beside(self.keep(ranks), ranks)
                self.assertEqual((r.returncode, said), (0, []), r.stderr)

    def test_all_ranks_leave_alike(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                r, said, verdicts = self.run_beside(self.keep(ranks), ranks, "larger")
                self.assertEqual(r.returncode, 0, r.stderr)  # notes are no findings
                self.assertEqual(sorted(said), [("note", "rehearsal-left", [2 * i, 2 * i + 1])
                                                for i in range(ranks // 2)])
                self.assertIn("as their call #0 there came Broadcast of 16777216 float32 with root 0, and in the "
                              "rehearsal it was Broadcast of 8388608 float32 with root 0.", verdicts[0]["text"])

    def test_the_rehearsal_decides_a_tie(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks):
                r, said, verdicts = self.run_beside(self.keep(ranks), ranks, "shorter", patience=8)
                self.assertIn(("note", "rehearsal-left", [ranks - 1]), said)
                found = [v for v in verdicts if v["code"] == "count-mismatch"]
                self.assertEqual(found[-1]["culprits"], [ranks - 1], r.stderr)
                if ranks == 2:
                    self.assertEqual(found[-1]["certainty"], "suspected")
                    self.assertIn("it is the rehearsal that says who is right: rank 0 does here what was rehearsed, "
                                  "rank 1 does not.", found[-1]["text"])

    def test_a_trace_tells_the_same(self):
        kept, trace = self.keep(2), self.path("trace")
        _, said, _ = self.run_beside(kept, 2, "larger", options=("--trace", trace))
        lines = self.rollcall("analyze", "--json", "--expect", kept, trace).stdout.splitlines()
        self.assertEqual([(v["certainty"], v["code"], v["culprits"]) for v in map(json.loads, lines[:-1])], said)
        self.assertNotIn("rehearsal-left", self.rollcall("analyze", "--json", trace).stdout)

    def test_another_number_of_ranks(self):
        r, said, verdicts = self.run_beside(self.keep(2), 3)
        self.assertEqual((r.returncode, said), (0, [("note", "rehearsal-left", [])]), r.stderr)
        self.assertEqual(verdicts[0]["text"],
                         "The job has 3 ranks, and 2 were rehearsed: nothing is compared with the rehearsal.")

    def test_files_that_cannot_be_used(self):
        ran, bad = self.path("ran"), self.path("bad")
        with open(bad, "w") as f:
            f.write('{"schema":"rollcall.expected/9"}')
        for path, part in (("/nonexistent", "--expect /nonexistent: there is no such file"),
                           (bad, f'--expect {bad}: of another version, "rollcall.expected/9"')):
            for args in (("run", "--expect", path, "--", "touch", ran), ("analyze", "--expect", path, self.tmp)):
                r = self.rollcall(*args)
                self.assertEqual(r.returncode, 3)
                self.assert_one_line(r.stderr, part)
            r = subprocess.run([os.environ["ROLL_DAEMON_BIN"], "--standalone", "--dir", self.path("dir"), "--expect",
                                path], capture_output=True, text=True, timeout=END_S)
            self.assertEqual(r.returncode, 3)
            self.assertIn(part, r.stderr)
        self.assertFalse(os.path.exists(ran))
        r = self.rollcall("run", "--daemon", "tcp://127.0.0.1:1", "--expect", bad, "--", "touch", ran)
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "--expect belongs to the root daemon")


if __name__ == "__main__":
    unittest.main(verbosity=2)
