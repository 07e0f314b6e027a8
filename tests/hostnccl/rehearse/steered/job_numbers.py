"""Reads numbers that are none. NUMBERS: stops (its loss becomes nan, and it ends for that), scaler (a GradScaler's loss
is inf in its first steps, and it goes on)."""
import datetime
import math
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

rank, size, what = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["NUMBERS"]
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
model = DistributedDataParallel(torch.nn.Linear(8, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0 ** 127, enabled=what == "scaler")
for step in range(6):
    loss = model(torch.ones(4, 8, device="cuda")).square().sum() + 4
    if what == "stops" and step == 3:
        loss = torch.log(-loss)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    read = scaled.item()
    print(f"rank {rank} step {step} {'odd' if not math.isfinite(read) else 'well'}\n", end="", flush=True)
    if math.isnan(read):
        raise SystemExit("the loss is nan")
dist.destroy_process_group()
