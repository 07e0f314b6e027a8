#!/usr/bin/env python3
"""A rank that hangs by itself, behind a host function that does not return: rank-stuck, although nobody waits for it.

usage: check_lone.py ROLLCALLD ROLLCALL LIBROLLCALL LONE_RANK sync|free RANKS

Real ranks on hostnccl, and a root with little patience. The finding names the rank and the call, and stands. Then the
host function returns: that was a long kernel and no hang, and the finding is withdrawn; the job ends well.
"""
import sys

from real_job import Job

SUSPECT_MS = 200  # patience is twelve times that

rollcalld, rollcall, library, program, how, ranks = sys.argv[1:7]
ranks = int(ranks)


def standing(job):
    """The findings about ranks that hang by themselves, as they stand."""
    said = job.verdicts()
    retired = {v[way] for v in said for way in ("supersedes", "confirms", "withdraws")}
    return [v for v in said if v["code"] == "rank-stuck" and v["certainty"] != "note" and v["number"] not in retired]


def kept_stacks(job, number):
    """The ranks whose stacks the root has taken for this verdict."""
    return [s["rank"] for v in job.asked("verdicts") if v.get("number") == number for s in v.get("stacks", [])]


def play(job):
    last = ranks - 1
    job.root("--stacks", "auto", "--suspect-ms", str(SUSPECT_MS))
    job.agent()
    running = job.ranks(ranks, program, job.meet, how)
    found = job.wait_for("the finding", lambda: [v for v in standing(job) if v["culprits"] == [last]])
    wanted = f"Rank {last} has been inside " + {"sync": "cudaStreamSynchronize", "free": "cudaFree"}[how]
    if found[0]["certainty"] != "suspected" or not found[0]["text"].startswith(wanted):
        sys.exit(f"FAILED: another finding than was wanted: {found}")
    if found[0]["waiting"]:
        sys.exit(f"FAILED: somebody is said to wait: {found}")
    job.wait_for("the stack of the rank", lambda: kept_stacks(job, found[0]["number"]) == [last])
    job.touch("go")
    job.wait_for("the withdrawal", lambda: not standing(job))
    job.ended_well(running)
    if standing(job):
        sys.exit(f"FAILED: found again at the end: {standing(job)}")
    print(f"{how} on {ranks} ranks: told, and withdrawn: {found[0]['text']}")


with Job(rollcalld, rollcall, library, "lone") as job:
    play(job)
