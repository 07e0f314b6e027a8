#!/usr/bin/env python3
"""Checks that ctest's names, the catalogue's own table and the table of verdicts agree.

usage: check_list.py CATALOGUE NAME,NAME,... VERDICT_DEF
"""
import re
import subprocess
import sys

# Provoked elsewhere: the MoE verdicts and those about numbers by moe_train (tests/jobs/moe_train, tests/daemon/engine), losses by tests/daemon, and these by feeding the engine (tests/daemon/engine).
ELSEWHERE = {"collective-stuck", "straggler", "opposite-order", "crossed-wait", "moe-zero-tokens", "moe-gemm-skipped", "moe-obligation-missing", "moe-remedied", "data-incomplete",
             "group-mismatch", "moe-gemm-missing", "attached-unseen", "agent-silent",
             "moe-tokens-unequal", "moe-split-sum", "moe-recompute-differs", "moe-capacity-differs", "moe-buffer-differs",
             "replica-mismatch", "gradient-not-summed", "gradient-not-finite"}

catalogue, names, verdict_def = sys.argv[1:4]
rows = [line.split("\t") for line in subprocess.run([catalogue, "--list"], capture_output=True, text=True, check=True).stdout.splitlines()]
errors = []
table, registered = {r[0] for r in rows}, set(names.split(","))
errors += [f"{n} is in the program but not in CMakeLists.txt" for n in sorted(table - registered)]
errors += [f"{n} is in CMakeLists.txt but not in the program" for n in sorted(registered - table)]
known = set(re.findall(r'ROLL_VERDICT_ROW\(\w+,\s*\d+,\s*"([a-z0-9-]+)"', open(verdict_def).read()))
provoked = {c for r in rows for c in re.split(r"[|+]", r[1] + "|" + r[2]) if c != "-"}
errors += [f"the catalogue expects {c}, which is no verdict" for c in sorted(provoked - known)]
errors += [f"no program provokes {c}" for c in sorted(known - provoked - ELSEWHERE)]
if len(known) < 20:
    errors.append(f"only {len(known)} verdicts read from {verdict_def}")
print("\n".join(errors) or f"{len(table)} programs, {len(provoked)} verdicts provoked")
sys.exit(1 if errors else 0)
