"""train_ddp.py: a small PyTorch job, as many are: DistributedDataParallel, AdamW, and metrics that are summed over all
ranks each step. It has a mistake that real jobs have: a rank whose loss looks odd reports one number more.

    rollcall rehearse -n 4 -- python train_ddp.py            # all four ranks on this machine, without a GPU
    rollcall run -- torchrun --nproc-per-node 4 train_ddp.py     # where there are GPUs
"""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = int(os.environ.get("STEPS", "20"))
ODD_STEP = int(os.environ.get("ODD_STEP", "4"))  # the step in which the last rank takes the branch; -1: never


def metrics(loss, step):
    """The mean loss over all ranks, and its square."""
    values = [loss, loss * loss]
    if step == ODD_STEP and dist.get_rank() == dist.get_world_size() - 1:
        values.append(loss.abs())  # the mistake: the others have no such number
    values = torch.stack(values)
    dist.all_reduce(values)
    return values / dist.get_world_size()


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    layers = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256))
    model = DistributedDataParallel(layers.cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        batch = torch.randn(32, 256, device="cuda")
        loss = (model(batch) - batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = metrics(loss.detach(), step)
        if dist.get_rank() == 0 and step % 5 == 0:
            print(f"step {step}: loss {mean[0].item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
