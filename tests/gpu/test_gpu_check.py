#!/usr/bin/env python3
"""scripts/gpu-check as far as it can be tested without a GPU: its results, its tables, its bundle, and whole runs on
the stand-ins.

usage: test_gpu_check.py BUILD_DIR units|bundle|rank_only|stand_in|torch
"""
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "check"))
import bundle  # noqa: E402
import costs  # noqa: E402
import graphs  # noqa: E402
import mismatch  # noqa: E402
import place  # noqa: E402
import ranks  # noqa: E402
import results as results_file  # noqa: E402
import torch_jobs  # noqa: E402
import tree as trees  # noqa: E402

BUILD, CASE = os.path.abspath(sys.argv[1]), sys.argv[2]
SCRIPT = os.path.join(place.ROOT, "scripts", "gpu-check")
END_S = 300  # only a hang reaches it


def gpu_check(*args, seconds=1500, **env):
    return subprocess.run([sys.executable, SCRIPT, "--build", BUILD, *args], capture_output=True, text=True,
                          timeout=seconds, env=dict(os.environ, **env))


class Scratch(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.dir, True)

    def read(self):
        (name,) = [f for f in os.listdir(self.dir) if f.endswith(".json")]
        with open(os.path.join(self.dir, name)) as f:
            data = json.load(f)
        with open(os.path.join(self.dir, name[:-5] + ".md")) as f:
            return data, f.read()


class Units(Scratch):
    def results(self, revision="r1"):
        return results_file.Results(self.dir, "NVIDIA H100 80GB", {"gpu": None, "nccl": "2.28.9"}, revision,
                                    "2026-01-02")

    def test_a_row_is_in_both_files_at_once(self):
        r = self.results()
        r.begin("costs", ["call", "ns"])
        r.row("costs", {"call": "a|b", "ns": 1.25})
        data, table = self.read()
        self.assertEqual(os.listdir(self.dir)[0].split(".")[0], "2026-01-02-nvidia-h100-80gb")
        self.assertEqual(data["parts"]["costs"]["status"], "running")
        self.assertIn("| a\\|b | 1.25 |", table)

    def test_a_part_cut_off_goes_on_and_a_finished_one_is_kept(self):
        r = self.results()
        r.begin("a", ["n"])
        r.row("a", {"n": "one"})
        r.end("a", "running", 2)
        r = self.results()
        self.assertEqual(r.begin("a", ["n"]), {"one"})
        r.row("a", {"n": "two"})
        r.end("a", "done", 3)
        r = self.results()
        self.assertTrue(r.finished("a"))
        self.assertEqual(len(r.data["parts"]["a"]["rows"]), 2)
        self.assertEqual(r.data["parts"]["a"]["seconds"], 5)

    def test_results_of_other_sources_are_not_continued(self):
        r = self.results()
        r.begin("a", ["n"])
        r.end("a", "done", 1)
        self.assertFalse(self.results("r2").finished("a"))

    def test_a_broken_part_keeps_its_rows_and_is_tried_again(self):
        r = self.results()
        r.begin("a", ["n"])
        r.row("a", {"n": "one"})
        r.broken("a", "Error: it fell")
        r.end("a", "broken", 1)
        self.assertFalse(r.finished("a"))
        self.assertIn("- Error: it fell", self.read()[1])
        self.assertEqual(self.results().begin("a", ["n"]), {"one"})

    def test_a_file_that_is_no_results_file_is_replaced(self):
        with open(os.path.join(self.dir, "2026-01-02-nvidia-h100-80gb.json"), "w") as f:
            f.write("{")
        r = self.results()
        r.begin("a", ["n"])
        r.end("a", "done", 1)
        self.assertEqual(self.read()[0]["schema"], results_file.SCHEMA)

    def test_every_program_stands_for_a_documented_row(self):
        table = mismatch.documented()
        self.assertGreater(len(table), 15)
        for name, (row, here) in mismatch.ROW.items():
            self.assertIn(row, table, name)
            self.assertIn(here, ("hang", "fine", "wrong data"))
            words = {"hang": "hang|wait", "fine": "right", "wrong data": "wrong data"}[here]
            self.assertRegex(table[row][0], words, f"{name}: the documented outcome here is another")

    def test_every_program_of_the_catalogue_is_known(self):
        programs = mismatch.programs(trees.stand_in(BUILD))
        # Graphs, threads, and calls that NCCL refuses on one rank: the table is about calls that NCCL takes.
        no_row = {"capture-some", "other-graph", "replay-less", "layer-less", "two-threads", "thread-groups", "refused",
                  "refused-group", "refused-leaves", "refused-goes-on", "send-to-nobody", "from-itself"}
        sick = {name for name, (codes, _, _) in programs.items() if codes != ["-"]}
        self.assertEqual(sick - set(mismatch.ROW) - no_row, set(), "programs without a row of docs/HOSTNCCL.md")
        self.assertEqual(set(mismatch.ROW) - set(programs), set(), "rows without a program")

    def test_what_may_follow(self):
        for text, what, allowed in (("hang or corruption", "hang", True), ("hang or corruption", "wrong data", True),
                                    ("hang or corruption", "fine", False),
                                    ("hang, or a truncation error on sockets", "error: ncclX", True),
                                    ("hang", "error: ncclX", False), ("done, right (same)", "fine", True)):
            self.assertEqual(mismatch.may_follow(text, what), allowed, (text, what))

    def test_a_rank_that_dies_of_a_mismatch_is_no_wrong_verdict_but_only_afterwards_and_only_on_a_real_nccl(self):
        check = object.__new__(mismatch.Check)
        right, dead, other = {"code": "op-mismatch"}, {"code": "rank-dead"}, {"code": "count-mismatch"}
        for stand_in, found, fits in ((True, [right], True), (True, [right, dead], False), (False, [right, dead], True),
                                      (False, [dead, right], False), (False, [right, other], False),
                                      (False, [], False)):
            check.tree = trees.Tree("", "", "", "", stand_in)
            self.assertEqual(check.fits(found, [v for v in found if v is right]), fits, (stand_in, found))

    def test_a_machine_without_cmake_is_told_so(self):
        path = os.environ["PATH"]
        os.environ["PATH"] = self.dir
        self.addCleanup(os.environ.update, PATH=path)
        if place.tool("cmake"):
            self.skipTest("this Python brings a cmake")
        with self.assertRaisesRegex(place.Missing, "cmake"):
            trees.configure(self.dir, None, "9.0", os.path.join(self.dir, "log"))

    def test_what_happened(self):
        for status, err, what in ((None, "", "hang"), (0, "", "fine"), (8, "catalogue: rank 3: wrong data: element 0 "
                                                                        "is 4, not 10", "wrong data"),
                                  (9, "catalogue: ncclAllReduce(a): invalid usage",
                                   "error: ncclAllReduce(a): invalid usage"), (134, "", "status 134")):
            self.assertEqual(mismatch.happened(ranks.Ended(status, "", err, [], 0)), what)

    def test_the_page_of_results_says_none_until_there_are_some(self):
        folder = os.path.join(place.ROOT, "docs", "results")
        with open(os.path.join(folder, "README.md")) as f:
            none = "none yet" in f.read()
        self.assertEqual(none, not any(name.endswith(".json") for name in os.listdir(folder)))

    def test_completion_that_was_refused_or_never_came_is_no_figure(self):
        def ended(*rings):
            return ranks.Ended(0, "", "rollcall: no", [], 0, rings)

        on, nothing, off = ({"way": "write", "done": 9, "replays": 0}, {"way": "write", "done": 0, "replays": 0},
                            {"way": "off", "done": 0, "replays": 0})
        self.assertIsNone(costs.refused("write", ended(on, on)))
        self.assertIsNone(costs.refused("recorded", ended(off, off)))
        self.assertIsNone(costs.refused("bare", ended()))
        for rings in ((on, off), (on, nothing), (on,), ()):
            self.assertIsNotNone(costs.refused("write", ended(*rings)), rings)
            self.assertIsNotNone(graphs.learnt("write", rings, 2), rings)
        counted = {"way": "counter", "done": 9, "replays": graphs.REPLAYS}
        self.assertIsNone(graphs.learnt("counter", [counted, counted], 2))
        self.assertIn("replays counted", graphs.learnt("counter", [counted, dict(counted, replays=7)], 2))

    def test_nothing_of_the_users_settings_reaches_a_rank_and_nothing_stays(self):
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(NCCL_DEBUG="INFO", LD_LIBRARY_PATH="/where/the/driver/is")
        tree = trees.stand_in(BUILD)
        with tempfile.TemporaryDirectory() as folder:
            env = ranks.environment(tree, folder)
            self.assertNotIn("NCCL_DEBUG", env)
            self.assertEqual(env["LD_LIBRARY_PATH"], tree.libraries + ":/where/the/driver/is")
            self.assertEqual(env["NCCL_NET"], "Socket")
            # A rank that ignores SIGTERM, and a process of its own session that nobody knows of.
            deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; setsid sleep 100 & while :; do sleep 0.1; done"],
                                    env=env, start_new_session=True)
            while len(ranks.strays(folder)) < 3:
                time.sleep(0.01)
            self.assertEqual(ranks.end([deaf], folder, (0.3, 5)), [])
            self.assertEqual(ranks.strays(folder), [])

    def test_loss_curves(self):
        self.assertTrue(torch_jobs.equal([1.0, 0.5], [1.0, 0.5004]))
        self.assertFalse(torch_jobs.equal([1.0, 0.5], [1.0, 0.52]))
        self.assertFalse(torch_jobs.equal([1.0, 0.5], [1.0]))
        self.assertFalse(torch_jobs.equal([], []))

    def test_usage(self):
        done = gpu_check("--only", "z")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no such part: z", done.stderr)

    def test_without_a_gpu_one_line_and_three(self):
        if place.find_gpu():
            self.skipTest("there is a GPU here")
        done = gpu_check()
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (3, "", 1), done.stderr)
        self.assertIn("no GPU here", done.stderr)


class Bundle(Scratch):
    def setUp(self):
        super().setUp()
        self.bundle = os.path.join(self.dir, "bundle")
        self.size = bundle.make(BUILD, self.bundle)

    def test_it_is_small_and_complete(self):
        self.assertLess(self.size, bundle.MOST_BYTES)
        self.assertEqual(self.size, bundle.size_of(self.bundle))
        self.assertEqual(sorted(os.listdir(self.bundle)), ["bin", "deps", "lib", "libexec"])

    def test_it_runs_where_there_is_nothing_else(self):
        """In a root directory that holds the bundle alone: no shell, no library, no terminfo."""
        unshare = ["unshare", "--map-root-user"] if os.getuid() else []
        for name in bundle.PROGRAMS:
            done = subprocess.run([*unshare, "/usr/sbin/chroot", self.bundle, "/bin/" + bundle.LOADER, "--library-path",
                                   "/deps", "/libexec/" + name, "--version"], capture_output=True, text=True, env={})
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(name, done.stdout)

    def test_a_job_is_watched_by_the_bundle_alone(self):
        """As on a GPU machine: daemon and console from the bundle, the preload beside them. Only its own libraries are
        mapped."""
        root = os.path.join(self.dir, "tree")
        shutil.copytree(self.bundle, root)
        tree = trees.Tree(root, os.path.join(BUILD, "tests"), os.path.join(BUILD, "lib", "hostnccl"), None, True)
        rings, stacks = os.path.join(self.dir, "watched"), []
        os.mkdir(rings, 0o700)

        def enough(verdicts):
            if verdicts:
                stacks.append(subprocess.run([tree.rollcall, "stacks", "--native", "--samples", "1"],
                                             capture_output=True, text=True, timeout=END_S,
                                             env=dict(os.environ, ROLLCALL_DIR=rings)))
            return bool(verdicts)

        ended = ranks.watched(tree, [tree.program("roll_catalogue"), "wrong-count", "sick"], 3, 60, enough,
                              ROLLCALL_DIR=rings)
        self.assertIsNone(ended.status, ended.err)
        self.assertEqual([(v["code"], v["culprits"]) for v in ended.findings()], [("count-mismatch", [2])])
        self.assertTrue(any(f["file"] for site in ended.findings()[0]["callsites"] for f in site["frames"]),
                        "no symbols")
        # A daemon that is started through a loader finds its stack reader.
        self.assertIn("cat_", stacks[0].stdout, stacks[0].stderr)
        self.assertEqual(self.mapped_by_a_daemon(root), set())

    def mapped_by_a_daemon(self, root):
        """Shared objects from outside of the bundle in a running rollcalld."""
        ready, write = os.pipe()
        rings = os.path.join(self.dir, "rings")
        os.mkdir(rings, 0o700)
        daemon = subprocess.Popen([os.path.join(root, "bin", "rollcalld"), "--dir", rings, "--ready-fd", str(write)],
                                  pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        try:
            with os.fdopen(ready) as f:
                self.assertTrue(f.readline(), "the bundled rollcalld did not start")
            with open(f"/proc/{daemon.pid}/maps") as f:
                mapped = set(re.findall(r"(/\S+\.so\S*)", f.read()))
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(END_S)
        self.assertTrue(mapped)
        return {m for m in mapped if not m.startswith(os.path.realpath(root))}

    def test_without_a_build_it_says_what_to_do(self):
        with self.assertRaisesRegex(place.Missing, "build the tree first"):
            bundle.make(self.dir, self.bundle)


class StandIn(Scratch):
    PROGRAMS = "wrong-op,wrong-redop,wrong-dtype,zero-count,same-bytes,capture-some"

    def check(self, *args, **env):
        return gpu_check("--stand-in", "--out", self.dir, "--ranks", "3", "--repeat", "1", *args, **env)

    def test_mismatches_costs_and_graphs(self):
        done = self.check("--only", "a,c,d", "--programs", self.PROGRAMS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        data, table = self.read()
        self.assertEqual({n: p["status"] for n, p in data["parts"].items()},
                         {"mismatches": "done", "costs": "done", "graphs": "done"})
        rows = {r["program"]: r for r in data["parts"]["mismatches"]["rows"]}
        self.assertEqual(len(rows), 12)
        self.assertEqual(rows["wrong-op sick"]["happened"], "hang")
        self.assertEqual(rows["wrong-redop sick"]["happened"], "wrong data")
        self.assertEqual(rows["wrong-redop sick"]["verdict"], "proven redop-mismatch 2")
        self.assertEqual(rows["same-bytes sick"]["happened"], "fine")
        costs = {r["call"]: r for r in data["parts"]["costs"]["rows"]}
        for call in ("nccl_all_reduce_enqueue", "nccl_group_of_16_enqueue", "event_record", "event_query",
                     "host_function"):
            self.assertGreater(costs[call]["bare_p50_ns"], 0, call)
            for side in ("recorded", "write", "counter", "event"):
                self.assertGreater(costs[call][f"{side}_p50_ns"], 0, (call, side))
        has_driver = os.path.exists(os.path.join(BUILD, "lib", "hostnccl", "libcuda.so.1"))
        self.assertEqual("bare_p50_ns" in costs["stream_write_64"], has_driver,
                         "a figure for what is not there, or none for what is")
        graphs = {r["case"]: r for r in data["parts"]["graphs"]["rows"]}
        self.assertGreater(graphs["healthy"]["launch_p50_ns"], 0)
        for way in ("write", "counter", "event"):
            self.assertEqual(graphs[f"healthy, completion {way}"]["happened"], "fine")
        # Nothing follows the wrong call here, so it may as well be one too many.
        self.assertRegex(table, r"\| wrong-op sick \| hang \| hang \| (proven op-mismatch|suspected [a-z-]+) 2 \|")

        again = self.check("--only", "a,c,d")
        self.assertEqual(again.returncode, 0)
        self.assertEqual(again.stdout.count("finished before: done"), 3, again.stdout)
        self.assertLess(done.stdout.index("d graphs"), done.stdout.index("a mismatches"), "the long part comes last")

    def test_another_outcome_than_documented_fails(self):
        done = self.check("--only", "a", "--programs", "wrong-op", HOSTNCCL_ON_MISMATCH="error",
                          HOSTNCCL_PEER_DEATH="error")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("wrong: wrong-op sick", done.stdout)

    def test_out_of_time_is_said_and_continued(self):
        done = self.check("--only", "a", "--programs", "wrong-op", "--budget", "0")
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("call again", done.stdout)
        done = self.check("--only", "a", "--programs", "wrong-op")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_kernels_are_rehearsed_on_the_host(self):
        done = self.check("--only", "e")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = {r["kernel"]: r for r in self.read()[0]["parts"]["kernels"]["rows"]}
        for name in ("checksum", "topk", "row_map_build", "map_gather", "map_scatter", "act_backward",
                     "a step, captured and replayed"):
            self.assertGreater(rows[name]["shapes"], 0, name)
            self.assertEqual((rows[name]["ok"], rows[name]["note"]), (True, "host against host"))

    def test_the_kernels_check_finds_what_is_wrong(self):
        """One byte spoilt, wherever it is, in what the second side has computed."""
        program, env = os.path.join(BUILD, "tests", "gpu_kernels"), dict(os.environ,
                                                                         LD_LIBRARY_PATH=os.path.join(BUILD, "lib",
                                                                                                      "hostnccl"))
        for broken in (0, 40, 400, 760):  # equal bits, and numbers in double
            done = subprocess.run([program, "--rehearse", "--seed", "7", "--break", str(broken), "tensor", "move",
                                   "rows"], capture_output=True, text=True, env=env, timeout=END_S)
            wrong = [json.loads(line) for line in done.stdout.splitlines() if '"right":false' in line]
            self.assertEqual((done.returncode, len(wrong)), (1, 1), done.stderr)
            self.assertIn(f"gpu check: {wrong[0]['kernel']}: ", done.stderr)

    def test_without_a_gpu_the_kernels_check_says_so(self):
        if place.find_gpu():
            self.skipTest("there is a GPU here")
        env = dict(os.environ, LD_LIBRARY_PATH=os.path.join(BUILD, "lib", "hostnccl"))
        done = subprocess.run([os.path.join(BUILD, "tests", "gpu_kernels")], capture_output=True, text=True,
                              timeout=END_S, env=env)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, "no CUDA back end: |no code for this GPU in libmoe_kernels.so: ")

    def test_a_part_that_breaks_does_not_stop_the_others(self):
        build = os.path.join(self.dir, "build")  # as it is, but for one program
        os.makedirs(os.path.join(build, "tests"))
        for name in ("bin", "lib"):
            os.symlink(os.path.join(BUILD, name), os.path.join(build, name))
        os.symlink(os.path.join(BUILD, "tests", "gpu_graphs"), os.path.join(build, "tests", "gpu_graphs"))
        out = os.path.join(self.dir, "out")
        done = gpu_check("--stand-in", "--out", out, "--ranks", "3", "--repeat", "1", "--only", "e,d", "--build", build)
        self.dir = out
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        data, _ = self.read()
        self.assertEqual(data["parts"]["kernels"]["status"], "broken")
        self.assertEqual(data["parts"]["graphs"]["status"], "done")


class RankOnly(Scratch):
    def test_what_runs_inside_a_rank_builds_without_the_daemons_libraries(self):
        """No pkg-config finds anything here, and CUDA's compiler is a broken one; linked is the vendor's NCCL, which
        needs no GPU for that. Not optimised: whether it compiles and links is the question."""
        os.environ.update(PKG_CONFIG_LIBDIR=self.dir, PKG_CONFIG_PATH="")
        vendor, quick = place.Vendor(), os.path.join(self.dir, "quick")
        with open(quick, "w") as f:
            f.write('#!/bin/sh\nexec "$@" -O0 -g0\n')
        os.chmod(quick, 0o755)
        vendor.nvcc = "/bin/false"
        build, log = os.path.join(self.dir, "b"), os.path.join(self.dir, "log")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            cmake, kernels = trees.configure(build, vendor, "9.0", log, f"-DCMAKE_C_COMPILER_LAUNCHER={quick}")
        self.assertFalse(kernels)
        self.assertIn("/bin/false does not work for sm_90a", said.getvalue())
        targets = ["rollcall_interposer", "roll_catalogue", "gpu_costs", "gpu_graphs", "gpu_kernels", "roll_bench_rank"]
        built = trees.run([cmake, "--build", build, "--parallel", "2", "--target", *targets], log)
        self.assertTrue(built, trees.last_lines(log, 60))
        for path in ("lib/librollcall.so", "tests/roll_catalogue", "tests/gpu_costs", "tests/gpu_graphs",
                     "tests/gpu_kernels", "bin/roll_bench_rank"):
            self.assertTrue(os.path.exists(os.path.join(build, path)), path)
        self.check_what_was_built(build)

    def check_what_was_built(self, build):
        """The programs and the library as they were built for the vendor's NCCL, on the stand-in, judged as on a GPU
        machine."""
        root = os.path.join(self.dir, "tree")
        bundle.make(BUILD, root)
        shutil.copy2(os.path.join(build, "lib", "librollcall.so"), os.path.join(root, "lib"))
        tree = trees.Tree(root, os.path.join(build, "tests"), os.path.join(BUILD, "lib", "hostnccl"),
                          os.path.join(build, "bin", "roll_bench_rank"), False)
        row = mismatch.Check(tree, 3, None, "mismatches").run("wrong-redop", "sick", 0.0)
        self.assertEqual((row["happened"], row["verdict"], row["ok"]), ("wrong data", "proven redop-mismatch 2", True),
                         row)
        row = graphs.run_completion(tree, 2, "healthy, completion counter")
        self.assertTrue(row["ok"], row)
        self.assertGreater(costs.record(tree)["recorded_p50_ns"], 0)
        kernels = subprocess.run([os.path.join(build, "tests", "gpu_kernels"), "--rehearse", "tensor", "router"],
                                 capture_output=True, text=True, timeout=END_S,
                                 env=dict(os.environ, LD_LIBRARY_PATH=os.path.join(BUILD, "lib", "hostnccl")))
        self.assertEqual((kernels.returncode, kernels.stdout.count('"right":true') > 8), (0, True), kernels.stderr)
        vendor = place.Vendor()
        if not place.find_gpu():  # the vendor's runtime refuses the host's streams already
            kernels = subprocess.run([os.path.join(build, "tests", "gpu_kernels"), "tensor"], capture_output=True,
                                     text=True, timeout=END_S,
                                     env=dict(os.environ, LD_LIBRARY_PATH=vendor.library_path()))
            self.assertEqual(kernels.returncode, 3, kernels.stderr)
        place.torch_version = lambda: ["2.9", False]
        with self.assertRaisesRegex(RuntimeError, "PyTorch"):
            torch_jobs.main(tree, None, "torch", None, 0)


class Torch(Scratch):
    def test_jobs(self):
        done = gpu_check("--stand-in", "--out", self.dir, "--ranks", "2", "--only", "b")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        data, _ = self.read()
        self.assertEqual([r["case"] for r in data["parts"]["torch"]["rows"]], ["ddp healthy", "ddp sick"])


def main():
    if CASE == "torch":
        try:
            torch_jobs.python(True)
        except RuntimeError as e:
            print(f"SKIPPED: gpu_check.torch: {e} (python3-torch)")
            return 77
    if CASE == "rank_only":
        try:
            place.Vendor()
        except place.Missing as e:
            print(f"SKIPPED: gpu_check.rank_only: {e}")
            return 77
    case = {"rank_only": RankOnly, "units": Units, "bundle": Bundle, "stand_in": StandIn, "torch": Torch}[CASE]
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    return 0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1


sys.exit(main())
