#!/usr/bin/env python3
"""An agent that is stopped, or killed, while its ranks work: nobody is accused; what it then tells is judged as ever.

usage: check_silent.py ROLLCALLD ROLLCALL LIBROLLCALL SILENT_RANK stop|kill

Two nodes of two ranks: two ring directories with an agent each, one root. The agent of the second is stopped, or
killed; its ranks go on. When they count as not heard, they are let go on for longer than suspicion takes. stop: the
agent goes on, and a rank that then really stays away is told. Analysis of the root's trace says the same.
"""
import json
import os
import signal
import subprocess
import sys
import time

from real_job import Job

LIMIT_S = 200
UNHEARD_S = 8  # for a false word to come: suspicion takes 5 s

rollcalld, rollcall, library, program, how = sys.argv[1:6]


def heard(job):
    return [r["rank"] for status in job.asked("top") for r in status["ranks"] if r["heard"] and r["state"] == "running"]


def rounds(job):
    try:
        return [int(open(f"{job.meet}/rounds.{r}").read()) for r in range(4)]
    except FileNotFoundError:
        return [0]


def go_on(job, by):
    goal = max(rounds(job)) + by
    job.wait_for(f"round {goal} of the ranks", lambda: min(rounds(job)) >= goal)


def nobody_is_accused(job, when):
    if job.findings():
        sys.exit(f"FAILED: {when}: " + "; ".join(f"{v['certainty']} {v['code']} {v['culprits_text']}: {v['text']}"
                                                 for v in job.findings()))


def told_alike(job, trace):
    """Analysis of the root's trace begins with what the root said."""
    fields = ("code", "certainty", "culprits", "text", "time_ns")
    again = subprocess.run([rollcall, "analyze", "--json", trace], capture_output=True, text=True)
    found = [json.loads(line) for line in again.stdout.splitlines() if line.startswith("{")]
    found = [{k: v[k] for k in fields} for v in found if "code" in v]
    said = [{k: v[k] for k in fields} for v in job.verdicts()]
    if said != found[: len(said)]:
        sys.exit(f"FAILED: analysis says something else:\n{said}\n{found}\n{again.stderr}")
    return said


def play(job):
    trace = f"{job.tmp}/trace"
    os.mkdir(trace, 0o700)
    root = job.root("--trace", trace)
    agents = [job.agent(0), job.agent(1)]
    ranks = job.ranks(4, program, job.meet)
    job.wait_for("four ranks", lambda: heard(job) == [0, 1, 2, 3])
    go_on(job, 32)
    agents[1].send_signal(signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    job.wait_for("two ranks that are not heard", lambda: heard(job) == [0, 1])
    if how == "stop":  # somebody waits for them, as far as can be seen
        job.touch("hold.2")
        job.wait_for("the note", lambda: any(v["code"] == "agent-silent" for v in job.verdicts()))
        os.unlink(f"{job.meet}/hold.2")
    time.sleep(UNHEARD_S)
    go_on(job, 32)
    nobody_is_accused(job, "while an agent is silent")
    if how == "stop":
        agents[1].send_signal(signal.SIGCONT)
        job.wait_for("four ranks again", lambda: heard(job) == [0, 1, 2, 3])
        go_on(job, 32)
        nobody_is_accused(job, "when it is back")
        job.touch("hold.3")
        job.wait_for("the rank that stays away", lambda: any(v["code"] == "rank-busy" and v["culprits"] == [3]
                                                             for v in job.findings()))
        os.unlink(f"{job.meet}/hold.3")
        if len(job.findings()) != 1:
            nobody_is_accused(job, "one rank stayed away")
    job.touch("stop")
    job.ended_well(ranks)
    if how == "kill":
        nobody_is_accused(job, "when the ranks have ended")
    for p in [agents[0], root]:
        p.terminate()
        p.wait(LIMIT_S)
    said = told_alike(job, trace)
    print(f"{how}: {max(rounds(job))} rounds, {len(said)} verdicts: " + ", ".join(v["code"] for v in said))


with Job(rollcalld, rollcall, library, "silent", nodes=2, limit_s=LIMIT_S) as job:
    play(job)
