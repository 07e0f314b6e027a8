"""test_usage.py: `roll_sim --help` lists every option that docs/SIMULATION.md and the tests use; what it does not know
it says, and exits with 2."""
import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
ROLL_SIM = sys.argv.pop()


def roll_sim(*args):
    return subprocess.run([ROLL_SIM, *args], capture_output=True, text=True)


def options(path):
    """The options behind the name roll_sim, line by line."""
    with open(os.path.join(HERE, path)) as f:
        return {o for line in f for call in re.findall(r"roll_sim(?: COMMAND roll_sim)?((?: +-[^ )]+| +[^- ][^ )]*)+)",
                                                       line) for o in re.findall(r"--[a-z]+", call)}


class Usage(unittest.TestCase):
    def test_help_lists_every_option(self):
        r = roll_sim("--help")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        listed = set(re.findall(r"--[a-z]+", r.stdout))
        with open(os.path.join(HERE, "main.c")) as f:
            known = {"--" + name for name in re.findall(r'\{"([a-z]+)", [01], NULL, ', f.read())}
        self.assertEqual(listed, known)
        shown = options("../../docs/SIMULATION.md")
        self.assertIn("--shrink", shown)
        self.assertEqual((shown | options("CMakeLists.txt")) - listed, set())

    def test_what_it_does_not_know_is_said_with_code_2(self):
        for args, part in (
            (["--nonsense"], "--nonsense"),
            (["4711"], "'4711' is no option"),
            (["--seeds"], "--seeds"),
            (["--seeds", "9-1"], "'9-1' is no range"),
            (["--seeds", "1-2x"], "'1-2x' is no range"),
            (["--print", "skip"], "'skip' is no number"),
            (["--only", "nothing-such"], "'nothing-such' is no mistake"),
            (["--into", "/tmp"], "belong together"),
        ):
            with self.subTest(args=args):
                r = roll_sim(*args)
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertEqual(r.stdout, "")
                self.assertIn(part, r.stderr)
                self.assertIn("roll_sim --help", r.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
