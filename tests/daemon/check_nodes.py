#!/usr/bin/env python3
"""The traces of several nodes through `rollcall analyze`: one run, whoever reads them and in whichever directories.

usage: check_nodes.py ROLLCALLD ROLLCALL LIBRARY CATALOGUE

Two agents, each with a trace directory of its own and no root, record a job whose last rank makes one wrong call. The
directories are then given as a scheduler would have collected them: each by itself, as one directory above both, one
of them twice, and one of them not at all.
"""
import json
import os
import shutil
import subprocess
import sys

from real_job import Job

rollcalld, rollcall, library, catalogue = sys.argv[1:5]


def analyze(*arguments):
    done = subprocess.run([rollcall, "analyze", "--json", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def need(condition, what, *seen):
    if not condition:
        sys.exit(f"FAILED: {what}: {seen}")


def findings(out):
    return [(v["code"], v["certainty"], v["culprits"]) for v in map(json.loads, out.splitlines())
            if v["schema"] == "rollcall.verdict/1" and v["certainty"] != "note"]


def record(job, traces):
    agents = [job.agent(n, "--trace", t) for n, t in enumerate(traces)]
    ranks = job.ranks(4, catalogue, "wrong-count", "sick")
    right = ("count-mismatch", "proven", [3])
    job.wait_for("the finding in the traces", lambda: right in findings(analyze(*traces)[1]))
    for p in ranks:
        p.kill()
        p.wait()
    for a in agents:
        a.terminate()
        a.wait()


def play(job):
    above = f"{job.tmp}/traces"
    os.mkdir(above)
    traces = [f"{above}/one", f"{above}/two"]
    record(job, traces)

    status, out, err = analyze("-j", "1", *traces)
    need(status == 1 and ("count-mismatch", "proven", [3]) in findings(out) and err == "", "both", status, out, err)
    summary = json.loads(out.splitlines()[-1])
    need((summary["runs"], summary["ranks"], summary["missing"]) == (1, 4, 0), "one run of 4 ranks", summary)
    for given in (["-j", "2", *traces], ["-j", "64", *traces], [*traces], [above], [*reversed(traces)],
                  [*traces, traces[1] + "/../two"]):
        need(analyze(*given) == (status, out, err), "the same output", given, analyze(*given))

    shutil.copytree(traces[0], f"{job.tmp}/copy")
    again = analyze(*traces, f"{job.tmp}/copy")
    need(again[:2] == (status, out) and again[2].count("the same trace as") == 1, "a copy is told, and read once",
         again)

    for keep, lacks in ((0, "ranks 2-3 (2 of 4)"), (1, "ranks 0-1 (2 of 4)")):
        status, out, err = analyze(traces[keep])
        need(f"no record of {lacks}" in err, "who is missing", err)
        need(json.loads(out.splitlines()[-1])["missing"] == 2, "how many are missing", out)
        accused = [f for f in findings(out) if f[1] == "proven" and f[2] not in ([], [3])]
        need(not accused, "nobody is accused without need", accused)
        need(status == 1 if findings(out) else status == 4, "not clean", status)
    need(analyze("-j", "0", *traces)[0] == 2, "-j 0 is refused")
    print("traces of two nodes are one run, with any number of threads; a copy and a missing node are told")


with Job(rollcalld, rollcall, library, "nodes", nodes=2) as job:
    play(job)
