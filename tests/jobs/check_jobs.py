#!/usr/bin/env python3
"""Real jobs under rollcall: what is said about the sick, that nothing is said about the healthy, and that neither
notices us.

usage: check_jobs.py BUILD_DIR cpp|ctypes|mpi|torch healthy|skip|size|extra RANKS run|env|mpirun|torchrun

Healthy: without us first, then under rollcall: same status, same output, no finding, all ranks recorded. Sick: the
verdict must name the rank, the operation and the call site while the job still hangs, before the job's own timeout, and
`rollcall stacks` the line of a Python job; then the job is ended. Launchers: `run` is `rollcall run -n`; `mpirun` and
`torchrun` are started by `rollcall run`; `env` starts the ranks itself with torchrun's variables (mpi: mpirun, and a
shell that sets RANK), with nothing of ours but LD_PRELOAD and ROLLCALL_DAEMON. Exit 77: the job cannot run here; the
reason is printed.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD, JOB, CASE, RANKS, LAUNCHER = sys.argv[1:4] + [int(sys.argv[4]), sys.argv[5]]
ROLLCALL, ROLLCALLD = (os.path.join(BUILD, "bin", p) for p in ("rollcall", "rollcalld"))
PRELOAD, HOSTNCCL = os.path.join(BUILD, "lib", "librollcall.so"), os.path.join(BUILD, "lib", "hostnccl")
JOB_TIMEOUT_S = 540  # the job's own; the verdict must come before
VERDICT_S = 500  # so late that only a verdict that never comes reaches it
GRACE_S = 0.7  # to catch a second, wrong finding after the right one

# A job that waits after every call blocks in an added one before it can show that the rest still fits: then only the
# counts differ.
CODES = {"size": {"count-mismatch"}, "skip": {"call-skipped"}, "extra": {"call-added", "count-mismatch"}}
TIE = {"call-skipped", "call-added", "sequence-tie"}  # without a majority nobody can say who left the path
# Where the call was made: what a frame of the culprit's call site must show.
FRAME = {"cpp": ("training::communicator<float>::reduce_layer<0>(", "job_cpp.cc"), "mpi": ("reduce_layer", "job_mpi.c")}


def skip(why):
    print(f"SKIPPED: jobs.{JOB}: {why}")
    sys.exit(77)


def fail(text, verdicts=(), *more):
    print(f"FAILED: {text}")
    for v in verdicts:
        print(f"  {v['certainty']:<10} {v['code']:<20} culprits {v['culprits_text'] or '-':<6} {v['text']}")
    for m in more:
        print(m)
    sys.exit(1)


def program():
    if JOB in ("cpp", "mpi"):
        path = os.path.join(BUILD, "tests", f"job_{JOB}")
        if not os.path.exists(path):
            skip(f"{path} was not built: {'no C++ compiler' if JOB == 'cpp' else 'Open MPI is not installed'}")
        return [path]
    python = os.environ["ROLL_TORCH_PYTHON"] if JOB == "torch" else sys.executable
    if not python:
        skip("no Python with torch was found when this tree was configured (python3-torch)")
    return [python, os.path.join(HERE, f"job_{JOB}.py")]


def mpirun(place, *command):
    # A rank that is killed leaves Open MPI's shared memory behind: in our own folder, not in /dev/shm.
    shared = ["--mca", "btl_vader_backing_directory", place.dir]
    return [os.environ["ROLL_MPIRUN"], "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", *shared, "-n",
            str(RANKS), *command]


def launched(place):
    """The job's command for the launchers that start one process."""
    if LAUNCHER == "mpirun":
        return mpirun(place, *program())
    if LAUNCHER == "torchrun":
        python, script = program()
        # Of a rank that is not there: torch 1.13 cannot read the 0 of its own default under Python 3.11.
        return [python, "-m", "torch.distributed.run", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                f"127.0.0.1:{free_port()}", "--rdzv_id", str(os.getpid()), "--redirects", "9:1", "--tee", "9:1",
                "--nproc_per_node", str(RANKS), script]
    return program()


def free_port():
    import socket
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Place:
    """Private folders of one run, and the environment of its job."""

    def __init__(self, tmp, name):
        self.dir = os.path.join(tmp, name)
        for part in ("", "meet", "rings", "hostnccl"):
            os.mkdir(os.path.join(self.dir, part), 0o700)
        self.verdicts_path = os.path.join(self.dir, "verdicts.json")
        self.env = dict(os.environ, JOB_DIR=os.path.join(self.dir, "meet"), JOB_MISTAKE="none" if CASE == "healthy"
                        else CASE, JOB_TIMEOUT=str(JOB_TIMEOUT_S), HOSTNCCL_DIR=os.path.join(self.dir, "hostnccl"),
                        OMP_NUM_THREADS="1", TMPDIR=self.dir, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LD_PRELOAD", "ROLLCALL_DAEMON", "ROLLCALL_DIR"):
            self.env.pop(name, None)

    def with_stand_in(self, **more):
        return dict(self.env, LD_LIBRARY_PATH=HOSTNCCL, **more)

    def verdicts(self):
        try:
            with open(self.verdicts_path) as f:
                return [json.loads(line) for line in f if line.endswith("\n")]
        except FileNotFoundError:
            return []


class Job:
    """One or several processes, in a session of their own, as one: output, status, end."""

    def __init__(self, commands):
        self.files = [(tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")) for _ in commands]
        self.processes = [subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                           start_new_session=True) for (argv, env), (out, err)
                          in zip(commands, self.files)]

    def running(self):
        return any(p.poll() is None for p in self.processes)

    def wait(self, seconds):
        end = time.monotonic() + seconds
        while self.running() and time.monotonic() < end:
            time.sleep(0.01)
        return not self.running()

    def status(self):
        return next((p.returncode for p in self.processes if p.returncode != 0), 0)

    def read(self, which):
        text = ""
        for files in self.files:
            files[which].seek(0)
            text += files[which].read()
        return text

    def signal(self, number):
        for p in self.processes:
            if p.poll() is None:
                try:
                    os.killpg(p.pid, number)
                except ProcessLookupError:
                    pass

    def end(self):
        self.signal(signal.SIGTERM)
        ended = self.wait(VERDICT_S)
        self.signal(signal.SIGKILL)
        self.wait(5)
        return ended


def rank_commands(place, **more):
    """The ranks as a torchrun-style launcher starts them."""
    env = place.with_stand_in(**more)
    if JOB == "mpi":
        line = ("RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
                "exec \"$0\"")
        return [(mpirun(place, "sh", "-c", line, *program()), env)]
    return [(program(), dict(env, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS)))
            for r in range(RANKS)]


def bare(place):
    if LAUNCHER in ("mpirun", "torchrun"):
        return Job([(launched(place), place.with_stand_in())])
    return Job(rank_commands(place))


class Watched:
    """The job with rollcall beside it; `env` has a root of its own, whose agent the first rank starts."""

    def __init__(self, place):
        self.place, self.root = place, None
        self.rings = rings = os.path.join(place.dir, "rings")
        if LAUNCHER == "env":
            ready, write = os.pipe()
            endpoint = f"ipc://{place.dir}/root"
            self.root = subprocess.Popen([ROLLCALLD, "--no-supervise", "--root", "--dir", rings, "--listen", endpoint,
                                          "--json", place.verdicts_path, "--ready-fd", str(write)], pass_fds=[write],
                                         stderr=subprocess.PIPE, text=True)
            os.close(write)
            with os.fdopen(ready) as f:
                if not f.readline():
                    fail("the root did not start", (), self.root.stderr.read())
            self.job = Job(rank_commands(place, LD_PRELOAD=PRELOAD, ROLLCALL_DAEMON=endpoint, ROLLCALL_DIR=rings,
                                         ROLLCALL_BIN=ROLLCALLD))
            return
        ranks = ["-n", str(RANKS)] if LAUNCHER == "run" else []
        self.job = Job([([ROLLCALL, "run", *ranks, "--hostnccl", "--json", place.verdicts_path, "--grace", "1", "--",
                          *launched(place)], dict(place.env, ROLLCALL_DIR=rings))])

    def root_options(self):
        return ["--daemon", f"ipc://{self.place.dir}/root"] if self.root is not None else []

    def summary(self):
        """How many ranks were recorded, as rollcall itself says it."""
        if self.root is None:
            return f"rollcall: {RANKS} ranks, " in self.job.read(1)
        end = time.monotonic() + VERDICT_S  # the agent may still be reading the rings of a job that is over
        while True:
            done = subprocess.run([ROLLCALL, "top", "--json", *self.root_options()], capture_output=True, text=True,
                                  timeout=VERDICT_S)
            ranks = json.loads(done.stdout)["ranks"] if done.returncode == 0 else []
            if len(ranks) == RANKS and all(r["state"] == "finished" for r in ranks) or time.monotonic() > end:
                return len(ranks) == RANKS
            time.sleep(0.05)

    def close(self):
        ended = self.job.end()
        if self.root is not None:
            self.root.send_signal(signal.SIGTERM)
            self.root.communicate(timeout=VERDICT_S)
            self.end_agent()
        return ended

    def end_agent(self):
        """The agent that a rank started belongs to nobody: it is found by its ring directory, and has to be gone as
        well."""
        rings = os.path.join(self.place.dir, "rings").encode()
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if rings in f.read().split(b"\0"):
                        os.kill(int(pid), signal.SIGTERM)
            except OSError:
                pass


def findings(verdicts):
    return [v for v in verdicts if v["certainty"] != "note"]


def healthy(tmp):
    alone = bare(Place(tmp, "alone"))
    if not alone.wait(VERDICT_S) or alone.status() != 0:
        alone.end()
        fail(f"the job alone ended with status {alone.status()}: its premise failed", (), alone.read(0), alone.read(1))
    want = alone.read(0)
    if len(want.splitlines()) < 8:
        fail("the job printed less than its steps", (), want)
    place = Place(tmp, "watched")
    watched = Watched(place)
    try:
        if not watched.job.wait(VERDICT_S):
            fail("the healthy job hangs under rollcall", place.verdicts(), watched.job.read(1))
        all_seen, err, verdicts = watched.summary(), watched.job.read(1), place.verdicts()
        if watched.job.status() != 0:
            fail(f"status {watched.job.status()} under rollcall, 0 without", verdicts, err)
        if watched.job.read(0) != want:
            fail("another output under rollcall", (), watched.job.read(0), "without:", want)
        if findings(verdicts):
            fail("a finding about a healthy job", findings(verdicts), err)
        if not all_seen:
            fail(f"not all {RANKS} ranks were recorded", verdicts, err)
    finally:
        watched.close()
    print(f"healthy: {JOB} on {RANKS} ranks by {LAUNCHER}: same status and output, no finding")


def wait_for_verdict(watched, codes):
    """What was found while the job hung; a while longer than the first right one, to catch a wrong one behind it."""
    end, seen = time.monotonic() + VERDICT_S, None
    while time.monotonic() < end:
        found = findings(watched.place.verdicts())
        if seen is None and any(v["code"] in codes for v in found):
            seen = time.monotonic()
            if not watched.job.running():
                fail("the job had ended when the verdict came", found, watched.job.read(1))
        if seen is not None and time.monotonic() - seen > GRACE_S:
            return found
        if not watched.job.running():
            return findings(watched.place.verdicts())
        time.sleep(0.02)
    return findings(watched.place.verdicts())


def check_call_site(verdict):
    frames = [f for site in verdict["callsites"] for f in site["frames"]]
    if not frames:
        fail("no call site", [verdict])
    if JOB in FRAME:
        function, file = FRAME[JOB]
        if not any(function in (f["function"] or "") and (f["file"] or "").endswith(file) and f["line"]
                   for f in frames):
            fail(f"no frame {function} in {file} with a line", [verdict], json.dumps(verdict["callsites"], indent=1))
    return frames[0]


def python_line(watched):
    """Where the culprit's Python stands while the job hangs: a line of the job's own file, whose text is such a
    call."""
    script = f"job_{JOB}.py"
    done = subprocess.run([ROLLCALL, "stacks", "--python", "--samples", "1", *watched.root_options(), str(RANKS - 1)],
                          capture_output=True, text=True, timeout=VERDICT_S,
                          env=dict(watched.place.env, ROLLCALL_DIR=watched.rings))
    found = re.findall(rf"(?m)^\s*(\S+)\s+\S*{re.escape(script)}:(\d+)", done.stdout)
    if done.returncode not in (0, 1) or not found:
        fail(f"no Python frame of {script} (status {done.returncode})", (), done.stdout, done.stderr)
    with open(os.path.join(HERE, script)) as f:
        lines = f.read().splitlines()
    calls = [(function, n) for function, n in found if re.search(r"reduce|barrier|backward", lines[int(n) - 1])]
    if not calls:
        fail(f"no frame of {script} stands at a call of a collective", (), done.stdout)
    function, number = calls[-1]  # innermost
    return f"{function} {script}:{number}"


def sick(tmp):
    codes = CODES[CASE] | (TIE if RANKS == 2 and CASE != "size" else set())
    watched = Watched(Place(tmp, "watched"))
    try:
        found = wait_for_verdict(watched, codes)
        right = [v for v in found if v["code"] in codes]
        if not right:
            fail(f"no verdict {' or '.join(sorted(codes))}", found, watched.job.read(1))
        if len(right) < len(found):
            fail("a finding of another code came with the right one", found)
        first = right[0]
        # All calls of a job come from one line and the job hangs at once: which mistake it was may stay open, that
        # there is one may not.
        open_class = first["certainty"] == "suspected" and first["may_be"] and "is certain" in first["text"]
        if first["certainty"] != "proven" and not open_class:
            fail("not proven, and not for want of the calls that would follow", found)
        want = [] if RANKS == 2 else [RANKS - 1]
        if first["culprits"] != want:
            fail(f"culprits are not {want}", found)
        if not any(e["op"] == "AllReduce" for e in first["evidence"]):
            fail("the operation is not named", found, json.dumps(first["evidence"]))
        frame = check_call_site(first)
        line = f", in Python at {python_line(watched)}" if JOB in ("ctypes", "torch") else ""
        print(f"sick: {JOB} {CASE} on {RANKS} ranks by {LAUNCHER}: {first['code']}, culprits "
              f"{first['culprits_text'] or 'tie'}, at "
              f"{frame['function'] or frame['module']}:{frame['line'] or hex(frame['offset'])}{line}")
    finally:
        if not watched.close():
            fail("the job did not end after SIGTERM", (), watched.job.read(1))


def main():
    program()  # skips before anything is started
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as tmp:
        (healthy if CASE == "healthy" else sick)(tmp)


main()
