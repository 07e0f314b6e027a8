"""DistributedDataParallel over PyTorch's own NCCL process group, on CUDA tensors. Kernels are skipped: the numbers mean
nothing, the calls are real."""
import datetime
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
model = DistributedDataParallel(layers.cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    model(torch.empty(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
