#!/usr/bin/env python3
"""scripts/kernel-report: its arithmetic against copies counted one by one, its reading of what the compiler says, and
what it says when a tool is missing.

usage: test_kernel_report.py COUNT_BOXES model|reading|compiler [NVCC]
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu", "report"))
import device as devices  # noqa: E402
import machine  # noqa: E402
import plan  # noqa: E402
import show  # noqa: E402

COUNT_BOXES, CASE = sys.argv[1:3]
NVCC = sys.argv[3] if len(sys.argv) > 3 else None
SCRIPT = os.path.join(ROOT, "scripts", "kernel-report")
KINDS = [plan.FORWARD, plan.DGRAD, plan.WGRAD]
NUMBER = {name: i for i, name in enumerate(plan.PATHS)}


def report(*args, **env):
    return subprocess.run([sys.executable, SCRIPT, *args], capture_output=True, text=True, timeout=280,
                          env=dict(os.environ, **env))


def counted(name, kind, counts, n, k, team_log):
    """(bytes read, bytes landed, stages) of all copies, one by one."""
    done = subprocess.run([COUNT_BOXES, *map(str, [NUMBER[name], KINDS.index(kind), n, k, team_log, *counts])],
                          capture_output=True, text=True, check=True, timeout=100)
    return tuple(map(int, done.stdout.split()))


class Model(unittest.TestCase):
    def test_bytes_are_those_of_the_copies_one_by_one(self):
        draw = random.Random(5)
        for number in range(60):
            name, team_log = draw.choice(list(plan.PATHS)), number % 3
            kind = draw.choice(KINDS)
            kind = plan.DGRAD if kind == plan.WGRAD and plan.PATHS[name].widens else kind
            counts = [draw.choice([0, 1, 63, 128, 129, 300, draw.randrange(1200)]) for _ in range(draw.randrange(1, 6))]
            n, k = 8 * draw.randrange(1, 90), 16 * draw.randrange(1, 60)
            read, landed, stages = counted(name, kind, counts, n, k, team_log)
            t = plan.Traffic(name, plan.Problem(kind, counts, n, k), team_log)
            with self.subTest(name=name, kind=kind, counts=counts, n=n, k=k, team=1 << team_log):
                self.assertEqual(t.l2_bytes, read)
                self.assertEqual(t.stage_bytes * show.sum_stages(t), landed)
                self.assertEqual(show.sum_stages(t), stages)

    def test_a_share_saves_what_is_shared(self):
        """Two by two: half of each operand; counted by hand for one group of 256 x 512 x 64."""
        problem = plan.Problem(plan.FORWARD, [256], 512, 64)
        alone, four = (plan.Traffic("wgmma", problem, t).l2_bytes for t in (0, 2))
        self.assertEqual(alone, 4 * (128 + 256) * 64 * 2)
        self.assertEqual(four, (256 + 512) * 64 * 2)

    def test_dram_is_what_each_wave_needs(self):
        """The places that run at once, element by element, on a grid of 3 x 5 tiles with 4 teams."""
        problem, teams = plan.Problem(plan.FORWARD, [300, 0, 130], 1100, 40), 4
        for team_log in range(3):
            t = plan.Traffic("wgmma", problem, team_log, teams=teams)
            places = []
            for number, g in enumerate(t.grids):
                band = max(1, (plan.TEAM_BAND if team_log else plan.BAND) // g.team_high)
                places += [(number, g, *plan.raster(at, g.high, g.wide, band)) for at in range(g.high * g.wide)]
            total = 0
            for first in range(0, len(places), teams):
                a, b = set(), set()
                for number, g, row, col in places[first:first + teams]:
                    a |= {(number, r) for r in range(g.rows) if r // (128 * g.team_high) == row}
                    b |= {(number, c) for c in range(g.cols) if c // (256 * g.team_wide) == col}
                total += (len(a) + len(b)) * 40 * 2
            self.assertEqual(t.dram_bytes, total)
            self.assertLessEqual(t.dram_least, t.dram_bytes)

    def test_the_longest_team_sets_the_time(self):
        """9 tiles on 4 blocks: one has three, so a quarter of what the blocks could do is not done."""
        t = plan.Traffic("wgmma", plan.Problem(plan.FORWARD, [3 * 128], 3 * 256, 640), 0, teams=4)
        self.assertEqual((t.places, t.longest), (9, 30))
        self.assertAlmostEqual(t.busy, 9 / 12)

    def test_the_known_ceiling_of_one_block_alone(self):
        """128 x 256 tiles: 85.3 flop for a byte from the L2, 469 TFLOP/s at 5.5 TB/s, 7 TB/s at 600."""
        t = plan.traffic("wgmma", plan.Problem(plan.FORWARD, [4096] * 16, 7168, 2048), 0, "H100 SXM")
        self.assertAlmostEqual(t.flop / t.l2_bytes, 256 / 3)
        self.assertEqual(t.ceiling("H100 SXM")[1], "L2")
        self.assertAlmostEqual(t.ceiling("H100 SXM")[0] / 1e12, 469.3, 1)
        self.assertAlmostEqual(t.l2_asked(600e12) / 1e12, 7.03, 2)

    def test_teams_of_four_reach_650_with_4_TB_a_second(self):
        for name, kinds in (("wgmma", KINDS), ("wgmma, FP8 by FP8", [plan.FORWARD, plan.DGRAD])):
            for groups, m, n, k in ((16, 2048, 7168, 2048), (16, 4096, 2048, 7168), (8, 4096, 8192, 5120)):
                for kind in kinds:
                    for card in devices.DEVICES:
                        t = plan.traffic(name, plan.Problem(kind, [m] * groups, n, k), 2, card)
                        self.assertGreaterEqual(t.ceiling(card, 4e12)[0], 650e12, (name, kind, card))
                        self.assertLessEqual(t.l2_asked(650e12), 4e12, (name, kind, card))

    def test_alone_and_in_pairs_they_do_not(self):
        for team_log, asked in ((0, 7.62), (1, 5.08)):
            t = plan.traffic("wgmma", plan.Problem(plan.FORWARD, [4096] * 16, 7168, 2048), team_log, "H100 SXM")
            self.assertAlmostEqual(t.l2_asked(650e12) / 1e12, asked, 2)
            self.assertLess(t.ceiling("H100 SXM", 4e12)[0], 650e12)

    def test_an_empty_problem_has_no_time(self):
        t = plan.Traffic("wgmma", plan.Problem(plan.FORWARD, [0, 0], 256, 64), 2)
        self.assertEqual((t.places, t.l2_bytes, t.busy, t.ceiling("H200")[0]), (0, 0, 0.0, 0.0))


PTXAS = """ptxas info    : Compiling entry function '_Z5firstPf' for 'sm_90a'
ptxas info    : Function properties for _Z5firstPf
    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem
ptxas info    : Compiling entry function '_Z6secondPf' for 'sm_90a'
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
"""
# A loop of a product with a wait in it, and a loop of loads around which another one goes.
SASS = """
.text._Z5firstPf:
        /*0000*/                   S2R R0, SR_TID.X ;
.L_x_1:
        /*0010*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1+URZ], R2 ;
        /*0020*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   WARPGROUP.ARRIVE ;
.L_x_3:
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R1+URZ], R2 ;
        /*0050*/              @!P0 BRA `(.L_x_3) ;
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24, !UPT ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR12], R24 ;
        /*0080*/                   MEMBAR.ALL.GPU ;
        /*0090*/               @P1 BRA `(.L_x_2) ;
        /*00a0*/                   EXIT ;
.text._Z6secondPf:
.L_x_8:
        /*0000*/                   IADD3 R1, R1, 0x1, RZ ;
.L_x_9:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   FFMA R4, R4, R5, R6 ;
        /*0030*/              @!P0 BRA `(.L_x_9) ;
        /*0040*/               @P1 BRA `(.L_x_8) ;
        /*0050*/                   EXIT ;
"""


class Reading(unittest.TestCase):
    def test_what_the_assembler_says(self):
        self.assertEqual(machine.read_log(PTXAS), {"_Z5firstPf": (40, 28, 8, 1024), "_Z6secondPf": (168, 0, 0, 0)})

    def test_threads_come_from_the_launch_bounds(self):
        ptx = ".visible .entry _Z1aPf(.param .u64 p)\n.maxntid 384\n.minnctapersm 1\n{\n}\n.entry b()\n{\n}\n" \
              ".entry c()\n.maxntid 32, 4, 1\n{ ret; }\n"
        self.assertEqual(machine.read_threads(ptx), {"_Z1aPf": 384, "b": 0, "c": 128})

    def test_inner_loops_without_their_waits(self):
        loops = machine.inner_loops(SASS)
        self.assertEqual(loops["_Z5firstPf"], [(7, {"barrier": 2, "branch": 2, "matrix": 2, "fence": 1})])
        self.assertEqual(loops["_Z6secondPf"], [(3, {"global": 1, "float": 1, "branch": 1})])
        self.assertEqual(show.loop_words(loops["_Z6secondPf"]), "3: global 1, float 1, branch 1")

    def test_occupancy(self):
        """Figures that the vendor's occupancy calculator gives for compute capability 9.0."""
        self.assertEqual(devices.occupancy(256, 32, 0), (8, 100.0, "warps"))
        self.assertEqual(devices.occupancy(256, 64, 0), (4, 50.0, "registers"))
        self.assertEqual(devices.occupancy(256, 65, 0), (3, 37.5, "registers"))
        self.assertEqual(devices.occupancy(384, 168, 214080), (1, 18.75, "registers"))
        self.assertEqual(devices.occupancy(128, 32, 100 * 1024)[:2], (2, 12.5))
        self.assertEqual(devices.occupancy(32, 16, 0)[:2], (32, 50.0))
        self.assertEqual(devices.occupancy(32, 16, 228 * 1024)[0], 0)

    def test_launches_of_the_products_are_read_from_their_sources(self):
        wanted = {"gemm_hopper.cu": 4 * 48 * 1024 + 8 * 2048 + 2 * 4 * 8 + 1024,
                  "gemm_scaled.cu": 4 * 40 * 1024 + 8 * 2048 + 3 * 4 * 8 + 1024, "gemm_plan.cu": 0}
        for name, size in wanted.items():
            self.assertEqual(machine.dynamic_bytes(os.path.join(ROOT, "kernels", "gemm", name), ROOT), size, name)
        self.assertIsNone(machine.dynamic_bytes(os.path.join(ROOT, "kernels", "topk.cu"), ROOT))

    def test_the_edges_are_those_of_the_kernels(self):
        known = machine.constants(os.path.join(ROOT, "kernels", "gemm", "gemm_index.h"), ROOT)
        for name, key in (("wgmma", "HOPPER"), ("wgmma, FP8 weights", "SCALED"), ("wgmma, FP8 by FP8", "SCALED")):
            self.assertEqual(plan.PATHS[name][:2], (known[f"GEMM_{key}_ROWS"], known[f"GEMM_{key}_COLS"]))

    def test_tables_are_aligned(self):
        lines = list(show.table(["a", "long head", "c"], [["x", 1, "words"], ["longer", 22, "y"]]))
        self.assertEqual(lines, ["a       long head  c", "x               1  words", "longer         22  y"])

    def test_every_constant_has_its_source(self):
        for card in devices.DEVICES.values():
            for fact in [*card.values(), *devices.LIMITS.values()]:
                self.assertGreater(len(fact.source), 10)
        self.assertAlmostEqual(devices.clock("H100 SXM") / 1e9, 1.83, 2)

    def test_counts_of_the_emulator(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            for _ in range(2):
                f.write(json.dumps({"kernel": "_Z4workPf", "shared_bytes": 7, "global_read_bytes": 1000,
                                    "cp_async_bytes": 10, "tma_bytes": 500, "tma_zero_bytes": 100,
                                    "global_written_bytes": 50, "shared_read_bytes": 1, "shared_written_bytes": 2,
                                    "wgmma_shared_bytes": 4, "touched_read_bytes": 300, "touched_written_bytes": 40,
                                    "wgmma_flop": 8000, "mma_flop": 1}) + "\n")
            f.flush()
            done = report("--counts", f.name, "--json", "--device", "H200")
            self.assertEqual(done.returncode, 0, done.stderr)
            entry, = json.loads(done.stdout)["counts"]
            self.assertIn("\nwork ", report("--counts", f.name).stdout)
        self.assertEqual([entry[k] for k in ("launches", "flop", "l2_read_bytes", "written_bytes", "shared_bytes",
                                             "dram_bytes")], [2, 16002, 3020, 100, 1234, 680])
        self.assertAlmostEqual(entry["seconds"]["DRAM"] * 4.8e12, 680)
        self.assertEqual(entry["least_s"], max(entry["seconds"].values()))
        bad = report("--counts", "/no/such/file")
        self.assertEqual((bad.returncode, "/no/such/file" in bad.stderr), (2, True))

    def test_a_missing_compiler_is_said_and_the_rest_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            hidden = "import os, runpy, sys; access = os.access; os.access = lambda p, m, **k: " \
                     "'nvcc' not in str(p) and access(p, m, **k); sys.argv = ['kernel-report', '--build', " \
                     f"{folder!r}, '--shape', '1x128x256x64']; runpy.run_path({SCRIPT!r}, run_name='__main__')"
            done = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, timeout=100)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("left out: no nvcc", done.stdout)
        self.assertIn("pip install nvidia-cuda-nvcc", done.stdout)
        self.assertIn("forward 1x128x256x64", done.stdout)

    def test_usage(self):
        for args in (["--shape", "1x2x3"], ["--shape", "axbxcxd"], ["--device", "A100"], ["--shape", "0x1x1x1"]):
            self.assertEqual(report(*args).returncode, 2, args)


class Compiler(unittest.TestCase):
    def test_kernels_of_one_file(self):
        """zero_empty.cu and gemm_plan.cu: known entries, no spills, and what launch bounds and occupancy must be."""
        with tempfile.TemporaryDirectory() as folder:
            args = ["--only", "kernels", "--json", "--build", folder, "--nvcc", NVCC, "gemm_plan", "zero_empty"]
            done = report(*args)
            self.assertEqual(done.returncode, 0, done.stderr)
            data = json.loads(done.stdout)
            kernels = {k["kernel"]: k for k in data["kernels"]}
            self.assertEqual(sorted(kernels), ["gemm_plan", "zero_empty"])
            plan_kernel = kernels["gemm_plan"]
            self.assertEqual([plan_kernel[k] for k in ("threads", "spilled_bytes", "dynamic_shared_bytes")],
                             [128, 0, 0])
            self.assertGreaterEqual(plan_kernel["static_shared_bytes"], 4 * 2 * 128)  # the maps of four groups
            self.assertIn(plan_kernel["registers"], range(16, 129))
            if machine.find_nvdisasm(NVCC) is None:  # said, and nothing else is missing
                self.assertIn("pip install nvidia-cuda-nvdisasm", " ".join(data["left_out"]))
                self.assertIsNone(plan_kernel["inner_loops"])
            else:
                self.assertGreater(len(plan_kernel["inner_loops"]), 0)
            for name in os.listdir(os.path.join(folder, "kernel-report")):  # what was kept is used: spoilt, it shows
                if name.endswith(".json"):
                    path = os.path.join(folder, "kernel-report", name)
                    with open(path) as f:
                        kept = json.load(f)
                    kept["kernels"][0][2] = 99
                    with open(path, "w") as f:
                        json.dump(kept, f)
            again = json.loads(report(*args).stdout)["kernels"]
            self.assertIn(99, [k["registers"] for k in again])


suite = unittest.TestLoader().loadTestsFromTestCase({"model": Model, "reading": Reading, "compiler": Compiler}[CASE])
sys.exit(0 if unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful() else 1)
