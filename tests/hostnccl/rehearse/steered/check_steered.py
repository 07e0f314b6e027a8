#!/usr/bin/env python3
"""Values that steer (docs/REHEARSE.md): real PyTorch jobs whose way depends on what their kernels compute, with and
without the dispatch mode of rollcall.rehearse.

usage: check_steered.py --list                           the themes of job_themes.py
       check_steered.py BUILD_DIR [old.]TEST             a function check_TEST of this file
       check_steered.py BUILD_DIR [old.]values.THEME     a theme: what is computed is what the host computes

ROLL_REHEARSE_PYTHON names the interpreter of an environment with a CUDA wheel of torch (for megatron with
megatron-core); without it the test is skipped (exit 77). ROLL_REHEARSE_PYTHON_OLD does so for old.TEST.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT_S = 1500  # only a hang reaches it
if sys.argv[1:] == ["--list"]:
    with open(os.path.join(HERE, "job_themes.py"), encoding="utf-8") as themes:
        print(*re.findall(r"@theme\ndef (\w+)", themes.read()), sep=";", end="")
    sys.exit(0)
BUILD, TEST = os.path.abspath(sys.argv[1]), sys.argv[2].removeprefix("old.")
VARIABLE = "ROLL_REHEARSE_PYTHON" + ("_OLD" if TEST != sys.argv[2] else "")


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


class Run:
    """A job under `rollcall rehearse`, its output and its report."""

    def __init__(self, job, ranks, *options, **env):
        with tempfile.TemporaryDirectory() as work:
            out = os.path.join(work, "report.json")
            command = [os.path.join(BUILD, "bin", "rollcall"), "rehearse", "-n", str(ranks), "--json", out, "--force",
                       *options, "--", PYTHON, os.path.join(HERE, f"job_{job}.py")]
            p = subprocess.run(command, env=dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **env),
                               capture_output=True, text=True, timeout=TIMEOUT_S)
            with open(out, encoding="utf-8") as f:
                self.report = json.loads(f.read())
        self.code, self.lines, self.error = p.returncode, p.stdout.splitlines(), p.stderr
        self.steered = self.report.get("steered") or {}

    def want(self, condition, text):
        if not condition:
            print(f"FAILED: {text}", *self.lines[-40:], self.error[-6000:], json.dumps(self.report)[:6000], sep="\n")
            sys.exit(1)

    def reads(self, *values):
        return [r for r in self.steered["read_at"] if r["value"] in values]

    def calls(self, op):
        return sum(c["calls"] for comm in self.report["communicators"] for c in comm["calls"] if c["op"] == op)

    def is_healthy(self):
        self.want(self.code == 0, f"code {self.code}")
        self.want(self.report["findings_count"] == 0, "findings")


def check_operations():
    run = Run("operations", 1)
    run.is_healthy()
    run.want("all the same" in run.lines, "an operation differs")
    run.want(run.steered["operations"]["failed"] == 0, "the host could not compute an operation")
    skipped = run.reads("skipped", "partly")
    run.want([(r["how"], os.path.basename(r["file"]), r["reads"], r["ranks"]) for r in skipped] ==
             [("item", "job_operations.py", 1, "0")], "not just the read of the long tensor's sum")


def check_router():
    """With the mode the branch is taken, without it nobody takes it."""
    for ranks in (2, 4):
        run = Run("router", ranks)
        run.is_healthy()
        run.want(run.calls("AllReduce") == 3, "not a reduction in each step")
        counts = [json.loads(line.split("counts ")[1]) for line in run.lines if "counts" in line]
        run.want(len(counts) == 3 * ranks and all(sum(c) == 32 * ranks * ranks for c in counts), "counts are not real")
        run.want(not run.reads("skipped", "partly", "unknown") and run.reads("computed"), "values nobody computed")
        here = [r for r in run.reads("computed") if r["how"] == "item"]
        run.want([(os.path.basename(r["file"]), r["function"], r["reads"], r["ranks"]) for r in here] ==
                 [("job_router.py", "<module>", 3 * ranks, f"0-{ranks - 1}")], "the line of the branch")
    for options, env in ((("--compute", "off"), {}), ((), {"ROLLCALL_REHEARSE": "0"})):
        run = Run("router", 2, *options, **env)
        run.is_healthy()
        run.want(run.calls("AllReduce") == 0 and "steered" not in run.report, "the mode is not off")
    run = Run("router", 2, "--compute", "0")
    run.is_healthy()
    run.want(run.calls("AllReduce") == 0 and run.steered["operations"]["computed"] == 0, "something was computed")
    run.want({r["how"] for r in run.reads("skipped")} >= {"item", "copy"}, "reads of skipped memory are not told")
    run.want("Read back, and nobody computed it" in run.error, "the report's text")


def check_router_sick():
    run = Run("router", 4, "--timeout", "60", MISTAKE="data", CULPRIT="2")
    run.want(run.code == 124, f"code {run.code}")
    found = run.report["findings"]
    run.want(len(found) == 1 and found[0]["culprits"] == [2] and
             "call-skipped" in (found[0]["code"], *found[0]["may_be"]), "not one finding that names rank 2")


def check_sharded():
    run = Run("sharded", 2)
    run.is_healthy()
    run.want(sorted(run.lines) == ["rank 0 as on the host", "rank 1 as on the host"], "losses differ")
    run.want(run.steered["operations"]["failed"] == 0, "the host could not compute an operation")
    # What FSDP2 copies, gathers and splits is as good as the parameters that it began with.
    run.want(set(run.steered["reads"]) == {"computed"} and run.steered["operations"]["left"] == 0,
             "a loss that was computed is not said to be")
    world = run.report["communicators"][0]
    run.want(world["name"] == "default group" and "job_sharded.py:" in world["made"], "the group has no name")
    run.want(run.report["steps"] == 6, "steps of the optimizers: three on the device, and three on the host")


def check_numbers():
    run = Run("numbers", 2, NUMBERS="stops")
    run.want(run.code == 1, f"code {run.code}")
    run.want(re.search(r"\nRanks 0-1 stopped after they had read nan at job_numbers\.py:\d+ <module> "
                       r"\(value: computed\)\.\n", run.error), "the number is not told")
    run = Run("numbers", 2, NUMBERS="scaler")
    run.is_healthy()
    run.want("rank 0 step 0 odd" in run.lines and " it had read " not in run.error and " they had " not in run.error,
             "a job that goes on is said to stop")
    run.want(re.search(r"\n1 .*  -\n", run.error), "PyTorch's own memory without its cache")
    run = Run("numbers", 2, NUMBERS="scaler", PYTORCH_NO_CUDA_MEMORY_CACHING="0")
    run.is_healthy()
    devices = [d for m in run.report["memory"] for d in m["devices"]]
    run.want(len(devices) == 2 and all(0 < d["allocator_peak_bytes"] <= d["peak_bytes"] for d in devices),
             "PyTorch's own memory")


def check_values():
    def told(*options):
        run = Run("values", 2, *options)
        run.want(run.code == 0, f"code {run.code}")
        of = {(int(r), what): rest for r, what, rest in (re.match(r"rank (\d) (\w+) (.*)", x).groups()
                                                         for x in run.lines)}
        for rank in (0, 1):
            run.want(of[rank, "counts"] == f"[{40 + rank}, {41 + rank}]" and of[rank, "list"] == "[3, 3, 3]" and
                     of[rank, "end"] == "6", "hooks")
        run.want([(r["how"], r["function"], r["reads"]) for r in run.reads("supplied")] ==
                 [("item", "read_count", 4), ("copy", "read_list", 2)], "supplied values are not told")
        return run, of

    run, of = told()
    run.want(all(of[r, "loss"] == "0.0 0.0" and of[r, "whole"] == "0 flag False" for r in (0, 1)), "not zero")
    run.want(len(run.reads("skipped")) == 2 and not run.reads("random"), "skipped reads")
    run, same = told("--values", "random:5")
    first, again = same[0, "loss"].split()
    run.want(first == again and 0 < float(first) < 1, "a float, the same when it is read again")
    run.want(0 <= int(same[0, "whole"].split()[0]) < 16, "an integer")
    run.want(all(same[0, w] == same[1, w] for w in ("loss", "whole")), "the same on all ranks")
    run.want(not run.reads("skipped") and len(run.reads("random")) == 2, "random reads are not told")
    run, repeated = told("--values", "random:5,same")
    run.want(repeated == same, "a seed that gives other numbers the second time")
    run, other = told("--values", "random:6")
    run.want(other[0, "loss"] != same[0, "loss"], "another seed")
    run, different = told("--values", "random:5,different")
    run.want(different[0, "loss"] != different[1, "loss"], "different on the ranks")


def check_steps():
    for by in ("optimizer", "two", "told", "begun", "thread"):
        run = Run("steps", 2, "--steps", "3", "--timeout", "300", STEPS_BY=by)
        run.is_healthy()
        run.want(run.steered["stopped"] == {"steps": 3, "ranks": "0-1"}, f"{by}: not stopped after 3 steps")
        run.want(all(f"rank {r} step 1" in run.lines and f"rank {r} step 3" not in run.lines for r in (0, 1)), by)
        run.want(by == "thread" or sorted(run.lines)[::-1].count("rank 0 ends") == 1, f"{by}: finally did not run")
    run = Run("steps", 2, "--steps", "1", "--timeout", "300", STEPS_BY="two")
    run.is_healthy()
    run.want(run.steered["stopped"] == {"steps": 1, "ranks": "0-1"}, "two optimizers, one step")


def check_theme(name):
    run = Run("themes", 2, THEME=name)
    run.is_healthy()
    told = [re.fullmatch(r"rank (\d) (\w+): (\d+) values, (\d+) wrong", x) for x in run.lines]
    run.want(sorted(m[1] for m in told if m) == ["0", "1"], "not each rank has told")
    run.want(all(m and m[2] == name and int(m[3]) > 0 and m[4] == "0" for m in told), "values are wrong")
    run.want(run.steered["operations"]["failed"] == 0, "the host could not compute an operation")
    run.want(not run.reads("skipped", "partly", "unknown", "random"), "values nobody computed")


def check_compiled():
    """torch.compile compiles under the mode, and what it has compiled counts as skipped; the rest is computed."""
    run = Run("compiled", 2)
    run.is_healthy()
    for rank in "01":
        for want in ("graphs 2", "eager 20.0", "cond 3.0", "kept 8.0"):
            run.want(f"rank {rank} {want}" in run.lines, want)
    run.want(run.steered["operations"]["compiled"] > 0, "no compiled kernel was seen")
    run.want({(r["function"], r["value"]) for r in run.steered["read_at"]} ==
             {("read_compiled", "skipped"), ("read_backward", "skipped"), ("read_written", "skipped"),
              ("read_eager", "computed"), ("read_kept", "copied")}, "where values come from")


def check_losses():
    """A loss of long logits is told as skipped however it is read, and hooks and seeded numbers reach it. Long labels
    are counted."""
    run = Run("losses", 2)
    run.is_healthy()
    run.want(all(f"rank {r} tokens 49152" in run.lines for r in (0, 1)), "labels are not counted")
    told = {(r["function"], r["how"]) for r in run.reads("skipped")}
    run.want(told == {("by_item", "item"), ("by_text", "copy"), ("by_format", "item"), ("by_list", "copy"),
                      ("by_branch", "item"), ("by_nan", "item")}, f"told: {told}")
    run.want("SUPPLIED 2.5" in "\n".join(run.lines), "a hook")
    run = Run("losses", 2, "--values", "random:3")
    run.is_healthy()
    run.want(not run.reads("skipped"), "seeded numbers do not reach a loss")


def check_megatron():
    """Routers of megatron-core are real: the rows of the exchanges add up, and differ from those of zeros."""
    run = Run("megatron_counts", 4)
    run.is_healthy()
    splits = [json.loads(x.split("splits ")[1]) for x in run.lines if " splits " in x]
    run.want(len(splits) == 4 * 2 * 2 and all(sum(s) == 2 * 32 * 2 for s in splits), "rows of the exchanges")
    run.want(any(s.count(0) < 2 for s in splits), "all rows go where those of zeros go")
    run.want(not run.reads("skipped", "partly", "random", "unknown"), "values nobody computed")
    run.want(any("moe_utils.py" in r["file"] for r in run.reads("computed")), "megatron-core's own reads")


PYTHON = os.environ.get(VARIABLE)
if not PYTHON:
    skip(f"{VARIABLE} does not name a Python with a CUDA wheel of torch")
place = subprocess.run([PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], capture_output=True,
                       text=True).stdout.strip()
if not place or not os.path.exists(os.path.join(place, "torch", "lib", "libtorch_cuda.so")):
    skip(f"{PYTHON} has no torch with CUDA")
if TEST == "sharded" and not os.path.isdir(os.path.join(place, "torch", "distributed", "fsdp", "_fully_shard")):
    skip("this release of torch has no FSDP2 where the job looks for it")
if TEST == "compiled" and not os.path.isdir(os.path.join(place, "triton")):
    skip(f"{PYTHON} has no triton")
if TEST == "megatron" and not os.path.isdir(os.path.join(place, "megatron", "core")):
    skip(f"{PYTHON} has no megatron-core")
if TEST.startswith("values."):
    check_theme(TEST.removeprefix("values."))
else:
    globals()[f"check_{TEST}"]()
