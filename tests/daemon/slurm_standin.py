"""slurm_standin.py: what the checks of pages with commands for Slurm share: a stand-in for `srun` that starts the tasks
of two nodes with Slurm's variables, one for the job's `python`, and the blocks of a page.

What is a node's own has another path on each: /var/tmp/rollcall, and the directory of rings.
"""
import os
import re
import subprocess
import sys
import time

END_S = 300

SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
arguments, top = sys.argv[1:], os.environ["CHECK_TOP"]
nodes, per_node, tasks_in_all = 2, 2, None
while arguments[0].startswith("--"):
    name, _, value = arguments.pop(0).partition("=")
    nodes = int(value) if name == "--nodes" else nodes
    per_node = int(value) if name == "--ntasks-per-node" else per_node
    tasks_in_all = int(value) if name == "--ntasks" else tasks_in_all
per_node = tasks_in_all // nodes if tasks_in_all else per_node
step = len(os.listdir(top + "/steps"))
open(f"{{top}}/steps/{{step}}", "w").close()
tasks = []
signal.signal(signal.SIGTERM, lambda *_: [t.terminate() for t in tasks])
for task in range(nodes * per_node):
    node = task // per_node
    slurm = dict(SLURM_PROCID=task, SLURM_NTASKS=nodes * per_node, SLURM_LOCALID=task % per_node, SLURM_NODEID=node,
                 SLURM_JOB_ID=77, SLURM_STEP_ID=step)
    environment = {{**os.environ, **{{k: str(v) for k, v in slurm.items()}}, "ROLLCALL_DIR": f"{{top}}/node{{node}}"}}
    command = [a.replace("/var/tmp/rollcall", f"{{top}}/traces{{node}}") for a in arguments]
    tasks.append(subprocess.Popen(command, env=environment))
sys.exit(max(abs(t.wait()) for t in tasks))
"""


def python(catalogue, health):
    """The job: a program of the catalogue."""
    return f"""#!/bin/sh
export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID ROLL_CATALOGUE_DIR="$CHECK_TOP/meet"
exec '{catalogue}' wrong-count {health}
"""


def need(condition, what, *seen):
    if not condition:
        sys.exit(f"FAILED: {what}: {seen}")


def until(condition):
    """Waits until condition() is true; returns its last value."""
    end = time.monotonic() + END_S
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(0.05)


def blocks(page):
    """The page's indented lines, those that stand together."""
    with open(page) as f:
        return [b.strip("\n").replace("    ", "", 1).replace("\n    ", "\n")
                for b in re.findall(r"(?:^    .+\n)+", f.read(), re.M)]


def ours(top):
    """Processes whose arguments or environment name our directory: what was left running."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ") as f, open(f"/proc/{pid}/cmdline") as g:
                text = f.read() + g.read()
        except (OSError, UnicodeDecodeError):
            continue
        if f"CHECK_TOP={top}" in text and int(pid) != os.getpid():
            found.append(int(pid))
    return found


def shell(top, lines, environment):
    done = subprocess.run(["sh", "-c", lines], cwd=top, env=environment, capture_output=True, text=True, timeout=END_S)
    return done.returncode, done.stdout, done.stderr


def furnish(top, scripts, programs):
    """Makes the directories, the stand-ins and links to the programs, all on PATH. Returns the environment."""
    for d in ("bin", "steps", "meet", "node0", "node1"):
        os.mkdir(f"{top}/{d}", 0o700)
    for name, text in scripts.items():
        with open(f"{top}/bin/{name}", "w") as f:
            f.write(text)
        os.chmod(f"{top}/bin/{name}", 0o700)
    for name, path in programs.items():
        os.symlink(path, f"{top}/bin/{name}")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "SLURM_"))}
    return {**plain, "PATH": f"{top}/bin:{os.environ['PATH']}", "HOME": top, "CHECK_TOP": top}
