#!/usr/bin/env python3
"""Runs one program of the fault catalogue under rollcall and judges the verdicts.

usage: run_program.py ROLLCALL CATALOGUE NAME sick|healthy RANKS [OPTION of rollcall run]...

Sick: the expected verdict must come, with the expected certainty and culprits, before the limit; no finding of another
code may come with it. Where a note is expected the job ends by itself. Then the job is ended, and nothing may be left
behind. Healthy: the job ends by itself with status 0 and there is no finding.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 400  # for the verdict: so late that only one that never comes reaches it
GRACE_S = 0.7  # to catch a second, wrong finding after the right one


def fail(text, verdicts=(), err=""):
    print(f"FAILED: {text}")
    for v in verdicts:
        print(f"  {v['certainty']:<10} {v['code']:<24} culprits {v['culprits_text'] or '-':<8} {v['text']}")
    if err:
        print("standard error of rollcall run:\n" + err)
    sys.exit(1)


def read_verdicts(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def findings(verdicts):
    """Those that stand: a later verdict may have replaced, confirmed or withdrawn one."""
    retired = {v[way] for v in verdicts for way in ("supersedes", "confirms", "withdraws")}
    return [v for v in verdicts if v["certainty"] != "note" and v["number"] not in retired]


def expected_culprits(rule, ranks):
    """None: any. A rule with '!' holds at two ranks as well, where the vote alone is a tie."""
    rule = rule.rstrip("?")
    if rule.rstrip("!") == "last":
        return [] if ranks == 2 and not rule.endswith("!") else [ranks - 1]
    return {"none": [], "first": [0]}.get(rule)


def is_told(fault, certainty, found):
    """A suspicion that is to become proven is waited for, however long that takes on this machine."""
    return any(v["code"] in fault and certainty in ("any", v["certainty"]) for v in found)


def judge(name, fault, rule, certainty, ranks, found, err):
    """One mistake of a sick program: told, once, as it should be."""
    right = [v for v in found if v["code"] in fault]
    if not right:
        fail(f"no verdict {' or '.join(fault)}", found, err)
    if len(right) > 2:
        fail(f"{len(right)} findings for one mistake", right, err)
    if certainty != "any" and not any(v["certainty"] == certainty for v in right):
        fail(f"certainty is not {certainty}", right, err)
    want = expected_culprits(rule, ranks)
    if want is not None and not any(v["culprits"] == want or (rule.endswith("?") and not v["culprits"]) for v in right):
        fail(f"culprits are not {want}", right, err)
    print(f"sick: {name} on {ranks} ranks: {right[0]['certainty']} {right[0]['code']}, culprits "
          f"{right[0]['culprits_text'] or 'tie'}")


def main():
    rollcall, catalogue, name, mode, ranks = sys.argv[1:6]
    ranks = int(ranks)
    table = subprocess.run([catalogue, "--list"], capture_output=True, text=True, check=True).stdout
    rows = {r[0]: r for r in (line.split("\t") for line in table.splitlines())}
    _, code, code_two, certainty, culprits, _ = rows[name]
    certainty, _, late_s = certainty.partition("@")
    certainties = certainty.split("+")
    faults = [f.split("|") for f in (code_two if ranks == 2 else code).split("+")]
    codes = [c for f in faults for c in f]
    rules = culprits.split("+") if "+" in culprits else [culprits] * len(faults)
    certainties = certainties if len(certainties) > 1 else certainties * len(faults)
    harmless = mode == "sick" and certainty == "note"
    healthy = mode == "healthy" or code == "-" or harmless
    grace_s = max(GRACE_S, float(late_s or 0))

    with tempfile.TemporaryDirectory() as tmp:
        out = os.path.join(tmp, "verdicts.json")
        job = subprocess.Popen(
            [rollcall, "run", "-n", str(ranks), "--hostnccl", "--json", out, "--timeout", str(LIMIT_S + 10),
             *sys.argv[6:], "--", catalogue, name, mode],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            if healthy:
                _, err = job.communicate(timeout=LIMIT_S)
                verdicts = read_verdicts(out)
                if job.returncode != 0:
                    fail(f"the healthy twin ended with status {job.returncode}", verdicts, err)
                # A finding that was taken back later has alarmed people, too.
                said = [v for v in verdicts if v["certainty"] != "note"]
                if said:
                    fail("false alarm on the healthy twin", said, err)
                notes = [v for v in verdicts if v["code"] in codes]
                if not harmless and notes:
                    fail("a note on the healthy twin", notes, err)
                if harmless:
                    judge(name, faults[0], rules[0], certainty, ranks, notes, err)
                if harmless and len(notes) > 1:
                    fail("the note came more than once", notes, err)
                if f"rollcall: {ranks} ranks, " not in err:
                    fail("no summary line about all ranks: was anything recorded?", verdicts, err)
                print(f"healthy: {name} on {ranks} ranks: no finding")
                return

            begin, seen_at = time.monotonic(), None
            while True:
                found = findings(read_verdicts(out))
                if seen_at is None and all(is_told(f, one, found) for f, one in zip(faults, certainties)):
                    seen_at = time.monotonic()
                if seen_at is not None and time.monotonic() - seen_at > grace_s:
                    break
                if job.poll() is not None and time.monotonic() - begin > 1:
                    found = findings(read_verdicts(out))
                    break
                if time.monotonic() - begin > LIMIT_S:
                    break
                time.sleep(0.02)
            if job.poll() is None:
                job.send_signal(signal.SIGTERM)
            try:
                _, err = job.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                job.kill()
                fail("rollcall run did not end after SIGTERM", found)

            wrong = [v for v in found if v["code"] not in codes]
            if wrong:
                fail("a finding of another code came with the right one", wrong, err)
            for fault, rule, one in zip(faults, rules, certainties):
                judge(name, fault, rule, one, ranks, found, err)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)


main()
