#!/usr/bin/env python3
"""Runs a sample of simulated programs for real, on hostnccl under `rollcall run`, and compares.

usage: run_real.py ROLLCALL ROLL_SIM ROLL_SIM_JOB COUNT [FOLDER]

For each program: it must end by itself exactly where the oracle's does, and each finding about it must be one that the
simulated engine had in some order of feeding, or one that the simulator's rules take for right. A healthy program gives
no finding. Programs run one after the other; one that hangs is ended when it has been told, or some time after the last
one should have been.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 120  # for what must come: only what never comes reaches it
QUIET_S = 3  # a job that hangs without a finding in the simulator is looked at for so long
GRACE_S = 0.7  # for a second finding


def read_verdicts(path):
    try:
        with open(path) as f:
            verdicts = [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []
    retired = {v[way] for v in verdicts for way in ("supersedes", "confirms", "withdraws")}
    return [v for v in verdicts if v["certainty"] != "note" and v["number"] not in retired]


def run(rollcall, job_program, path):
    """Returns what differs, as text; "" when nothing does."""
    head, known, right = {}, set(), set()
    with open(path) as f:
        for line in f:
            word, _, rest = line.strip().partition(" ")
            if word == "found":
                known.add(tuple(rest.split(" ")))
            elif word == "right":
                right.add(tuple(rest.split(" ")))
            elif word in ("mistake", "size", "ends"):
                head[word] = rest
    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "verdicts.json")
        job = subprocess.Popen(
            [rollcall, "run", "-n", head["size"], "--hostnccl", "--json", out, "--timeout", str(LIMIT_S + 10), "--",
             job_program, path],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            ends, told = head["ends"] == "1", ("nothing", "-") not in known
            begin, seen_at = time.monotonic(), None
            while job.poll() is None and time.monotonic() - begin < LIMIT_S:
                if seen_at is None and read_verdicts(out):
                    seen_at = time.monotonic()
                if not ends and seen_at is not None and time.monotonic() - seen_at > GRACE_S:
                    break
                if not ends and not told and time.monotonic() - begin > QUIET_S:
                    break
                time.sleep(0.02)
            ended = job.poll() is not None
            if not ended:
                job.send_signal(signal.SIGTERM)
            found = read_verdicts(out) if not ended else None
            try:
                _, err = job.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                return "rollcall run did not end after SIGTERM"
            found = read_verdicts(out) if found is None else found
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
    differs = []
    if ended != ends:
        differs.append(f"the job {'ended' if ended else 'did not end'}, the oracle says otherwise\n{err}")
    for v in found:
        what = (v["code"], v["culprits_text"] or "-")
        if what not in known and (v["certainty"], *what) not in right:
            differs.append(f"said here only: {v['certainty']} {v['code']} {v['culprits_text'] or '-'}: {v['text']}")
    if not found and told:
        differs.append(f"nothing is said here; simulated: {sorted(known)}")
    return "\n    ".join(differs)


def main():
    rollcall, simulator, job_program, count = sys.argv[1:5]
    with tempfile.TemporaryDirectory() as tmp:
        folder = sys.argv[5] if len(sys.argv) > 5 else tmp
        if not os.listdir(folder):
            subprocess.run([simulator, "--sample", count, "--into", folder], check=True)
        bad = 0
        for name in sorted(os.listdir(folder)):
            differs = run(rollcall, job_program, os.path.join(folder, name))
            print(f"{'DIFFERS' if differs else 'alike  '} {name}{chr(10) + '    ' + differs if differs else ''}",
                  flush=True)
            bad += differs != ""
    print(f"{bad} programs differ")
    sys.exit(1 if bad else 0)


main()
