"""What DDP has beside the plain loop: gradients that are summed over micro-batches (no_sync), an optimizer whose state
is cut (ZeRO-1), a static graph. DDP_KIND says which."""
import contextlib
import os

import plan
import torch
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 4, 32
device, kind = plan.start(), os.environ["DDP_KIND"]
layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(device)
model = DistributedDataParallel(layers, static_graph=kind == "static")
if kind == "zero1":
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.1)
else:
    optimizer = torch.optim.Adam(model.parameters())
for step in range(STEPS):
    for part in range(2):
        with model.no_sync() if kind == "no_sync" and part == 0 else contextlib.nullcontext():
            model(torch.ones(8, WIDTH, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    plan.done(step)
plan.end()
