"""DistributedDataParallel over PyTorch's own NCCL process group, on CUDA tensors. Kernels are skipped: the numbers mean
nothing, the calls are real. The rank that LEAVES_OUT names leaves out one reduction of the loss."""
import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = DistributedDataParallel(layers.cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    loss = model(torch.empty(16, 64, device="cuda")).sum()
    loss.backward()
    optimizer.step()
    if step != 3 or os.environ.get("LEAVES_OUT") != str(rank):
        dist.all_reduce(loss.detach())
    loss.item()
    optimizer.zero_grad()
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
