#!/usr/bin/env python3
"""kills.py: a process of a small real cluster is killed with SIGKILL at a random instant, again and again.

usage: kills.py BUILD [KILLS [SEED]]    (scripts/kills)

Each kill has a cluster of its own (cluster.py), a job of two ranks that train, and one victim, which changes in turn:

  rank                  of ranks that were started by hand, or by `rollcall run`
  agent, relay, root    the worker; its supervisor starts another one
  run, warden           of `rollcall run`, whose end is its ranks' end; or the warden alone, which nobody needs

The instant lies anywhere in the victim's life while the job lasts; the first kills find out how long that is. A job
is compared by its records, or by digests. What a kill may do to the job: nothing, where the victim is not a part of
it. To what is known of the job: at most one record is lost, and nobody is accused who is alive. At the end no process,
file or socket is left. How soon a daemon answers again is measured and told; no machine is too slow for this test.
"""
import json
import os
import random
import signal
import struct
import sys
import time

import cluster
import zmtp
from cluster import Cluster, alive, children, name_of, read, until

STEPS = 60
JOB = ("--steps", str(STEPS), "--layers", "1", "--ep", "2", "--exact", "--timeout", "250")
VICTIMS = ("agent", "root", "relay", "rank", "warden", "run")
MODES = ("--stream", "--digest")
RING_HEAD = 512  # docs/RING.md
SAYS_S = 60      # for what is to be said of a rank that is dead: patience, and a loaded machine
UNSEEN_S = 8     # for a false word about one that had not called yet: suspicion takes 5 s
MOST_S = 60      # a daemon that has not come back until then will not


class Trial:
    """One kill. What it has found is in `faults`, by kind: harmed, lost, findings, left."""

    def __init__(self, c, job, victim, mode, by_run, at):
        self.c, self.job, self.victim, self.mode, self.by_run, self.at = c, job, victim, mode, by_run, at
        self.faults = {"harmed": [], "lost": [], "findings": [], "left": []}
        self.lost = 0
        self.back = None
        self.hit = False
        self.lasted = 0.0
        self.rank = 0

    def fault(self, kind, text):
        self.faults[kind].append(text)

    # who is killed

    def begin(self):
        """Starts the job. Where it ends by itself, its processes: the ranks, or the run."""
        self.c.serve_all(self.mode, agent=not self.by_run)
        self.began = time.monotonic()
        command = [f"{self.c.bin}/moe_train", *JOB]
        if self.by_run:
            self.job_processes = [self.c.spawn("rank0", [
                f"{self.c.bin}/rollcall", "run", "--brief", "-n", "2", "--hostnccl", "--daemon", self.c.entrance, "--",
                *command], {"ROLLCALL_JOB": "soak"})]
        else:
            self.job_processes = self.c.ranks(2, *command)

    def pid(self):
        """The victim's; 0 when it is not there."""
        daemon = {"agent": lambda: self.c.agent, "root": lambda: self.c.root, "relay": lambda: self.c.relay}
        if self.victim in daemon:
            return next(iter(children(daemon[self.victim]().pid)), 0)
        first = self.job_processes[0].pid
        if self.victim == "run":
            return first if self.job_processes[0].poll() is None else 0
        if self.victim == "warden":
            return next((p for p in children(first) if name_of(p) == "rollcall-warden"), 0)
        ranks = [p for p in children(first) if name_of(p) == "moe_train"] if self.by_run else \
            [p.pid for p in self.job_processes if name_of(p.pid) == "moe_train"]
        mine = [p for p in ranks if f"\0RANK={self.rank}\0" in "\0" + read(f"/proc/{p}/environ")]
        return mine[0] if mine else 0

    def over(self):
        return all(p.poll() is not None for p in self.job_processes)

    # what is looked at

    def kill(self):
        pid = until(lambda: self.pid() or self.over(), step=0.001)
        if pid in (0, True):
            return
        time.sleep(self.at)  # the instant: no condition is meant by it
        if self.over() or not alive(pid) or self.pid() != pid:
            return
        self.hit = cluster.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        if self.hit and self.victim in ("agent", "root", "relay"):
            if until(lambda: self.serves(pid), MOST_S, 0.002):
                self.back = time.monotonic() - killed
            else:
                self.fault("harmed", f"the {self.victim} did not come back within {MOST_S} s")

    def serves(self, before):
        """Whether a successor does its work: it holds the directory, or it answers."""
        if self.pid() in (0, before):
            return False
        if self.victim == "agent":
            return read(f"{self.c.node}/agent.lock").strip() == str(self.pid())
        try:
            zmtp.ask(self.c.door if self.victim == "relay" else f"{self.c.heart}/root", {"op": "status"}, 1.0)
            return True
        except OSError:
            return False

    def head(self):
        """How many records the killed rank has begun to write; None when it had no ring."""
        for folder, _, names in os.walk(self.c.rings):
            for name in names:
                if name.endswith(".ring") and name.split(".")[-3] == str(self.rank):
                    with open(f"{folder}/{name}", "rb") as f:
                        f.seek(RING_HEAD)
                        return struct.unpack("<Q", f.read(8))[0]
        return None

    def known_of(self, what):
        """What the root knows of the killed rank."""
        return next((r[what] for r in self.c.status().get("ranks", []) if r["rank"] == self.rank), 0)

    def see_dead_rank(self):
        """One rank is dead, and the other waits for it: that is told, and nothing else."""
        head = self.head()
        told = until(lambda: self.c.findings() or self.over(), SAYS_S if head else UNSEEN_S, 0.05)
        if head and told and self.mode == "--stream":
            until(lambda: self.known_of("records") >= head, SAYS_S, 0.05)
            self.lost = head - self.known_of("records")
        if head and not self.over() and not self.c.findings():
            self.fault("findings", f"nothing was said of the dead rank ({head} records)")
        for p in self.job_processes:
            p.terminate()
        until(self.over)
        # Of one that had made no call nobody knows that it ever was.
        self.no_findings_but("rank-dead" if head else "init-missing", [self.rank])

    def no_findings_but(self, code=None, culprits=None):
        for v in self.c.findings():
            if v["code"] != code or v["culprits"] != culprits:
                self.fault("findings", f"{v['certainty']} {v['code']} {v['culprits_text']}: {v['text']}")

    def result(self):
        """What the job was for: how it ended, and each loss, digit by digit."""
        lines = [line for line in read(f"{self.c.tmp}/rank0.out").splitlines() if line.startswith("step ")]
        return [p.returncode for p in self.job_processes], lines

    def see_whole_job(self):
        """The victim is no part of the job: it has ended as ever, and all of it is known."""
        if not until(self.over):
            self.fault("harmed", "the job hangs")
            return
        codes, lines = self.result()
        if any(codes) or lines != self.job.lines:
            self.fault("harmed", f"status {codes}, {len(lines)} of {len(self.job.lines)} steps as ever: "
                       + read(f"{self.c.tmp}/rank0.err")[-300:])
        summary = {}

        def whole():
            nonlocal summary
            summary = self.c.summary()
            return summary.get("calls", 0) >= self.job.calls
        until(whole, MOST_S, 0.02)
        self.lost = self.job.calls - summary.get("calls", 0)
        if summary.get("lost", 0) != max(self.lost, 0):
            self.fault("lost", f"{self.lost} are missing, {summary.get('lost')} were counted")
        self.no_findings_but()
        # The agent removes a ring when the root has said that it has all of it; an agent that ends does not wait for
        # that.
        until(lambda: self.by_run or not [n for n in os.listdir(self.c.node) if n.endswith(".ring")], MOST_S, 0.02)

    def end(self):
        self.c.end(*([] if self.by_run else [self.c.agent]), self.c.relay, self.c.root)
        for what in self.c.left():
            if self.victim == "rank" and not self.by_run and what.startswith(f"in {self.c.node}: soak.0"):
                continue  # the evidence, which stays (docs/DAEMON.md)
            self.fault("left", what)

    def play(self):
        self.begin()
        self.kill()
        if self.hit and self.victim == "rank":
            self.see_dead_rank()
        elif self.hit and self.victim == "run":
            until(lambda: len(cluster.processes()) == 4)  # the warden has ended all, and itself; root and relay stay
            self.no_findings_but()
        else:
            self.see_whole_job()
        self.lasted = time.monotonic() - self.began
        self.end()
        if self.lost > 1 or self.lost < 0:
            self.fault("lost", f"{self.lost} records")


class Job:
    """What the job does when nobody is killed; how long it lasts, which changes with the machine's load."""

    def __init__(self, build):
        self.lines, self.calls, self.lasts = [], 0, 0.0
        for by_run in (False, True):
            with Cluster(build) as c:
                t = Trial(c, self, "none", MODES[0], by_run, 0)
                t.begin()
                until(t.over)
                codes, lines = t.result()
                self.lasts = time.monotonic() - t.began
                until(lambda: c.summary().get("ranks_live") == 0, MOST_S)
                calls = c.summary().get("calls")
                if any(codes) or len(lines) != STEPS or (self.lines and (lines, calls) != (self.lines, self.calls)):
                    sys.exit(f"FAILED without a kill: {codes}, {len(lines)} steps, {calls} calls: {c.log('rank0')}")
                self.lines, self.calls = lines, calls
                t.end()
                if t.faults["left"]:
                    sys.exit(f"FAILED without a kill: left: {t.faults['left']}")


class Tally:
    def __init__(self):
        self.kills, self.lost, self.back = 0, 0, []
        self.faults = {"harmed": 0, "findings": 0, "lost": 0, "left": 0}

    def add(self, t):
        self.kills += 1
        self.lost += max(t.lost, 0)
        self.back += [t.back] if t.back is not None else []
        for kind, texts in t.faults.items():
            self.faults[kind] += bool(texts)

    def row(self, name):
        back = sorted(self.back)
        took = f"{1000 * back[len(back) // 2]:8.0f} {1000 * back[-1]:8.0f} {sum(b > 1 for b in back):6}" if back else ""
        return (f"{name:8}{self.kills:6}{self.faults['harmed']:8}{self.lost:14}{self.faults['lost']:15}"
                f"{self.faults['findings']:16}{self.faults['left']:10}  {took}")


HEADING = f"{'victim':8}{'kills':>6}{'harmed':>8}{'records lost':>14}{'more than one':>15}{'wrong findings':>16}" \
          f"{'left by':>10}  {'back p50':>8} {'max ms':>8} {'> 1 s':>6}"


def table(tallies):
    print(HEADING)
    for name, tally in tallies.items():
        print(tally.row(name))
    sys.stdout.flush()


def main():
    build, kills = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 12
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    sys.argv[1:] = [build, str(kills), str(seed)]
    cluster.inside()
    rng = random.Random(seed)
    job = Job(build)
    print(f"{kills} kills, seed {seed}; the job lasts {job.lasts:.1f} s and makes {job.calls} calls", flush=True)
    tallies = {v: Tally() for v in VICTIMS}
    done = turn = bad = 0
    began = told = time.monotonic()
    while done < kills:
        victim = VICTIMS[turn % len(VICTIMS)]
        by_run = victim in ("run", "warden") or (victim == "rank" and rng.random() < 0.5)
        mode, at, rank = rng.choice(MODES), rng.uniform(0, job.lasts), rng.randrange(2)
        with Cluster(build) as c:
            t = Trial(c, job, victim, mode, by_run, at)
            t.rank = rank
            t.play()
            faults = {k: v for k, v in t.faults.items() if v}
            if faults:
                bad += 1
                print(f"kill {done + 1}: {victim}{' of a run' if by_run else ''} {rank if victim == 'rank' else ''} "
                      f"{mode} after {at:.3f} s: {json.dumps(faults)}", flush=True)
                if os.environ.get("ROLL_KILLS_LOGS"):
                    print("".join(f"-- {n}\n{c.log(n)}" for n in ("root", "relay", "agent", "rank0", "rank1")),
                          flush=True)
        if victim not in ("run", "rank"):
            job.lasts += (t.lasted - job.lasts) / 8
        if not t.hit:  # it had ended before
            continue
        turn += 1
        done += 1
        tallies[victim].add(t)
        if time.monotonic() - told > 60:
            told = time.monotonic()
            print(f"{done} of {kills} kills in {told - began:.0f} s, {bad} with a fault, "
                  f"load {os.getloadavg()[0]:.0f}", flush=True)
    print(f"{kills} kills (seed {seed}) in {time.monotonic() - began:.0f} s")
    table(tallies)
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
