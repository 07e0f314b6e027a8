"""daemon.py: agent and root on the rings of a job that is over, with a fault in one of them: it ends in good order or
goes on, finds nothing that is not there, and says what failed. What it recorded is whole, or it said that it is not."""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import trial

ROLES = ("standalone", "agent", "root", "sick")
WAIT_S = 60    # only a hang reaches it
AFTER_S = 1.0  # how long a daemon that has complained is given to go on


def prepare(programs, place):
    """The rings of two ranks that have ended in good order."""
    rings = trial.fresh(place, "rings")
    for rank in range(2):
        subprocess.run([programs.synth_rank, rings, "job", str(rank), "2", "0", "300", "1024", "exit"], check=True)
    return rings


def start(programs, argv, log, library=None, state=None):
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env.update(LC_ALL="C.UTF-8")
    if state:
        env = trial.environment(library, state)
    with open(log, "wb") as err:
        return subprocess.Popen([programs.rollcalld, "--no-supervise", *argv], env=env, stdin=subprocess.DEVNULL,
                                stdout=subprocess.DEVNULL, stderr=err)


def lines_of(log):
    with open(log, errors="replace") as file:
        return file.read().splitlines()


def until(done, process):
    end = time.monotonic() + WAIT_S
    while process.poll() is None and not done() and time.monotonic() < end:
        time.sleep(0.01)
    return time.monotonic() < end


def sick_ranks(programs, there):
    """Three ranks that live, of which the second has made a wrong call."""
    return [subprocess.Popen([programs.synth_rank, there, "job", str(rank), "3", "0", "300", "1024",
                              "wrong" if rank == 1 else "hang"], stdin=subprocess.DEVNULL) for rank in range(3)]


def found(verdicts):
    """{(code, culprits): verdict} of the findings in a file. A line that was cut, which the log tells, is none."""
    lines = []
    for line in verdicts.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return {(v["code"], v["culprits_text"]): v for v in lines if v["certainty"] != "note"}


def members(value, at=""):
    """The paths of all members inside of a value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {at}.union(*(members(inner, "%s.%s" % (at, name)) for name, inner in inside))


def read(path):
    if not os.path.exists(path):
        return b""
    with open(path, "rb") as file:
        return file.read()


def run(programs, role, fault, place, rings, clean=None):
    started = []  # of which none stays, whatever happens
    try:
        return run_with(programs, role, fault, place, rings, clean, started)
    finally:
        for process in started:
            process.kill()
            process.wait()


def run_with(programs, role, fault, place, rings, clean, started):
    work, state = trial.fresh(place, "work"), trial.settings(place, fault)
    there, trace = os.path.join(work, "d"), os.path.join(work, "t")
    if role == "sick":
        os.mkdir(there, 0o700)
        started.extend(sick_ranks(programs, there))
    else:
        shutil.copytree(rings, there)
    os.chmod(there, 0o700)
    log, other_log, verdicts = (os.path.join(work, name) for name in ("log", "other.log", "verdicts"))
    endpoint, other = "ipc://" + os.path.join(work, "socket"), None
    agent = ["--agent", "--dir", there, "--connect", endpoint]
    root = ["--root", "--listen", endpoint, "--trace", trace, "--json", verdicts]
    if role == "agent":
        other = start(programs, root, other_log)
        started.append(other)
        argv = [*agent, "--trace", os.path.join(work, "t2")]
    elif role == "root":
        argv, other = root, None
    else:
        argv = ["--dir", there, "--trace", trace, "--json", verdicts]
        argv += ["--stall-ms", "100", "--suspect-ms", "100", "--stacks", "auto"] if role == "sick" else []
    process = start(programs, argv, log, programs.library, state)
    started.append(process)
    if role == "root":
        other = start(programs, agent, other_log)
        started.append(other)
    usual = {trial.plain(line) for line in clean.err.splitlines()} if clean else set()
    complained = []

    def done():
        if found(read(verdicts)) if role == "sick" else not glob.glob(os.path.join(there, "*.ring")):
            return True
        if not complained and any(trial.plain(line) not in usual for line in lines_of(log)):
            complained.append(time.monotonic())
        return bool(clean and complained and time.monotonic() > complained[0] + AFTER_S)

    in_time = until(done, process)
    process.terminate()
    code = "neither done nor said" if not in_time else None
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        code = "hang at the end"
    if other:
        other.terminate()
        try:
            other.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()
            code = "the other one hangs at the end"
        # One whose partner has gone at once may not have come to its own handlers yet.
        if other.returncode not in ((0, -signal.SIGTERM) if process.returncode == 3 else (0,)):
            code = "the other one ended with %d" % other.returncode
    files = {name: data for name, data in trial.contents(work).items() if name.startswith(("d/", "verdicts"))}
    got = subprocess.run([programs.rollcall, "analyze", "--json", trace], capture_output=True, check=False)
    return trial.Outcome(process.returncode if code is None else code, got.stdout, "\n".join(lines_of(log)),
                         state.read(), files)


def summary(out):
    for line in out.splitlines():
        if b"rollcall.summary/1" in line:
            return json.loads(line)
    return None


def judge(clean, outcome):
    """None, or what is wrong."""
    new = [line for line in outcome.err.splitlines()
           if trial.plain(line) not in {trial.plain(known) for known in clean.err.splitlines()}]
    if clean.code == 1:
        return judge_sick(clean, outcome, new)
    if outcome.code not in (0, 3):
        return "ended by %s: %r" % (outcome.code, outcome.err[-500:])
    if outcome.code == 3 and not new:
        return "ended with 3 and does not say why"
    found = [line for line in outcome.files.get("verdicts", b"").splitlines() if b'"note"' not in line]
    if found:
        return "a finding: %r" % found[0][:300]
    rings = any(name.endswith(".ring") for name in outcome.files) # which another agent goes on with
    left = [name for name in outcome.files
            if name.startswith("d/") and not name.endswith(".ring") and not (rings and name.endswith(".ctl"))
            and not (outcome.code == 3 and name.endswith(".lock"))]  # it is the flock that counts
    if left and not outcome.state.function.startswith("unlink"):
        return "left behind: %s" % ", ".join(left)
    kept, whole = summary(outcome.out), summary(clean.out)
    if (not kept or kept["records"] + kept["lost"] != whole["records"]) and not new:
        return "is not whole and does not say so: %s" % outcome.out[-300:]
    if kept and kept["findings"]:
        return "its trace holds a finding: %s" % outcome.out[-300:]
    return None


def judge_sick(clean, outcome, new):
    """The wrong call is found, and nothing else; or it is said that something was wrong with the daemon."""
    if outcome.code not in (0, 1, 3):
        return "ended by %s: %r" % (outcome.code, outcome.err[-500:])
    got = found(outcome.files.get("verdicts", b""))
    # Where not all that there is has been seen, two that differ are told, and nobody is named.
    odd = [one for one in got if one not in {("count-mismatch", "1"), ("count-mismatch", "")}]
    if odd:
        return "finds %s" % odd
    whole = found(clean.files["verdicts"])
    for one, verdict in got.items():
        holes = members(whole.get(one)) - members(verdict) if one in whole else None
        if holes:
            return "a finding has holes: %s" % sorted(holes)
    return None if got or new else "finds nothing, and does not say why: %d %r" % (outcome.code, outcome.err[-300:])
