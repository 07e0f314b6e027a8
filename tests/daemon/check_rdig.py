#!/usr/bin/env python3
"""`rollcall digest` on each node, then `rollcall analyze` of its files, against `rollcall analyze` of the traces.

usage: check_rdig.py ROLLCALLD ROLLCALL LIBRARY CATALOGUE PROGRAM

A program of the catalogue and its healthy twin on 4 ranks, recorded as the traces of 1, 2 and 4 nodes, by agents
without a root. What is said of the files has to be what is said of the traces: code, certainty, culprits, communicator
and call of each verdict.
"""
import json
import os
import subprocess
import sys

from real_job import Job

rollcalld, rollcall, library, catalogue, program = sys.argv[1:6]
RANKS = 4


def run(*arguments):
    done = subprocess.run([rollcall, *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def need(condition, what, *seen):
    if not condition:
        sys.exit(f"FAILED: {what}: {seen}")


def verdicts(out):
    """What a verdict says, without its number and the time."""
    return sorted([v["code"], v["certainty"], v["culprits"], v.get("comm"), v.get("seq")]
                  for v in map(json.loads, out.splitlines()) if v["schema"] == "rollcall.verdict/1")


def summary(out):
    return json.loads(out.splitlines()[-1])


def row():
    table = subprocess.run([catalogue, "--list"], capture_output=True, text=True, check=True).stdout
    return next(r for r in (line.split("\t") for line in table.splitlines()) if r[0] == program)


def told(out, codes):
    notes = row()[3].startswith("note")
    found = {v[0] for v in verdicts(out) if notes or v[1] != "note"}
    return all(any(c in found for c in one.split("|")) for one in codes.split("+"))


def record(job, traces, mode):
    agents = [job.agent(n, "--trace", t) for n, t in enumerate(traces)]
    ranks = job.ranks(RANKS, catalogue, program, mode)
    codes = row()[1]
    if mode == "sick" and codes != "-":
        job.wait_for("the verdict in the traces", lambda: told(run("analyze", "--json", *traces)[1], codes) or
                     all(r.poll() is not None for r in ranks))
    else:
        job.ended_well(ranks)
    for p in ranks:
        p.kill()
        p.wait()
    for a in agents:
        a.terminate()
        a.wait()


def digest(job, trace, name, *options):
    out = f"{job.tmp}/{name}.rdig"
    status, _, err = run("digest", "--output", out, *options, trace)
    need(status in (0, 4), "digest", status, err)
    return out


def play(nodes, mode):
    with Job(rollcalld, rollcall, library, f"rdig-{program}", nodes=nodes) as job:
        traces = [f"{job.tmp}/traces{n}" for n in range(nodes)]
        record(job, traces, mode)
        want = run("analyze", "--json", *traces)
        files = [digest(job, t, f"node{n}") for n, t in enumerate(traces)]
        got = run("analyze", "--json", *files)
        need(got[0] == want[0], "exit code", got, want)
        need(verdicts(got[1]) == verdicts(want[1]), "verdicts", verdicts(got[1]), verdicts(want[1]))
        for key in ("runs", "ranks", "findings", "missing"):
            need(summary(got[1])[key] == summary(want[1])[key], key, summary(got[1]), summary(want[1]))
        need(summary(got[1])["digests"] == nodes and summary(got[1])["unreached"] == [], "digests", got)
        need(run("analyze", "--json", *reversed(files)) == got, "the order of files", got)
        known = subprocess.run([rollcall, "digest", "--output", f"{job.tmp}/x.rdig", "--at", "beef:7", traces[0]],
                               capture_output=True, text=True)
        need(known.returncode == 4 and "--at beef:7: no rank of these traces is a member" in known.stderr and
             "ranks)" in known.stderr, "a key that is not there", known)
        sizes = [os.path.getsize(f) for f in files]
        print(f"{program} {mode} on {nodes} nodes: {verdicts(got[1])}, files of {max(sizes)} bytes at most")


for n in (1, 2, 4):
    play(n, "sick")
play(4, "healthy")
