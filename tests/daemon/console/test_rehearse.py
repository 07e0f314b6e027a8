"""test_rehearse.py: `rollcall rehearse` with a program on the CUDA runtime and NCCL: its report as a terminal shows it,
its codes, and what keeps it from starting."""
import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import unittest

from support import Case, END_S, ROLLCALL, until

JOB = os.environ["ROLL_TEST_REHEARSE_JOB"]

HEALTHY = """\
Rehearsal of JOB

#  COMMUNICATOR  RANKS  MADE BY
1  world         {all}    CommInit at rehearse_job.c:N main
{pairs}

#  COMMUNICATOR  OPERATION  CALLS     BYTES  CALLS/STEP  BYTES/STEP
1  world         AllReduce      6   192 MiB           2    64.0 MiB
{calls}

RANK  HOST MEMORY  DEVICE MEMORY
{memory}

Steps: the job tells none; its calls repeat 3 times, and one repetition is taken for a step.
A step of rank 0: #1 AllReduce x2, #2 Broadcast.
In flight together (other streams, no host waits between): none.
Findings: none
"""

MAKES = """\
import ctypes


def make():
    nccl, comm, device = ctypes.CDLL(None), ctypes.c_void_p(), ctypes.c_int(0)
    assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, ctypes.byref(device)) == 0
    assert nccl.ncclCommDestroy(comm) == 0
"""


def pairs(ranks):
    """The rows of the communicators of two ranks, and of their calls."""
    made, calls = [], []
    for i in range(ranks // 2):
        of = f"{2 * i}-{2 * i + 1}"
        made.append(f"{i + 2}  pair          {of}    CommSplit of world, color {i} at rehearse_job.c:N main")
        calls.append(f"{i + 2}  pair          Broadcast      3  96.0 MiB           1    32.0 MiB")
    return "\n".join(made), "\n".join(calls)


def plain(text):
    """What differs from run to run: the job's name, lines of the program, memory."""
    text = re.sub(r"Rehearsal of \S+", "Rehearsal of JOB", text)
    text = re.sub(r"rehearse_job\.c:\d+", "rehearse_job.c:N", text)
    return re.sub(r"^(\d+) +[\d.]+ MiB.*$", r"\1 MEMORY", text, flags=re.M)


def state(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


class Rehearse(Case):
    def rehearse(self, *args, **kwargs):
        return self.rollcall("rehearse", "--timeout", "120", *args, **kwargs)

    def test_a_healthy_job_is_reported(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                shown, code = self.in_terminal("rehearse", "-n", str(ranks), "--", JOB)
                made, calls = pairs(ranks)
                want = HEALTHY.format(all=f"0-{ranks - 1}", pairs=made, calls=calls,
                                      memory="\n".join(f"{r} MEMORY" for r in range(ranks)))
                self.assertEqual(code, 0, shown)
                self.assertIn(want, plain(shown))
                self.assertIn(f"rollcall: {ranks} ranks, ", shown)

    def test_a_rank_that_has_ended_has_begun(self):
        """Its ring is removed; the time that an import may take is no longer added to --timeout."""
        launcher = ("for r in 0 1 2 3; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 \"$0\" leaves & done; "
                    "wait")
        for options in (("-n", "4", "--", JOB, "leaves"), ("--", "sh", "-c", launcher, JOB)):
            with self.subTest(options[0]):
                shown, code = self.in_terminal("rehearse", "--timeout", "10", *options)
                self.assertEqual(code, 124, shown)
                self.assertIn("nothing has moved for 10 s (--timeout): ending the job", shown)

    def test_a_job_that_stands_after_its_finding_says_how_it_ends(self):
        """PyTorch's watchdog would end it after ten minutes, without a word until then."""
        limit = "--timeout", "300"
        for options, ends in (((), "Ctrl-C ends it now, and --timeout S does so by itself\n"),
                              (limit, "--timeout ends it when nothing has moved for 300 s, Ctrl-C now\n")):
            with self.subTest(options=options):
                p = self.start("rehearse", "-n", "4", *options, "--", JOB, "sick")
                told = []
                while not told or "the job is still running" not in told[-1]:
                    told.append(p.stderr.readline())
                    self.assertNotEqual(told[-1], "", "".join(told))
                self.assertRegex(told[-1], r"still running: ranks 0-\d wait, until PyTorch's watchdog .*; " + ends)
                p.send_signal(signal.SIGINT)
                rest = p.communicate(timeout=300)[1]
                self.assertIn("SIGINT is passed on to 4 ranks, which have 5 s to end", rest)
                self.assertNotIn("still running", rest)

    def test_many_groups_of_one_family_are_a_row(self):
        """As is each of few; the JSON has all of them, and their families."""
        out = self.path("report.json")
        r = self.rehearse("-n", "10", "--nodes", "2", "--json", out, "--", JOB)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stderr, r"(?m)^2  pair +5 groups of 2 neighbours  CommSplit of world at rehearse_job.c:")
        self.assertRegex(r.stderr, r"(?m)^2  pair +Broadcast +3 +96.0 MiB +1 +32.0 MiB$")
        self.assertNotRegex(r.stderr, r"(?m)^3  pair")
        self.assertIn("A step of rank 0: #1 AllReduce x2, #2 Broadcast.", r.stderr)
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
        self.assertEqual([(f["name"], f["groups"]) for f in report["families"]], [("world", 1), ("pair", 5)])
        self.assertEqual([c["family"] for c in report["communicators"]], [1] + [2] * 5)

    def test_steps_come_from_marks(self):
        """Of a sick job; its healthy twin has no finding. A profiler keeps its place."""
        for options, place, shown in (("--nvtx",), {}, ", step 101\n"), \
                (("--nvtx",), {"NVTX_INJECTION64_PATH": "/profiler.so"}, " ranks)\n"):
            with self.subTest(options=options, place=place):
                r = self.rehearse("-n", "4", *options, "--timeout", "20", "--", JOB, "shorter",
                                  env={"MARKS": "1", **place})
                where = [line + "\n" for line in r.stderr.splitlines() if line.startswith("where ")]
                self.assertEqual([w.endswith(shown) for w in where], [True], r.stderr)
                self.assertEqual("NVTX_INJECTION64_PATH names /profiler.so, which keeps its place" in r.stderr,
                                 bool(place), r.stderr)
        r = self.rehearse("-n", "4", "--nvtx", "--", JOB, env={"MARKS": "1"})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("Findings: none", r.stderr)

    def test_a_sick_job_is_told_with_its_rank(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                shown, code = self.in_terminal("rehearse", "-n", str(ranks), "--timeout", "20", "--", JOB, "sick")
                self.assertEqual(code, 124, shown)
                found = shown.split("\nFindings: 1\n")[1].splitlines()
                self.assertEqual(len(found), 1, shown)
                self.assertRegex(found[0], "^proven +circular-wait +" + ("Rank 3 has not made AllReduce of 16777216 "
                                                                         "float32" if ranks == 4
                                                                         else "A circle of 2 ranks"))

    def test_the_report_as_json(self):
        out = self.path("report.json")
        r = self.rehearse("-n", "4", "--json", out, "--", JOB)
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            report = json.load(f)
        self.assertEqual((report["schema"], report["ranks"], report["steps"], report["findings"], report["lost"]),
                         ("rollcall.rehearsal/1", 4, None, [], 0))
        self.assertEqual([(c["label"], c["ranks"], c["size"], c["seen"]) for c in report["communicators"]],
                         [("world", "0-3", 4, 4), ("pair", "0-1", 2, 2), ("pair", "2-3", 2, 2)])
        self.assertEqual([c["calls"] for c in report["communicators"][:2]],
                         [[{"op": "AllReduce", "calls": 6, "calls_least": 6, "bytes": (3 << 26) + 12,
                            "calls_per_step": 2, "bytes_per_step": (1 << 26) + 4}],
                          [{"op": "Broadcast", "calls": 3, "calls_least": 3, "bytes": 3 << 25, "calls_per_step": 1,
                            "bytes_per_step": 1 << 25}]])
        self.assertEqual((report["steps_learned"], report["order"]),
                         (3, {"rank": 0, "calls": [{"communicator": 1, "op": "AllReduce", "calls": 2},
                                                   {"communicator": 2, "op": "Broadcast", "calls": 1}],
                              "together": []}))
        self.assertRegex(report["communicators"][2]["made"],
                         r"^CommSplit of world, color 1 at rehearse_job\.c:\d+ main$")
        self.assertEqual([m["rank"] for m in report["memory"]], [0, 1, 2, 3])
        # Two tensors of 64 MiB would show: payloads are left out, and what is only reserved stays so.
        self.assertTrue(all(0 < m["host_peak_bytes"] < 48 << 20 for m in report["memory"]), report["memory"])

    def test_a_communicator_is_made_by_the_jobs_own_line_of_python(self):
        """A library's frames lie inside; native code, whose lines may be known as well, lies further inside."""
        library, job = self.path("site-packages/library.py"), self.path("job.py")
        os.mkdir(os.path.dirname(library))
        for path, text in (library, MAKES), (job, "import library\ndef setup():\n    library.make()\nsetup()\n"):
            with open(path, "w", encoding="utf-8") as f:
                f.write(text)
        out = self.path("report.json")
        r = self.rehearse("-n", "1", "--force", "--json", out, "--", sys.executable, job,  # beside any PyTorch
                          env={"PYTHONPATH": os.path.dirname(library)})
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
        self.assertEqual([c["made"] for c in report["communicators"]], ["CommInit at job.py:3 setup"])

    def test_tables_fit_the_terminal(self):
        kept = self.path("kept")
        self.assertEqual(self.rehearse("-n", "4", "--quiet", "--save", kept, "--", JOB).returncode, 0)
        for columns in (60, 80):
            with self.subTest(columns=columns):
                shown, code = self.in_terminal("rehearse", "-n", "4", "--against", kept, "--", JOB, "larger",
                                               columns=columns)
                lines = shown.split("\nRehearsal of ")[1].splitlines()
                self.assertEqual(code, 0, shown)
                self.assertIn("Differences: 1", lines)
                self.assertEqual([line for line in lines if len(line) > columns], [])
                self.assertTrue(any(line.endswith("\u2026") for line in lines) or columns == 80, shown)

    def test_steps_that_the_job_tells(self):
        train = os.environ["ROLL_TEST_MOE_TRAIN"]
        if not train:
            self.skipTest("moe_train is not built")
        out = self.path("report.json")
        r = self.rehearse("-n", "2", "--json", out, "--", train, "--steps", "4", "--layers", "2",
                          env={"HOSTNCCL_DATA": "move"})
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            report = json.load(f)
        self.assertEqual((report["steps"], report.get("steps_learned")), (4, None))
        self.assertIn("\nSteps: 4.\n", r.stderr)
        calls = {(c["label"], call["op"]): call for c in report["communicators"] for call in c["calls"]}
        # The counts of the tokens, once in each layer and step; what was learnt would say so, too.
        of = calls["ep", "AllGather"]
        self.assertEqual((of["calls"], of["calls_per_step"]), (8, 2))
        self.assertAlmostEqual(of["bytes_per_step"], of["bytes"] / 4)
        # That the layers are made is agreed on, which is no part of a step.
        made = calls["ep", "AllReduce"]
        self.assertGreater(made["calls"], made["calls_per_step"] * 4)

    def test_steps_that_python_tells(self):
        out = self.path("report.json")
        r = self.rehearse("-n", "2", "--json", out, "--", JOB, "evaluates", env={"STEPS": "7", "TOLD": "1"})
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            report = json.load(f)
        # Seven steps, and not the three times that two steps and an evaluation repeat.
        self.assertEqual((report["steps"], report.get("steps_learned")), (7, None))
        self.assertIn("\nSteps: 7.\n", r.stderr)
        world = report["communicators"][0]
        calls = {c["op"]: c for c in world["calls"]}
        # Between the ends of the first and of the last step: six steps and three evaluations.
        self.assertEqual((calls["AllReduce"]["calls"], calls["AllReduce"]["calls_per_step"]),
                         (7 * 2 + 3, (6 * 2 + 3) / 6))
        self.assertEqual((calls["Broadcast"]["calls"], calls["Broadcast"]["calls_per_step"]), (20, 0))
        self.assertEqual(report["order"]["calls"], [{"communicator": 1, "op": "AllReduce", "calls": 2},
                                                    {"communicator": 2, "op": "Broadcast", "calls": 1}])
        self.assertEqual((world["label"], world["name"], world["made"]),
                         ("world", "default group", "CommInit at train.py:12 main"))
        self.assertRegex(r.stderr, r"\n1  default group +0-1 +CommInit at train\.py:12 main\n")
        # The notes are about device 0, which is that of rank 0.
        self.assertEqual([[d.get("allocator_peak_bytes") for d in m["devices"]] for m in report["memory"]],
                         [[3 << 20], [None]])
        self.assertRegex(r.stderr, r"\nRANK  HOST MEMORY  DEVICE MEMORY +PYTORCH'S OWN\n0 .* of .*  0: 3\.0 MiB\n"
                                   r"1 .* of .*  -\n")

    def test_one_step_has_no_figures_of_a_step(self):
        r = self.rehearse("-n", "2", "--", JOB, "evaluates", env={"STEPS": "1", "TOLD": "1"})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("\nSteps: 1.\n", r.stderr)
        self.assertNotIn("/STEP", r.stderr)
        self.assertNotIn("A step of rank", r.stderr)

    def test_the_beginning_is_no_step(self):
        out = self.path("report.json")
        r = self.rehearse("-n", "2", "--json", out, "--", JOB, "evaluates", env={"STEPS": "6"})
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            report = json.load(f)
        self.assertEqual((report["steps"], report["steps_learned"]), (None, 3), r.stderr)  # 20 parameters went round

    def test_calls_that_may_be_in_flight_together(self):
        out = self.path("report.json")
        r = self.rehearse("-n", "2", "--json", out, "--", JOB, "beside")
        with open(out) as f:
            self.assertEqual(json.load(f)["order"]["together"], [[1, 2]], r.stderr)
        self.assertIn("\nIn flight together (other streams, no host waits between): #1 and #2.\n", r.stderr)

    def test_how_ranks_ended_is_told(self):
        for how, line, code in (("fails", "Rank 2 ended with code 7.", 7),
                                ("crashes", "Rank 2 ended by signal 11 (SIGSEGV).", 124)):
            with self.subTest(how=how):
                out = self.path("report.json")
                r = self.rollcall("rehearse", "-n", "3", "--timeout", "20", "--json", out, "--", JOB, how)
                self.assertEqual(r.returncode, code, r.stderr)
                self.assertIn(f"\n{line}\n", r.stderr)
                with open(out) as f:
                    end, = json.load(f)["ended"]
                    self.assertEqual(end, {"ranks": [2], **({"code": 7} if how == "fails" else {"signal": 11})})
        r = self.rehearse("-n", "2", "--", "sh", "-c", "exit 3")
        self.assertIn("nothing to report; rank 0 ended with code 3\n", r.stderr)

    def test_what_comes_before_the_first_call_has_longer(self):
        # It makes none at all, so that nothing depends on how fast the rest of a job goes.
        r = self.rollcall("rehearse", "-n", "2", "--timeout", "2", "--quiet", "--", "sleep", "6")
        self.assertEqual(r.returncode, 0, r.stderr)

    def test_the_json_has_the_findings(self):
        r = self.rehearse("-n", "2", "--timeout", "20", "--quiet", "--json", "-", "--", JOB, "sick")
        report = json.loads(r.stdout.splitlines()[-1])
        self.assertEqual(report["findings_count"], 1)
        self.assertEqual(report["findings"][0]["schema"], "rollcall.verdict/1")

    def test_payloads_can_be_moved_all_the_same(self):
        out = self.path("report.json")
        r = self.rehearse("-n", "2", "--json", out, "--", JOB, env={"HOSTNCCL_DATA": "move"})
        self.assertEqual(r.returncode, 0, r.stderr)
        with open(out) as f:
            self.assertTrue(all(m["host_peak_bytes"] > 48 << 20 for m in json.load(f)["memory"]))

    def test_a_setting_of_the_payloads_that_is_no_word(self):
        r = self.rehearse("-n", "1", "--quiet", "--", JOB, env={"HOSTNCCL_DATA": "skp"})
        self.assertEqual(r.stderr, "hostnccl: HOSTNCCL_DATA=skp is not move, skip or skip:BYTES; using move\n")

    def test_codes(self):
        self.assertEqual(self.rehearse("-n", "2", "--", JOB, "fails").returncode, 7)
        self.assertEqual(self.rehearse("--fail-on-finding", "-n", "2", "--", JOB).returncode, 0)
        self.assertEqual(self.rehearse("--", "/nonexistent/program").returncode, 127)

    def test_ranks_get_the_places_of_several_nodes(self):
        r = self.rehearse("-n", "4", "--nodes", "2", "--quiet", "--", JOB)
        self.assertEqual(sorted(r.stdout.splitlines()), [f"rank {i} of 4, local {i % 2}" for i in range(4)], r.stderr)
        r = self.rollcall("rehearse", "-n", "2", "--nodes", "2", "--quiet", "--", "sh", "-c",
                          "echo $GROUP_RANK $GROUP_WORLD_SIZE $LOCAL_WORLD_SIZE")
        self.assertEqual(sorted(r.stdout.splitlines()), ["0 2 1", "1 2 1"])

    def test_stand_ins_are_preloaded_behind_rollcall(self):
        r = self.rollcall("rehearse", "-n", "1", "--quiet", "--", "sh", "-c",
                          "echo $LD_PRELOAD $HOSTNCCL_DATA $HOSTCUDA_KERNELS $PYTORCH_NO_CUDA_MEMORY_CACHING")
        self.assertRegex(r.stdout,
                         r"^\S+/librollcall\.so:\S+/libcudart\.so\.\d+:\S*/libcuda\.so\.1:\S*/libnccl\.so\.2(:\S+)? "
                         r"skip:65536 skip 1\n$")

    def test_the_cache_of_device_memory_is_on_in_each_release_where_the_user_says_so(self):
        """Older releases of PyTorch take any value of the variable for a yes."""
        for value in "0", "":
            r = self.rollcall("rehearse", "-n", "1", "--quiet", "--", "sh", "-c",
                              "echo ${PYTORCH_NO_CUDA_MEMORY_CACHING-gone}",
                              env={"PYTORCH_NO_CUDA_MEMORY_CACHING": value})
            self.assertEqual(r.stdout, "gone\n", r.stderr)

    def test_a_job_without_calls_has_no_report(self):
        r = self.rehearse("-n", "2", "--json", "-", "--", "true")
        self.assertEqual(r.returncode, 0)
        self.assertIn("nothing to report", r.stderr)
        self.assertNotIn("Rehearsal of", r.stderr)
        report = json.loads(r.stdout)
        self.assertEqual((report["ranks"], report["calls"], report["communicators"], report["findings"]),
                         (0, 0, [], []))

    def test_nothing_is_left_in_the_folder_for_temporary_files(self):
        r = self.rehearse("-n", "2", "--quiet", "--", JOB, env={"TMPDIR": self.tmp})
        self.assertEqual((r.returncode, os.listdir(self.tmp)), (0, []))

    def test_nothing_is_left_when_the_command_is_killed(self):
        temporary = self.path("temporary")
        os.mkdir(temporary)
        p = subprocess.Popen([ROLLCALL, "rehearse", "-n", "2", "--quiet", "--", JOB, "sick"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env=dict(self.env, TMPDIR=temporary))
        self.started.append(p)
        self.assertTrue(until(lambda: any(os.listdir(os.path.join(temporary, d)) for d in os.listdir(temporary))))
        p.kill()
        p.wait(END_S)
        self.assertTrue(until(lambda: not os.listdir(temporary)))

    def test_a_trace_is_kept_where_it_is_wanted(self):
        kept = self.path("kept")
        self.assertEqual(self.rehearse("-n", "2", "--quiet", "--trace", kept, "--", JOB).returncode, 0)
        self.assertIn("2 ranks", self.rollcall("analyze", kept).stdout)
        r = self.rehearse("-n", "2", "--trace", kept, "--", JOB)
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "a trace is there already")


class Kept(Case):
    """A rehearsal that is kept, and others that are compared with it."""

    def rehearse(self, *args, **kwargs):
        return self.rollcall("rehearse", "--timeout", "120", *args, **kwargs)

    def keep(self, ranks, *how):
        path = self.path("expected.rollcall")
        r = self.rehearse("-n", str(ranks), "--quiet", "--save", path, "--", JOB, *how)
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        return path

    def test_the_file_says_what_each_rank_does(self):
        for ranks in (2, 3, 4):
            with self.subTest(ranks=ranks), open(self.keep(ranks)) as f:
                kept = json.load(f)
                self.assertEqual((kept["schema"], kept["ranks"]), ("rollcall.expected/1", ranks))
                world = kept["communicators"][0]
                self.assertEqual(world["members"], [["world", f"0-{ranks - 1}"]])
                (members, sequence, nth), = world["does"]
                self.assertEqual((members, nth), (f"0-{ranks - 1}", 0))
                (times, calls), = kept["sequences"][sequence]
                self.assertEqual((times, [kept["calls"][c] for c in calls]),
                                 (3, [{"op": "AllReduce", "dtype": "int32", "redop": "max", "count": 1},
                                      {"op": "AllReduce", "dtype": "float32", "redop": "sum", "count": 1 << 24}]))
                pairs = [of for c in kept["communicators"] for label, of in c["members"] if label == "pair"]
                self.assertEqual(sorted(pairs), sorted(["0-1", "2-3"][:ranks // 2] + ["2"] * (ranks % 2)))

    def test_the_same_job_differs_in_nothing(self):
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                kept = self.keep(ranks)
                for steps in ("3", "7"):  # more steps are no difference
                    r = self.rehearse("-n", str(ranks), "--against", kept, "--fail-on-difference", "--", JOB,
                                      env={"STEPS": steps})
                    self.assertEqual(r.returncode, 0, r.stderr)
                    self.assertIn("\nDifferences: none\n", r.stderr)

    def test_another_number_of_steps_of_a_job_that_evaluates(self):
        for steps in ("6", "7"):
            kept = self.path(f"kept-{steps}")
            r = self.rehearse("-n", "2", "--save", kept, "--", JOB, "evaluates", env={"STEPS": steps})
            self.assertRegex(r.stderr, rf"\nrollcall: saved {re.escape(kept)}: [\d.]+ (B|KiB), 2 ranks, \d+ calls\n$")
            for again in ("5", "9", "10"):
                with self.subTest(steps=steps, again=again):
                    r = self.rehearse("-n", "2", "--against", kept, "--fail-on-difference", "--", JOB, "evaluates",
                                      env={"STEPS": again})
                    self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(self.rehearse("-n", "2", "--against", kept, "--fail-on-difference", "--", JOB,
                                           env={"STEPS": "9"}).returncode, 1)

    def test_what_differs_is_told(self):
        kept = self.keep(4)
        report = self.path("report.json")
        r = self.rehearse("-n", "4", "--against", kept, "--fail-on-difference", "--json", report, "--", JOB, "larger")
        self.assertEqual(r.returncode, 1, r.stderr)
        line = "pair: Broadcast: 1 calls, 64.0 MiB each time round (before 1, 32.0 MiB); ranks 0-3"
        self.assertIn(f"\nDifferences: 1\n    {line}\n", r.stderr)
        with open(report) as f:
            self.assertEqual(json.load(f)["difference"],
                             {"count": 1, "changes": [{"what": "calls", "communicator": "pair", "ranks": "0-3",
                                                       "text": line}]})
        self.assertEqual(self.rehearse("-n", "4", "--against", kept, "--", JOB, "larger").returncode, 0)
        r = self.rehearse("-n", "2", "--against", kept, "--fail-on-difference", "--", JOB)
        self.assertEqual(r.returncode, 1)
        self.assertIn("    2 ranks (before 4)\n    world: 2 ranks, before 4; ranks 0-1\n", r.stderr)

    def test_a_rehearsal_that_went_wrong_is_not_kept(self):
        path = self.path("expected.rollcall")
        r = self.rehearse("-n", "2", "--save", path, "--", JOB, "fails")
        self.assertEqual(r.returncode, 7)
        self.assertIn("is not written, because the job did not end well", r.stderr)
        self.assertFalse(os.path.exists(path))

    def test_files_that_cannot_be_read_or_written(self):
        ran, bad = self.path("ran"), self.path("bad")
        with open(bad, "w") as f:
            f.write("{}")
        for args, part in ((("--against", "/nonexistent"), "--against /nonexistent: there is no such file"),
                           (("--against", bad), "no file of `rollcall rehearse --save`"),
                           (("--save", "/nonexistent/file"), "--save: cannot write /nonexistent/file"),
                           (("--save", os.path.dirname(ran)), "it is a folder; name a file in it")):
            r = self.rehearse(*args, "--", "touch", ran)
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, part)
        self.assertFalse(os.path.exists(ran))


class BadInput(Case):
    def test_wrong_options(self):
        for args, part in ((("-n", "3", "--nodes", "2", "--", "true"), "--nodes 2"),
                           (("--nodes", "2", "--", "true"), "--nodes 2"),
                           (("--memory", "much", "--", "true"), "--memory much"),
                           (("--memory", "1M", "--", "true"), "--memory 1M': wants the size of a device, from 64M"),
                           (("--fail-on-difference", "--", "true"), "needs --against"),
                           (("-n", "4097", "--", "true"), "-n 4097"), ((), "name the command"),
                           (("-n", "0", "--", "true"), "option '-n 0': wants a number from 1 up"),
                           (("--ranks=0", "--", "true"), "option '--ranks 0': wants a number from 1 up")):
            r = self.rollcall("rehearse", *args)
            self.assertEqual(r.returncode, 2)
            self.assert_one_line(r.stderr, part)

    def test_more_ranks_than_memory(self):
        ran = self.path("ran")
        python = self.wheel("void f(void) { }", script=f"touch {ran}")
        with open("/proc/meminfo") as f:
            free = int(re.search(r"MemAvailable: +(\d+)", f.read()).group(1)) << 10
        for zygote, each, together in ("none", 360, 0), ("torch", 18, 720 + 180 * min(os.cpu_count(), 4096)):
            with self.subTest(zygote=zygote):
                want = 4096 * each + together
                if free > want << 20:
                    self.skipTest("this machine has memory for 4096 ranks")
                r = self.rollcall("rehearse", "-n", "4096", "--zygote", zygote, "--", python, __file__)
                self.assertEqual(r.returncode, 3)
                self.assert_one_line(r.stderr, f"4096 ranks want {want} MiB at least")
                self.assertFalse(os.path.exists(ran))

    def test_more_ranks_than_room_for_their_records(self):
        folder = self.path("small")
        os.mkdir(folder)
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                   f'mount -t tmpfs -o size=1m tmpfs {folder} && exec "$@"', "sh"]
        if subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no folder of a size of our own can be had here (unshare --mount)")

        def run(*args):
            return subprocess.run([*command, ROLLCALL, *args], capture_output=True, text=True, timeout=300,
                                  stdin=subprocess.DEVNULL, env={**self.env, "ROLLCALL_DIR": folder + "/rings"})

        ran = self.path("ran")
        r = run("rehearse", "-n", "2", "--", "touch", ran)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, f"the records of 2 ranks take 8.5 MiB, and {folder}/rings has 1.0 MiB free: "
                                       "free some, enlarge it")
        self.assertFalse(os.path.exists(ran))
        for args in ("rehearse", "--force"), ("run",):
            r = run(*args, "-n", "2", "--", "true")
            self.assertIn("has 1.0 MiB free, and the records of 2 ranks take 8.5 MiB: what has no room runs unwatched; "
                          "free some, enlarge it", r.stderr)
            self.assertRegex(r.stderr, "no rank was recorded, because there was no room in .*: free some, enlarge it")

    def test_a_script_that_is_not_there_is_told_in_one_line_before_the_job(self):
        r = self.rollcall("rehearse", "-n", "2", "--", sys.executable, "-u", "missing.py")
        self.assertEqual((r.returncode, r.stdout), (127, ""))
        self.assertEqual(r.stderr, "rollcall: missing.py: no such script; nothing was started\n")

    def test_a_script_from_standard_input(self):
        for script in ((), ("-",), ("-u", "-", "argument")):
            r = self.rollcall("rehearse", "-n", "2", "--force", "--", sys.executable, *script)
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(r.stderr.splitlines(), [
                f"rollcall: with -n the ranks read nothing from standard input: {sys.executable} gets no script; name "
                "a file", "rollcall: no rank recorded a call of NCCL, so there is nothing to report"])

    def test_a_machine_with_a_gpu(self):
        ran = self.path("ran")
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                   'mount -t tmpfs tmpfs /dev && touch /dev/null /dev/nvidia0 && exec "$@"', "sh"]
        if subprocess.run([*command, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no folder of devices of our own can be had here (unshare --mount)")
        r = subprocess.run([*command, ROLLCALL, "rehearse", "-n", "2", "--", "touch", ran], capture_output=True,
                           text=True, stdin=subprocess.DEVNULL, env=self.env, timeout=300)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "this machine has a GPU (/dev/nvidia0): a rehearsal would keep the job from it; "
                                       "use `rollcall run`, or --force")
        self.assertFalse(os.path.exists(ran))
        r = subprocess.run([*command, ROLLCALL, "doctor", "/bin/true"], capture_output=True, text=True, env=self.env,
                           timeout=300)
        self.assertIn("this machine has a GPU (/dev/nvidia0): a rehearsal wants --force", r.stdout)

    def wheel(self, source, needs=None, script="echo ran"):
        """A virtual environment, as far as the command looks at one, with one library of PyTorch, which needs a library
        that is not there: its name without a version, its version, and its source."""
        libraries = self.path("venv/lib/python3.11/site-packages/torch/lib")
        os.makedirs(libraries, exist_ok=True)
        os.makedirs(self.path("venv/bin"), exist_ok=True)
        python = self.path("venv/bin/python")
        with open(python, "w") as f:
            f.write(f"#!/bin/sh\n{script}\n")
        os.chmod(python, stat.S_IRWXU)
        compiler, missing = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-x", "c", "-"], []
        if needs:
            name, version, its_source = needs
            missing = [self.path(f"{name}.{version}")]
            subprocess.run([*compiler, "-o", missing[0], f"-Wl,-soname,{name}.{version}"], input=its_source, text=True,
                           check=True)
        subprocess.run([*compiler, "-o", os.path.join(libraries, "libtorch_cuda.so"), "-x", "none", *missing],
                       input=source, text=True, check=True)
        for path in missing:
            os.unlink(path)
        return python

    def test_a_wheel_gets_stand_ins_for_the_libraries_that_it_wants(self):
        python = self.wheel("void cublasSgemm_v2(void); void f(void) { cublasSgemm_v2(); }",
                            ("libcublas.so", "77", "void cublasSgemm_v2(void) { }"),
                            "echo $LD_PRELOAD\nls $(echo $LD_PRELOAD | tr : ' ') | grep -c cublas")
        temporary = self.path("temporary")
        os.mkdir(temporary)
        r = self.rollcall("rehearse", "--quiet", "--", python, env={"TMPDIR": temporary})
        self.assertEqual(r.returncode, 0, r.stderr)
        preload, found = r.stdout.splitlines()
        self.assertRegex(preload, r"^\S+/librollcall\.so:\S+/libcudart\.so\.\d+:\S*/libcuda\.so\.1:\S*/libnccl\.so\.2:"
                                  r"(\S+:)?\S*/libhoststandin\.so:\S+/libcublas\.so\.77$")
        self.assertEqual((found, os.listdir(temporary)), ("1", []))

    def test_the_interpreter_is_found_behind_what_starts_it(self):
        python = self.wheel("void cublasSgemm_v2(void); void f(void) { cublasSgemm_v2(); }",
                            ("libcublas.so", "77", "void cublasSgemm_v2(void) { }"), "echo $LD_PRELOAD")
        environment, elsewhere = self.path("venv"), self.path("elsewhere")

        def program(name, text):
            path = self.path(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, stat.S_IRWXU)
            return path

        run = program("run.sh", 'echo $LD_PRELOAD\n')
        train = program("train.py", f"#!{python}\n")
        named = program("named.py", "#!/usr/bin/env -S python -u\n")
        asked = program("asked/bin/python3.11", '#!/bin/sh\ncase "$2" in *find_spec*) echo '
                        f'{environment}/lib/python3.11/site-packages/torch;; *) echo $LD_PRELOAD;; esac\n')
        program("bin/uv", "#!/bin/sh\necho $LD_PRELOAD\n")
        os.makedirs(os.path.join(elsewhere, "below"))
        os.symlink(environment, os.path.join(elsewhere, ".venv"))
        path = {"PATH": f"{environment}/bin:{os.environ['PATH']}"}
        bare = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
        for command, env, found in (
                ((python,), bare, True), (("python",), path, True), (("env", "-u", "X", "A=1", python), bare, True),
                (("nice", "-n", "1", "env", "python"), path, True), ((train,), bare, True), ((named,), path, True),
                (("sh", run), {**bare, "VIRTUAL_ENV": environment}, True), (("sh", run), bare, False),
                (("sh", run), {**bare, "CONDA_PREFIX": environment}, True), (("sh", run), path, True),
                ((asked, run), bare, True), (("uv", "run", "job.py"), {**bare, "PATH": self.path("bin") +
                                                                           ":/usr/bin:/bin"}, True)):
            with self.subTest(command=command, env=env):
                r = self.rollcall("rehearse", "--quiet", "--", *command, env=env, cwd=os.path.join(elsewhere, "below"))
                self.assertEqual((r.returncode, "/libcublas.so.77" in r.stdout), (0, found), r.stdout + r.stderr)
        r = self.rollcall("rehearse", "--quiet", "--python", python, "--", "sh", run, env=bare)
        self.assertIn("/libcublas.so.77", r.stdout)

    def test_an_interpreter_is_asked_without_the_jobs_folder(self):
        # `python -c` looks for modules in the folder where it is started, before all others.
        folder, ran = self.path("job"), self.path("ran")
        os.makedirs(os.path.join(folder, "torch", "lib"))
        for name in ("types", "warnings", "functools", "contextlib", "threading", "torch/__init__"):
            with open(os.path.join(folder, f"{name}.py"), "w") as f:
                f.write(f"open({ran!r}, 'w')\n")
        open(os.path.join(folder, "torch", "lib", "libtorch_cuda.so"), "w").close()
        python = self.path("bin/python3")
        os.makedirs(self.path("bin"))
        with open(python, "w") as f:  # no packages lie beside it, and the job is an isolated one
            f.write(f'#!/bin/sh\n[ "$1" = job ] || exec {shlex.quote(sys.executable)} "$@"\n')
        os.chmod(python, stat.S_IRWXU)
        open(os.path.join(folder, "job"), "w").close()  # what is started is the file, which is not read
        r = self.rollcall("rehearse", "--quiet", "--force", "--", python, "job", cwd=folder)
        self.assertEqual((r.returncode, r.stderr, os.path.exists(ran)), (0, "", False))
        r = self.rollcall("doctor", python, "job", cwd=folder)
        self.assertRegex(r.stdout, "no PyTorch for CUDA behind this command|has a PyTorch without CUDA")
        self.assertFalse(os.path.exists(ran))

    def test_doctor_says_what_a_rehearsal_would_use(self):
        def told(python):
            return re.sub(" +", " ", self.rollcall("doctor", python, "job.py").stdout)

        for release in ("12", "13"):
            python = self.wheel("void cudaMalloc(void); void f(void) { cudaMalloc(); }",
                                ("libcudart.so", release, "void cudaMalloc(void) { }"))
            text = told(python)
            self.assertIn(f"OK rehearse {python}, with PyTorch for CUDA in "
                          f"{self.path('venv/lib/python3.11/site-packages')}\n", text)
            self.assertRegex(text, rf"OK rehearse the stand-ins in /\S+, with libcudart\.so\.{release}\n")
            self.assertRegex(text, r"(OK|WARN) rehearse [\d.]+ [MG]iB are free: memory for about [\d,]+ ranks")
            self.assertTrue(text.splitlines()[0].split()[1:3] == ["in", "short"], text)
        python = self.wheel("void cudaMalloc(void); void f(void) { cudaMalloc(); }",
                            ("libcudart.so", "7", "void cudaMalloc(void) { }"))
        self.assertIn("WARN rehearse PyTorch wants libcudart.so.7, and there is none in /", told(python))
        python = self.wheel("void ncclFlyToTheMoon(void); void f(void) { ncclFlyToTheMoon(); }")
        self.assertIn("WARN rehearse the stand-ins lack functions (1): libtorch_cuda.so wants ncclFlyToTheMoon; "
                      "--force", told(python))
        text = told("/bin/true")
        self.assertIn("-- rehearse no PyTorch for CUDA behind this command (looked at /bin/true): it is rehearsed as",
                      text)
        self.assertRegex(text, r"OK rehearse [\d.]+ [MG]iB are free: memory for about [\d,]+ ranks of 4 MiB each\n")
        python = self.path("python3")  # without any packages
        with open(python, "w") as f:
            f.write("#!/bin/sh\nexit 1\n")
        os.chmod(python, stat.S_IRWXU)
        text = told(python)
        self.assertIn(f"(looked at {python}): a PyTorch job is rehearsed with its CUDA wheel", text)
        said = re.search(r"(?:--|WARN) rehearse ([\d.]+) ([MG])iB are free: memory for about ([\d,]+) ranks of PyTorch"
                         r"(?: that share what they import \(-n\), for ([\d,]+) that import by themselves)?\n", text)
        self.assertTrue(said, text)
        room = float(said[1]) * (1024 if said[2] == "G" else 1)
        alone = int((said[4] or said[3]).replace(",", ""))
        self.assertLess(abs(alone * 360 - room), 361 + 0.06 * room, text)  # MiB; what is printed is rounded

    def test_an_interpreter_that_is_not_found(self):
        bare = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": "", "CONDA_PREFIX": ""}
        r = self.rollcall("rehearse", "-n", "1", "--", "sh", "-c", "exit 5", env=bare)
        self.assertEqual(r.returncode, 5)
        self.assertIn("no PyTorch for CUDA was found for this command (looked at sh), so nothing stood in", r.stderr)
        for command, code in (("true", 0), ("false", 1)):
            r = self.rollcall("rehearse", "-n", "1", "--", command, env=bare)
            self.assertEqual((r.returncode, "no PyTorch" in r.stderr), (code, False))
        r = self.rollcall("rehearse", "--python", "/bin/true", "--", "true")
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "--python: /bin/true has no PyTorch for CUDA")

    def test_a_wheel_of_another_release_of_cuda(self):
        python = self.wheel("void cudaMalloc(void); void f(void) { cudaMalloc(); }",
                            ("libcudart.so", "7", "void cudaMalloc(void) { }"))
        r = self.rollcall("rehearse", "--", python)
        self.assertEqual((r.returncode, r.stdout), (3, ""))
        self.assert_one_line(r.stderr, "libtorch_cuda.so wants libcudart.so.7, and there is none in")
        self.assertEqual(self.rollcall("rehearse", "--force", "--quiet", "--", python).stdout, "ran\n")

    def test_a_wheel_gets_the_runtime_of_its_release_of_cuda(self):
        for release in ("12", "13"):
            with self.subTest(release):
                python = self.wheel("void cudaMalloc(void); void f(void) { cudaMalloc(); }",
                                    ("libcudart.so", release, "void cudaMalloc(void) { }"), "echo $LD_PRELOAD")
                r = self.rollcall("rehearse", "--quiet", "--", python)
                self.assertEqual((r.returncode, re.findall(r"libcudart\.so\.\d+", r.stdout)),
                                 (0, [f"libcudart.so.{release}"]), r.stderr)

    def test_a_program_gets_the_runtime_that_it_names(self):
        program = self.path("program")
        for release in ("12", "13"):
            with self.subTest(release):
                runtime = self.path(f"libcudart.so.{release}")
                subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-shared", "-o", runtime,
                                f"-Wl,-soname,libcudart.so.{release}", "-x", "c", os.devnull], check=True)
                subprocess.run([*shlex.split(os.environ.get("CC", "cc")), "-o", program, "-Wl,--no-as-needed",
                                "-x", "c", "-", "-x", "none", runtime], text=True, check=True,
                               input="#include <stdio.h>\n#include <stdlib.h>\n"
                                     "int main(void) { puts(getenv(\"LD_PRELOAD\")); return 0; }")
                os.unlink(runtime)
                r = self.rollcall("rehearse", "--quiet", "--", program)
                self.assertEqual((r.returncode, re.findall(r"libcudart\.so\.\d+", r.stdout)),
                                 (0, [f"libcudart.so.{release}"]), r.stderr)

    def test_a_wheel_that_wants_what_no_stand_in_has(self):
        python = self.wheel("void ncclFlyToTheMoon(void), cudaMalloc(void), ncclAllReduce(void); void f(void) { "
                            "ncclFlyToTheMoon(); cudaMalloc(); ncclAllReduce(); }")
        r = self.rollcall("rehearse", "--", python)
        self.assertEqual((r.returncode, r.stdout), (3, ""))
        self.assert_one_line(r.stderr, "libtorch_cuda.so wants ncclFlyToTheMoon, which no stand-in has (1 in all)")
        self.assertEqual(self.rollcall("rehearse", "--force", "--quiet", "--", python).stdout, "ran\n")

    def test_a_wheel_without_cuda_is_one_line_and_starts_nothing(self):
        for asked in False, True:
            python = self.wheel("void f(void) { }")
            library = self.path("venv/lib/python3.11/site-packages/torch/lib/libtorch_c")
            os.rename(library + "uda.so", library + "pu.so")
            if asked:  # the packages do not lie beside the interpreter
                shutil.move(self.path("venv/lib"), self.path("elsewhere"))
                folder = self.path("elsewhere/python3.11/site-packages/torch")
                with open(python, "w") as f:
                    f.write(f"#!/bin/sh\ncase $1 in -c) echo {folder};; *) echo ran;; esac\n")
            r = self.rollcall("rehearse", "-n", "2", "--", python)
            self.assertEqual((r.returncode, r.stdout), (3, ""))
            self.assert_one_line(r.stderr, f"{python} has a PyTorch without CUDA (in ")
            told = self.rollcall("doctor", "--", python).stdout
            self.assertIn("WARN  rehearse ", told)
            self.assertNotIn("memory for about", told)  # of ranks that cannot be rehearsed
            self.assertEqual(self.rollcall("rehearse", "--force", "--quiet", "--", python).stdout, "ran\n")

    def test_a_signal_before_the_job_starts_leaves_no_folder(self):
        pipe, temporary = self.path("report"), self.path("temporary")
        os.mkfifo(pipe)
        os.mkdir(temporary)
        p = subprocess.Popen([ROLLCALL, "rehearse", "--json", pipe, "--", JOB], stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env=dict(self.env, TMPDIR=temporary))
        try:
            # It sleeps until somebody reads its report.
            self.assertTrue(until(lambda: os.listdir(temporary) and state(p.pid) == "S"))
            p.send_signal(signal.SIGINT)
            told = p.communicate(timeout=END_S)[1]
        finally:
            p.kill()
            p.wait()
        self.assertEqual((p.returncode, told, os.listdir(temporary)), (130, "", []))

    def test_a_wheel_that_is_known(self):
        python = self.wheel("void cudaMalloc(void), ncclPutSignal(void); void f(void) { cudaMalloc(); ncclPutSignal(); "
                            "}")
        self.assertEqual(self.rollcall("rehearse", "--quiet", "--", python).stdout, "ran\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
