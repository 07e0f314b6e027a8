#!/usr/bin/env python3
"""What the ranks of a small job of the real PyTorch take under `rollcall rehearse`: memory that is theirs (the sum of
the proportional sizes of all processes, sampled), and seconds to the first step and to the end.

usage: check_memory.py BUILD_DIR RANKS [shared|own|both]

Passes where all ranks were recorded, nothing was found, and the ranks of a shared interpreter took less than 8 GiB.
ROLL_REHEARSE_PYTHON names the interpreter of an environment with a CUDA wheel of torch; without it the test is skipped
(exit 77). `both` prints the two ways of starting ranks one below the other.
"""
import json
import os
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, RANKS, WAYS = os.path.abspath(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or ["shared"])[0]
LIMIT_MIB = 8 * 1024
TIMEOUT_S = 1500


def skip(why):
    print(f"SKIPPED: rehearse.memory: {why}")
    sys.exit(77)


def family(root):
    """The process and all below it."""
    children = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                children.setdefault(int(f.read().rsplit(")", 1)[1].split()[1]), []).append(int(pid))
        except OSError:
            pass
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def proportional_kib(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
            return next((int(line.split()[1]) for line in f if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def measure(python, way):
    """Runs the job; prints a row. The error, or None."""
    first, peak, steps = None, [0, 0], set()
    with tempfile.TemporaryDirectory() as work:
        out, begin = os.path.join(work, "report.json"), time.monotonic()
        job = subprocess.Popen([os.path.join(BUILD, "bin", "rollcall"), "rehearse", "-n", str(RANKS), "--quiet",
                                "--json", out, "--zygote", "torch" if way == "shared" else "none", "--", python,
                                os.path.join(HERE, "job_ddp.py")], stdout=subprocess.PIPE, text=True,
                               env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONUNBUFFERED=""))
        over = threading.Event()

        def sample():
            while not over.wait(0.5):  # a look at so many processes takes time from them, so there are few
                kib = sum(map(proportional_kib, family(job.pid)))
                which = 0 if first is None or len(steps) < RANKS else 1
                peak[which] = max(peak[which], kib)

        looker = threading.Thread(target=sample)
        looker.start()
        limit = threading.Timer(TIMEOUT_S, job.kill)
        limit.start()
        for line in job.stdout:
            first = first or time.monotonic() - begin
            if line.endswith("step 5\n"):
                steps.add(line)
        code, seconds = job.wait(), time.monotonic() - begin
        limit.cancel()
        over.set()
        looker.join()
        if code != 0:
            return f"the job ends with code {code}"
        with open(out, encoding="utf-8") as f:
            report = json.load(f)
    most = max(peak) / 1024
    print(f"{way:8} {RANKS:5} {most:9.0f} {most / RANKS:9.0f} {peak[0] / 1024:12.0f} {first:12.1f} {seconds:8.1f}",
          flush=True)
    if len(steps) != RANKS or report["ranks"] != RANKS or report["lost"] or report["findings_count"]:
        return (f"{len(steps)} ranks came to the last step, {report['ranks']} were recorded, {report['lost']} records "
                f"lost, {report['findings_count']} findings")
    if way == "shared" and most > LIMIT_MIB:
        return f"{RANKS} ranks took {most:.0f} MiB"
    return None


python = os.environ.get("ROLL_REHEARSE_PYTHON")
if not python:
    skip("ROLL_REHEARSE_PYTHON does not name a Python with a CUDA wheel of torch")
FIND = ("import importlib.util, os; s = importlib.util.find_spec('torch'); raise SystemExit(not (s and os.path.exists("
        "os.path.join(os.path.dirname(s.origin), 'lib', 'libtorch_cuda.so'))))")
if subprocess.run([python, "-c", FIND], check=False).returncode != 0:
    skip(f"{python} has no torch with CUDA")
print(f"{'IMPORT':8} {'RANKS':>5} {'MOST MIB':>9} {'EACH MIB':>9} {'BUSY MIB':>12} {'FIRST STEP S':>12} {'END S':>8}")
errors = [e for e in (measure(python, way) for way in (("shared", "own") if WAYS == "both" else (WAYS,))) if e]
for error in errors:
    print(f"FAILED: {error}")
sys.exit(1 if errors else 0)
