"""test_mutate.py: lists and mutants by themselves: what is refused, what a change does, and how a run ends."""

import contextlib
import io
import pathlib
import tempfile
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

    def ends(self, *rows, broken=0):
        mutants = self.read("".join(f"{word} a/f.c ;; a > 1 ;; a >= 1 ;; why\n" for word, _ in rows)).mutants
        with contextlib.redirect_stdout(io.StringIO()):
            return mutate.show([(m, by, 1) for m, (_, by) in zip(mutants, rows)], broken)

    def test_a_run_fails_when_one_that_must_be_found_lives(self):
        found = [("must", "unit.a")] * 30
        self.assertEqual(self.ends(*found), 0)
        self.assertEqual(self.ends(*found, ("may", None)), 0)
        self.assertEqual(self.ends(*found, ("must", None)), 1)
        self.assertEqual(self.ends(*found, ("open", None)), 0)
        self.assertEqual(self.ends(*found, ("open", None), ("open", None)), 1)  # fewer than 95 in a hundred
        self.assertEqual(self.ends(*found, broken=1), 1)
        self.assertEqual(self.ends(("must", "unit.a"), ("may", None)), 1)  # too many that may live

    def test_a_mutant_that_is_gone_is_told(self):
        self.read("must a/f.c ;; a > 1 ;; a >= 1 ;; why\n")
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(mutate.check(["one"]), 0)
            (self.tree / "a/f.c").write_text(FILE.replace("a > 1", "a > 2"))
            self.assertEqual(mutate.check(["one"]), 1)


if __name__ == "__main__":
    unittest.main()
