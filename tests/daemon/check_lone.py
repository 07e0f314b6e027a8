#!/usr/bin/env python3
"""A rank that hangs by itself, behind a host function that does not return: rank-stuck, although nobody waits for it.

usage: check_lone.py ROLLCALLD ROLLCALL LIBROLLCALL LONE_RANK sync|free RANKS

Real ranks on hostnccl, and a root with little patience. The finding names the rank and the call, and stands. Then the
host function returns: that was a long kernel and no hang, and the finding is withdrawn; the job ends well.
"""
import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT_S = 300  # for anything that is waited for: so late that only what never comes reaches it
SUSPECT_MS = 200  # patience is twelve times that

rollcalld, rollcall, library, program, how, ranks = sys.argv[1:7]
ranks = int(ranks)
processes = []


def serve(*arguments):
    """A rollcalld that is ready: a rank that finds no agent yet starts one of its own, and ours would leave."""
    ready, write = os.pipe()
    p = subprocess.Popen([rollcalld, *arguments, "--ready-fd", str(write)], pass_fds=[write], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    processes.append(p)
    os.close(write)
    if not os.read(ready, 1):
        sys.exit(f"FAILED: {' '.join(arguments)} never was ready: {p.stderr.read()}")
    os.close(ready)
    return p


def verdicts():
    try:
        with open(told) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def standing():
    """The findings about ranks that hang by themselves, as they stand."""
    said = verdicts()
    retired = {v[way] for v in said for way in ("supersedes", "confirms", "withdraws")}
    return [v for v in said if v["code"] == "rank-stuck" and v["certainty"] != "note" and v["number"] not in retired]


def kept_stacks(number):
    """The ranks whose stacks the root has taken for this verdict."""
    out = subprocess.run([rollcall, "verdicts", "--json", "--daemon", endpoint], capture_output=True, text=True).stdout
    rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return [s["rank"] for v in rows if v.get("number") == number for s in v.get("stacks", [])]


def wait_for(what, condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.02)
    sys.exit(f"FAILED: {what} never came; verdicts: {verdicts()}")


def play():
    last = ranks - 1
    serve("--root", "--dir", tmp, "--listen", endpoint, "--json", told, "--stacks", "auto", "--suspect-ms",
          str(SUSPECT_MS))
    serve("--agent", "--dir", node, "--connect", endpoint)
    jobs = [subprocess.Popen([program, meet, how], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(r),
                                  "LD_PRELOAD": library, "ROLLCALL_DIR": node, "ROLLCALL_JOB": "lone",
                                  "ROLLCALL_DAEMON": endpoint}) for r in range(ranks)]
    processes.extend(jobs)
    found = wait_for("the finding", lambda: [v for v in standing() if v["culprits"] == [last]])
    wanted = f"Rank {last} has been inside " + {"sync": "StreamSynchronize", "free": "Free"}[how]
    if found[0]["certainty"] != "suspected" or not found[0]["text"].startswith(wanted):
        sys.exit(f"FAILED: another finding than was wanted: {found}")
    if found[0]["waiting"]:
        sys.exit(f"FAILED: somebody is said to wait: {found}")
    wait_for("the stack of the rank", lambda: kept_stacks(found[0]["number"]) == [last])
    open(f"{meet}/go", "w").close()
    wait_for("the withdrawal", lambda: not standing())
    for r in jobs:
        if r.wait(LIMIT_S) != 0:
            sys.exit(f"FAILED: a rank ended with {r.returncode}: {r.stderr.read()}")
    if standing():
        sys.exit(f"FAILED: found again at the end: {standing()}")
    print(f"{how} on {ranks} ranks: told, and withdrawn: {found[0]['text']}")


with tempfile.TemporaryDirectory() as tmp:
    os.chmod(tmp, 0o700)
    endpoint, told, meet, node = f"ipc://{tmp}/root.sock", f"{tmp}/verdicts.json", f"{tmp}/meet", f"{tmp}/node"
    for d in [meet, node]:
        os.mkdir(d, 0o700)
    try:
        play()
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.wait()
