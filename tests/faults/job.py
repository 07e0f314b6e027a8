"""job.py: `rollcall run`, `rehearse` and `replay` with a fault in rollcall itself (the warden, and what it is between
fork and exec, included): the job does what it would have done, or it was not begun, and a line says why.

Nothing is left: no process, whatever became of its parents, no directory, no ring. What was recorded is whole, or it
is said that it is not. The ranks and the daemon are preloaded as well, and count; but nothing fails in them: the
faults are those of places in the program `rollcall`.
"""
import os
import signal
import subprocess
import time

import daemon
import trial

WAIT_S = 300  # only a hang reaches it
ROLLCALL = 2  # the number of the program in `ours` of fail_nth.c
TRAIN = ("--steps", "2", "--layers", "1", "--ep", "2", "--exact")


def scenes(programs, place):
    """{name: words}; what is replayed was recorded before."""
    train = [os.path.join(programs.bin, "moe_train"), *TRAIN]
    trace = os.path.join(place, "replayed")
    ends = ["--timeout", "120"]
    subprocess.run([programs.rollcall, "run", "-n", "2", "--hostnccl", "--trace", trace, "--", *train], check=True,
                   env={**os.environ, "ROLLCALL_DIR": trial.fresh(place, "recorded")}, capture_output=True)
    return {"run": ["run", "-n", "2", "--hostnccl", "--trace", "trace", "--json", "verdicts", *ends, "--", *train],
            "rehearse": ["rehearse", "-n", "2", "--json", "report", "--save", "saved", *ends, "--", *train],
            "replay": ["replay", "--trace", "trace", *ends, trace]}


def faults(clean):
    """Those of the program itself, the first and the third time that it comes by."""
    for fault in trial.every_site(clean, later=(3,)):
        if fault.site >> 56 == ROLLCALL:
            yield fault


def of_trial(state_path):
    """The processes that were begun under this trial, whatever became of their parents."""
    mark = b"ROLL_FAIL_STATE=" + state_path.encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            pass
    return found


def run(programs, words, fault, place):
    base, work, tmp = (trial.fresh(place, name) for name in ("base", "work", "tmp"))
    state = trial.settings(place, fault)
    env = trial.environment(programs.library, state, HOME=tmp, TMPDIR=tmp, ROLLCALL_DIR=base)
    out, err = (os.path.join(place, name) for name in ("out", "err"))
    with open(out, "wb") as to, open(err, "wb") as errors:  # no pipe, which whoever is left would hold
        process = subprocess.Popen([programs.rollcall, *words], cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=to,
                                   stderr=errors)
    code = None
    try:
        code = process.wait(trial.HANG_S)
    except subprocess.TimeoutExpired:
        code = "hang"
    end = time.monotonic() + WAIT_S
    left = [] if code == "hang" else of_trial(state.path)
    while left and time.monotonic() < end:
        time.sleep(0.01)
        left = of_trial(state.path)
    names = [daemon.read("/proc/%d/cmdline" % pid).replace(b"\0", b" ").decode() for pid in left]
    for pid in of_trial(state.path):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    files = {"left: " + name: b"" for name in names}
    files.update({"base/" + name: data for name, data in trial.contents(base).items()})
    files.update({"tmp/" + name: data for name, data in trial.contents(tmp).items()})
    files.update(trial.contents(work))
    if any(name.startswith("trace/") for name in files):
        files["summary"] = whole(programs, os.path.join(work, "trace"))
    return trial.Outcome(code, daemon.read(out), daemon.read(err).decode(errors="replace"), state.read(), files)


def steps(out):
    """What the job was for."""
    return [line for line in out.splitlines() if line.startswith(b"step ")]


def judge(clean, outcome):
    """None, or what is wrong."""
    usual = {trial.plain(line) for line in clean.err.splitlines()}
    said = [line for line in outcome.err.splitlines() if line.startswith("roll") and trial.plain(line) not in usual]
    if outcome.code not in (0, 3, 126, 127):
        return "ended by %s: %s" % (outcome.code, outcome.err[-300:])
    left = [name for name in outcome.files if name.startswith(("left: ", "tmp/", "base/"))]
    if left:
        return "left behind: %s" % ", ".join(left)
    if outcome.code != 0:
        return None if said else "ended with %d, and does not say why: %r" % (outcome.code, outcome.err[-300:])
    if steps(outcome.out) != steps(clean.out):
        return "the job is not what it was: %r" % outcome.out[-300:]
    if b'"certainty":' in outcome.files.get("verdicts", b""):
        return "a finding: %r" % outcome.files["verdicts"][:300]
    if outcome.files.get("summary") != clean.files.get("summary") and not said:
        return "its trace is not whole: %r" % outcome.files.get("summary")
    lacks = [name for name in clean.files if "/" not in name and name not in outcome.files]
    return "lacks %s, and does not say why" % ", ".join(lacks) if lacks and not said else None


def whole(programs, trace):
    """What a trace holds, by numbers: calls, records, what was lost, what was found."""
    got = subprocess.run([programs.rollcall, "analyze", "--json", trace], capture_output=True, check=False)
    kept = daemon.summary(got.stdout) or {}
    return repr([(name, kept.get(name)) for name in ("ranks", "calls", "records", "lost", "findings")]).encode()
