"""test_zygote.py: ranks of a Python job that are forked from an interpreter (`rollcall rehearse --zygote`) are what
ranks with an interpreter of their own are; and what keeps an interpreter from being forked."""
import json
import os
import signal
import sys
import unittest

from support import Case, END_S, until

# What a rank can see of itself, in one line of JSON. The places of the script are its own; the hash of a text shows the
# interpreter's seed.
LOOK = """
import json, os, random, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR")
spec = __spec__ and __spec__.name
seen = {"env": {n: os.environ.get(n) for n in names}, "argv": sys.argv, "path": sys.path, "spec": spec,
        "file": globals().get("__file__"), "name": __name__,
        "main": sys.modules["__main__"].__dict__ is globals(), "globals": sorted(globals()),
        "flags": list(sys.flags), "orig": sys.orig_argv[1:], "stdin": sys.stdin.read(),
        "stacks": os.path.exists(f"{os.environ['ROLLCALL_DIR']}/{os.getpid()}.pystacks"),
        "group": os.getpgrp() == os.getpid(), "parent": os.getppid()}
os.write(1, json.dumps(seen).encode() + b"\\n")
os.write(2, json.dumps([hash("a"), random.random(), os.getpid()]).encode() + b"\\n")
"""

SPAWNS = """
import multiprocessing, os
def double(x):
    return 2 * x
if __name__ == "__main__":
    for how in "fork", "spawn", "forkserver":
        with multiprocessing.get_context(how).Pool(1) as pool:
            os.write(1, f"{os.environ['RANK']} {how} {pool.map(double, [21])}\\n".encode())
"""


REHEARSE = "rehearse", "--force"  # whatever PyTorch this interpreter has: no job here asks for it


class Zygote(Case):
    def rehearse(self, *args, ranks=4, zygote="json", **kwargs):
        return self.rollcall(*REHEARSE, "-n", str(ranks), "--timeout", "120", "--zygote", zygote, "--", sys.executable,
                             *args, **kwargs)

    def script(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as f:
            f.write(text)
        return self.path(name)

    def seen(self, *args, zygote, **kwargs):
        """What the ranks saw, by rank; without what differs from run to run."""
        r = self.rehearse(*args, zygote=zygote, **kwargs)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertNotIn("of its own", r.stderr)
        ranks = [json.loads(line) for line in r.stdout.splitlines()]
        self.assertEqual(len({r.pop("parent") for r in ranks}), 1)
        secrets = [json.loads(line) for line in r.stderr.splitlines() if line.startswith("[")]
        return sorted(ranks, key=lambda rank: int(rank["env"]["RANK"])), secrets

    def test_a_forked_rank_sees_what_a_started_one_sees(self):
        look = self.script("look.py", LOOK)
        os.mkdir(self.path("package"))
        self.script("package/__init__.py", "")
        self.script("package/__main__.py", LOOK)
        for args in ((look, "a", "-b"), ("-u", "-O", "-X", "dev", look), ("-m", "package", "x"), ("-c", LOOK, "-m"),
                     (self.path("package"),), ("-I", look), ("-W", "ignore", os.path.basename(look))):
            with self.subTest(args=[a[-20:] for a in args]):
                env = {"PYTHONSAFEPATH": ""} if args[0] != "-c" else {}
                ours, _ = self.seen(*args, zygote="json", env=env, cwd=self.tmp)
                theirs, _ = self.seen(*args, zygote="none", env=env, cwd=self.tmp)
                self.assertEqual(ours, theirs)
                self.assertEqual([r["env"]["RANK"] for r in ours], ["0", "1", "2", "3"])

    def test_ranks_of_several_nodes(self):
        look = self.script("look.py", LOOK)
        r = self.rollcall(*REHEARSE, "-n", "4", "--nodes", "2", "--zygote", "json", "--quiet", "--", sys.executable,
                          look)
        places = [json.loads(line)["env"] for line in r.stdout.splitlines()]
        self.assertEqual(sorted((p["RANK"], p["LOCAL_RANK"], p["GROUP_RANK"], p["LOCAL_WORLD_SIZE"]) for p in places),
                         [("0", "0", "0", "2"), ("1", "1", "0", "2"), ("2", "0", "1", "2"), ("3", "1", "1", "2")])

    def test_seeds_differ_as_they_would(self):
        look = self.script("look.py", LOOK)
        _, secrets = self.seen(look, zygote="json,random")
        hashes, randoms, pids = zip(*secrets)
        self.assertEqual((len(set(hashes)), len(set(randoms)), len(set(pids))), (2, 4, 4))
        _, secrets = self.seen(look, zygote="json", env={"PYTHONHASHSEED": "7"})
        self.assertEqual(len({s[0] for s in secrets}), 1)

    def test_exit_codes_are_those_of_the_ranks(self):
        for text, code in (("raise SystemExit(7)", 7), ("os._exit(9)", 9), ("1 / 0", 1), ("raise SystemExit('no')", 1),
                           ("os.kill(os.getpid(), 11)", 139), ("x = (", 1)):
            with self.subTest(text=text):
                path = self.script("ends.py", f"import os\nif os.environ['RANK'] == '2':\n    {text}\n")
                self.assertEqual(self.rehearse(path).returncode, code)
        self.assertEqual(self.rehearse(self.path("nowhere.py")).returncode, 127)
        self.assertEqual(self.rehearse("-m", "nowhere_at_all").returncode, 1)

    def test_an_error_shows_the_frames_of_the_job_alone(self):
        path = self.script("fails.py", "def f():\n    raise KeyError('k')\nf()\n")
        lines = [self.rehearse(path, ranks=1, zygote=zygote).stderr.splitlines()
                 for zygote in ("json", "none")]
        ours, theirs = (sorted(line for line in text if not line.startswith("rollcall")) for text in lines)
        self.assertEqual(ours, theirs)
        self.assertIn("KeyError: 'k'", ours)

    def test_what_is_done_at_the_end_is_done(self):
        path = self.script("ends.py", "import atexit, os, threading, time\n"
                           "atexit.register(os.write, 1, b'at exit\\n')\n"
                           "class Late:\n    def __del__(self, write=os.write):\n        write(1, b'deleted\\n')\n"
                           "late = Late()\n"
                           "threading.Thread(target=lambda: (time.sleep(0.1), os.write(1, b'thread\\n'))).start()\n")
        r = self.rehearse("-u", path, "--quiet")
        self.assertEqual(sorted(r.stdout.split("\n")), [""] + ["at exit"] * 4 + ["deleted"] * 4 + ["thread"] * 4)

    def test_children_of_a_rank_can_be_started_in_each_way(self):
        path = self.script("spawns.py", SPAWNS)
        r = self.rehearse(path, ranks=2)
        self.assertEqual(sorted(r.stdout.splitlines()), sorted(f"{rank} {how} [42]" for rank in (0, 1)
                                                               for how in ("fork", "spawn", "forkserver")), r.stderr)

    def test_output_is_labelled_with_its_rank(self):
        path = self.script("says.py", "import os, sys\nprint('out ' + os.environ['RANK'])\n"
                           "print('err ' + os.environ['RANK'], file=sys.stderr)\n")
        r = self.rollcall(*REHEARSE, "-n", "3", "--prefix", "--zygote", "json", "--", sys.executable, path)
        self.assertEqual(sorted(r.stdout.splitlines()), [f"[{i}] out {i}" for i in range(3)])
        self.assertEqual([line for line in sorted(r.stderr.splitlines()) if line.startswith("[")],
                         [f"[{i}] err {i}" for i in range(3)])

    def test_what_a_fork_would_make_different_is_refused(self):
        self.script("asks.py", "import os\nrank = int(os.environ.get('LOCAL_RANK', -1))\n")
        self.script("starts.py", "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True)"
                                 ".start()\n")
        self.script("dies.py", "import os\nos._exit(3)\n")
        job = self.script("job.py", "import os\n"
                          "os.write(1, (os.environ['RANK'] + os.environ['LOCAL_RANK'] + '\\n').encode())\n")
        for modules, part in (("asks", "asks reads LOCAL_RANK while it is imported"),
                              ("json,starts", "started threads"),
                              ("nowhere", "importing nowhere ends with ModuleNotFoundError"),
                              ("dies", "the interpreter has ended")):
            with self.subTest(modules=modules):
                r = self.rehearse(job, zygote=modules, env={"PYTHONPATH": self.tmp})
                self.assertEqual((r.returncode, sorted(r.stdout.splitlines())), (0, [f"{i}{i}" for i in range(4)]))
                said = [line for line in r.stderr.splitlines() if "an interpreter of its own" in line]
                self.assertEqual(len(said), 1, r.stderr)
                self.assertIn(part, said[0])

    def test_a_module_of_the_jobs_own_is_taken_first(self):
        """As by an interpreter that finds the job's folder before it imports anything."""
        text = "import json, os\nos.write(1, json.__file__.encode() + b'\\n')\n"
        for own in "json.py", "json/__init__.py", "other.py":
            folder = os.path.splitext(own)[0].replace("/", "_") + "_job"
            path = os.path.join(folder, own)
            os.makedirs(os.path.dirname(self.path(path)))
            self.script(path, "")
            job = self.script(os.path.join(folder, "job.py"), text)
            for args in ((job,), ("-c", text), ("-m", "job")):
                with self.subTest(own=own, args=args[0][-6:]):
                    r = self.rehearse(*args, ranks=2, cwd=self.path(folder), env={"PYTHONSAFEPATH": ""})
                    self.assertEqual(r.returncode, 0, r.stderr)
                    hides = own != "other.py"
                    self.assertEqual([os.path.realpath(p) == os.path.realpath(self.path(path))
                                      for p in r.stdout.splitlines()], [hides] * 2, r.stdout)
                    self.assertEqual("an interpreter of its own" in r.stderr and " hides the module json " in r.stderr,
                                     hides, r.stderr)

    def test_a_command_that_cannot_be_forked(self):
        for args in (("-n", "2", "--zygote", "json", "--", "true"), ("--zygote", "json", "--", sys.executable, "x.py"),
                     ("-n", "2", "--zygote", "json", "--", sys.executable), ("-n", "2", "--zygote", "json", "--",
                                                                              sys.executable, "-i", "x.py")):
            r = self.rollcall("rehearse", *args)
            self.assertEqual(r.returncode, 2)
            self.assert_one_line(r.stderr, "--zygote json': wants -n and a command like python SCRIPT")

    def begin(self, job, zygote):
        return self.start(*REHEARSE, "-n", "3", "--zygote", zygote, "--", sys.executable, job,
                          env={"PYTHONPATH": self.tmp})

    def test_a_signal_ends_the_ranks(self):
        up = self.path("up.")
        job = self.script("waits.py", f"import os, time\nopen({up!r} + os.environ['RANK'], 'w')\ntime.sleep(600)\n")
        p = self.begin(job, "json")
        self.assertTrue(until(lambda: all(os.path.exists(self.path(f"up.{i}")) for i in range(3))))
        p.send_signal(signal.SIGTERM)
        p.communicate(timeout=END_S)
        self.assertEqual(p.returncode, 143)

    def test_a_signal_while_modules_are_imported(self):
        self.script("sleeps.py", f"import time\nopen({self.path('up')!r}, 'w')\ntime.sleep(600)\n")
        p = self.begin(self.script("job.py", "import time\ntime.sleep(600)\n"), "sleeps")
        self.assertTrue(until(lambda: os.path.exists(self.path("up"))))
        p.send_signal(signal.SIGINT)
        p.communicate(timeout=END_S)
        self.assertEqual(p.returncode, 130)

    def test_nothing_is_left_when_the_command_is_killed(self):
        for when in "import", "job":
            with self.subTest(when=when):
                up = self.path(f"up.{when}")
                waits = f"import time\nopen({up!r}, 'w')\ntime.sleep(600)\n"
                self.script("module.py", waits if when == "import" else "")
                p = self.begin(self.script("job.py", waits), "module")
                self.assertTrue(until(lambda: os.path.exists(up)))
                p.kill()
                p.communicate(timeout=END_S)  # ends when nobody holds the pipes any more


if __name__ == "__main__":
    unittest.main(verbosity=2)
