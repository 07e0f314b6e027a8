"""daemon.py: agent, relay and root on the rings of a job that is over, with a fault in one of them: it ends in good
order or goes on, finds nothing that is not there, and says what failed. What it recorded is whole, or it said that it
is not.
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import time

import page
import trial

# Which processes there are, in the order in which they start. The fault is in the one that the role is called after,
# or in the first. "sick" takes the stacks of a hung job by itself, "stacks" when it is asked; "page" is asked by a
# browser.
ROLES = {
    "standalone": ("standalone",),
    "agent": ("root", "agent"),
    "root": ("root", "agent"),
    "relay": ("root", "relay", "agent"),
    "sick": ("standalone",),
    "stacks": ("standalone",),
    "page": ("standalone",),
}
LIVE = ("sick", "stacks")  # with ranks that hang
WAIT_S = 300  # only a hang reaches it
AFTER_S = 1.0  # how long a daemon that has complained is given to go on


def prepare(programs, place):
    """The rings of two ranks that have ended in good order."""
    rings = trial.fresh(place, "rings")
    for rank in range(2):
        subprocess.run([programs.synth_rank, rings, "job", str(rank), "2", "0", "300", "1024", "exit"], check=True)
    return rings


def start(programs, argv, log, library=None, state=None, **more):
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    env.update(LC_ALL="C.UTF-8", **more)
    if state:
        env = trial.environment(library, state, **more)
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


def words_of(work, there, role, chain):
    """What each process of a role is started with."""
    entrance, door = ("ipc://" + os.path.join(work, name) for name in ("socket", "relay.socket"))
    trace, verdicts = os.path.join(work, "t"), os.path.join(work, "verdicts")
    agent = ["--agent", "--dir", there, "--connect", door if "relay" in chain else entrance]
    alone = ["--dir", there, "--trace", trace, "--json", verdicts]
    if role in LIVE:
        alone += ["--stall-ms", "100", "--suspect-ms", "100", "--stacks", "auto" if role == "sick" else "ask"]
    return {
        "root": ["--root", "--listen", entrance, "--trace", trace, "--json", verdicts],
        "relay": ["--relay", "--listen", door, "--connect", entrance],
        "agent": agent + (["--trace", os.path.join(work, "t2")] if role == "agent" else []),
        "standalone": alone + (["--http", "127.0.0.1:0"] if role == "page" else []),
    }


def end(process):
    """Ends it; whether it does so by itself."""
    process.terminate()
    try:
        process.wait(WAIT_S)
        return True
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False


def run_with(programs, role, fault, place, rings, clean, started):
    work, state = trial.fresh(place, "work"), trial.settings(place, fault)
    there, log, verdicts = (os.path.join(work, name) for name in ("d", "log", "verdicts"))
    if role in LIVE:
        os.mkdir(there, 0o700)
        started.extend(sick_ranks(programs, there))
    else:
        shutil.copytree(rings, there)
    os.chmod(there, 0o700)
    cookie = {"ROLLCALL_COOKIE": os.path.join(work, "cookie")}
    chain = ROLES[role]
    words = words_of(work, there, role, chain)
    chosen = role if role in chain else chain[0]
    others = []
    for name in chain:
        if name == chosen:
            process = start(programs, words[name], log, programs.library, state, **cookie)
            started.append(process)
        else:
            others.append(start(programs, words[name], os.path.join(work, name + ".log"), **cookie))
            started.append(others[-1])
    usual = {trial.plain(line) for line in clean.err.splitlines()} if clean else set()
    complained, asked = [], []

    def seen():
        """Whether it has done what it is there for."""
        if role == "sick":
            return bool(found(read(verdicts)))
        over = not glob.glob(os.path.join(there, "*.ring"))  # the root knows all
        late = complained and time.monotonic() > complained[0] + AFTER_S / 2
        if role in ASKS and not asked and (late or (found(read(verdicts)) if role == "stacks" else over)):
            asked.append(ASKS[role](programs, there, cookie))
        if role == "stacks":
            return bool(asked)
        return role not in LIVE and over

    def done():
        if seen():
            return True
        if not complained and any(trial.plain(line) not in usual for line in lines_of(log)):
            complained.append(time.monotonic())
        return bool(clean and complained and time.monotonic() > complained[0] + AFTER_S)

    code = None if until(done, process) else "neither done nor said"
    code = code if end(process) else "hang at the end"
    for other in others:
        if not end(other):
            code = "another one hangs at the end"
        # One whose partner has gone at once may not have come to its own handlers yet.
        if other.returncode not in ((0, -signal.SIGTERM) if process.returncode == 3 else (0,)):
            code = "another one ended with %d" % other.returncode
    files = {name: data for name, data in trial.contents(work).items() if name.startswith(("d/", "verdicts"))}
    files.update(asked[0] if asked else {})
    got = subprocess.run([programs.rollcall, "analyze", "--json", os.path.join(work, "t")], capture_output=True,
                         check=False)
    return trial.Outcome(process.returncode if code is None else code, got.stdout, "\n".join(lines_of(log)),
                         state.read(), files)


def ask_stacks(programs, there, cookie):
    got = subprocess.run([programs.rollcall, "stacks", "-n1", "--json", "--daemon", "ipc://%s/root" % there],
                         env={**os.environ, **cookie}, capture_output=True, check=False)
    return {"asked/stacks": got.stdout, "asked/code": b"%d" % got.returncode, "asked/err": got.stderr}


def ask_page(programs, there, cookie):
    return page.ask(programs.rollcall, "ipc://%s/root" % there, cookie)


ASKS = {"stacks": ask_stacks, "page": ask_page}


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
        return judge_sick(clean, outcome, new) or judge_stacks(clean.files, outcome.files, new)
    asked = {name: data for name, data in clean.files.items() if name.startswith("asked/")}
    wrong = page.judge(asked, outcome.files, new)
    if wrong and outcome.code != 3:
        return wrong
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
        holes = page.members(whole.get(one)) - page.members(verdict) if one in whole else None
        if holes:
            return "a finding has holes: %s" % sorted(holes)
    return None if got or new else "finds nothing, and does not say why: %d %r" % (outcome.code, outcome.err[-300:])


def judge_stacks(clean, files, new):
    """All ranks were looked at, or it is said which were not."""
    if "asked/code" not in clean or "asked/code" not in files:
        return None
    code, said = int(files["asked/code"]), files["asked/err"] or b'"error"' in files["asked/stacks"]
    ranks = {a["rank"] for a in json.loads(files["asked/stacks"])["answers"]} if files["asked/stacks"] else set()
    if code not in (0, 3, 4) or code == 0 and ranks != {0, 1, 2} and not new:  # those that are known are looked at
        return "stacks of %s, ended with %d" % (sorted(ranks), code)
    return None if code == 0 or said or ranks != {0, 1, 2} else "no stacks, and nothing said: %d" % code
