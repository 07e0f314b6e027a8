"""cluster.py: a small real cluster for tests that last: a root, a relay and an agent with their supervisors, a job of
ranks on hostnccl, and what is left of all that.

It runs in namespaces of its own (`inside`): there the process table, /dev/shm, /tmp and the sockets hold nothing but
what the test has made, so that what is left behind shows without looking at names, whatever else the machine does.
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import zmtp

END_S = 300  # the end of whatever should have ended by itself: so late that only a hang reaches it
SPACE = ["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc"]
SKIPPED = 77
INSIDE = "ROLL_SOAK_INSIDE"
# What is empty at first. /tmp is not, where it holds the programs.
OWN = [d for d in ("/dev/shm", "/tmp") if not any(os.path.abspath(w).startswith(d + "/") for w in sys.argv)]


def inside():
    """Whether this is the inner process; the outer one runs it, and ends with its status. The shell is what reaps
    there what nobody else does."""
    if os.environ.get(INSIDE):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for path in OWN:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", path], check=True)
        return
    space = ["unshare", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), *SPACE]
    probe = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up"
    if subprocess.run([*space, "sh", "-c", probe], check=False).returncode != 0:
        print("SKIPPED: no namespaces here (unshare --mount --pid --net; mount; ip): what is left behind could not be "
              "told from what others have made", file=sys.stderr)
        sys.exit(SKIPPED)
    words = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
    sys.exit(subprocess.run([*space, "sh", "-c", '"$@"; exit $?', "sh", *words],
                            env={**os.environ, INSIDE: "1", "PYTHONDONTWRITEBYTECODE": "1"}, check=False).returncode)


def until(condition, seconds=END_S, step=0.01):
    """Waits until condition() is true; its last value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value or time.monotonic() > end:
            return value
        time.sleep(step)


def read(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()
    except OSError:
        return ""


def children(pid):
    return [int(p) for p in read(f"/proc/{pid}/task/{pid}/children").split()]


def name_of(pid):
    return read(f"/proc/{pid}/comm").strip()


def alive(pid):
    state = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return bool(state) and state[0] not in "ZX"


def kill(pid, number):
    """Whether there was such a process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def command_of(pid):
    return read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()


def processes():
    """All that live here but this one and the first."""
    return [p for p in map(int, filter(str.isdigit, os.listdir("/proc"))) if p not in (1, os.getpid()) and alive(p)]


class Cluster:
    """`with Cluster(build) as c`: directories; nothing runs yet. All that was started is ended at the end."""

    def __init__(self, build):
        self.bin = f"{build}/bin"
        self.library = f"{build}/lib/librollcall.so"
        self.started = []
        self.tmp = tempfile.mkdtemp(prefix="soak-", dir="/tmp")
        self.rings = tempfile.mkdtemp(prefix="soak-", dir="/dev/shm")
        self.heart = f"{self.tmp}/root"  # the root's directory
        self.door = f"{self.tmp}/relay.sock"
        self.told = f"{self.tmp}/verdicts.json"
        self.node = f"{self.rings}/node"
        self.meet = f"{self.tmp}/meet"  # the job's own, which a rank that is killed does not remove
        for d in (self.heart, self.node, self.meet):
            os.mkdir(d, 0o700)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ROLLCALL_", "HOSTNCCL_", "LD_PRELOAD"))}
        self.env = {**kept, "ROLLCALL_COOKIE": f"{self.tmp}/cookie", "TMPDIR": self.tmp, "NO_COLOR": "1",
                    "HOSTNCCL_DIR": self.meet, "ROLLCALL_DIR": self.rings}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.started:
            if p.poll() is None:
                p.kill()
            p.wait()
        for p in processes():
            kill(p, signal.SIGKILL)
        until(lambda: not processes())
        subprocess.run(["rm", "-rf", self.tmp, self.rings], check=True)

    def spawn(self, name, words, env=None, **more):
        """A program whose output goes to NAME.out and NAME.err."""
        with open(f"{self.tmp}/{name}.out", "ab") as out, open(f"{self.tmp}/{name}.err", "ab") as err:
            p = subprocess.Popen(words, env={**self.env, **(env or {})}, stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err, **more)
        self.started.append(p)
        return p

    def serve(self, name, *words):
        """A rollcalld that is ready, with its supervisor; where it can be reached."""
        ready, write = os.pipe()
        p = self.spawn(name, [f"{self.bin}/rollcalld", *words, "--ready-fd", str(write)], pass_fds=[write])
        os.close(write)
        line = b""
        while not line.endswith(b"\n"):
            more = os.read(ready, 256)
            if not more:
                sys.exit(f"FAILED: {name} never was ready: {read(f'{self.tmp}/{name}.err')}")
            line += more
        os.close(ready)
        return p, line.decode().strip()

    def serve_all(self, *root_words, agent=True):
        self.root, where = self.serve("root", "--root", "--dir", self.heart, "--listen", "tcp://127.0.0.1:*", "--json",
                                      self.told, *root_words)
        self.relay, self.entrance = self.serve("relay", "--relay", "--listen", "tcp://127.0.0.1:*", "--listen",
                                               f"ipc://{self.door}", "--connect", where)
        if agent:
            self.agent, _ = self.serve("agent", "--agent", "--dir", self.node, "--connect", self.entrance)

    def ranks(self, size, *command):
        return [self.spawn(f"rank{r}", command, {
            "RANK": str(r), "LOCAL_RANK": str(r), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "LD_PRELOAD": self.library, "ROLLCALL_DIR": self.node,
            "ROLLCALL_JOB": "soak"}) for r in range(size)]

    def status(self):
        try:
            return zmtp.ask(f"{self.heart}/root", {"op": "status"})
        except OSError:
            return {}

    def summary(self):
        return self.status().get("summary") or {}

    def verdicts(self):
        return [json.loads(line) for line in read(self.told).splitlines() if line.endswith("}")]

    def findings(self):
        return [v for v in self.verdicts() if v["certainty"] != "note"]

    def end(self, *daemons):
        """Ends daemons in good order."""
        for p in daemons:
            p.terminate()
            try:
                p.wait(END_S)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()

    def log(self, name):
        return read(f"{self.tmp}/{name}.err")

    def left(self):
        """What is left when all has ended: processes, files, sockets."""
        until(lambda: not processes(), 60)
        found = [f"process {p}: {command_of(p)}" for p in processes()]
        found += [f"in {self.node}: {n}" for n in os.listdir(self.node)]
        found += [f"in {self.rings}: {n}" for n in os.listdir(self.rings) if n != "node"]
        found += [f"in {self.heart}: {n}" for n in os.listdir(self.heart)]
        ours = (os.path.basename(self.tmp), os.path.basename(self.rings))
        known = (".out", ".err", "cookie", "root", "meet", "verdicts.json", "trace")
        found += [f"in {self.tmp}: {n}" for n in os.listdir(self.tmp) if not n.endswith(known)]
        found += [f"in {d}: {n}" for d in OWN for n in os.listdir(d) if n not in ours]
        for table in ("tcp", "tcp6"):
            for line in read(f"/proc/net/{table}").splitlines()[1:]:
                if line.split()[3] in ("0A", "01"):  # listening, established
                    found.append(f"{table} socket {line.split()[1]}")
        found += [f"socket {line.split()[-1]}" for line in read("/proc/net/unix").splitlines()[1:]
                  if self.tmp in line or self.rings in line]
        return found
