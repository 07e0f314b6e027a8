#!/usr/bin/env python3
"""The jobs that test rollcall.moe: check.py BUILD PYTHON linear|modules, with the Python that holds torch, and
check.py BUILD "" checkpoint|megatron|torchtitan, with the environment that ROLL_REHEARSE_PYTHON names (torchtitan: the
release in the folder ROLL_REHEARSE_RELEASES), whose CUDA wheels run on the stand-ins of `rollcall rehearse`: tensors
are on the CPU, so that numbers mean something. Exit 77: there is no such Python; what is missing is said.

A job compares and ends with status 0; what it says at its end is the evidence that it did.
"""
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, PYTHON, CASE = sys.argv[1:4]
TIMEOUT_S = 1500  # only a hang reaches it
SAYS = {
    "linear": r"job_linear: \d+ cases as float64, \d+ places of empty experts",
    "modules": r"job_modules: \d+ cases of TEGroupedMLP and \d+ of GroupedExperts as float64, \d+ layouts of parts",
    "checkpoint": r"job_checkpoint: 4 ranks, \d+ \+ \d+ \+ \d+ loads in other layouts in every bit, torch \S+",
    "megatron": r"job_megatron: \d+ cases beside megatron-core \S+",
    "torchtitan": r"job_torchtitan: \d+ cases beside torchtitan \S+",
}
RELEASE = "torchtitan-0.2.2"
NEEDS = {"checkpoint": "torch", "megatron": "megatron.core", "torchtitan": "torchtitan"}
RANKS = {"checkpoint": 4}
INSTALL = "scripts/rehearse-wheels --releases -R moe_dropin makes the environments and runs the test"


def skip(why):
    print(f"SKIPPED: moe_dropin: {why}")
    sys.exit(77)


def has(python, module):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True).returncode == 0


def find_python():
    if CASE in ("linear", "modules"):
        return PYTHON or skip("no Python with torch was found when this tree was configured (scripts/deps installs "
                              "python3-torch)")
    needs = NEEDS[CASE]
    if CASE != "torchtitan":
        python = os.environ.get("ROLL_REHEARSE_PYTHON")
        if not python:
            skip(f"ROLL_REHEARSE_PYTHON names no Python with {needs}; {INSTALL}")
    else:
        folder = os.environ.get("ROLL_REHEARSE_RELEASES")
        if not folder:
            skip(f"ROLL_REHEARSE_RELEASES names no folder of environments, one of which is {RELEASE}; {INSTALL}")
        python = os.path.join(folder, RELEASE, "bin", "python")
    if not os.path.exists(python) or not has(python, needs.split(".")[0]):
        skip(f"{python} has no {needs}; {INSTALL}")
    return python


python = find_python()
with tempfile.TemporaryDirectory() as place:
    os.mkdir(os.path.join(place, "hostnccl"), 0o700)
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                                                            "LD_PRELOAD", "ROLLCALL_DAEMON", "MOE_CORE_LIBRARY")}
    env.update(JOB_FOLDER=os.path.join(place, "checkpoints"),
               JOB_DOC=os.path.join(HERE, "..", "..", "..", "docs", "DROPIN.md"))
    # One thread: the shapes are small.
    env.update(PYTHONPATH=os.path.join(BUILD, "lib", "rollcall", "python"), PYTHONDONTWRITEBYTECODE="1",
               OMP_NUM_THREADS="1", HOSTNCCL_DIR=os.path.join(place, "hostnccl"))
    under = [os.path.join(BUILD, "bin", "rollcall"), "rehearse", "-n", str(RANKS.get(CASE, 1)), "--force", "--"]
    under = [] if CASE in ("linear", "modules") else under
    done = subprocess.run(["timeout", "-k", "5", str(TIMEOUT_S), *under, python, os.path.join(HERE, f"job_{CASE}.py")],
                          env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
if done.returncode != 0 or not re.search(SAYS[CASE], done.stdout):
    print(f"FAILED: status {done.returncode}", done.stdout, done.stderr, sep="\n")
    sys.exit(1)
print(done.stdout, end="")
