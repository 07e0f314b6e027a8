#!/usr/bin/env python3
"""The real PyTorch, with CUDA and without a GPU: the ranks of a job run to their end, every call is recorded, and
nothing is found.

usage: check_rehearse.py BUILD_DIR ddp|megatron_moe RANKS

ROLL_REHEARSE_PYTHON names the interpreter of an environment with a CUDA wheel of torch (for megatron_moe also
megatron-core). The wheel is some gigabytes, so nothing installs it: without it the test is skipped (exit 77).
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, JOB, RANKS = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3])
STANDINS, ROLLCALL = os.path.join(BUILD, "lib", "hostnccl", "standins"), os.path.join(BUILD, "bin", "rollcall")
NEEDED = {"ddp": "torch", "megatron_moe": "megatron.core"}
STEPS = {"ddp": 3, "megatron_moe": 2}
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
    written = subprocess.run([STANDINS, os.path.join(work, "standins"), place], capture_output=True, text=True)
    if written.returncode:
        fail(f"standins ends with code {written.returncode}", written.stderr)
    report = os.path.join(work, "report")
    os.mkdir(report)
    env = dict(os.environ, LD_PRELOAD=written.stdout.strip(), HOSTCUDA_KERNELS="skip", HOSTCUDA_REPORT=report,
               OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    job = subprocess.run([ROLLCALL, "run", "-n", str(RANKS), "--", python, os.path.join(HERE, f"job_{JOB}.py")],
                         env=env, capture_output=True, text=True, timeout=TIMEOUT_S)
    if job.returncode:
        fail(f"the job ends with code {job.returncode}", job.stdout[-4000:], job.stderr[-8000:])
    missing = [(r, s) for r in range(RANKS) for s in range(STEPS[JOB]) if f"rank {r} step {s}" not in job.stdout]
    if missing:
        fail(f"steps that no rank told of: {missing}", job.stdout)
    if not re.search(rf"rollcall: {RANKS} ranks, [\d,]+ calls on \d+ communicators?: 0 findings, nothing lost",
                     job.stderr):
        fail("a finding, a loss, or a rank that was not recorded", job.stderr[-8000:])
    reports = [open(os.path.join(report, name)).read() for name in os.listdir(report)]
    told = {int(m.group(1)) for text in reports for m in [re.search(r"^rank (\d+)$", text, re.M)] if m
            and "\nmemory " in text}
    if told != set(range(RANKS)):
        fail(f"ranks that told of their memory: {sorted(told)}")
    if not any("kernel skipped" in text for text in reports) or any("kernel refused" in text for text in reports):
        fail("no kernel was skipped, or one was refused")
    print(job.stderr.strip().splitlines()[-1])
