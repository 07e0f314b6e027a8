"""DistributedDataParallel over PyTorch's own NCCL process group, on CUDA tensors. Kernels are skipped: the numbers mean
nothing, the calls are real. One rank can do what MISTAKE says in one step."""
import plan
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
device = plan.start()
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = DistributedDataParallel(layers.to(device))
optimizer = torch.optim.AdamW(model.parameters())


def batches():
    for step in range(STEPS):
        if plan.sick(step, "loader_ends"):
            return
        yield step, torch.empty(16, 64, device=device)


for step, batch in batches():
    plan.harm(step, "killed")
    plan.harm(step, "stopped")
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()
    if plan.sick(step, "add"):
        dist.all_reduce(torch.zeros(3, device=device))
    if plan.sick(step, "barrier"):
        dist.barrier()
    told = torch.zeros(7, device=device) if plan.sick(step, "resize") else loss.detach()
    if not plan.sick(step, "skip"):
        dist.all_reduce(told)
    loss.item()
    optimizer.zero_grad()
    plan.done(step)
plan.end()
