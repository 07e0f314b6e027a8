#!/usr/bin/env python3
"""A rank ends while records of a run that is compared by digests are looked at: none of its last records is lost.

usage: check_digest_end.py ROLLCALLD ROLLCALL CATALOGUE

The last rank's group is refused, and the rank ends without making the group again. The agent is stopped before, and
goes on after: the last records, the end of the process and its exit status, which the launcher knows, come to the agent
in one look. The end must be told behind the records: without them, nothing could be said of the rank.
"""
import os
import signal
import subprocess
import sys

from real_job import Job

RANKS = 4
rollcalld, rollcall, catalogue = sys.argv[1:4]


def children(parent, name):
    """The children that still run. /proc cuts a name after 15 bytes."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                head, _, rest = f.read().rpartition(")")
        except OSError:
            continue
        state, of = rest.split()[:2]
        if int(of) == parent and state != "Z" and head.partition("(")[2] == os.path.basename(name)[:15]:
            found.append(int(pid))
    return found


def judged(job):
    return any(s.get("digests", {}).get("records") == "judged" for s in job.asked("top"))


def play(job):
    job.root("--digest")
    run = subprocess.Popen([rollcall, "run", "-n", str(RANKS), "--hostnccl", "--quiet", "--daemon", job.endpoint, "--",
                            catalogue, "refused-group", "sick"], stdout=subprocess.DEVNULL)
    job.processes.append(run)
    agent = None
    try:
        job.wait_for("records that are looked at", lambda: judged(job))
        agent = children(run.pid, rollcalld)[0]
        os.kill(agent, signal.SIGSTOP)
        job.wait_for("the end of a rank", lambda: len(children(run.pid, catalogue)) == RANKS - 1)
        os.kill(agent, signal.SIGCONT)
        job.wait_for("a word about the rank", lambda: [v for v in job.verdicts() if v["culprits"] == [RANKS - 1]])
        said = job.verdicts()
        if any(v["code"] == "data-incomplete" for v in said):
            sys.exit(f"FAILED: records are lost: {said}")
        job.wait_for("the finding", lambda: [v for v in job.findings() if v["code"] == "call-refused"])
    finally:
        if agent and agent in children(run.pid, rollcalld):
            os.kill(agent, signal.SIGCONT)
        run.send_signal(signal.SIGTERM)
        run.wait(job.limit_s)
    print("the last records of a rank that ended came before its end: " + ", ".join(v["code"] for v in job.verdicts()))


with Job(rollcalld, rollcall, None, "end") as job:
    play(job)
