"""FSDP2 over a small model: its parameters are DTensors, its gathers and scatters move what is computed, and so its
losses are those of the same model on the host."""
import copy
import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

STEPS = 3
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
torch.manual_seed(3)
plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model = copy.deepcopy(plain).cuda()
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
x = torch.randn(6, 8)


def losses(model, x):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    out = []
    for _ in range(STEPS):
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        out.append(loss.item())
    return out


pairs = list(zip(losses(model, x.cuda()), losses(plain, x)))
is_same = all(abs(a - b) < 1e-4 for a, b in pairs)
print(f"rank {rank} {'as on the host' if is_same else pairs}\n", end="", flush=True)
dist.destroy_process_group()
