#!/usr/bin/env python3
"""The lines of docs/RDIG.md that start agents and ranks and digest their traces under srun, run as they stand there.

usage: check_srun.py ROLLCALLD ROLLCALL LIBRARY CATALOGUE PAGE

`srun` is a stand-in that starts the tasks of two nodes with the variables of Slurm. What is a node's own has another
path on each: /var/tmp/rollcall, and the directory of rings. `train.py` is a healthy program of the catalogue.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

rollcalld, rollcall, library, catalogue, page = map(os.path.abspath, sys.argv[1:6])
END_S = 300

SRUN = f"""#!{sys.executable}
import os, subprocess, sys
arguments, top = sys.argv[1:], os.environ["CHECK_TOP"]
per_node = 2
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    per_node = int(option.split("=")[1]) if option.startswith("--ntasks-per-node=") else per_node
step = len(os.listdir(top + "/steps"))
open(f"{{top}}/steps/{{step}}", "w").close()
tasks = []
for task in range(2 * per_node):
    node = task // per_node
    slurm = dict(SLURM_PROCID=task, SLURM_NTASKS=2 * per_node, SLURM_LOCALID=task % per_node, SLURM_NODEID=node,
                 SLURM_JOB_ID=77, SLURM_STEP_ID=step)
    environment = {{**os.environ, **{{k: str(v) for k, v in slurm.items()}}, "ROLLCALL_DIR": f"{{top}}/node{{node}}"}}
    command = [a.replace("/var/tmp/rollcall", f"{{top}}/traces{{node}}") for a in arguments]
    tasks.append(subprocess.Popen(command, env=environment))
sys.exit(max(abs(t.wait()) for t in tasks))
"""
HOSTNAME = "#!/bin/sh\necho node$SLURM_NODEID\n"
PYTHON = f"""#!/bin/sh
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID ROLL_CATALOGUE_DIR="$CHECK_TOP/meet"
exec '{catalogue}' wrong-count healthy
"""


def need(condition, what, *seen):
    if not condition:
        sys.exit(f"FAILED: {what}: {seen}")


def blocks():
    """The page's indented lines, those that stand together."""
    with open(page) as f:
        return [b.strip("\n").replace("    ", "", 1).replace("\n    ", "\n")
                for b in re.findall(r"(?:^    .+\n)+", f.read(), re.M)]


def ours(top):
    """Processes whose arguments name our directory: the agents that were left running."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as f:
                command = f.read()
        except OSError:
            continue
        if f"{top}/traces" in command and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def shell(top, lines, environment):
    done = subprocess.run(["sh", "-c", lines], cwd=top, env=environment, capture_output=True, text=True, timeout=END_S)
    return done.returncode, done.stdout, done.stderr


def check(top, environment, endpoint):
    digest, start = blocks()[:2]
    need("srun" in digest and "rollcall analyze" in digest and "--agent" in start and "train.py" in start, "the page")
    start = start.replace("tcp://head:7777", endpoint).replace("/usr/local/lib/librollcall.so", library)
    got = shell(top, start, environment)
    need(got[0] == 0, "agents and ranks", got)
    os.mkdir(f"{top}/digests")
    analyze = digest.replace("rollcall analyze", "rollcall analyze --json")
    end = time.monotonic() + END_S
    while time.monotonic() < end:  # until the agents have written what the ranks did last
        got = shell(top, analyze, environment)
        summary = json.loads(got[1].splitlines()[-1]) if got[1] else {}
        if got[0] == 0 and summary.get("ranks") == 4:
            break
        time.sleep(0.2)
    need(got[0] == 0 and summary.get("ranks") == 4, "what the digests say", got)
    need(summary["digests"] == 2 and summary["findings"] == 0 and summary["runs"] == 1, "the summary", summary)
    need(sorted(os.listdir(f"{top}/digests")) == ["node0.rdig", "node1.rdig"], "files", os.listdir(f"{top}/digests"))
    print(f"4 ranks on 2 nodes: {summary['digested']} calls of two files")


def main():
    with tempfile.TemporaryDirectory() as top:
        for d in ("bin", "steps", "meet", "root", "node0", "node1"):
            os.mkdir(f"{top}/{d}", 0o700)
        for name, text in (("srun", SRUN), ("hostname", HOSTNAME), ("python", PYTHON)):
            with open(f"{top}/bin/{name}", "w") as f:
                f.write(text)
            os.chmod(f"{top}/bin/{name}", 0o700)
        os.symlink(rollcalld, f"{top}/bin/rollcalld")
        os.symlink(rollcall, f"{top}/bin/rollcall")
        environment = {**os.environ, "PATH": f"{top}/bin:{os.environ['PATH']}", "HOME": top, "CHECK_TOP": top}
        need(shell(top, "rollcall keygen keys", environment)[0] == 0, "keys")
        ready, write = os.pipe()
        root = subprocess.Popen([rollcalld, "--root", "--dir", f"{top}/root", "--listen", "tcp://127.0.0.1:*",
                                 "--curve-dir", f"{top}/keys", "--ready-fd", str(write)], pass_fds=[write])
        os.close(write)
        try:
            with os.fdopen(ready) as f:
                endpoint = re.search(r"tcp://\S+", f.readline())
            need(endpoint, "the root's endpoint")
            check(top, environment, endpoint.group())
        finally:
            root.terminate()
            root.wait()
            for pid in ours(top):
                os.kill(pid, signal.SIGTERM)
            end = time.monotonic() + END_S
            while ours(top) and time.monotonic() < end:
                time.sleep(0.02)
            need(not ours(top), "agents do not end")


main()
