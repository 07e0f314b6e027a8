"""test_python.py: the parts of rollcall.rehearse that need no PyTorch.

usage: test_python.py BUILD_DIR
"""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

PLACE = os.path.join(os.path.abspath(sys.argv.pop(1)), "lib", "rollcall", "python")
sys.path.insert(0, PLACE)
from rollcall.rehearse import compiled, numbers, origin, settings, sites  # noqa: E402


def python(code, **env):
    """Runs a program with the package, and returns what it printed; its end is checked."""
    p = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=100,
                       env={**{k: v for k, v in os.environ.items() if not k.startswith("ROLLCALL")},
                            "PYTHONPATH": PLACE, **env})
    if p.returncode != 0:
        raise AssertionError(f"code {p.returncode}: {p.stderr}")
    return p.stdout + p.stderr


class Origin(unittest.TestCase):
    def test_a_result_is_as_good_as_the_worst_of_its_arguments(self):
        for states, want in (([], origin.COMPUTED), ([origin.COPIED, origin.COMPUTED], origin.COMPUTED),
                             ([origin.SUPPLIED], origin.COMPUTED), ([origin.COPIED, origin.RANDOM], origin.RANDOM),
                             ([origin.SKIPPED, origin.COPIED], origin.PARTLY), ([origin.FRESH], origin.SKIPPED),
                             ([origin.SKIPPED, origin.FRESH], origin.SKIPPED),
                             ([origin.PARTLY, origin.RANDOM], origin.PARTLY)):
            self.assertEqual(origin.of_result(states), want, states)

    def test_parts_of_a_storage_have_states_of_their_own(self):
        p = origin.Parts(origin.FRESH)
        p.set(0, 16, origin.COMPUTED, 64)
        p.set(32, 48, origin.COPIED, 64)
        self.assertEqual([p.get(a, b) for a, b in ((0, 16), (32, 48), (0, 20), (16, 32), (33, 34), (40, 64))],
                         [origin.COMPUTED, origin.COPIED, origin.FRESH, origin.FRESH, origin.COPIED, origin.FRESH])
        p.set(8, 40, origin.SKIPPED, 64)
        self.assertEqual([p.get(a, b) for a, b in ((0, 8), (8, 40), (40, 48), (0, 9))],
                         [origin.COMPUTED, origin.SKIPPED, origin.COPIED, origin.SKIPPED])
        p.set(0, 64, origin.COPIED, 64)
        self.assertEqual((p.get(0, 64), p.parts), (origin.COPIED, []))

    def test_what_is_written_with_holes(self):
        p = origin.Parts(origin.FRESH)
        p.touch(0, 60, origin.COMPUTED, 64)
        self.assertEqual(p.get(0, 60), origin.COMPUTED)
        p.set(0, 64, origin.SKIPPED, 64)
        p.touch(0, 60, origin.COMPUTED, 64)
        self.assertEqual((p.get(0, 60), p.get(60, 64)), (origin.PARTLY, origin.SKIPPED))
        p.set(0, 64, origin.COMPUTED, 64)
        p.touch(0, 60, origin.COPIED, 64)
        self.assertEqual(p.get(0, 60), origin.COMPUTED)

    def test_many_parts_become_their_worst(self):
        p = origin.Parts(origin.COPIED)
        for i in range(origin.PARTS_MOST + 2):
            p.set(4 * i, 4 * i + 2, origin.SKIPPED if i == 7 else origin.COMPUTED, 1 << 20)
        self.assertLessEqual(len(p.parts), origin.PARTS_MOST)
        self.assertEqual(p.get(0, 1 << 20), origin.SKIPPED)


class Texts(unittest.TestCase):
    def test_settings(self):
        self.assertEqual([settings.read_size(t) for t in ("0", "65536", "64K", "1M", "2GiB", "off")],
                         [0, 65536, 65536, 1 << 20, 2 << 30, None])
        self.assertEqual([settings.read_values(t) for t in ("zero", "random:7", "random:7,same", "random:0,different")],
                         [(None, True), (7, True), (7, True), (0, False)])
        for read, bad in ((settings.read_size, "64k"), (settings.read_size, "-1"), (settings.read_values, "random"),
                          (settings.read_values, "random:x"), (settings.read_values, "random:1,alike")):
            with self.assertRaises(ValueError):
                read(bad)

    def test_a_setting_that_cannot_be_read_is_told(self):
        told = python("import rollcall.rehearse.settings as s; print(s.now.bytes, s.now.steps)",
                      ROLLCALL_REHEARSE_COMPUTE="much", ROLLCALL_REHEARSE_STEPS="3")
        self.assertEqual(told, "65536 3\nrollcall: ROLLCALL_REHEARSE_COMPUTE=much: wants a size, like 64K, or off; "
                               "the default is used\n")

    def test_places(self):
        site = ("/job/model/router.py", 120, "route")
        for place, want in (("router.py:120", True), ("model/router.py:120", True), ("/job/model/router.py:120", True),
                            ("router.py:route", True), ("route", True), ("outer.py:120", False),
                            ("router.py:12", False), ("router.py:other", False), ("rout", False)):
            self.assertEqual(sites.fits(place, site), want, place)
        with self.assertRaises(TypeError):
            sites.set_hook("router.py:1", 7)
        with self.assertRaises(ValueError):
            sites.set_hook("", lambda read: 7)

    def test_a_key_depends_on_what_it_should(self):
        site = ("/a/x.py", 3, "f")
        base = numbers.key(1, True, 0, site, 0)
        self.assertEqual(base, numbers.key(1, True, 5, ("/b/x.py", 3, "f"), 0))
        others = [numbers.key(2, True, 0, site, 0), numbers.key(1, False, 0, site, 0),
                  numbers.key(1, False, 1, site, 0), numbers.key(1, True, 0, site, 1),
                  numbers.key(1, True, 0, ("/a/x.py", 4, "f"), 0)]
        self.assertEqual(len({base, *others}), 6)
        self.assertTrue(all(0 <= k < 1 << 63 for k in others))


class Kernels(unittest.TestCase):
    """What a kernel that was written for Triton may store through, by its text."""

    def stored(self, body, parameters="x, y, n, B: tl.constexpr"):
        return compiled.stored_through(f"def k({parameters}):\n" + textwrap.indent(textwrap.dedent(body), "    "))

    def test_addresses_are_followed(self):
        self.assertEqual(self.stored("at = tl.arange(0, B)\ntl.store(y + at, tl.load(x + at) * n)"),
                         ["y", "B"])  # numbers of an address as well: only tensors count
        self.assertEqual(self.stored("p = x\nfor i in range(3):\n    q = p + i\n    tl.store(q, 0)\n    p += n"),
                         ["x", "n"])
        self.assertEqual(self.stored("tl.atomic_add(pointer=x, val=1)"), ["x"])
        self.assertEqual(self.stored("at = tl.load(x)\ntl.store(y + at, 1, mask=at < n)"), ["y"])
        self.assertEqual(self.stored("d = tl.make_tensor_descriptor(y, [n], [1], [B])\nd.store([0], tl.load(x))"),
                         ["y", "n", "B"])
        self.assertEqual(self.stored("tl.load(x)"), [])

    def test_a_function_that_may_store_leaves_it_open(self):
        self.assertIsNone(self.stored("helper(x, y)"))

    def test_inductors_arguments_say_so_themselves(self):
        self.assertEqual([n for n in ("in_ptr0", "out_ptr1", "in_out_ptr0", "in_ptr2", "xnumel")
                          if compiled._is_written(n, ["in_ptr2"])], ["out_ptr1", "in_out_ptr0", "in_ptr2"])


class Notes(unittest.TestCase):
    def test_the_file_is_right_at_every_moment_and_each_process_has_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            told = python("""
                import os
                from rollcall.rehearse import notes
                notes.read("skipped", "item", ("/j/a b.py", 7, "f"))
                notes.read("skipped", "item", ("/j/a b.py", 7, "f"))
                notes.put("step", 4)
                notes.op("computed")
                for _ in range(notes.BUNDLE):
                    notes.op("left")
                if os.fork() == 0:
                    notes.read("copied", "copy", ("x.py", 1, "g"))
                    os._exit(0)
                os.wait()
                os.kill(os.getpid(), 9) if os.fork() == 0 else os.wait()
                print(os.getpid())
                notes.flush()
            """, HOSTCUDA_REPORT=folder, RANK="3")
            texts = {}
            for name in os.listdir(folder):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    texts[name] = f.read()
            self.assertEqual(texts.pop("steered." + told.strip()),
                             "rank 3\nread skipped item 00000000000000000002 7 /j/a b.py\tf\n"
                             "step 00000000000000000004\nops computed 00000000000000000001\n"
                             "ops left 00000000000000000256\n")
            self.assertEqual(list(texts.values()), ["rank 3\nread copied copy 00000000000000000001 1 x.py\tg\n"])

    def test_a_child_is_not_held_up_by_a_lock_of_its_parent(self):
        with tempfile.TemporaryDirectory() as folder:
            told = python("""
                import os, threading
                from rollcall.rehearse import notes
                has_lock, may_leave = threading.Event(), threading.Event()
                def hold():
                    with notes._lock:
                        has_lock.set()
                        may_leave.wait()
                thread = threading.Thread(target=hold)
                thread.start()
                has_lock.wait()
                child = os.fork()
                if child == 0:
                    os._exit(0 if notes._lock.acquire(blocking=False) else 1)
                print(os.waitpid(child, 0)[1])
                may_leave.set()
                thread.join()
                """, HOSTCUDA_REPORT=folder)
            self.assertEqual(told.splitlines()[-1], "0")

    def test_many_lines_count_under_one(self):
        with tempfile.TemporaryDirectory() as folder:
            python("""
                from rollcall.rehearse import notes
                notes.LINES_MOST = 3
                for i in range(10):
                    notes.read("skipped", "item", ("x.py", i, "g"))
            """, HOSTCUDA_REPORT=folder)
            with open(os.path.join(folder, os.listdir(folder)[0]), encoding="utf-8") as f:
                lines = f.read().splitlines()
            self.assertEqual(len(lines), 4)
            self.assertEqual(lines[3], "read skipped item 00000000000000000007 0 (other lines)\t")


OPTIMIZERS = """
import sys
from rollcall.rehearse import settings, steps
stopped = []
steps.stop = lambda: stopped.append(steps._over)
def step(o):
    steps._before_step(o, (), {})
    if not stopped:
        steps._after_step(o, (), {})
class O: pass
"""


class Steps(unittest.TestCase):
    def count(self, code, k):
        return python(OPTIMIZERS + textwrap.dedent(code), ROLLCALL_REHEARSE_STEPS=str(k)).strip()

    def test_one_optimizer(self):
        self.assertEqual(self.count("a = O(); steps._built.add(a)\nfor i in range(9):\n    step(a)\n"
                                    "    if stopped: print(i, stopped[0]); break", 3), "2 3")

    def test_two_optimizers_end_a_step_together(self):
        code = ("a, b = O(), O(); steps._built.update((a, b))\nfor i in range(9):\n    for n, o in ((0, a), (1, b)):\n"
                "        step(o)\n        if stopped: print(i, n, stopped[0]); sys.exit()")
        self.assertEqual(self.count(code, 3), "2 1 3")
        self.assertEqual(self.count(code, 1), "1 0 1")  # nothing told before that the second one ends the step

    def test_what_the_job_tells_comes_first(self):
        self.assertEqual(self.count("a = O(); steps._built.add(a)\nsteps.begins(70)\nfor i in range(9):\n    step(a)\n"
                                    "    steps.begins(71 + i)\n    if stopped: print(i, stopped[0]); break", 2), "1 2")
        told = "for i in range(9):\n    steps.ended()\n    if stopped: print(i, stopped[0]); break"
        self.assertEqual(self.count(told, 4), "3 4")

    def test_a_rank_waits_for_those_that_are_still_at_work(self):
        with tempfile.TemporaryDirectory() as folder:
            told = python("""
                import os, sys
                from rollcall.rehearse import notes, steps
                has_begun, may_stop = os.pipe(), os.pipe()
                if os.fork() == 0:
                    notes.put("step", 1)
                    os.write(has_begun[1], b"x")
                    os.read(may_stop[0], 1)
                    notes.put("stopped", 2)
                    os._exit(0)
                os.read(has_begun[0], 1)
                away = set()
                assert steps._still_at_work(os.environ["HOSTCUDA_REPORT"], away) and not away
                notes.put("step", 2)
                os.write(may_stop[1], b"x")
                try:
                    steps._over = 2
                    steps.stop()
                except SystemExit as e:
                    print("exit", e.code, steps._still_at_work(os.environ["HOSTCUDA_REPORT"], away), len(away))
                """, HOSTCUDA_REPORT=folder)
            self.assertEqual(told, "exit 0 False 2\n")

    def test_a_rank_waits_for_those_that_have_not_ended_a_step(self):
        with tempfile.TemporaryDirectory() as folder:
            told = python("""
                import os
                from rollcall.rehearse import notes, steps
                has_built, may_end = os.pipe(), os.pipe()
                class O: pass
                if os.fork() == 0:
                    optimizer = O()
                    steps._on_built(optimizer)
                    os.write(has_built[1], b"x")
                    os.read(may_end[0], 1)
                    os._exit(0)
                os.close(has_built[1])
                os.read(has_built[0], 1)
                print(steps._still_at_work(os.environ["HOSTCUDA_REPORT"], set()))
                os.write(may_end[1], b"x")
                os.wait()
                print(steps._still_at_work(os.environ["HOSTCUDA_REPORT"], set()))
                """, HOSTCUDA_REPORT=folder, ROLLCALL_REHEARSE_STEPS="1")
            self.assertEqual(told, "True\nFalse\n")


class Start(unittest.TestCase):
    """The hook on the import, with a folder `torch` of ours in place of PyTorch."""

    def run_with(self, torch, code, **env):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "torch.py"), "w", encoding="utf-8") as f:
                f.write(textwrap.dedent(torch))
            with open(os.path.join(folder, "sitecustomize.py"), "w", encoding="utf-8") as f:
                f.write("print('own')\n")
            return python(code, **dict(env, PYTHONPATH=PLACE + os.pathsep + folder))

    def test_a_program_without_pytorch_is_left_alone(self):
        count = "import sys; print(sorted(m for m in sys.modules if m.startswith(('torch', 'rollcall'))))"
        self.assertEqual(python(count, ROLLCALL_REHEARSE="1"), "['rollcall', 'rollcall.after']\n")
        self.assertEqual(python(count), "[]\n")
        self.assertEqual(python(count, ROLLCALL_REHEARSE="0"), "[]\n")

    def test_no_module_of_the_job_is_hidden_by_one_that_came_with_us(self):
        count = ["-c", "import sys; print(*sorted(sys.modules))"]
        with tempfile.TemporaryDirectory() as folder:
            env = {"PATH": os.environ["PATH"], "PYTHONPATH": folder, "ROLLCALL_REHEARSE": "1", "ROLLCALL_DIR": folder}
            alone = subprocess.check_output([sys.executable, *count], text=True, env=env)
            ours = subprocess.check_output([sys.executable, *count], text=True, env={**env, "PYTHONPATH": PLACE})
            more = set(ours.split()) - set(alone.split())
            more -= {*sys.builtin_module_names, "sitecustomize"}  # some systems have a sitecustomize of their own
            self.assertEqual(more, {"rollcall", "rollcall.after"})

    def test_modules_of_the_jobs_folder_are_found_before_those_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("glob", "signal", "ast"):
                with open(os.path.join(folder, name + ".py"), "w", encoding="utf-8") as f:
                    f.write(f"print('own {name}')\n")
            job = os.path.join(folder, "job.py")
            with open(job, "w", encoding="utf-8") as f:
                f.write("import glob, signal, ast\n")
            told = subprocess.check_output([sys.executable, job], text=True, env={
                "PATH": os.environ["PATH"], "PYTHONPATH": PLACE, "ROLLCALL_REHEARSE": "1", "ROLLCALL_DIR": folder})
            self.assertEqual(told, "own glob\nown signal\nown ast\n")

    def test_who_only_looks_for_pytorch_does_not_keep_us_from_it(self):
        told = self.run_with("value = 7", "import importlib.util; importlib.util.find_spec('torch'); import torch",
                             ROLLCALL_REHEARSE="1")
        self.assertRegex(told, r"^own\nrollcall: nothing is computed on the host: \w+: .*\n$")

    def test_the_jobs_own_sitecustomize_runs_and_a_strange_torch_is_told(self):
        told = self.run_with("value = 7", "import torch; print(torch.value)", ROLLCALL_REHEARSE="1")
        self.assertRegex(told, r"^own\n7\nrollcall: nothing is computed on the host: \w+: .*\n$")

    def test_an_import_that_fails_fails_as_it_would(self):
        told = self.run_with("raise ImportError('no CUDA here')",
                             "try:\n    import torch\nexcept ImportError as e:\n    print(e)", ROLLCALL_REHEARSE="1")
        self.assertEqual(told, "own\nno CUDA here\n")


if __name__ == "__main__":
    unittest.main()
