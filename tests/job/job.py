"""job.py: what the tests of the main job share: the built programs, one run under rollcall, and how its verdicts are read."""
import json
import os
import subprocess
import sys


class Programs:
    """The programs under test, in one directory of binaries."""

    def __init__(self, bin_dir):
        self.rollcall, self.train = os.path.join(bin_dir, "rollcall"), os.path.join(bin_dir, "moe_train")


def check(ok, text, *more):
    if not ok:
        print("FAILED:", text)
        for m in more:
            print(m)
        sys.exit(1)


def run(argv, **kw):
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, **kw)


def command(programs, ranks, out, rollcall_options, train_options):
    return [programs.rollcall, "run", "-n", str(ranks), "--hostnccl", "--json", out, *rollcall_options, "--",
            programs.train, "--exact", *train_options]


def read(path):
    """The verdicts written so far; a line that is still being written is left for the next look."""
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def findings(verdicts):
    return [v for v in verdicts if v["certainty"] != "note"]


def losses(text):
    return [line for line in text.splitlines() if line.startswith("step ")]


def show(verdicts):
    return "\n".join(f"  {v['certainty']} {v['code']} culprits {v['culprits_text']} {v['text']}" for v in verdicts)
