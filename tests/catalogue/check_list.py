#!/usr/bin/env python3
"""Checks that ctest's names, the catalogue's own table and the table of verdicts agree.

usage: check_list.py CATALOGUE NAME,NAME,... VERDICT_DEF
"""
import os
import re
import subprocess
import sys

# Verdicts that no program of the catalogue has to provoke: why not, and the test that provokes them instead. MoE
# verdicts and those about numbers need reports of moe_core, which these programs do not use; its jobs show most of
# them, and the engine's tests, fed with such reports, the rest.
MOE = "needs reports of moe_core, and the programs here call NCCL alone"
ELSEWHERE = {
    "group-mismatch": ("hostnccl makes a group's calls together, so such groups do not hang on it",
                       "tests/daemon/engine/test_engine_order.c"),
    "opposite-order": ("it is for calls that could be left early; on hostnccl the opposite order waits at once, and is "
                       "a circular-wait", "tests/daemon/engine/test_engine_order.c"),
    "crossed-wait": ("the programs that can show it may show a skipped call as well: which is said depends on who is "
                     "seen first", "tests/daemon/engine/first_calls.c"),
    "p2p-unmatched": ("a message without a partner may be said as the death of the partner, or as the circle that it "
                      "makes, whichever shows first", "tests/daemon/engine/test_engine_pairs.c"),
    "rank-blocked": ("what the host waits for shows as a circle or as a message without a partner where that is seen "
                     "first", "tests/daemon/engine/test_engine_exchange.c"),
    "sequence-tie": ("with two ranks the calls behind the difference may tell who it was, and that depends on how far "
                     "the ranks got", "tests/daemon/engine/test_engine_sequence.c"),
    "collective-stuck": ("it is told after 20 s at the earliest, longer than a program of the catalogue runs",
                         "tests/daemon/engine/test_engine_stuck.c"),
    "rank-stuck": ("it is told after 20 s at the earliest, longer than a program of the catalogue runs",
                   "tests/daemon/check_lone.py"),
    "straggler": ("it measures a pace over dozens of calls, and no test here may depend on that of the machine",
                  "tests/daemon/engine/first_life.c"),
    "moe-zero-tokens": (MOE, "tests/daemon/engine/test_engine_moe.c"),
    "moe-gemm-skipped": (MOE, "tests/daemon/engine/test_engine_moe.c"),
    "moe-obligation-missing": (MOE, "tests/jobs/moe_train/check_job.py"),
    "moe-remedied": (MOE, "tests/jobs/moe_train/check_job.py"),
    "moe-gemm-missing": ("needs the compute calls of Transformer Engine", "tests/interposer/ext/run_ext.py"),
    "moe-tokens-unequal": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "moe-split-sum": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "moe-recompute-differs": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "moe-capacity-differs": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "moe-buffer-differs": (MOE, "tests/daemon/engine/test_engine_numbers.c"),
    "replica-mismatch": (MOE, "tests/daemon/engine/test_engine_gradients.c"),
    "gradient-not-summed": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "gradient-not-finite": (MOE, "tests/jobs/moe_train/check_hazards.py"),
    "data-incomplete": ("a ring that overflows depends on who is faster, the rank or its agent",
                        "tests/daemon/engine/test_engine_causes.c"),
    "attached-unseen": ("needs a process whose calls go past the interposer", "tests/daemon/console/test_bind.py"),
    "rehearsal-left": ("needs a rehearsal that was kept", "tests/daemon/engine/test_engine_rehearsed.c"),
    "agent-silent": ("needs an agent that is stopped while its ranks work", "tests/daemon/check_silent.py"),
}


def says(path, code):
    """Does this file name the verdict outside of comments? Whole words: moe-split-sum is not named by
    moe-split-summary."""
    try:
        text = open(os.path.join(ROOT, path)).read()
    except OSError:
        return False
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S) if path.endswith(".c") else re.sub(r"^\s*#.*$", "", text,
                                                                                         flags=re.M)
    return re.search(rf"(?<![a-z0-9-]){re.escape(code)}(?![a-z0-9-])", text) is not None


ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
catalogue, names, verdict_def = sys.argv[1:4]
rows = [line.split("\t") for line in subprocess.run([catalogue, "--list"], capture_output=True, text=True,
                                                    check=True).stdout.splitlines()]
errors = []
table, registered = {r[0] for r in rows}, set(names.split(","))
errors += [f"{n} is in the program but not in CMakeLists.txt" for n in sorted(table - registered)]
errors += [f"{n} is in CMakeLists.txt but not in the program" for n in sorted(registered - table)]
known = set(re.findall(r'ROLL_VERDICT_ROW\(\w+,\s*\d+,\s*"([a-z0-9-]+)"', open(verdict_def).read()))
provoked = {c for r in rows for c in re.split(r"[|+]", r[1] + "|" + r[2]) if c != "-"}
# What some program must provoke, with any number of ranks or with two: alternatives, of which any will do, do not
# count.
certain = {part for r in rows for wanted in (r[1], r[2]) for part in wanted.split("+") if part != "-"
           and "|" not in part}
errors += [f"the catalogue expects {c}, which is no verdict" for c in sorted(provoked - known)]
errors += [f"no program has to provoke {c}: write one, or name the reason and the test that does in ELSEWHERE"
           for c in sorted(known - certain - set(ELSEWHERE))]
errors += [f"{c} is excused in ELSEWHERE, but a program provokes it" for c in sorted(certain & set(ELSEWHERE))]
errors += [f"{c} is excused in ELSEWHERE, but is no verdict" for c in sorted(set(ELSEWHERE) - known)]
errors += [f"{c} is excused in ELSEWHERE by {path}, which does not name it"
           for c, (_, path) in sorted(ELSEWHERE.items()) if not says(path, c)]
if len(known) < 20:
    errors.append(f"only {len(known)} verdicts read from {verdict_def}")
print("\n".join(errors) or f"{len(table)} programs, {len(certain)} verdicts provoked, {len(ELSEWHERE)} by other tests")
sys.exit(1 if errors else 0)
