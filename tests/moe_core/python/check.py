#!/usr/bin/env python3
"""The PyTorch module's jobs, under rollcall where they have several ranks: check.py BUILD PYTHON layout|ranks|train
[RANKS]. Exit 77: PYTHON is empty.

The job must end with status 0 and have said so on every rank; rollcall must have recorded every rank and found nothing
(notes aside: a rank without tokens is one). What the job says of itself (job_layer.py: equal to plain PyTorch;
train_moe.py: the loss fell) is its status.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, PYTHON, CASE, RANKS = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 1
MODULE = os.path.join(BUILD, "lib", "rollcall", "moe")
TIMEOUT_S = 500


def fail(text, done=None):
    print(f"FAILED: {text}")
    if done is not None:
        print(done.stdout, done.stderr, sep="\n")
    sys.exit(1)


def run(command, env):
    """With a limit of its own, so that nothing outlives the test: `timeout` ends the whole group."""
    return subprocess.run(["timeout", "-k", "5", str(TIMEOUT_S), *command], env=env, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL)


def environment(place):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
                                                            "LD_PRELOAD", "ROLLCALL_DAEMON", "MOE_CORE_LIBRARY",
                                                            "MOE_REMEDIES")}
    package = os.path.join(BUILD, "lib", "rollcall", "python")
    path = os.pathsep.join((MODULE, package, os.path.join(HERE, "..", "oracle")))
    return dict(env, ROLLCALL_DIR=place, HOSTNCCL_DIR=os.path.join(place, "hostnccl"), PYTHONPATH=path,
                PYTHONDONTWRITEBYTECODE="1", OMP_NUM_THREADS="1")


def layout(env):
    done = run([PYTHON, os.path.join(HERE, "check_layout.py"), os.path.join(BUILD, "tests", "moe_python_layout")],
               dict(env, LD_LIBRARY_PATH=os.path.join(BUILD, "lib", "hostnccl")))
    if done.returncode != 0:
        fail("the declarations differ", done)
    print(done.stdout, end="")


def alone(env, script):
    done = run([PYTHON, script], dict(env, LD_LIBRARY_PATH=os.path.join(BUILD, "lib", "hostnccl")))
    if done.returncode != 0:
        fail(f"status {done.returncode}", done)
    return done


def watched(env, place, *job):
    verdicts = os.path.join(place, "verdicts.json")
    done = run([os.path.join(BUILD, "bin", "rollcall"), "run", "-n", str(RANKS), "--hostnccl", "--json", verdicts, "--",
                PYTHON, *job], env)
    if done.returncode != 0:
        fail(f"status {done.returncode}", done)
    with open(verdicts) as f:
        found = [v for v in map(json.loads, f) if v["certainty"] != "note"]
    if found or f"rollcall: {RANKS} ranks, " not in done.stderr:
        fail(f"rollcall found {[v['code'] for v in found]}, or did not record {RANKS} ranks", done)
    return done


def ranks(env, place):
    script = os.path.join(HERE, "job_layer.py")
    done = alone(env, script) if RANKS == 1 else watched(env, place, script)
    for rank in range(RANKS):
        if not re.search(rf"job_layer: rank {rank} of {RANKS}: \d+ cases as plain PyTorch", done.stdout):
            fail(f"rank {rank} did not say that it is done", done)
    print(done.stdout, end="")


def train(env, place):
    done = watched(env, place, os.path.join(MODULE, "examples", "train_moe.py"), "--steps", "24", "--layers", "1",
                   "--batch", "32", "--every", "6")
    losses = [float(v) for v in re.findall(r"(?m)^step \d+ loss (\S+)", done.stdout)]
    if len(losses) != 5 or not losses[-1] < losses[0]:
        fail(f"losses {losses}", done)
    print(f"losses {losses}, rollcall found nothing")


if not PYTHON:
    print("SKIPPED: integration.moe_python: no Python with torch was found when this tree was configured (scripts/deps "
          "installs python3-torch)")
    sys.exit(77)
with tempfile.TemporaryDirectory() as place:
    os.mkdir(os.path.join(place, "hostnccl"), 0o700)
    env = environment(place)
    {"layout": lambda: layout(env), "ranks": lambda: ranks(env, place), "train": lambda: train(env, place)}[CASE]()
