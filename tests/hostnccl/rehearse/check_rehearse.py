#!/usr/bin/env python3
"""The real PyTorch, with CUDA and without a GPU, under `rollcall rehearse`: what is said about a sick job, that nothing
is said about a healthy one, and that neither notices us.

usage: check_rehearse.py --list | --list-compared | --list-releases
       check_rehearse.py BUILD_DIR NAME.RANKS      one test of rows.py

Healthy: the ranks run to their end, each is recorded, nothing is found; the same job without rollcall, on the same
stand-ins, ends with the same code and prints the same. Sick: exactly the findings of the row stand; the job is ended as
soon as they do.

ROLL_REHEARSE_PYTHON names the interpreter of an environment with a CUDA wheel of torch (for some rows with more, such
as megatron-core). The wheel is some gigabytes, so nothing installs it: without it the test is skipped (exit 77).
ROLL_REHEARSE_PYTHON_OLD does so for the tests whose names begin with "old.": the same rows with an old release.
ROLL_REHEARSE_RELEASES is a folder of environments for the rows that are about one release of a framework: each has the
release's name, and finds torch where ROLL_REHEARSE_PYTHON does. `scripts/rehearse-wheels --releases` makes them.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import rows

HERE = os.path.dirname(os.path.abspath(__file__))
TIMEOUT_S = 1500  # only a hang reaches it
GRACE_S = 2  # to catch a second, wrong finding behind the right ones
OLD = "old."
# Takes librollcall.so out of the preloaded libraries: a rank then runs on the stand-ins alone.
ALONE = """
import os, sys
preloaded = os.environ["LD_PRELOAD"].replace(" ", ":").split(":")
os.environ["LD_PRELOAD"] = ":".join(p for p in preloaded if os.path.basename(p) != "librollcall.so")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Failure(Exception):
    """A test that fails: the reason, and what was printed."""


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(77)


def ask(python, code):
    run = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return run.stdout.strip() if run.returncode == 0 else None


def find_python(row, variable):
    """The interpreter for a row, or a skipped test."""
    python = os.environ.get(variable)
    if row.release:
        folder = os.environ.get("ROLL_REHEARSE_RELEASES")
        if not folder:
            skip("ROLL_REHEARSE_RELEASES does not name a folder of environments, one for each release")
        python = os.path.join(folder, row.release, "bin", "python")
        if not os.path.exists(python):
            skip(f"{folder} has no environment {row.release}")
    if not python:
        skip(f"{variable} does not name a Python with a CUDA wheel of torch")
    found = "from importlib.util import find_spec as f; s = f({!r}); print(s.origin or '' if s else '')"
    torch = ask(python, found.format("torch"))
    if not torch or not os.path.exists(os.path.join(os.path.dirname(torch), "lib", "libtorch_cuda.so")):
        skip(f"{python} has no torch with CUDA")
    if not ask(python, found.format(row.needs)):
        skip(f"{python} has no {row.needs}")
    return python


def running(row, ranks):
    """The numbers of the ranks that run."""
    return list(row.represent[0]) if row.represent else list(range(ranks))


def which(row, ranks):
    """The options that start them."""
    if row.launches:
        return ()
    if not row.represent:
        return "-n", str(ranks)
    run, size = row.represent
    return "--represent", f"{','.join(map(str, run))}:{size}"


class Job:
    """One run of a row's job under `rollcall rehearse`."""

    def __init__(self, build, python, row, ranks, work, alone=False, env=()):
        self.report_path = os.path.join(work, "report.json")
        culprit = row.culprit if row.represent else row.culprit % ranks
        sick = {"MISTAKE": row.mistake, "CULPRIT": str(culprit)} if row.mistake else {}
        # Unbuffered, Python writes a line and its end one after the other, and other ranks' lines come between.
        environment = {**os.environ, "PYTHONUNBUFFERED": "", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
                       **row.env, **sick, **dict(env)}
        command = [os.path.join(build, "bin", "rollcall"), "rehearse", *which(row, ranks), "--json", self.report_path,
                   "--force", *row.options, "--", python, *(("-c", ALONE) if alone else ()),
                   os.path.join(rows.ROOT, row.script) if "/" in row.script else
                   os.path.join(HERE, f"job_{row.script}.py")]
        self.out, self.err, self.findings = [], [], threading.Semaphore(0)
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        self.readers = [threading.Thread(target=self._read, args=a)
                        for a in ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for r in self.readers:
            r.start()

    def _read(self, stream, lines):
        for line in stream:
            lines.append(line.rstrip("\n"))
            if lines is self.err and re.match(r"(PROVEN|PREDICTED|SUSPECTED) ", line):
                self.findings.release()

    def end(self, timeout=TIMEOUT_S):
        """Waits for the job's end; its exit code and report."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired as e:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(60)
            raise Failure(f"the job did not end within {timeout} s") from e
        finally:
            for r in self.readers:
                r.join(60)
        with open(self.report_path, encoding="utf-8") as f:
            text = f.read()
        return code, json.loads(text) if text else None

    def end_when_said(self, count, timeout=TIMEOUT_S):
        """Waits for as many findings, ends the job; its report."""
        end = time.monotonic() + timeout
        while count > 0 and self.process.poll() is None and time.monotonic() < end:
            count -= self.findings.acquire(timeout=0.1)
        time.sleep(GRACE_S)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.end(120)[1]

    def printed(self):
        return "\n".join(["-- standard output", *self.out[-60:], "-- standard error", *self.err[-120:]])


def check_recorded(report, row, ranks):
    run = running(row, ranks)
    if report is None or report["ranks"] != ranks or report["lost"]:
        raise Failure("a rank that was not recorded, or a loss")
    if [m["rank"] for m in report["memory"] if any(d["peak_bytes"] > 0 for d in m["devices"])] != run:
        raise Failure("not each rank told of its memory")
    if report["kernels"]["skipped"] == 0 or report["kernels"]["refused"] > 0:
        raise Failure("no kernel was skipped, or one was refused")
    called = set().union(*(members(c["ranks"]) for c in report["communicators"] if c["calls"]))
    if called != set(run):
        raise Failure("a rank without a call, or a call of one that does not run")
    if row.represent and (report["represent"]["of"], report["communicators"][0].get("of")) != (row.represent[1],) * 2:
        raise Failure("the report does not say that some ranks were stood in for")


def members(text):
    """The ranks of "0-3,7"."""
    out = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return out


def check_healthy(job, row, ranks):
    code, report = job.end()
    if code != 0:
        raise Failure(f"the job ends with code {code}")
    check_recorded(report, row, ranks)
    missing = [(r, s) for r in running(row, ranks) for s in range(row.steps) if f"rank {r} step {s}" not in job.out]
    if missing or report["findings_count"] or report["findings"]:
        raise Failure(f"findings: {report['findings_count']}; steps that no rank told of: {missing}")
    return report


def check_alone(job, with_us):
    code, report = job.end()
    if code != 0 or (report and report["ranks"]):
        raise Failure(f"without rollcall: code {code}, report {report}")
    if sorted(job.out) != sorted(with_us.out):
        raise Failure("without rollcall the job prints something else", *with_us.out)


def fits(finding, said):
    ops = {e["op"] for e in finding["evidence"]}
    return (set(said.codes) & {finding["code"], *finding["may_be"]} and finding["culprits"] == list(said.culprits) and
            finding["certainty"] in said.certainty and (not said.op or said.op in ops))


def check_sick(job, row, ranks):
    report = job.end_when_said(len(row.says))
    check_recorded(report, row, ranks)
    found = [f for f in report["findings"] if f["certainty"] != "note"]
    lacking = [s for s in row.says if not any(fits(f, s) for f in found)]
    if lacking or len(found) != len(row.says):
        raise Failure(f"{len(found)} findings instead of {len(row.says)}; not said: {lacking}")
    numberless = [re.sub(r"#\d+", "#N", text) for text in ("\n".join(job.err) + "\n", *row.shows)]
    lacking = [text for text in numberless[1:] if text not in numberless[0]]
    if lacking:
        raise Failure("the console does not print:", *lacking)
    return report


def main():
    if sys.argv[1:] == ["--list"]:
        old = [OLD + name for name, row, _ in rows.tests() if not row.release]
        print(*(name for name, _, _ in rows.tests()), *old, sep=";", end="")
        return
    if sys.argv[1:] == ["--list-releases"]:
        print(*rows.releases(), sep="\n")
        return
    if sys.argv[1:] == ["--list-compared"]:
        print(*rows.compared(), sep=";", end="")
        return
    build, test = os.path.abspath(sys.argv[1]), sys.argv[2]
    name = test.removeprefix(OLD)
    row, ranks = next((r, n) for t, r, n in rows.tests() if t == name)
    if row.represent and test != name:
        skip("groups of which some ranks do not run are made in a newer release's way")
    python = find_python(row, "ROLL_REHEARSE_PYTHON" + ("_OLD" if test != name else ""))
    job = None
    try:
        with tempfile.TemporaryDirectory() as work:
            job = with_us = Job(build, python, row, ranks, work)
            report = (check_sick if row.says else check_healthy)(job, row, ranks)
        if row.alone and not row.mistake:
            with tempfile.TemporaryDirectory() as work:
                job = Job(build, python, row, ranks, work, alone=True)
                check_alone(job, with_us)
    except Failure as e:
        print("FAILED:", *e.args, sep="\n")
        print(job.printed())
        sys.exit(1)
    print(f"{report['ranks']} ranks, {report['calls']} calls")
    for f in report["findings"]:
        print(f"{f['certainty']} {f['code']} culprits {f['culprits_text']}: {f['text']}")


if __name__ == "__main__":
    main()
