"""test_names.py: rollcall.torch where there is no PyTorch, preloaded and not: a job with that import runs on."""
import os
import sys
import unittest

from support import Case, ROLLCALL

FOLDER = os.path.join(os.path.dirname(ROLLCALL), "..", "lib", "rollcall", "python")
CODE = """
import time, rollcall.torch as names
names.step(3)
names.name_group(None, "nothing")
for number in 4.0, None, "five":
    names.step(number)
n, begun = 20000, time.perf_counter()
for i in range(n):
    names.step(i)
print(names.active, round((time.perf_counter() - begun) / n * 1e9), "ns a step")
"""


class Names(Case):
    def run_code(self, *before):
        return self.rollcall("run", "--quiet", *before, "--", sys.executable, "-c", CODE,
                             env={"PYTHONPATH": os.path.abspath(FOLDER)})

    def test_not_preloaded_it_does_nothing(self):
        r = self.rollcall("run", "--quiet", "--", "env", "-u", "LD_PRELOAD", sys.executable, "-c", CODE,
                          env={"PYTHONPATH": os.path.abspath(FOLDER)})
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertTrue(r.stdout.startswith("False "), r.stdout)
        print(r.stdout.strip())

    def test_preloaded_without_pytorch_it_tells_steps(self):
        r = self.run_code()
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertTrue(r.stdout.startswith("True "), r.stdout)
        print(r.stdout.strip())


if __name__ == "__main__":
    unittest.main(verbosity=2)
