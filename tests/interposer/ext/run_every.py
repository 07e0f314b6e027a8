#!/usr/bin/env python3
"""Every function of ext.def, called linked and looked up on stubs that check their arguments: arrives whole, is
recorded once.

usage: run_every.py ROLLCALL EXT_EVERY STUB_DIR EXT_DEF
"""
import json
import os
import re
import subprocess
import sys
import tempfile

ROLLCALL, JOB, STUBS, EXT_DEF = sys.argv[1:5]
failures = []


def check(condition, what, more=""):
    if not condition:
        failures.append(what)
        print("FAILED:", what, more)


def rows():
    """(name, kind of call) of each row of ext.def."""
    text = open(EXT_DEF).read().split("#undef GROUPED_PARAMS")[0].split("*/", 1)[1]
    out = []
    for kind, row in re.findall(r"^ROLL_EXT_(CALL|DENSE|NOTE)\((.*?)\)\n(?=\s*(?:ROLL_|/\*|$))", text,
                                flags=re.S | re.M):
        name = re.match(r"(?:\d+, )?(\w+)", row).group(1)
        out.append((name, "EXT_GEMM" if kind == "DENSE" else re.search(r"EXT_\w+", row).group(0)))
    return out


def run(arguments, tmp):
    env = dict(os.environ, LD_LIBRARY_PATH=STUBS + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
    return subprocess.run(arguments, env=env, capture_output=True, text=True, timeout=280, cwd=tmp)


with tempfile.TemporaryDirectory() as tmp:
    alone = run([ROLLCALL, "run", "-n", "1", "--hostnccl", "--trace", os.path.join(tmp, "trace"), "--", JOB], tmp)
    told = [line for line in alone.stderr.splitlines() if "ext_every:" in line or "stub:" in line]
    check(alone.returncode == 0, "the job", f"{alone.returncode} {told} {alone.stderr[-1000:]}")
    check(any("%d calls, %d arrived, 0 wrong" % (2 * len(rows()), 2 * len(rows())) in line for line in told),
          "all calls", told)
    seen = {}
    for name in sorted(os.listdir(os.path.join(tmp, "trace"))):
        dump = subprocess.run([ROLLCALL, "dump", "--json", os.path.join(tmp, "trace", name)], capture_output=True,
                              text=True)
        for line in map(json.loads, dump.stdout.splitlines()):
            if line["kind"] == "record":
                # By ticket: a call that the agent met under way stands there twice, as entered and as returned.
                seen.setdefault(line["fields"]["op"]["name"], set()).add(line["fields"]["seal"]["ticket"])
    names = {"EXT_GROUPED_GEMM": "grouped gemm", "EXT_GEMM": "gemm", "EXT_PERMUTE": "permute",
             "EXT_UNPERMUTE": "unpermute", "EXT_ROUTER": "router", "EXT_PAD": "pad", "EXT_EXCHANGE": "ep exchange",
             "EXT_BIAS": "grouped bias"}
    for kind, name in names.items():
        wanted = 2 * sum(1 for _, row in rows() if row == kind)
        check(wanted > 0 and len(seen.get(name, ())) == wanted, f"records of {name}",
              f"{len(seen.get(name, ()))}, not {wanted}")

print(f"every function: {len(rows())} rows, {len(failures)} failures")
sys.exit(1 if failures else 0)
