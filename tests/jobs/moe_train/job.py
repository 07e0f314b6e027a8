"""job.py: what the tests of the main job share: the built programs, one run under rollcall, and how its verdicts are
read."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 500  # the end of whatever should have ended by itself: no test is right or wrong by the machine's pace


class Programs:
    """The programs under test, in one directory of binaries."""

    def __init__(self, bin_dir):
        self.rollcall, self.train = os.path.join(bin_dir, "rollcall"), os.path.join(bin_dir, "moe_train")


def check(ok, text, *more):
    if not ok:
        print("FAILED:", text)
        for m in more:
            print(m)
        sys.exit(1)


def run(argv, **kw):
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, **kw)


def command(programs, ranks, out, rollcall_options, train_options):
    return [programs.rollcall, "run", "-n", str(ranks), "--hostnccl", "--json", out, *rollcall_options, "--",
            programs.train, "--exact", *train_options]


def read(path):
    """The verdicts written so far; a line that is still being written is left for the next look."""
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(line) for line in f if line.endswith("\n")]


def run_until(argv, out, enough, limit_s, grace_s=0.5):
    """Runs a job until enough(findings so far), and a moment more for one too many; a job that still runs then, because
    it hangs, is ended.

    Waiting for the job's own watchdog instead takes seconds, and one that is short enough for a test ends jobs that are
    merely slow on a busy machine. Gives the findings, the status (None: it was still running) and stderr."""
    if os.path.exists(out):
        os.remove(out)
    with tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=err, text=True, start_new_session=True)
        begin = time.monotonic()
        try:
            while not enough(findings(read(out))) and time.monotonic() - begin < limit_s and job.poll() is None:
                time.sleep(0.02)
            end = time.monotonic() + grace_s
            while time.monotonic() < end and job.poll() is None:
                time.sleep(0.02)
            status, found = job.poll(), findings(read(out))
            if status is None:
                job.send_signal(signal.SIGTERM)
                job.wait(timeout=LIMIT_S)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()
        err.seek(0)
        return found, status, err.read()


def findings(verdicts):
    """Those that stand: a later verdict may have replaced, confirmed or withdrawn one."""
    retired = {v[way] for v in verdicts for way in ("supersedes", "confirms", "withdraws")}
    return [v for v in verdicts if v["certainty"] != "note" and v["number"] not in retired]


def losses(text):
    return [line for line in text.splitlines() if line.startswith("step ")]


def show(verdicts):
    return "\n".join(f"  {v['certainty']} {v['code']} culprits {v['culprits_text']} {v['text']}" for v in verdicts)
