#!/usr/bin/env python3
"""Fail-fast, tried with real processes on hostnccl, without any daemon.

usage: run_failfast.py PRELOAD HOSTNCCL_DIR JOB ODD CATALOGUE CASES

CASES: mismatch, healthy, catalogue, life, odd. Sick jobs: within a second a rank is refused, and says what differs,
both values and both places in the code; it ends by itself, the runner ends the rest as a launcher would. Healthy jobs:
nothing is refused and the job checks its own results.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PRELOAD, NCCL_DIR, JOB, ODD, CATALOGUE, CASES = sys.argv[1:7]
RANKS = (2, 3, 4, 8)
LIMIT_S = 300
failures = []


def environment(rank, size, rings, work, mode, extra):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), JOB_DIR=work, HOSTNCCL_DIR=work,
               ROLLCALL_DIR=rings, LD_PRELOAD=PRELOAD, LD_LIBRARY_PATH=NCCL_DIR, ROLLCALL_ON_MISMATCH=mode,
               ASAN_OPTIONS="verify_asan_link_order=0:detect_leaks=0")
    for name in ("ROLLCALL_DAEMON", "ROLLCALL_JOB", "ROLLCALL_QUIET"):
        env.pop(name, None)
    env.update(extra)
    return env


class Job:
    """Ranks of one program, started without a launcher; output in files, so that nothing blocks."""

    def __init__(self, argv, size, mode, rings=None, extra=None):
        self.work = tempfile.mkdtemp(prefix="failfast-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        self.rings = rings or os.path.join(self.work, "rings")
        self.files, self.ranks = [], []
        os.makedirs(self.rings, mode=0o700, exist_ok=True)
        for r in range(size):
            out = open(os.path.join(self.work, f"out{r}"), "w+")
            err = open(os.path.join(self.work, f"err{r}"), "w+")
            self.files.append((out, err))
            self.ranks.append(subprocess.Popen(argv, stdout=out, stderr=err,
                                               env=environment(r, size, self.rings, self.work, mode, extra or {})))

    def wait(self, until_one_fails):
        """Statuses by rank. With until_one_fails the rest is killed soon after the first has ended with an error."""
        begin, first = time.monotonic(), None
        while any(p.poll() is None for p in self.ranks):
            now = time.monotonic()
            if first is None and any(p.poll() not in (None, 0) for p in self.ranks):
                first = now
            if now - begin > LIMIT_S or (until_one_fails and first is not None and now - first > 0.1):
                break
            time.sleep(0.005)
        for p in self.ranks:
            if p.poll() is None:
                p.send_signal(signal.SIGKILL)
        self.took = (first or time.monotonic()) - begin
        return [p.wait() for p in self.ranks]

    def text(self, rank):
        out = []
        for f in self.files[rank]:
            f.flush()
            f.seek(0)
            out.append(f.read())
        return out

    def close(self):
        for pair in self.files:
            for f in pair:
                f.close()
        shutil.rmtree(self.work, ignore_errors=True)


def check(condition, what, job=None):
    if not condition:
        failures.append(what)
        print("FAILED:", what)
        for r in range(len(job.ranks) if job else 0):
            out, err = job.text(r)
            print(f"  rank {r}: status {job.ranks[r].poll()} {out.strip()} {err.strip()}")
    return condition


# name: (what the text must say, whichever side is refused), functions of the two sides
WORDS = {
    "count": (r"the count differs \((512 here, 1024 there|1024 here, 512 there)\)", ("right_call", "wrong_call")),
    "dtype": (r"the datatype differs \((int32 here, float32 there|float32 here, int32 there)\)",
              ("right_call", "wrong_call")),
    "redop": (r"the reduction differs \((max here, sum there|sum here, max there)\)", ("right_call", "wrong_call")),
    "op": (r"the operation differs \((AllGather here, AllReduce there|AllReduce here, AllGather there)\)",
           ("right_call", "wrong_gather")),
    "root": (r"the root differs \((1 here, 0 there|0 here, 1 there)\)", ("right_rooted", "wrong_rooted")),
    "bytes": (r"the count differs \((64 bytes here, 32 bytes there|32 bytes here, 64 bytes there)\)",
              ("wrong_gather",)),
    "zero": (r"the operation differs \(AllGather here, AllReduce there\); before it came AllReduce of 0 elements|"
             r"the operation differs \(AllReduce here, AllGather there\)", ("wrong_gather", "right_call")),
    "skipped": (r"the count differs \((512 here, 1024 there|1024 here, 512 there)\)", ("right_call", "wrong_call")),
    "added": (r"the count differs \((512 here, 1024 there|1024 here, 512 there)\)", ("right_call", "wrong_call")),
    "group-count": (r"the count differs \((41 here, 40 there|40 here, 41 there)\)", ("right_call", "wrong_call")),
    # At the group's end or at a call after it: boundaries that differ prove less.
    "group-lacks": (r"the (operation|count) differs", ()),
}


def mismatch():
    for mode in ("error", "abort"):
        for name, (words, functions) in WORDS.items():
            for size in RANKS:
                job = Job([JOB, name, "sick"], size, mode)
                status = job.wait(until_one_fails=True)
                what = f"{name}, {mode}, {size} ranks"
                said = [job.text(r) for r in range(size) if status[r] == 3]
                if check(said, f"{what}: nobody was refused: {status}", job):
                    # A broken group leaves more than one rank refused: one of them at least must say it all.
                    texts = [out for out, _ in said]
                    check(any(re.search(words, t) for t in texts), f"{what}: {texts}", job)
                    check(all(re.match(r"refused rollcall: refused: rank \d+ calls .* on communicator 0x[0-9a-f]{16} "
                                       rf"\({size} ranks\), but rank \d+ called ", t) for t in texts),
                          f"{what}: ranks: {texts}", job)
                    check(all(f"failfast_job+0x" in t and t.count("failfast_job+0x") == 2 for t in texts),
                          f"{what}: both places: {texts}", job)
                    check(any(all(f"({f})" in t for f in functions) for t in texts), f"{what}: functions: {texts}", job)
                    check(all("rollcall: refused: rank" in err for _, err in said), f"{what}: standard error", job)
                check(all(s in (3, -9) for s in status), f"{what}: statuses {status}", job)
                check(job.took < LIMIT_S / 2, f"{what}: took {job.took:.1f} s", job)
                job.close()


def healthy_run(argv, size, mode, what, **more):
    job = Job(argv, size, mode, **more)
    status = job.wait(until_one_fails=False)
    check(status == [0] * size, f"{what}: statuses {status}", job)
    check(not any("refused" in "".join(job.text(r)) for r in range(size)), f"{what}: refused", job)
    job.close()


def healthy():
    twins = list(WORDS) + ["group-order", "boundaries", "looks-odd", "extra-zero", "lowered", "forked"]
    for name in twins:
        for size in RANKS:
            healthy_run([JOB, name, "healthy"], size, "error" if size != 3 else "abort",
                        f"healthy {name}, {size} ranks")
    healthy_run([JOB, "long", "healthy"], 4, "error", "healthy long run, 4 ranks")
    for name in ("mended", "failing"):  # refused and made right: the job goes on
        for size in RANKS:
            job = Job([JOB, name, "sick"], size, "error")
            status = job.wait(until_one_fails=False)
            check(status == [0] * size, f"{name}, {size} ranks: {status}", job)
            job.close()


def catalogue():
    table = subprocess.run([CATALOGUE, "--list"], capture_output=True, text=True, check=True).stdout
    rows = [line.split("\t") for line in table.splitlines()]
    check(len(rows) > 25, "the catalogue has programs")
    for row in rows:
        name, least = row[0], int(row[5])
        if name.startswith("refused-retry"):
            continue  # its first attempt is wrong: it is refused here too, and rightly
        for size in (max(least, 2), 4):
            healthy_run([CATALOGUE, name, "healthy"], size, "error", f"catalogue {name}, {size} ranks")


def life():
    # One page per job on this node, 0600, and what an earlier job of the same name left disturbs nobody.
    with tempfile.TemporaryDirectory() as rings:
        for turn in range(3):
            healthy_run([JOB, "count", "healthy"], 4, "error", f"turn {turn} of the same job", rings=rings)
        pages = [f for f in os.listdir(rings) if f.endswith(".cmp")]
        if check(len(pages) == 1, f"one page: {pages}"):
            check(os.stat(os.path.join(rings, pages[0])).st_mode & 0o777 == 0o600, "mode of the page")
        sick = Job([JOB, "count", "sick"], 4, "error", rings=rings)
        check(3 in sick.wait(until_one_fails=True), "a later job is compared too", sick)
        sick.close()
    # Two jobs of one name at once.
    with tempfile.TemporaryDirectory() as rings:
        jobs = [Job([JOB, "group-order", "healthy"], 3, "error", rings=rings) for _ in range(2)]
        sick = Job([JOB, "count", "sick"], 3, "error", rings=rings)
        check(3 in sick.wait(until_one_fails=True), "the sick one of three jobs", sick)
        for job in jobs:
            check(job.wait(until_one_fails=False) == [0, 0, 0], "two jobs at once", job)
            job.close()
        sick.close()
    # A rank that is killed: the others are neither refused nor held up by us.
    job = Job([JOB, "killed", "sick"], 4, "error")
    status = job.wait(until_one_fails=True)
    check(status[3] == -9 and 3 not in status, f"killed: {status}", job)
    job.close()
    # Report: nothing is shared and nothing refused; the job hangs as it would without us.
    job = Job([JOB, "redop", "sick"], 2, "report")
    status = job.wait(until_one_fails=True)
    check(3 not in status, f"report: {status}", job)
    check(not [f for f in os.listdir(job.rings) if f.endswith(".cmp")], "report: no page", job)
    job.close()
    # No page can be made: one line, and the job runs on in report mode.
    with tempfile.TemporaryDirectory() as rings:
        healthy_run([JOB, "count", "healthy"], 2, "error", "page to be broken", rings=rings)
        page = [f for f in os.listdir(rings) if f.endswith(".cmp")][0]
        with open(os.path.join(rings, page), "r+b") as f:
            f.write(b"ROLLOTHR")
        job = Job([JOB, "count", "healthy"], 2, "error", rings=rings)
        check(job.wait(until_one_fails=False) == [0, 0], "broken page", job)
        lines = [line for r in range(2) for line in job.text(r)[1].splitlines()]
        check(len(lines) == 2 and all("cannot open the page for comparing" in line and "the job runs on" in line
                                      for line in lines), f"broken page: {lines}", job)
        job.close()
    job = Job([JOB, "count", "healthy"], 2, "maybe")
    check(job.wait(until_one_fails=False) == [0, 0], "unknown word", job)
    check("none of report, error, abort" in job.text(0)[1], "unknown word: the line", job)
    job.close()
    # Quiet: not even the line, but the error stays.
    job = Job([JOB, "count", "sick"], 2, "error", extra={"ROLLCALL_QUIET": "1"})
    status = job.wait(until_one_fails=True)
    check(3 in status and not any(job.text(r)[1] for r in range(2)), "quiet", job)
    job.close()


# name: whether comparing goes on afterwards, so that the sick twin is refused
ODD_JOBS = {"graphs": True, "lowered": False, "both-kinds": True, "splits": True,
            "shrinks": True, "nonblocking": True, "threads": True, "many": False}


def odd():
    for name, compared in ODD_JOBS.items():
        for size in (2, 4):
            healthy_run([ODD, name], size, "error", f"odd {name}, {size} ranks")
        if compared:
            job = Job([ODD, name, "sick"], 4, "error")
            status = job.wait(until_one_fails=True)
            check(3 in status and all(s in (3, -9) for s in status), f"odd {name}, sick: {status}", job)
            job.close()
    for word in ("", "sick"):  # all members in one process; the wrong group is refused and then made right
        job = Job([ODD, "init-all", word], 1, "error")
        check(job.wait(until_one_fails=False) == [0], f"odd init-all {word}", job)
        job.close()
    # One unique id for several communicators, and again in a later run of the same name.
    with tempfile.TemporaryDirectory() as rings:
        fixed = os.path.join(rings, "fixed")
        for turn in range(2):
            healthy_run([ODD, "one-id"], 3, "error", f"one id, turn {turn}", rings=rings,
                        extra={"FIXED_ID": fixed, "TURN": str(turn)})


{"mismatch": mismatch, "healthy": healthy, "catalogue": catalogue, "life": life, "odd": odd}[CASES]()
print(f"fail-fast, {CASES}: {len(failures)} failures")
sys.exit(1 if failures else 0)
