"""ranks.py: several ranks on one GPU, bare or under rollcall, with a limit; and the verdicts that came.

The recipe (docs/GPUCHECK.md): a NCCL_HOSTID for each rank makes each a node of its own, so that NCCL takes its network
transport and does not refuse a GPU that several ranks share. Everything runs in a session of its own and is gone
afterwards: a process that was left over, spinning in a kernel, would take its share of the GPU from everything that is
measured later. The folders are in memory, as rollcall's own are: a driver need not take a page of a file on a disk,
which completion on the device wants of it.
"""
import glob
import json
import os
import signal
import struct
import subprocess
import tempfile
import time

RECIPE = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0", "NCCL_MAX_CTAS": "2",
          "NCCL_NVLS_ENABLE": "0", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0",
          "NCCL_RAS_ENABLE": "0", "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
NOT_INHERITED = ("LD_PRELOAD", "LD_AUDIT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
# Somebody's NCCL_DEBUG would be in the figures, and in the output that is read.
NOT_INHERITED_FAMILIES = ("ROLLCALL_", "NCCL_", "TORCH_NCCL_")
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None
HOST_ID = ["sh", "-c", 'NCCL_HOSTID="rollcall-$RANK" exec "$@"', "rank"]


def environment(tree, folder, **more):
    env = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED and not k.startswith(NOT_INHERITED_FAMILIES)}
    behind = os.environ.get("LD_LIBRARY_PATH")  # in many containers the driver is found by it alone
    env.update(RECIPE, CHECK_DIR=folder, HOSTNCCL_DIR=folder,
               LD_LIBRARY_PATH=tree.libraries + (":" + behind if behind else ""))
    env.update(more)
    return env


class Ended:
    """How a run ended: status (None: it was still running at its limit), output, errors, verdicts, what its rings say
    of completion."""

    def __init__(self, status, out, err, verdicts, seconds, rings=()):
        self.status, self.out, self.err = status, out, err
        self.verdicts, self.seconds, self.rings = verdicts, seconds, rings

    def findings(self):
        return [v for v in self.verdicts if v["certainty"] != "note"]


def read_verdicts(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


COMPLETION = ("off", "write", "counter", "event")


def read_rings(folder):
    """Of each ring: how completion is learnt, whether any work is known to be complete, and how many replays
    (docs/RING.md)."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "*.ring"))):
        with open(path, "rb") as f:
            header = f.read(4096)
        (way,) = struct.unpack_from("<I", header, 896)
        found.append({"way": COMPLETION[way], "done": max(struct.unpack_from("<256Q", header, 1024)),
                      "replays": sum(struct.unpack_from("<64Q", header, 3072))})
    return found


def strays(folder):
    """Processes that were started with this CHECK_DIR and are still there, but for dead ones that nobody has waited
    for."""
    mark, found = f"CHECK_DIR={folder}".encode(), []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if mark in f.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found


def end(processes, folder, patience_s=(10, 10)):
    """Ends processes and all that they started, wherever it has gone; SIGKILL where SIGTERM is not enough. Returns the
    pids that even that did not end: a driver that does not let go of them."""
    for number, seconds in zip((signal.SIGTERM, signal.SIGKILL), patience_s):
        running = [p for p in processes if p.poll() is None]
        for p in running:
            try:
                os.killpg(p.pid, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + seconds
        while any(p.poll() is None for p in running) and time.monotonic() < until:
            time.sleep(0.02)
    until, left = time.monotonic() + 10, strays(folder)
    while left and time.monotonic() < until:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
        left = strays(folder)
    return left


def watched(tree, argv, ranks, limit_s, enough=None, **more):
    """The ranks under `rollcall run`. `enough(verdicts)` may end a run that hangs before its limit: it says for how
    long it has to hang."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, prefix="gpu-check-") as folder:
        path = os.path.join(folder, "verdicts.json")
        command = [tree.rollcall, "run", "-q", "-n", str(ranks), "--json", path, "--grace", "2", "--", *HOST_ID, *argv]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            env = environment(tree, folder, **more)
            begin = time.monotonic()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                       start_new_session=True)
            try:
                while process.poll() is None and time.monotonic() - begin < limit_s:
                    if enough and enough(read_verdicts(path)):
                        break
                    time.sleep(0.05)
                status = process.poll()
            finally:
                end([process], folder)
            out.seek(0)
            err.seek(0)
            return Ended(status, out.read(), err.read(), read_verdicts(path), time.monotonic() - begin)


def bare(tree, argv, ranks, limit_s, preload=None, **more):
    """The ranks without daemon; with `preload`, the library records and nobody reads. The first status that is not 0
    counts."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY, prefix="gpu-check-") as folder:
        begin, processes = time.monotonic(), []
        rings = os.path.join(folder, "rings")
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            for rank in range(ranks):
                env = dict(environment(tree, folder, **more), RANK=str(rank), LOCAL_RANK=str(rank),
                           WORLD_SIZE=str(ranks))
                env.update({"LD_PRELOAD": preload, "ROLLCALL_DIR": rings} if preload else {})
                processes.append(subprocess.Popen([*HOST_ID, *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                                  env=env, start_new_session=True))
            try:
                while any(p.poll() is None for p in processes) and time.monotonic() - begin < limit_s:
                    time.sleep(0.02)
                states = [p.poll() for p in processes]
            finally:
                end(processes, folder)
            status = None if None in states else next((s for s in states if s), 0)
            out.seek(0)
            err.seek(0)
            return Ended(status, out.read(), err.read(), [], time.monotonic() - begin, read_rings(rings))
