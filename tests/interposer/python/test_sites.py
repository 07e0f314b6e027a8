"""test_sites.py: the lines of Python that the preload records at a call, against what the interpreter itself says, with
every CPython from 3.9 on that this machine has."""
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.join(HERE, "program_sites.py")
ROLLCALL, PRELOAD, FAKE = os.environ["ROLL_BIN"], os.environ["ROLL_TEST_PRELOAD"], os.environ["ROLL_TEST_FAKE"]
EMBEDDED, LOOP = os.environ["ROLL_TEST_EMBEDDED"], os.environ["ROLL_TEST_LOOP"]
STRESS = int(os.environ.get("ROLL_TEST_CALLS", "30000"))
KEPT, NAME, PATH = 8, 255, 1023  # lines of a call site; bytes of a name and of a path


def interpreters():
    """One of each version: from PATH, and where pyenv keeps them."""
    roots = [os.path.join(os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv")), "versions", "*", "bin")]
    places = os.environ.get("PATH", "").split(":") + [p for root in roots for p in glob.glob(root)]
    found = {}
    for minor in range(9, 15):
        for place in places:
            path = os.path.join(place, f"python3.{minor}")
            if os.access(path, os.X_OK) and "shims" not in place:
                found.setdefault(minor, path)
    return found


FOUND = interpreters()


def cut(frame):
    """A frame as it is kept: of a long name the beginning, of a long path the end."""
    function, file, line = frame
    file = file if file.isascii() else file[-(PATH // 4):]
    shown = "".join(c if c.isascii() else "?" * len(c.encode()) for c in file)  # as `rollcall dump` shows texts
    return [function[:NAME], shown[-PATH:], line]


class Sites(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="rollcall-sites-", dir="/dev/shm")

    def tearDown(self):
        shutil.rmtree(self.dir)

    def run_program(self, python, *arguments, program=PROGRAM, libraries="", **more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_"))}
        env.update(LD_PRELOAD=PRELOAD, LD_LIBRARY_PATH=FAKE, ROLLCALL_DIR=self.dir, RANK="0", WORLD_SIZE="1",
                   PYTHONDONTWRITEBYTECODE="1", ROLLCALL_PYTHON_LIBRARIES=libraries, **more)
        for name in os.listdir(self.dir):
            os.unlink(os.path.join(self.dir, name))
        p = subprocess.run([python, program, *arguments], env=env, capture_output=True, text=True,
                           timeout=600 + STRESS // 1000)
        self.assertEqual(p.returncode, 0, p.stderr)
        rings = glob.glob(os.path.join(self.dir, "*.ring"))
        self.assertEqual(len(rings), 1)
        return [json.loads(line) for line in p.stdout.splitlines()], rings[0]

    def definitions(self, ring):
        out = subprocess.run([ROLLCALL, "dump", "--json", ring], capture_output=True, text=True, check=True).stdout
        all_of = map(json.loads, out.splitlines())
        return [one["fields"]["type"]["name"] for one in all_of if one["kind"] == "definition"]

    def recorded(self, ring, kind="callsite"):
        """The calls of a ring, in their order: [(count, [[function, file, line]...], [folded...])]; or where the main
        thread stood at them (`stand`)."""
        out = subprocess.run([ROLLCALL, "dump", "--json", ring], capture_output=True, text=True, check=True).stdout
        defs, calls = {}, []
        for line in out.splitlines():
            one = json.loads(line)
            fields = {k: v["name"] if k in ("type", "op") else v for k, v in one.get("fields", {}).items()}
            if one["kind"] == "definition":
                defs[fields["type"], fields["id"]] = fields
            elif one["kind"] == "record" and fields["op"] == "AllReduce":
                calls.append(fields)
        told = []
        for call in sorted(calls, key=lambda c: c["count"]):
            site, frames, folded = defs.get((kind, call["callsite"]), {"lines": 0}), [], []
            for i in range(site["lines"]):
                at = defs["line", site[f"line[{i}]"]]
                frames.append([at["function"], defs["source", at["source"]]["path"], at["line"]])
                folded.append(site[f"folded[{i}]"])
            told.append((call["count"], frames, folded))
        return told

    def test_every_frame_of_every_interpreter(self):
        self.assertTrue(FOUND, "no CPython from 3.9 on is installed")
        for minor in range(9, 15):
            if minor not in FOUND:
                print(f"left out: CPython 3.{minor} is not installed", file=sys.stderr)
                continue
            with self.subTest(minor=minor):
                python = FOUND[minor]
                lets = subprocess.run([python, "-c", "import greenlet"], capture_output=True).returncode == 0
                if not lets:
                    print(f"left out: CPython 3.{minor} has no greenlet", file=sys.stderr)
                truth, ring = self.run_program(python, *(["greenlet"] if lets else []))
                self.assertGreater(len(truth), 70)
                for (count, frames, folded), frames_of_python in zip(self.recorded(ring), truth):
                    want = [cut(f) for f in frames_of_python][:KEPT]
                    self.assertEqual(frames, want, f"call {count} of CPython 3.{minor}")
                    self.assertEqual(folded, [0] * len(frames))
                self.assertEqual(len(self.recorded(ring)), len(truth))

    def test_frames_of_libraries_are_folded(self):
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                _, ring = self.run_program(python, program=os.path.join(HERE, "program_folds.py"),
                                           libraries="/no/such/:program_library:threading.py")
                calls = [[(f[0].split(".")[-1], n) for f, n in zip(frames, folded)]
                         for _, frames, folded in self.recorded(ring)]
                own = [("user", 0), ("inner", 0), ("<module>", 2)]
                want = [[("<lambda>", 0), ("inner", 0), ("<module>", 1)], own, [("user", 0), ("<module>", 0)],
                        [("user", 0)]]
                if minor >= 12:
                    want += [[("user", 0), ("<module>", 0)], [("inside", 0), ("<module>", 0)]]
                self.assertEqual(calls, want)

    def test_calls_without_end_leave_no_fault(self):
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                _, ring = self.run_program(python, "stress", str(STRESS))
                frames = self.recorded(ring)[-1][1]
                self.assertEqual(frames[0][0], "plain")


    def test_code_that_takes_the_place_of_other_code(self):
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                truth, ring = self.run_program(python, "replaced", LOOP, "200")
                lines = [frames[0][2] for _, frames, _ in self.recorded(ring) if frames[0][0] == "plain"]
                self.assertEqual(lines, [frames[0][2] for frames in truth])

    def test_code_that_is_compiled_again_and_again(self):
        """Makes one line and one call site; and whatever fills the area leaves room for communicators."""
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                _, ring = self.run_program(python, "compiled", LOOP, "2000")
                self.assertLess(len(self.definitions(ring)), 30)
                _, ring = self.run_program(python, "other_places", LOOP, "7000")
                defined = self.definitions(ring)
                self.assertGreater(len(defined), 2000)
                self.assertEqual(sum(kind == "comm" for kind in defined), 2)

    def test_threads_that_call_while_the_interpreter_ends(self):
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                for _ in range(5):
                    self.run_program(python, "ended", LOOP, MALLOC_PERTURB_="90", PYTHONMALLOC="malloc")

    def test_where_the_main_thread_stands(self):
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                truth, ring = self.run_program(python, LOOP, "waits", program=os.path.join(HERE, "program_stands.py"),
                                               libraries="/no/such/:program_library")
                stands, calls = self.recorded(ring, "stand"), self.recorded(ring)
                self.assertEqual(len(stands), len(truth))
                self.assertTrue(all(not frames for _, frames, _ in calls), "a thread of C has no lines of its own")
                for (count, frames, folded), frames_of_python in zip(stands, truth):
                    frames_of_python = [[f[0], f[1], f[2]] for f in frames_of_python[:KEPT]]
                    plain = [[f[0].split(".")[-1], f[1], f[2]] for f in frames]
                    if frames_of_python[1][0] == "run_backward":
                        del frames_of_python[2]
                        self.assertEqual(folded, [0, 0, 1])
                    self.assertEqual(plain, frames_of_python, f"call {count} of CPython 3.{minor}")

    def test_the_agent_adds_what_the_lines_say(self):
        """In the trace, each line of the user's has its text; one whose file was changed after the start has none."""
        program = os.path.join(self.dir, "program.py")
        for changed in False, True:
            with self.subTest(changed=changed):
                with open(os.path.join(HERE, "program_stands.py")) as file, open(program, "w") as copy:
                    source = file.read()
                    late = "import os, time\ntime.sleep(0.1)\nos.utime(__file__)\n" if changed else ""
                    copy.write(source.replace("import ctypes\n", late + "import ctypes\n", 1))
                if changed:
                    self.assertFalse([t for t in self.texts_of(program, "changed") if "seen()" in t])
                    continue
                # The program ends with its last call: an agent that got no CPU before then cannot read its files.
                wanted = {"loop.embedded_elsewhere(comm, seen())", "library.backward(first)"}
                texts = next((t for t in (self.texts_of(program, str(i)) for i in range(20)) if wanted <= set(t)), [])
                self.assertTrue(wanted <= set(texts), texts)

    def texts_of(self, program, name):
        """What a trace of the program says of its lines."""
        trace = os.path.join(self.dir, f"trace-{name}")
        command = [ROLLCALL, "run", "--trace", trace, "-n", "1", "--", sys.executable, program, LOOP, "waits"]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_"))}
        env.update(LD_LIBRARY_PATH=FAKE, PYTHONPATH=HERE)
        p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
        self.assertEqual(p.returncode, 0, p.stderr)
        out = subprocess.run([ROLLCALL, "dump", "--json", *glob.glob(trace + "/*.rtrc")], capture_output=True,
                             text=True, check=True).stdout
        fields = [json.loads(line)["fields"] for line in out.splitlines() if '"definition"' in line]
        return [f["text"] for f in fields if f["type"]["name"] == "text"]

    def test_a_main_thread_that_goes_on_leaves_no_fault(self):
        """And where it is said to stand there is code of the program, at a line that this code has."""
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                _, ring = self.run_program(python, LOOP, "goes_on", str(min(STRESS // 10000, 1000)),
                                           program=os.path.join(HERE, "program_stands.py"))
                for _, frames, _ in self.recorded(ring, "stand"):
                    for function, file, line in frames:
                        self.assertRegex(file, r"^<on>$|program_stands\.py$|^<frozen|/lib/python3")
                        self.assertGreater(line, 0, function)

    def test_an_interpreter_that_begins_anew(self):
        nccl = os.path.join(FAKE, "libnccl.so.2")
        for minor, python in FOUND.items():
            with self.subTest(minor=minor):
                tell = "import sysconfig as s; print(s.get_config_var('LIBDIR') + '/' + s.get_config_var('INSTSONAME'))"
                library = subprocess.run([python, "-c", tell], capture_output=True, text=True).stdout.strip()
                command = [EMBEDDED, library, nccl]
                if not os.path.exists(library) or ".so" not in library:
                    print(f"left out: CPython 3.{minor} has no shared library", file=sys.stderr)
                    continue
                alone = subprocess.run(command, capture_output=True, text=True)
                if alone.returncode != 0:  # 3.12.1 ends at the second `import ctypes`: free(): invalid pointer
                    print(f"left out: CPython 3.{minor} cannot begin anew, without the preload either: status "
                          f"{alone.returncode}, {alone.stderr.strip()!r}", file=sys.stderr)
                    continue
                env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_"))}
                env.update(LD_PRELOAD=PRELOAD, ROLLCALL_DIR=self.dir, RANK="0", WORLD_SIZE="1")
                self.assertEqual(subprocess.run(command, env=env).returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=1)
