#!/usr/bin/env python3
"""The lines of docs/RDIG.md that start agents and ranks and digest their traces under srun, run as they stand there.

usage: check_srun.py ROLLCALLD ROLLCALL LIBRARY CATALOGUE PAGE

`srun` is a stand-in (slurm_standin.py). `train.py` is a healthy program of the catalogue.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from slurm_standin import END_S, SRUN, blocks, furnish, need, ours, python, shell

rollcalld, rollcall, library, catalogue, page = map(os.path.abspath, sys.argv[1:6])
HOSTNAME = "#!/bin/sh\necho node$SLURM_NODEID\n"


def check(top, environment, endpoint):
    digest, start = blocks(page)[:2]
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
        environment = furnish(top, {"srun": SRUN, "hostname": HOSTNAME, "python": python(catalogue, "healthy")},
                              {"rollcalld": rollcalld, "rollcall": rollcall})
        need(shell(top, "rollcall keygen keys && rollcall keygen --role node --name nodes keys", environment)[0] == 0,
             "keys")
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
