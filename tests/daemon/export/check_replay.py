#!/usr/bin/env python3
"""rollcall replay: the recorded calls of real jobs made again have the verdicts that the jobs had; what cannot be made
again is refused in one line.

usage: check_replay.py ROLLCALL MAKE_TRACE CATALOGUE NAME
"""
import concurrent.futures
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile

ROLLCALL, MAKE, CATALOGUE = (os.path.abspath(a) for a in sys.argv[1:4])
SCALED_AT = 48  # trace/replay.h
SICK = ("skipped", "wrong-count", "wrong-root", "unmatched", "opposite-stream", "opposite-events", "killed", "finished",
        "skip-then-split", "ring-of-pairs", "refused", "two-threads", "sizes-differ")
HEALTHY = ("overlap", "group-order", "half-communicator", "premul", "thread-each", "poll-either")


def recorded(folder, name, twin):
    trace = os.path.join(folder, f"{name}-{twin}")
    subprocess.run([ROLLCALL, "run", "-n", "4", "--hostnccl", "--quiet", "--timeout", "3", "--grace", "1", "--trace",
                    trace, "--", CATALOGUE, name, twin], capture_output=True, timeout=300)
    return trace


def told(trace):
    """What stands: codes, certainties and culprits."""
    run = subprocess.run([ROLLCALL, "analyze", "--json", trace], capture_output=True, text=True, timeout=300)
    verdicts = [v for v in map(json.loads, run.stdout.splitlines()) if v["schema"] == "rollcall.verdict/1"]
    gone = {v[k] for v in verdicts for k in ("supersedes", "confirms", "withdraws") if v.get(k)}
    return sorted((v["code"], v["certainty"], v["culprits"]) for v in verdicts
                  if v["certainty"] != "note" and v["number"] not in gone)


def replay(*options):
    env = {**os.environ, "TMPDIR": os.path.dirname(options[-1])}
    run = subprocess.run([ROLLCALL, "replay", *options], capture_output=True, text=True, timeout=300, env=env)
    left = [n for n in os.listdir(env["TMPDIR"]) if n.startswith("rollcall-replay-")]
    assert left == [], left
    return run


def same(folder, names, twin):
    def one(name):
        own = os.path.join(folder, name)
        os.mkdir(own)
        trace, again = recorded(own, name, twin), os.path.join(own, "again")
        run = replay("--timeout", "3", "--trace", again, trace)
        was, now = told(trace), told(again)
        assert bool(was) == (twin == "sick"), (name, was)
        assert was == now, (name, was, now, run.stderr)
        assert twin == "sick" or run.returncode == 0, (name, run)
        said = [x for x in run.stderr.splitlines() if x.startswith("rollcall: replay: ")]
        assert len(said) == 1 and "the same as in the trace: " in said[0], (name, said)
        return f"{name} {twin}: {now}"
    with concurrent.futures.ThreadPoolExecutor(4) as side_by_side:  # they mostly wait
        for line in side_by_side.map(one, names):
            print(line)


def sick(folder):
    """A hang happens again, and the verdict is the same: code, certainty, culprits."""
    same(folder, SICK, "sick")


def healthy(folder):
    """A job that was well ends well."""
    same(folder, HEALTHY, "healthy")


def unlike(folder):
    """Where the verdict is another one, the replay says so, and why; a folder with older traces is not compared."""
    for name, words in (("stopped", ("the trace has rank-stopped (proven, rank 3), the replay has not: a replay ",)),
                        ("eager", ("only the replay has p2p-deadlock", "HOSTNCCL_EAGER=65536")),
                        ("barrier-branch", ("the trace has call-added", "by another code"))):
        trace = recorded(folder, name, "sick")
        run = replay("--timeout", "3", trace)
        said = "\n".join(x for x in run.stderr.splitlines() if x.startswith("rollcall: replay: "))
        assert all(word in said for word in words), (name, run.stderr)
    run = replay("--timeout", "3", "--trace", os.path.join(folder, "stopped-sick"), trace)
    assert "not compared with the trace" in run.stderr, run.stderr


def small(folder):
    """A plan can be kept and run by hand; with sizes made small what was equal is equal, and what was not is not."""
    for name, twin in (("wrong-count-gather", "sick"), ("bytes-differ", "sick"), ("overlap", "healthy")):
        trace, plan, again = recorded(folder, name, twin), os.path.join(folder, "plan"), os.path.join(folder, "again")
        subprocess.run(["rm", "-rf", plan, again], check=True)
        run = replay("--plan", plan, trace)
        assert run.returncode == 0, run
        for rank in range(4):
            with open(os.path.join(plan, f"rank-{rank}.plan"), "r+b") as f:
                f.seek(SCALED_AT)
                assert f.read(4) == struct.pack("<I", 0)
                f.seek(SCALED_AT)
                f.write(struct.pack("<I", 1))
        command = shlex.split(run.stdout)
        at = command.index("--")
        subprocess.run([ROLLCALL, *command[1:at], "--timeout", "3", "--trace", again, *command[at:]],
                       capture_output=True, timeout=300)
        assert told(again) == told(trace), (name, told(again), told(trace))


def refused(folder):
    """What cannot be made again as it was is one line, and nothing is started."""
    made = os.path.join(folder, "made")
    subprocess.run([MAKE, made, "2", "2", "80"], check=True)
    graph = recorded(folder, "replay-less", "sick")
    segment = os.path.join(folder, "cut.rtrc")
    whole = recorded(folder, "overlap", "healthy")
    with open(os.path.join(whole, os.listdir(whole)[0]), "rb") as f, open(segment, "wb") as out:
        data = f.read()
        out.write(data[:len(data) - 40])
    run = replay(graph)
    assert len(run.stderr.splitlines()) == 1, run.stderr
    for trace, word in ((graph, "CUDA graphs"), (os.path.join(made, "node000"), "4 ranks there are 2"),
                        (made, "making is not in the trace"), (segment, "a trace was cut"),
                        (os.path.join(folder, "gone"), "not found")):
        run = replay(trace)
        lines = [x for x in run.stderr.splitlines() if "no record of rank" not in x and "everything before" not in x]
        assert run.returncode == 3 and run.stdout == "", (trace, run)
        assert len(lines) == 1 and word in lines[0], (trace, run.stderr)


with tempfile.TemporaryDirectory() as where:
    globals()[sys.argv[4]](where)
print("good")
