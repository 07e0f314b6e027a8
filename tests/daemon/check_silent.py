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
import tempfile
import time

LIMIT_S = 200  # for anything that is waited for: so late that only what never comes reaches it
UNHEARD_S = 8  # for a false word to come: suspicion takes 5 s

rollcalld, rollcall, library, program, how = sys.argv[1:6]
processes = []


def start(*command, **env):
    p = subprocess.Popen(command, env={**os.environ, **env}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                         text=True)
    processes.append(p)
    return p


def serve(*arguments):
    """A rollcalld that is ready: a rank that finds no agent yet starts one of its own, and ours would leave."""
    ready, write = os.pipe()
    p = subprocess.Popen([rollcalld, *arguments, "--ready-fd", str(write)], pass_fds=[write], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
    processes.append(p)
    os.close(write)
    if not os.read(ready, 1):
        sys.exit(f"FAILED: {' '.join(arguments)} never was ready: {p.stderr.read()}")
    os.close(ready)
    return p


def wait_for(what, condition):
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.02)
    sys.exit(f"FAILED: {what} never came; status: {status()}; verdicts: {verdicts()}")


def status():
    out = subprocess.run([rollcall, "top", "--json", "--daemon", endpoint], capture_output=True, text=True).stdout
    try:
        return json.loads(out)
    except ValueError:
        return {}


def verdicts(notes=False):
    try:
        with open(told) as f:
            all = [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []
    return [v for v in all if notes or v["certainty"] != "note"]


def heard():
    return [r["rank"] for r in status().get("ranks", []) if r["heard"] and r["state"] == "running"]


def rounds():
    try:
        return [int(open(f"{meet}/rounds.{r}").read()) for r in range(4)]
    except FileNotFoundError:
        return [0]


def go_on(by):
    goal = max(rounds()) + by
    wait_for(f"round {goal} of the ranks", lambda: min(rounds()) >= goal)


def nobody_is_accused(when):
    if verdicts():
        sys.exit(f"FAILED: {when}: " + "; ".join(f"{v['certainty']} {v['code']} {v['culprits_text']}: {v['text']}"
                                                 for v in verdicts()))


def touch(name):
    open(f"{meet}/{name}", "w").close()


def play():
    serve("--root", "--dir", tmp, "--listen", endpoint, "--json", told, "--trace", trace)
    agents = [serve("--agent", "--dir", node, "--connect", endpoint) for node in nodes]
    ranks = [start(program, meet, RANK=str(r), WORLD_SIZE="4", LOCAL_RANK=str(r), LD_PRELOAD=library,
                   ROLLCALL_DIR=nodes[r // 2], ROLLCALL_JOB="silent", ROLLCALL_DAEMON=endpoint) for r in range(4)]
    wait_for("four ranks", lambda: heard() == [0, 1, 2, 3])
    go_on(32)
    agents[1].send_signal(signal.SIGSTOP if how == "stop" else signal.SIGKILL)
    wait_for("two ranks that are not heard", lambda: heard() == [0, 1])
    if how == "stop":  # somebody waits for them, as far as can be seen
        touch("hold.2")
        wait_for("the note", lambda: any(v["code"] == "agent-silent" for v in verdicts(True)))
        os.unlink(f"{meet}/hold.2")
    time.sleep(UNHEARD_S)
    go_on(32)
    nobody_is_accused("while an agent is silent")
    if how == "stop":
        agents[1].send_signal(signal.SIGCONT)
        wait_for("four ranks again", lambda: heard() == [0, 1, 2, 3])
        go_on(32)
        nobody_is_accused("when it is back")
        touch("hold.3")
        wait_for("the rank that stays away", lambda: any(v["code"] == "rank-busy" and v["culprits"] == [3]
                                                         for v in verdicts()))
        os.unlink(f"{meet}/hold.3")
        if len(verdicts()) != 1:
            nobody_is_accused("one rank stayed away")
    touch("stop")
    for r in ranks:
        if r.wait(LIMIT_S) != 0:
            sys.exit(f"FAILED: a rank ended with {r.returncode}: {r.stderr.read()}")
    if how == "kill":
        nobody_is_accused("when the ranks have ended")
    for p in [agents[0], processes[0]]:
        p.terminate()
        p.wait(LIMIT_S)
    again = subprocess.run([rollcall, "analyze", "--json", trace], capture_output=True, text=True)
    said = [{k: v[k] for k in ("code", "certainty", "culprits", "text", "time_ns")} for v in verdicts(True)]
    found = [json.loads(line) for line in again.stdout.splitlines() if line.startswith("{")]
    found = [{k: v[k] for k in ("code", "certainty", "culprits", "text", "time_ns")} for v in found if "code" in v]
    if said != found[: len(said)]:
        sys.exit(f"FAILED: analysis says something else:\n{said}\n{found}\n{again.stderr}")
    print(f"{how}: {max(rounds())} rounds, {len(said)} verdicts: " + ", ".join(v["code"] for v in said))


with tempfile.TemporaryDirectory() as tmp:
    os.chmod(tmp, 0o700)
    endpoint, told, trace, meet = f"ipc://{tmp}/root.sock", f"{tmp}/verdicts.json", f"{tmp}/trace", f"{tmp}/meet"
    nodes = [f"{tmp}/node{n}" for n in range(2)]
    for d in [trace, meet, *nodes]:
        os.mkdir(d, 0o700)
    try:
        play()
    finally:
        for p in processes:
            if p.poll() is None:
                p.kill()
                p.wait()
