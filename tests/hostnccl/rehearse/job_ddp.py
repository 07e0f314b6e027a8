"""DistributedDataParallel over PyTorch's own NCCL process group, on CUDA tensors. Kernels are skipped: the numbers mean
nothing, the calls are real."""
import plan
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
plan.start()
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = DistributedDataParallel(layers.cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    loss = model(torch.empty(16, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    if not plan.sick(step, "skip"):
        dist.all_reduce(loss.detach())
    loss.item()
    optimizer.zero_grad()
    plan.done(step)
dist.destroy_process_group()
