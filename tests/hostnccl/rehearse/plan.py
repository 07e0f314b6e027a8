"""plan.py: what the jobs of this folder share: the rank's place, its device, the process group, its mistake."""
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
mistake, culprit = os.environ.get("MISTAKE", ""), int(os.environ.get("CULPRIT", "-1"))
GROUP_TIMEOUT_S = os.environ.get("GROUP_TIMEOUT", "")  # PyTorch's own, from the step on that is sick
SICK_STEP = 2  # both earlier and, in most jobs, later steps are healthy


def outlived():
    """The rank becomes a child, whose death its parent does not tell: who started the ranks ends the others when one
    is killed, as on a cluster nobody may."""
    child = os.fork()
    if child > 0:
        os.waitpid(child, 0)
        signal.pause()


def start():
    """Joins the ranks; the rank's device. Their interpreters may start minutes apart on a loaded machine."""
    if os.environ.get("OUTLIVED"):
        outlived()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=600))
    return torch.device("cuda", torch.cuda.current_device())


def sick(step, kind):
    """Whether this rank makes this mistake in this step, which it then tells with the time."""
    if step != SICK_STEP or mistake != kind or rank != culprit:
        return False
    print(f"mistake {time.time():.3f}", file=sys.stderr, flush=True)
    return True


def harm(step, kind):
    """What happens to a process, wherever it is: it is killed, or stopped."""
    if sick(step, kind):
        os.kill(os.getpid(), {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[kind])


def done(step):
    print(f"rank {rank} step {step}\n", end="", flush=True)  # one piece: all ranks write to one pipe
    if step == SICK_STEP - 1 and GROUP_TIMEOUT_S:
        # Only now, because interpreters and communicators of a loaded machine may start further apart than this.
        set_timeout = getattr(dist, "set_timeout", None) or c10d._set_pg_timeout
        for group in list(c10d._world.pg_map):
            set_timeout(datetime.timedelta(seconds=float(GROUP_TIMEOUT_S)), group)


def end():
    dist.destroy_process_group()
