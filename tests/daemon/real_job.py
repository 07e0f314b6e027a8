"""A small real job for tests: ranks on hostnccl, agents and a root of rollcalld, in a directory that goes with it.

What a test waits for is waited for with one bound, so late that only what never comes reaches it; then the test ends
and says what the root has said until then. A class holds the processes, so that none outlives a test that fails.
"""
import json
import os
import subprocess
import sys
import tempfile
import time


class Job:
    """`with Job(rollcalld, rollcall, library, name, nodes) as job`: ring directories of so many nodes, nothing runs."""

    def __init__(self, rollcalld, rollcall, library, name, nodes=1, limit_s=300):
        self.rollcalld, self.rollcall, self.library, self.name = rollcalld, rollcall, library, name
        self.limit_s = limit_s
        self.processes = []
        self.folder = tempfile.TemporaryDirectory()
        self.tmp = tmp = self.folder.name
        self.endpoint, self.told, self.meet = f"ipc://{tmp}/root.sock", f"{tmp}/verdicts.json", f"{tmp}/meet"
        self.nodes = [f"{tmp}/node{n}" for n in range(nodes)]
        os.chmod(tmp, 0o700)
        for d in [self.meet, *self.nodes]:
            os.mkdir(d, 0o700)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
                p.wait()
        self.folder.cleanup()

    def serve(self, *arguments):
        """A rollcalld that is ready: a rank that finds no agent yet starts one of its own, and ours would leave."""
        ready, write = os.pipe()
        p = subprocess.Popen([self.rollcalld, *arguments, "--no-supervise", "--ready-fd", str(write)], pass_fds=[write],
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.processes.append(p)
        os.close(write)
        if not os.read(ready, 1):
            sys.exit(f"FAILED: {' '.join(arguments)} never was ready: {p.stderr.read()}")
        os.close(ready)
        return p

    def root(self, *arguments):
        return self.serve("--root", "--dir", self.tmp, "--listen", self.endpoint, "--json", self.told, *arguments)

    def agent(self, node=0, *arguments):
        return self.serve("--agent", "--dir", self.nodes[node], "--connect", self.endpoint, *arguments)

    def ranks(self, size, *command):
        """The ranks of the job, spread over its nodes in order."""
        started = []
        for r in range(size):
            env = {**os.environ, "ROLL_CATALOGUE_DIR": self.meet, "RANK": str(r), "WORLD_SIZE": str(size),
                   "LOCAL_RANK": str(r),
                   "LD_PRELOAD": self.library, "ROLLCALL_DIR": self.nodes[r * len(self.nodes) // size],
                   "ROLLCALL_JOB": self.name, "ROLLCALL_DAEMON": self.endpoint}
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                            text=True))
        self.processes.extend(started)
        return started

    def ended_well(self, ranks):
        for r in ranks:
            if r.wait(self.limit_s) != 0:
                sys.exit(f"FAILED: a rank ended with {r.returncode}: {r.stderr.read()}")

    def touch(self, name):
        open(f"{self.meet}/{name}", "w").close()

    def verdicts(self):
        """All that the root has said, the notes too, as it said it."""
        try:
            with open(self.told) as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []

    def findings(self):
        return [v for v in self.verdicts() if v["certainty"] != "note"]

    def asked(self, command):
        """What `rollcall COMMAND --json` answers of the root: a list of objects."""
        out = subprocess.run([self.rollcall, command, "--json", "--daemon", self.endpoint], capture_output=True,
                             text=True).stdout
        return [json.loads(line) for line in out.splitlines() if line.startswith("{")]

    def wait_for(self, what, condition):
        end = time.monotonic() + self.limit_s
        while time.monotonic() < end:
            got = condition()
            if got:
                return got
            time.sleep(0.02)
        sys.exit(f"FAILED: {what} never came; status: {self.asked('top')}; verdicts: {self.verdicts()}")
