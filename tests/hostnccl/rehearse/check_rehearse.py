#!/usr/bin/env python3
"""The real PyTorch, with CUDA and without a GPU, under `rollcall rehearse`: the ranks of a job run to their end, every
call is recorded, and nothing is found; or, where rank 1 leaves out a call, that is found.

usage: check_rehearse.py BUILD_DIR ddp|megatron_moe RANKS [sick]

ROLL_REHEARSE_PYTHON names the interpreter of an environment with a CUDA wheel of torch (for megatron_moe also
megatron-core). The wheel is some gigabytes, so nothing installs it: without it the test is skipped (exit 77).
"""
import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, JOB, RANKS = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
SICK = sys.argv[4:] == ["sick"]
ROLLCALL = os.path.join(BUILD, "bin", "rollcall")
NEEDED = {"ddp": "torch", "megatron_moe": "megatron.core"}
STEPS = {"ddp": 6, "megatron_moe": 2}
TIMEOUT_S = 1500


def skip(why):
    print(f"SKIPPED: rehearse.{JOB}: {why}")
    sys.exit(77)


def fail(text, *more):
    print(f"FAILED: {text}")
    for m in more:
        print(m)
    sys.exit(1)


def ask(python, code):
    run = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else None


python = os.environ.get("ROLL_REHEARSE_PYTHON")
if not python:
    skip("ROLL_REHEARSE_PYTHON does not name a Python with a CUDA wheel of torch")
place = ask(python, "import sysconfig; print(sysconfig.get_path('platlib'))")
if not place or not os.path.exists(os.path.join(place, "torch", "lib", "libtorch_cuda.so")):
    skip(f"{python} has no torch with CUDA")
if not os.path.isdir(os.path.join(place, *NEEDED[JOB].split("."))):
    skip(f"{python} has no {NEEDED[JOB]}")

with tempfile.TemporaryDirectory() as work:
    out = os.path.join(work, "report.json")
    env = dict(os.environ, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", **({"LEAVES_OUT": "1"} if SICK else {}))
    job = subprocess.run([ROLLCALL, "rehearse", "-n", str(RANKS), "--json", out, "--force",
                          *(("--timeout", "60") if SICK else ()), "--", python, os.path.join(HERE, f"job_{JOB}.py")],
                         env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    said = job.stdout[-4000:], job.stderr[-8000:]
    if job.returncode != (124 if SICK else 0):
        fail(f"the job ends with code {job.returncode}", *said)
    with open(out, encoding="utf-8") as f:
        report = json.load(f)
    if report["ranks"] != RANKS or report["lost"]:
        fail("a rank that was not recorded, or a loss", *said)
    if [m["rank"] for m in report["memory"] if any(d["peak_bytes"] > 0 for d in m["devices"])] != list(range(RANKS)):
        fail("not each rank told of its memory", *said)
    if report["kernels"]["skipped"] == 0 or report["kernels"]["refused"] > 0:
        fail("no kernel was skipped, or one was refused", *said)
    if SICK:
        found = [f for f in report["findings"] if f["culprits"] == [1]
                 and "call-skipped" in (f["code"], *f.get("may_be", []))]
        if len(found) != 1 or report["findings_count"] != 1:
            fail("not one finding that rank 1 left out a call", *said)
    else:
        missing = [(r, s) for r in range(RANKS) for s in range(STEPS[JOB]) if f"rank {r} step {s}" not in job.stdout]
        if missing or report["findings_count"]:
            fail(f"findings: {report['findings_count']}; steps that no rank told of: {missing}", *said)
    print(f"{report['ranks']} ranks, {report['calls']} calls, {report['findings_count']} findings")
