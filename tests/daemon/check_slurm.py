#!/usr/bin/env python3
"""The commands of docs/SLURM.md, from keys to a verdict and to the end, run as they stand there, at two nodes: each of
the page's scripts with the commands that look.

usage: check_slurm.py ROLLCALLD ROLLCALL LIBRARY CATALOGUE PAGE

`srun`, `scontrol` and `hostname` are stand-ins (slurm_standin.py): both nodes are this machine. `train.py` is a program
of the catalogue whose last rank makes one wrong call. Ports and the library's place are other ones than the page's.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile

from slurm_standin import END_S, SRUN, blocks, furnish, need, ours, python, shell, until

rollcalld, rollcall, library, catalogue, page = map(os.path.abspath, sys.argv[1:6])
HOSTNAME = "#!/bin/sh\necho 127.0.0.1\n"
SCONTROL = "#!/bin/sh\n[ \"$*\" = 'show hostnames' ] && printf '127.0.0.1\\n127.0.0.1\\n'\n"


def free_ports(n):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def ranks_of(top):
    return [p for p in ours(top) if os.path.realpath(f"/proc/{p}/exe") == os.path.realpath(catalogue)]


def scripts_of(page):
    """The blocks of the page: how keys are made, the scripts for `sbatch`, and how to look. Slurm refuses a script
    without a first line that names an interpreter."""
    keys, *scripts, look = blocks(page)
    for script in scripts:
        lines = script.splitlines()
        need(lines[0] == "#!/bin/sh", "a script's first line", lines[0])
        n = next(i for i, line in enumerate(lines[1:] + ["end"]) if not line.startswith("#SBATCH "))
        asked = " ".join(lines[1:n + 1])
        need(re.search(r"--nodes=\d+", asked) and "--ntasks-per-node=8" in asked, "a script's #SBATCH lines", script)
        need("#SBATCH" not in "".join(lines[n + 1:]), "Slurm reads no #SBATCH behind a command", script)
        need(("--relay" in script) == (int(re.search(r"--nodes=(\d+)", asked)[1]) > 64), "relays", script)
        need("train.py" in script, "a script's job", script)
    need([("--relay" in script) for script in scripts] == [False, True], "the scripts", scripts)
    need("keygen --role node" in keys and "rollcall why" in look, "the page", keys, look)
    return keys, scripts, look


def check(top, environment, keys, job, look):
    ports = dict(zip(("7777", "7778"), map(str, free_ports(2))))
    for a, b in {**ports, "/usr/local/lib/librollcall.so": library, "FIRST-NODE": "127.0.0.1"}.items():
        need(a in job + look or a == "7778", "the page has", a)
        job, look = job.replace(a, b), look.replace(a, b)
    got = shell(top, f"set -e\n{keys}", environment)
    need(got[0] == 0, "keys", got)
    with open(f"{top}/job.sh", "w") as f:
        f.write(f"{job}\n")
    os.chmod(f"{top}/job.sh", 0o700)
    with open(f"{top}/job.out", "wb") as out:
        batch = subprocess.Popen([f"{top}/job.sh"], cwd=top, env=environment, stdout=out, stderr=out)
    settings, *commands = look.splitlines()
    seen = {}

    def looked():
        for command in commands:
            seen[command] = shell(top, f"{settings}\n{command}", environment)
        return ("PROVEN    count-mismatch  rank 3" in seen["rollcall verdicts"][1] and
                "ranks 4 (4 live)" in seen["rollcall top --once"][1] and "ank 3" in seen["rollcall why 3"][1])

    need(until(looked), "a verdict", seen)
    need([seen[c][0] for c in commands] == [0, 0, 1], "exit codes", seen)
    refused = shell(top, f"{settings}\nrollcall remedy on fill", environment)
    need(refused[0] != 0, "a viewer switches nothing", refused)
    for pid in ranks_of(top):
        os.kill(pid, signal.SIGKILL)
    need(batch.wait(END_S) == signal.SIGKILL, "what srun returned", batch.returncode)  # as the stand-in does
    with open(f"{top}/verdicts.json") as f:
        need(any(json.loads(line)["code"] == "count-mismatch" for line in f), "verdicts.json")
    with open(f"{top}/job.out") as f:
        said = f.read()
        end = "a finding, or trouble with rollcall: verdicts.json, root.log"
        need(said.splitlines()[-1:] == [end], "the end", said)
        need(said.count("rollcall") == 1, "the job itself prints nothing of rollcall", said)
    relays = "--relay" in job
    need(os.path.exists(f"{top}/relays.log") == relays, "relays", os.listdir(top))
    print(f"2 nodes {'behind a relay' if relays else 'without relays'}: keys, ranks, a verdict, and the end")


def end_all(top):
    """Agents linger, and where something has failed, so does everything else. True: nothing is left."""
    left = ours(top)
    for pid in left:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
    return not left


def main():
    keys, scripts, look = scripts_of(page)
    for script in scripts:
        with tempfile.TemporaryDirectory() as top:
            standins = {"srun": SRUN, "hostname": HOSTNAME, "scontrol": SCONTROL, "python": python(catalogue, "sick")}
            environment = furnish(top, standins, {"rollcalld": rollcalld, "rollcall": rollcall})
            try:
                check(top, environment, keys, script, look)
            finally:
                until(lambda: end_all(top))


main()
