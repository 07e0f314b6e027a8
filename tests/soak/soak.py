#!/usr/bin/env python3
"""soak.py: a job that trains for long beside busy processes, while its agent, relay and root are stopped and killed.

usage: soak.py BUILD [MINUTES [SEED]]    (scripts/soak)

Eight ranks of moe_train on two cores (cluster.py), eight processes that do nothing but take these, and from time to
time a victim: the worker of the agent, the relay or the root is killed, or stopped for up to 20 s; in the second half
of the time it is only stopped, because who is killed cannot grow. At the end nobody may have been accused, every record
of the ranks must be known to the root, and nothing may be left. The memory that is told is each worker's own: rings
that an agent maps are the ranks'. Growth is a line through what the last workers held from the age of a minute on.
"""
import os
import random
import signal
import subprocess
import sys
import time

import cluster
from cluster import Cluster, children, read, until

RANKS, BUSY = 8, 8
CORES = sorted(os.sched_getaffinity(0))[:2]
LOOK_S = 5
YOUNG_S = 60      # how long a worker takes to have what it needs
PAUSE_S = (5, 25)  # between two victims
STOP_S = (1, 20)
SPIN = f"while os.getppid() == {os.getpid()}: pass"
DEATHS = 8        # of one daemon in a minute: a supervisor gives up after ten


def own_kib(pid):
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return 0


class Daemon:
    def __init__(self, name, process):
        self.name, self.process = name, process
        self.seen = {}     # pid -> when it was seen first
        self.samples = []  # (time, age of the worker, KiB)
        self.killed = self.stopped = 0
        self.died = []

    def worker(self):
        return next(iter(children(self.process.pid)), 0)

    def look(self, now):
        pid = self.worker()
        kib = own_kib(pid)
        if kib:
            self.samples.append((now, now - self.seen.setdefault(pid, now), kib))

    def growth(self):
        """Of the last worker, in words: KiB an hour, and from what to what."""
        last = max(self.seen.values(), default=0)
        old = [(age, kib) for at, age, kib in self.samples if age >= YOUNG_S and at - age >= last - 0.001]
        if len(old) < 3:
            return "too young to tell how it grows"
        n, ages, kibs = len(old), sum(a for a, _ in old), sum(k for _, k in old)
        under = sum(a * a for a, _ in old) - ages * ages / n
        slope = (sum(a * k for a, k in old) - ages * kibs / n) / under
        lasted = old[-1][0] - old[0][0]
        return f"{3600 * slope:+.0f} KiB an hour ({old[0][1]} KiB to {old[-1][1]} KiB in {lasted:.0f} s)"


def row(words, widths=(10, 9, 9, 9, 12, 10, 6)):
    print("".join(f"{w:>{n}}" for w, n in zip(words, widths)), flush=True)


def strike(daemon, rng, now, may_kill, done):
    """Kills the worker, or stops it for a while; returns what ends that, and when. Notes it in done."""
    pid = daemon.worker()
    daemon.died = [t for t in daemon.died if now - t < 60]
    if not pid:
        return None
    if may_kill and rng.random() < 0.5 and len(daemon.died) < DEATHS:
        cluster.kill(pid, signal.SIGKILL)
        daemon.died.append(now)
        daemon.killed += 1
        done.append(f"{time.strftime('%T', time.gmtime())} {daemon.name} killed")
        return None
    cluster.kill(pid, signal.SIGSTOP)
    daemon.stopped += 1
    lasts = rng.uniform(*STOP_S)
    done.append(f"{time.strftime('%T', time.gmtime())} {daemon.name} stopped for {lasts:.1f} s")
    return now + lasts, pid


def written(c):
    """How many records the ranks have begun to write, by their rings; the ring of a rank that has ended is gone."""
    heads = {}
    for name in os.listdir(c.node):
        if name.endswith(".ring"):
            try:
                with open(f"{c.node}/{name}", "rb") as f:
                    f.seek(512)
                    heads[name] = int.from_bytes(f.read(8), "little")
            except OSError:
                pass
    return heads


def main():
    build, minutes = os.path.abspath(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 60
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1 << 32)
    sys.argv[1:] = [build, str(minutes), str(seed)]
    cluster.inside()
    rng = random.Random(seed)
    os.sched_setaffinity(0, CORES)
    failed = []
    with Cluster(build) as c:
        c.serve_all("--trace", f"{c.tmp}/trace")
        daemons = [Daemon(*d) for d in (("agent", c.agent), ("relay", c.relay), ("root", c.root))]
        ranks = c.ranks(RANKS, f"{c.bin}/moe_train", "--steps", "100000000", "--timeout", "600")
        busy = [subprocess.Popen([sys.executable, "-c", f"import os\n{SPIN}"]) for _ in range(BUSY)]
        c.started += busy
        print(f"{RANKS} ranks and {BUSY} busy processes on cores {CORES}, {minutes:g} minutes, seed {seed}")
        row(("minute", "agent", "relay", "root KiB", "calls", "findings", "lost"))
        began = time.monotonic()
        until(lambda: c.summary().get("ranks") == RANKS)
        end, minute = began + 60 * minutes, 0
        look = began
        strikes = began + rng.uniform(*PAUSE_S)
        goes_on, done = [], []
        heads = {}
        while time.monotonic() < end:
            now = time.monotonic()
            if now >= look:
                look = now + LOOK_S
                for d in daemons:
                    d.look(now)
                heads.update(written(c))
            if now >= strikes:
                goes_on += filter(None, [strike(rng.choice(daemons), rng, now, now - began < 30 * minutes, done)])
                strikes = now + rng.uniform(*PAUSE_S)
            for at, pid in [g for g in goes_on if now >= g[0]]:
                cluster.kill(pid, signal.SIGCONT)
                goes_on.remove((at, pid))
            if now - began >= 60 * minute:
                minute += 1
                s = c.summary()
                row((minute - 1, *(own_kib(d.worker()) for d in daemons), s.get("calls", "-"),
                     len(c.findings()), s.get("lost", "-")))
            if any(p.poll() is not None for p in ranks):
                failed.append(f"a rank has ended: {[p.poll() for p in ranks]}: {c.log('rank0')[-500:]}")
                break
            time.sleep(0.1)
        for _, pid in goes_on:
            cluster.kill(pid, signal.SIGCONT)
        for p in busy:
            p.kill()
            p.wait()
        for v in c.findings():
            said = time.strftime("%T", time.gmtime(v["time_ns"] / 1e9))
            failed.append(f"{said} {v['certainty']} {v['code']} {v['culprits_text']}: {v['text']}")
            failed += [f"    before it: {what}" for what in done if what[:8] <= said][-4:]
        # Standing still, so that what was written can be compared with what is known. That they do is told, in time.
        for p in ranks:
            cluster.kill(p.pid, signal.SIGSTOP)
        heads.update(written(c))
        total, known = sum(heads.values()), {}

        def all_known():
            known.update(c.summary())
            return known.get("records", 0) + known.get("lost", 0) >= total
        until(all_known)
        print(f"records: {total} written, {known.get('records')} known, {known.get('lost')} counted as lost")
        if known.get("records", 0) + known.get("lost", 0) != total:
            failed.append("records are missing, and were not counted")
        for p in ranks:
            cluster.kill(p.pid, signal.SIGKILL)
            p.wait()
        c.end(c.agent, c.relay, c.root)
        for d in daemons:
            most = max((kib for _, _, kib in d.samples), default=0)
            print(f"{d.name:6} killed {d.killed} times, stopped {d.stopped} times, {most} KiB at most; {d.growth()}")
        failed += [w for w in c.left() if not w.startswith(f"in {c.node}: soak.0")]
    for line in failed:
        print(f"FAILED: {line}")
    words = "failed" if failed else "nobody accused, nothing missing, nothing left"
    print(f"{minutes:g} minutes, seed {seed}: {words}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
