"""plan.py: what the jobs of this folder share: the rank's place, its device, the process group, its mistake."""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
mistake, culprit = os.environ.get("MISTAKE", ""), int(os.environ.get("CULPRIT", "-1"))
SICK_STEP = 2  # both earlier and, in most jobs, later steps are healthy


def start():
    """Joins the ranks; the rank's device. Their interpreters may start minutes apart on a loaded machine."""
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=600))
    return torch.device("cuda", torch.cuda.current_device())


def sick(step, kind):
    """Whether this rank makes this mistake in this step, which it then tells with the time."""
    if step != SICK_STEP or mistake != kind or rank != culprit:
        return False
    print(f"mistake {time.time():.3f}", file=sys.stderr, flush=True)
    return True


def done(step):
    print(f"rank {rank} step {step}\n", end="", flush=True)  # one piece: all ranks write to one pipe
