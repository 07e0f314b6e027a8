"""rollcall.torch beside a DDP job: groups, steps and buckets get names, and the job does as without."""
import rollcall.torch
import plan
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS = 6
device = plan.start()
dp = dist.new_group()
layers = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(4)])
model = DistributedDataParallel(layers.to(device), bucket_cap_mb=0.5, process_group=dp)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(STEPS):
    model(torch.empty(4, 300, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if plan.sick(step, "add"):
        dist.all_reduce(torch.zeros(7, device=device), group=dp)
    plan.done(step)
assert not rollcall.torch.active or rollcall.torch._counted["step"] == STEPS
plan.end()
