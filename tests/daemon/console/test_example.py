"""test_example.py: the shell steps of docs/examples/rehearsal.yml, taken out of it and run as plain shell, with a job
that is well, one that has changed, and sick ones."""
import os
import re
import shutil
import subprocess
import unittest

from support import Case, ROLLCALL

JOB = os.environ["ROLL_TEST_REHEARSE_JOB"]
EXAMPLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "docs", "examples",
                       "rehearsal.yml")


def steps(text):
    """{name: script} of the steps with `run: |`; each script without its indentation."""
    found, name, lines = {}, None, iter(text.splitlines())
    for line in lines:
        if match := re.match(r"\s*- name: (.*)", line):
            name = match.group(1)
        if match := re.match(r"(\s*)run: \|$", line):
            found[name] = (len(match.group(1)) + 2, [])
        elif name in found and (line.startswith(" " * found[name][0]) or not line.strip()):
            found[name][1].append(line[found[name][0]:])
        elif name in found:
            name = None
    return {name: "\n".join(script) + "\n" for name, (_, script) in found.items()}


class Example(Case):
    def setUp(self):
        super().setUp()
        with open(EXAMPLE) as f:
            self.steps = steps(f.read())
        self.work = self.path("work")
        os.mkdir(self.work)
        self.summary = self.path("summary")

    def play(self, *how):
        """Runs the steps as the workflow does: the second one always. The code of the first, what it said, and the
        summary."""
        env = dict(self.env, PATH=os.path.dirname(ROLLCALL) + os.pathsep + os.environ["PATH"], RANKS="2",
                   JOB=" ".join((JOB, *how)), GITHUB_STEP_SUMMARY=self.summary)
        open(self.summary, "w").close()
        done = [subprocess.run(["sh", "-e", "-c", self.steps[name]], cwd=self.work, env=env, capture_output=True,
                               text=True, timeout=500) for name in ("Rehearse", "Summary")]
        self.assertEqual((done[1].returncode, done[1].stderr), (0, ""))
        with open(self.summary) as f:
            return done[0].returncode, done[0].stderr, f.read()

    def test_the_steps_are_found(self):
        self.assertEqual(list(self.steps), ["Rehearse", "Summary"])

    def test_a_job_that_is_well_passes_and_can_be_kept(self):
        code, said, summary = self.play()
        self.assertEqual(code, 0, said)
        self.assertRegex(summary, r"^Rehearsed 2 ranks, \d+ calls: 0 findings\.\n\n$")
        shutil.copy(os.path.join(self.work, "new.rollcall"), os.path.join(self.work, "expected.rollcall"))
        code, said, _ = self.play()
        self.assertEqual(code, 0, said)
        self.assertIn("Differences: none", said)
        code, said, summary = self.play("larger")
        self.assertEqual(code, 1, said)
        self.assertIn("\n- pair: Broadcast: 1 calls, 64.0 MiB each time round (before 1, 32.0 MiB); ranks 0-1\n",
                      summary)
        shutil.copy(os.path.join(self.work, "new.rollcall"), os.path.join(self.work, "expected.rollcall"))
        self.assertEqual(self.play("larger")[0], 0)

    def test_a_job_that_fails_does_not_pass(self):
        code, said, summary = self.play("fails")
        self.assertEqual(code, 7, said)
        self.assertIn("- ranks [1] ended with code 7\n", summary)
        self.assertFalse(os.path.exists(os.path.join(self.work, "new.rollcall")))

    def test_a_finding_does_not_pass(self):
        code, said, summary = self.play("redop")
        self.assertEqual(code, 1, said)
        self.assertIn("`redop-mismatch`: ", summary)
        self.assertIn("--save: new.rollcall is not written, because there was a finding", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
