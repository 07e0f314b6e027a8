"""ranks.py: several ranks on one GPU, bare or under rollcall, with a limit; and the verdicts that came.

The recipe (docs/GPUCHECK.md): a NCCL_HOSTID for each rank makes each a node of its own, so that NCCL takes its network transport and does not
refuse a GPU that several ranks share. Everything runs in a session of its own and is gone afterwards.
"""
import json
import os
import signal
import subprocess
import tempfile
import time

RECIPE = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0", "NCCL_MAX_CTAS": "2", "NCCL_NVLS_ENABLE": "0",
          "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_CUMEM_ENABLE": "0", "NCCL_RAS_ENABLE": "0",
          "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
NOT_INHERITED = ("LD_PRELOAD", "RANK", "LOCAL_RANK", "WORLD_SIZE", "ROLLCALL_DAEMON", "ROLLCALL_DIR")
HOST_ID = ["sh", "-c", 'NCCL_HOSTID="rollcall-$RANK" exec "$@"', "rank"]


def environment(tree, folder, **more):
    env = {k: v for k, v in os.environ.items() if k not in NOT_INHERITED}
    env.update(RECIPE, CHECK_DIR=folder, HOSTNCCL_DIR=folder, LD_LIBRARY_PATH=tree.libraries)
    env.update(more)
    return env


class Ended:
    """How a run ended: status (None: it was still running at its limit), output, errors, verdicts."""

    def __init__(self, status, out, err, verdicts, seconds):
        self.status, self.out, self.err, self.verdicts, self.seconds = status, out, err, verdicts, seconds

    def findings(self):
        return [v for v in self.verdicts if v["certainty"] != "note"]


def read_verdicts(path):
    try:
        with open(path) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    except FileNotFoundError:
        return []


def end(process):
    """Ends a process and what it started; SIGKILL where SIGTERM is not enough."""
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def watched(tree, argv, ranks, limit_s, enough=None, **more):
    """The ranks under `rollcall run`. `enough(verdicts)` may end a run that hangs before its limit: it says for how long it has to hang."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "verdicts.json")
        command = [tree.rollcall, "run", "-q", "-n", str(ranks), "--json", path, "--grace", "2", "--", *HOST_ID, *argv]
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            env = environment(tree, folder, **more)
            begin = time.monotonic()
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True)
            try:
                while process.poll() is None and time.monotonic() - begin < limit_s:
                    if enough and enough(read_verdicts(path)):
                        break
                    time.sleep(0.05)
                status = process.poll()
            finally:
                end(process)
            out.seek(0)
            err.seek(0)
            return Ended(status, out.read(), err.read(), read_verdicts(path), time.monotonic() - begin)


def bare(tree, argv, ranks, limit_s, preload=None, **more):
    """The ranks without daemon; with `preload`, the library records and nobody reads. The first status that is not 0 counts."""
    with tempfile.TemporaryDirectory() as folder:
        begin, processes = time.monotonic(), []
        rings = os.path.join(folder, "rings")
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            for rank in range(ranks):
                env = dict(environment(tree, folder, **more), RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
                env.update({"LD_PRELOAD": preload, "ROLLCALL_DIR": rings} if preload else {})
                processes.append(subprocess.Popen([*HOST_ID, *argv], stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                                                  start_new_session=True))
            try:
                while any(p.poll() is None for p in processes) and time.monotonic() - begin < limit_s:
                    time.sleep(0.02)
                states = [p.poll() for p in processes]
            finally:
                for p in processes:
                    end(p)
            status = None if None in states else next((s for s in states if s), 0)
            out.seek(0)
            err.seek(0)
            return Ended(status, out.read(), err.read(), [], time.monotonic() - begin)
