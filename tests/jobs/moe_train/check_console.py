#!/usr/bin/env python3
"""A person at the console beside the main job: remedies switched by hand while it trains, and what every command says
meanwhile.

usage: check_console.py BIN_DIR CASE

The job begins its second step only when the console is done with what must come before the first rank without tokens
(--hold). Which ranks have none, where and when, is asked of a reference run in which nothing is skipped.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from job import LIMIT_S, Programs, check, command, findings, losses, read, run, show

PROGRAMS, CASE = Programs(sys.argv[1]), sys.argv[2]
RANKS = 4
MODEL = ["--steps", "36"]
EMPTY = re.compile(r"rank (\d+): step (\d+), layer (\d+): no tokens")


class Reference:
    """A run in which nothing is skipped: its losses, and its empty ranks as (step, layer, rank), the first one
    first."""

    def __init__(self):
        done = run([PROGRAMS.train, "--spawn", str(RANKS), "--exact", "--verbose", *MODEL])
        check(done.returncode == 0, "the reference run failed", done.stderr)
        self.losses = losses(done.stdout)
        self.empty = sorted((int(s), int(la), int(r)) for r, s, la in EMPTY.findall(done.stderr))
        check(self.empty and self.empty[0][0] >= 1, "no rank without tokens, or too early: the premise failed",
              done.stderr)


class Job:
    """The sick job under `rollcall run --policy observe`, with a ring directory of its own, and a console beside it."""

    def __init__(self, tmp, name, *train_options):
        self.out, self.go = os.path.join(tmp, name + ".json"), os.path.join(tmp, name + ".go")
        rings = os.path.join(tmp, name)
        os.mkdir(rings, 0o700)
        self.env = dict(os.environ, ROLLCALL_DIR=rings)
        self.process = subprocess.Popen(command(PROGRAMS, RANKS, self.out, ["--policy", "observe"],
                                                ["--legacy-skip", "--verbose", "--timeout", "8", "--hold", self.go,
                                                 *MODEL, *train_options]), stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=self.env)

    def console(self, *args, status=0):
        done = run([PROGRAMS.rollcall, *args], env=self.env)
        check(done.returncode == status, f"rollcall {' '.join(args)}: status {done.returncode}, wanted {status}",
              done.stdout, done.stderr)
        return done.stdout

    def json(self, schema, *args, status=0):
        """One object, of this schema."""
        lines = self.console(*args, "--json", status=status).splitlines()
        check(len(lines) == 1, f"{args} --json is not one line", *lines)
        value = json.loads(lines[0])
        check(value.get("schema") == schema, f"{args} --json: schema {value.get('schema')}, wanted {schema}")
        return value

    def wait_until_it_trains(self):
        """Until every rank is seen and has begun a step."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            done = run([PROGRAMS.rollcall, "top", "--json"], env=self.env)
            ranks = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
            if len(ranks) == RANKS and all(isinstance(r["step"], int) for r in ranks):
                return
            time.sleep(0.05)
        self.process.kill()
        check(False, "the job never trained", *self.process.communicate())

    def wait_for(self, code, certainty):
        self.go_on()
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            for v in read(self.out):
                if (v["code"], v["certainty"]) == (code, certainty):
                    return v
            time.sleep(0.05)
        self.process.kill()
        check(False, f"no {certainty} {code}", *self.process.communicate())
        return None

    def go_on(self):
        open(self.go, "w").close()

    def end(self, number=None):
        """number: a signal that ends it."""
        self.go_on()
        if number:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err, read(self.out)


def check_first_finding(verdicts, reference, sick, cured=None):
    """It is about `sick`. Where several are empty in that step, an agent may read them together, and one finding tells
    them all."""
    together = [e for e in reference.empty if e[0] == sick[0] and e[1] != cured]
    first = next(v for v in verdicts if v["certainty"] != "note")
    ranks, layers = {rank for _, _, rank in together}, {layer for _, layer, _ in together}
    check(first["step"] == sick[0] and first["layer"] in layers and sick[2] in first["culprits"]
          and set(first["culprits"]) <= ranks, f"the first finding is not about {sick}, nor about {together}",
          show(verdicts))
    check(len(first["culprits"]) > 1 or first["layer"] in {layer for _, layer, rank in together
                                                           if [rank] == first["culprits"]},
          "its rank is not empty in its layer", show(verdicts))
    return first


def switched(tmp):
    """fill switched on by hand before the first rank is empty: the job ends as if nothing had been skipped; off again:
    it hangs."""
    reference = Reference()
    job = Job(tmp, "on")
    job.wait_until_it_trains()
    shown = job.console("remedy", "on", "fill")
    check(re.search(r"(?m)^fill +on ", shown), "the answer does not show it on", shown)
    check(re.search(r"(?m)^fill +on +local ", job.console("remedy", "list")), "remedy list does not show it")
    check(job.json("rollcall.status/2", "top")["remedies"]["on"] == ["fill"], "top does not show it")
    check("remedies fill" in job.console("top", "--once").splitlines()[0], "top --once does not show it")
    status, out, err, verdicts = job.end()
    check(status == 0, f"status {status}", err)
    check(losses(out) == reference.losses, "the loss curve differs from the reference", out)
    check(not findings(verdicts), "a finding in a job that was cured", show(verdicts))
    acted = {(v["layer"], v["culprits"][0]) for v in verdicts if v["code"] == "moe-remedied"}
    check(acted == {(layer, rank) for _, layer, rank in reference.empty},
          "remedied elsewhere than where ranks were empty", show(verdicts))

    job = Job(tmp, "off")
    job.wait_until_it_trains()
    job.console("remedy", "on", "fill")
    shown = job.console("remedy", "off", "fill")
    check(re.search(r"(?m)^fill +off ", shown), "the answer does not show it off", shown)
    status, out, err, verdicts = job.end()
    check(status == 3, f"status {status}, but without the remedy it hangs and its watchdog ends it with 3", err)
    first = check_first_finding(verdicts, reference, reference.empty[0])
    print(f"{len(reference.empty)} empty forwards filled in, {len(reference.losses)} losses equal; off: hung at step "
          f"{first['step']}")


def layer(tmp):
    """fill switched on for one layer: ranks that are empty there are cured, the first one in another layer is not."""
    reference = Reference()
    cured = reference.empty[0][1]
    sick = next((e for e in reference.empty if e[1] != cured), None)
    check(sick and sick[0] > reference.empty[0][0], "no later empty rank in another layer: the premise failed",
          reference.empty)
    job = Job(tmp, "layer")
    job.wait_until_it_trains()
    shown = job.console("remedy", "on", "fill", "--layer", str(cured))
    check(re.search(r"(?m)^fill +off ", shown), "on for the whole job as well", shown)
    check(re.search(rf"(?m)^layer {cured} +fill +-$", shown), "the layer is not shown", shown)
    status, out, err, verdicts = job.end()
    check(status == 3, f"status {status}", err)
    check(losses(out) == reference.losses[:sick[0]],
          "other losses than the reference before the layer that is not cured", out)
    check({v["layer"] for v in verdicts if v["code"] == "moe-remedied"} == {cured}, "remedied in another layer",
          show(verdicts))
    check_first_finding(verdicts, reference, sick, cured)
    print(f"layer {cured} cured, hung at step {sick[0]} in layer {sick[1]}")


def answer(text):
    """An answer of why without the line that names the job, the verdicts behind it, what is not seen just now, its line
    breaks, and how long ago things were: it is asked for twice."""
    text = re.split(r"\n\n(?=PROVEN|SUSPECTED|PREDICTED|NOTE|Not everything is seen)", text)[0]
    text = " ".join(re.sub(r"^job .*\n", "", text).split())  # a line may break within what is left out below
    text = re.sub(r" (Seen late|Not (heard|read) since [\d.]+ s) \([^)]*\)\.", "", text)
    return re.sub(r"\d+(\.\d+)? m?s ago", "ago", text)


def hung(tmp):
    """A hung job: why names what a rank waits for, whom, and what that one does; each command has its text and its
    JSON. The job's own watchdog would end it while a slow machine still answers."""
    job = Job(tmp, "hung", "--timeout", str(LIMIT_S))
    verdict = job.wait_for("moe-obligation-missing", "proven")
    culprit, waiting = verdict["culprits"][0], verdict["waiting"]
    why = job.console("why", str(waiting[0]))
    check(re.match(r"job \S+: ranks 0-3 \(4 ranks\) on host \S+, watched since ", why),
          "why does not say whose answer it is", why)
    check(re.search(r"\n\n(PROVEN|SUSPECTED) +moe-obligation-missing", why),
          "why does not print the verdict that it points at", why)
    words = " ".join(why.split())  # its lines break where the durations in them let them
    check("waits" in words and re.search(rf"\brank {culprit}\b", words) and "ep" in words,
          "why does not say what is waited for, and whom", why)
    end = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < end:  # the last records of others may still be on their way between two questions
        text = job.json("rollcall.why/1", "why", str(waiting[0]))["text"]
        if answer(text) == answer(why):
            break
        time.sleep(0.2)
        why = job.console("why", str(waiting[0]))
    check(answer(text) == answer(why), "why --json says something else", text, why)
    everyone = job.console("why")
    sets = re.findall(r"(?m)^Ranks? (\d[\d,-]*) ", everyone)  # those that stand alike in one paragraph
    told = {r for text in sets for part in text.split(",") for r in range(int(part.split("-")[0]),
                                                                          int(part.split("-")[-1]) + 1)}
    first = [int(re.match(r"\d+", text).group()) for text in sets]
    check(first == sorted(first) and set(waiting) <= told,
          "why without a rank leaves out some that wait, or is out of order", everyone)
    job.json("rollcall.why/1", "why")
    job.json("rollcall.remedy/1", "remedy", "list")
    status = job.json("rollcall.status/2", "top")
    check(all(r["pending"] > 0 for r in status["ranks"] if r["rank"] in waiting), "top shows no waiting rank",
          json.dumps(status))
    refused = run([PROGRAMS.rollcall, "remedy", "on", "fill", "--layer", "99"], env=job.env)
    check(refused.returncode == 2 and re.search(r"told of MoE layer 99, only of layers? 0", refused.stderr),
          "a layer that the job does not have is not refused", refused.stdout, refused.stderr)
    for line in job.console("verdicts", "--json", status=1).splitlines():
        check(json.loads(line)["schema"] == "rollcall.verdict/1", "a line that is no verdict", line)
    text = " ".join(job.console("verdicts", status=1).split())
    check("owes none" in text and "backward collectives" in text and "call #" not in text,
          "the evidence is not in words", text)
    # The verdict has looked up where its communicator was made; a status tells that as well.
    made = [c["made_at"] for c in status["comms"] if c["key"] == verdict["comm"]["key"]]
    check(len(made) == 1 and re.match(r"[\w.]+\.c:\d+ \w+$", made[0] or ""), "top does not say where it was made",
          json.dumps(status["comms"]))
    top = job.console("top", "--once")
    check(re.search(r"(?m)^COMM .* MADE AT ", top) and made[0] in top, "top --once does not, either", top)
    check(max(len(line) for line in top.splitlines()) < 200, "top --once is wider than 200 columns", top)
    status, _, err, _ = job.end(signal.SIGTERM)
    check(status == 128 + signal.SIGTERM, f"status {status}", err)
    print(why.strip())


def main():
    cases = {f.__name__: f for f in (switched, layer, hung)}
    with tempfile.TemporaryDirectory() as tmp:
        cases[CASE](tmp)


main()
