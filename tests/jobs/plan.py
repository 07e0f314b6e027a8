"""plan.py: what all jobs of this folder agree on: the environment of a rank, its mistake, its timeout, and how ranks
meet.

JOB_MISTAKE is none, skip, size or extra; the last rank makes it in step MISTAKE_STEP. JOB_DIR is a private folder,
where rank 0 puts the unique id. A job that makes no progress ends itself with status 3 after JOB_TIMEOUT seconds: the
timeout that rollcall must beat.
"""
import ctypes
import os
import sys
import threading
import time

STEPS = 8
MISTAKE_STEP = 4
TIMED_OUT = 3


class Plan:
    def __init__(self):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.kind = os.environ.get("JOB_MISTAKE", "none")
        self.seconds = float(os.environ.get("JOB_TIMEOUT", "20"))
        self.moved = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def mistake(self, step, kind):
        """Whether this rank makes this mistake in this step."""
        self.moved = time.monotonic()
        return self.kind == kind and step == MISTAKE_STEP and self.rank == self.size - 1

    def _watch(self):
        while time.monotonic() - self.moved < self.seconds:
            time.sleep(0.1)
        print(f"job: rank {self.rank}: no progress for {self.seconds:g} s", file=sys.stderr, flush=True)
        os._exit(TIMED_OUT)

    def meet(self, unique_id):
        """The bytes of rank 0's unique id, on every rank."""
        path = os.path.join(os.environ["JOB_DIR"], "id")
        if self.rank == 0:
            with open(path + ".tmp", "wb") as f:
                f.write(bytes(unique_id()))
            os.rename(path + ".tmp", path)
        while not os.path.exists(path):
            time.sleep(0.005)
        with open(path, "rb") as f:
            return f.read()


def forked_child(exit_like_a_worker):
    """A child without exec, as data loaders have: it must not disturb what the parent records. Returns its status."""
    pid = os.fork()
    if pid == 0:
        total = sum(range(10000))
        exit_like_a_worker(0 if total == 49995000 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def buffer(values):
    return (ctypes.c_float * len(values))(*values)
