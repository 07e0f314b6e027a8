"""check_demo.py: the last act of scripts/demo, with the programs of this build: the page of the hung job answers, and a
bundle and a report lie beside it. What the other acts show is checked by job.observe and job.auto; all of them on a
bare Debian: scripts/fresh.

usage: check_demo.py DEMO BIN
"""
import os
import re
import subprocess
import sys
import tempfile

demo, programs = sys.argv[1:3]


def check(holds, what, *shown):
    if not holds:
        sys.exit("\n".join([f"FAILED: {what}", *shown]))


with tempfile.TemporaryDirectory() as tmp:
    out = os.path.join(tmp, "out")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_", "ROLL_"))}
    env.update(ROLL_DEMO_BIN=programs, ROLL_DEMO_OUT=out, ROLLCALL_DIR=os.path.join(tmp, "rings"),
               ROLLCALL_COOKIE=os.path.join(tmp, "cookie"))
    os.mkdir(env["ROLLCALL_DIR"], 0o700)
    done = subprocess.run([demo, "4"], env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    text = done.stdout + done.stderr
    check(done.returncode == 0, f"status {done.returncode}", text)
    for line in (r"^    page      http://127\.0\.0\.1:\d+/$", r"^    password  [0-9a-f]{32}$",
                 r"^    guarded   without the password it answers HTTP/1\.[01] 401 ",
                 rf"^    bundle    {out}/incidents/incident-demo-\d+\.0-",
                 r"^    PROVEN    moe-obligation-missing  rank ",
                 rf"^    report    {out}/incident\.html: one file for a browser or a mail$"):
        check(re.search(line, text, re.M), f"no line {line}", text)
    check("should not happen" not in text, "something that should not happen", text)
    with open(os.path.join(out, "incident.html"), encoding="utf-8") as f:
        check("moe-obligation-missing" in f.read(), "the finding is not in the report")
    help_ = subprocess.run([demo, "--help"], env=env, capture_output=True, text=True, check=True).stdout
    check(all(word in help_ for word in ("--page", "all four acts", "one act only")), "no help", help_)
