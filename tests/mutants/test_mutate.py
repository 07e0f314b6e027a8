"""test_mutate.py: lists and mutants by themselves: what is refused, what a change does, and how a run ends."""

import contextlib
import io
import os
import pathlib
import tempfile
import types
import unittest

import mutate

HEAD = "tests a/ ;; unit.a unit.b\nrun prog --seeds 1-2\n"
FILE = "int f(int a)\n{\n    if (a > 1) {\n        g(a);\n    }\n    return a;\n}\n"


class Lists(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "a").mkdir()
        (self.tree / "a/f.c").write_text(FILE)
        self.addCleanup(setattr, mutate, "HERE", mutate.HERE)
        self.addCleanup(setattr, mutate, "ROOT", mutate.ROOT)
        mutate.HERE = mutate.ROOT = self.tree

    def read(self, text):
        (self.tree / "one.txt").write_text(HEAD + text)
        return mutate.List("one")

    def changed(self, line):
        return self.read(line).mutants[0].text(self.tree)

    def test_a_change_is_made_once(self):
        self.assertEqual(self.changed("must a/f.c ;; a > 1 ;; a >= 1 ;; bound\n"), FILE.replace("a > 1", "a >= 1"))

    def test_a_dropped_statement_leaves_an_empty_one(self):
        self.assertEqual(self.changed("must a/f.c ;; g(a); ;; ;; it is called\n"), FILE.replace("g(a);", ";"))

    def test_several_lines_are_found_whatever_their_indentation(self):
        self.assertIn("{ return a;", self.changed("must a/f.c ;; g(a);\\n}\\nreturn a; ;; return a; ;; x\n").replace(
            "{\n        ", "{ "))

    def test_what_is_not_there_or_there_twice_is_refused(self):
        for line in ("must a/f.c ;; h(a); ;; ;; x\n", "must a/f.c ;; a ;; b ;; x\n", "must a/g.c ;; a ;; b ;; x\n",
                     "must a/f.c ;; a > 1 ;; a > 1 ;; changes nothing\n"):
            with self.subTest(line), self.assertRaises(mutate.Wrong):
                self.changed(line)

    def test_lines_that_say_nothing_are_refused(self):
        for line in ("must a/f.c ;; a > 1 ;; a >= 1\n", "must a/f.c ;; a > 1 ;; b ;; \n", "shall a ;; b ;; c ;; d\n"):
            with self.subTest(line), self.assertRaises(mutate.Wrong):
                self.read(line)

    def test_steps_are_in_the_order_of_the_list(self):
        steps = self.read("tests b/ ;; unit.c\n").steps
        self.assertEqual(steps, [("a/", ["unit.a", "unit.b"], None), ("", [], ["prog", "--seeds", "1-2"]),
                                 ("b/", ["unit.c"], None)])

    def test_what_a_test_starts_is_built_before_it(self):
        copy = mutate.Copy.__new__(mutate.Copy)
        copy.tree, copy.build = self.tree, self.tree / "build"
        copy.list = self.read("needs unit.b ;; bin/x bin/y\nneeds unit.c ;; bin/z\n")
        copy.program = {"unit.a": "tests/a", "unit.b": "tests/b"}
        self.assertEqual([step[1] for step in copy.steps("a/f.c")],
                         [["tests/a"], ["tests/b", "bin/x", "bin/y"], ["tests/prog"]])
        for line in ("needs unit.b\n", "needs unit.b ;; \n", "needs ;; bin/x\n"):
            with self.subTest(line), self.assertRaises(mutate.Wrong):
                self.read(line)

    def test_a_list_may_say_its_own_time(self):
        self.assertEqual(self.read("").seconds, mutate.SECONDS)
        self.assertEqual(self.read("seconds 60\n").seconds, 60)
        with self.assertRaises(mutate.Wrong):
            self.read("seconds long\n")

    def ends(self, *rows, broken=0):
        mutants = self.read("".join(f"{word} a/f.c ;; a > 1 ;; a >= 1 ;; why\n" for word, _ in rows)).mutants
        with contextlib.redirect_stdout(io.StringIO()):
            return mutate.show([(m, by and (by, mutate.FAILS), 1) for m, (_, by) in zip(mutants, rows)], broken)

    def test_a_run_fails_when_one_that_must_be_found_lives(self):
        found = [("must", "unit.a")] * 30
        self.assertEqual(self.ends(*found), 0)
        self.assertEqual(self.ends(*found, ("may", None)), 0)
        self.assertEqual(self.ends(*found, ("must", None)), 1)
        self.assertEqual(self.ends(*found, ("open", None)), 0)
        self.assertEqual(self.ends(*found, ("open", None), ("open", None)), 1)  # fewer than 95 in a hundred
        self.assertEqual(self.ends(*found, broken=1), 1)
        self.assertEqual(self.ends(("must", "unit.a"), ("may", None)), 1)  # too many that may live

    def copy(self, ninja="exit 0"):
        """A copy of the tree with a build that is a shell script, and one test."""
        self.read("must a/f.c ;; a > 1 ;; a >= 1 ;; why\n")
        copy = mutate.Copy.__new__(mutate.Copy)
        copy.tree, copy.build, copy.list, copy.env, copy.trusted = (self.tree, self.tree, mutate.List("one"),
                                                                    dict(os.environ), set())
        copy.steps = lambda path: iter([("unit.a", ["a"], ["the test"])])
        copy.env["PATH"] = f"{self.tree}:{copy.env['PATH']}"
        self.program("ninja", ninja)
        return copy

    def program(self, name, script):
        (self.tree / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.tree / name).chmod(0o755)

    def attempt(self, with_it, without_it):
        """Tries the one mutant, where the test does the one thing with it and the other without it."""
        copy = self.copy()

        def finds(command, left):
            return with_it if "a >= 1" in (self.tree / "a/f.c").read_text() else without_it

        copy.finds = finds
        return copy.attempt(copy.list.mutants[0])

    def test_a_mutant_is_found_by_what_fails_or_does_not_end(self):
        self.assertEqual(self.attempt(mutate.FAILS, None), ("unit.a", mutate.FAILS))
        self.assertEqual(self.attempt(mutate.HANGS, None), ("unit.a", mutate.HANGS))
        self.assertIsNone(self.attempt(None, None))
        self.assertEqual((self.tree / "a/f.c").read_text(), FILE)

    def test_a_test_that_fails_without_the_mutant_finds_nothing(self):
        for how in (mutate.FAILS, mutate.HANGS):
            with self.subTest(how), self.assertRaisesRegex(mutate.Wrong, f"unit.a {how}, and fails without any"):
                self.attempt(how, how)
        self.assertEqual((self.tree / "a/f.c").read_text(), FILE)

    def test_what_did_not_end_is_tried_without_the_mutant_each_time(self):
        copy, tried = self.copy(), []

        def finds(command, left):
            mutant = "a >= 1" in (self.tree / "a/f.c").read_text()
            tried.append(mutant)
            return mutate.HANGS if mutant else None

        copy.finds = finds
        for _ in range(2):
            self.assertTrue(copy.attempt(copy.list.mutants[0]))
        self.assertEqual(tried, [True, False, True, False])

    def test_a_command_fails_or_does_not_end_in_its_time(self):
        copy = self.copy()
        self.assertEqual(copy.finds(["false"], 600), mutate.FAILS)
        self.assertEqual(copy.finds(["sleep", "1000"], 0.1), mutate.HANGS)
        self.assertIsNone(copy.finds(["true"], 600))

    def test_a_test_that_ends_by_the_limit_of_ctest_is_told_as_one_that_does_not_end(self):
        copy = self.copy()
        for said, how in (("Test #1: a ...***Timeout", mutate.HANGS), ("Test #1: a ...***Failed", mutate.FAILS)):
            self.program("ctest", f"echo '{said}'\nexit 8")
            self.assertEqual(copy.finds(["ctest"], 600), how)

    def test_a_build_that_fails_is_no_find(self):
        copy = self.copy("echo the compiler says no; exit 1")
        with self.assertRaisesRegex(mutate.Wrong, "(?s)does not build.*says no"):
            copy.attempt(copy.list.mutants[0])
        self.assertEqual((self.tree / "a/f.c").read_text(), FILE)

    def test_a_build_that_does_not_end_is_no_find(self):
        self.addCleanup(setattr, mutate, "BUILD_SECONDS", mutate.BUILD_SECONDS)
        mutate.BUILD_SECONDS = 0.1
        copy = self.copy("sleep 1000")
        with self.assertRaisesRegex(mutate.Wrong, "does not end in 0.1 s"):
            copy.attempt(copy.list.mutants[0])
        self.assertEqual((self.tree / "a/f.c").read_text(), FILE)

    def test_a_build_takes_no_time_from_the_tests(self):
        copy, clock, limits = self.copy(), [0.0], []
        self.addCleanup(setattr, mutate, "time", mutate.time)
        mutate.time = types.SimpleNamespace(monotonic=lambda: clock[0])

        def make(program):
            clock[0] += 1000
            return ""

        def finds(command, left):
            limits.append(left)
            clock[0] += 7

        copy.make, copy.finds, copy.list.seconds = make, finds, 60
        copy.steps = lambda path: iter([("unit.a", ["a"], ["x"]), ("unit.b", ["b"], ["x"])])
        self.assertIsNone(copy.found_by(1, "a/f.c"))
        self.assertEqual(limits, [60, 53])

    def test_a_mutant_that_is_gone_is_told(self):
        self.read("must a/f.c ;; a > 1 ;; a >= 1 ;; why\n")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(mutate.check(["one"]), 0)
            (self.tree / "a/f.c").write_text(FILE.replace("a > 1", "a > 2"))
            self.assertEqual(mutate.check(["one"]), 1)


if __name__ == "__main__":
    unittest.main()
