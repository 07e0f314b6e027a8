"""DDP's Join: each rank has one batch more than the rank before it, and those that have no more take part in the
collectives of the others. The ranks count each other with a reduction, whose sum is computed on the host."""
import plan
import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

STEPS, WIDTH = 4, 32  # of the first rank
device = plan.start()
model = DistributedDataParallel(torch.nn.Linear(WIDTH, 4).to(device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Join([model]):
    for step in range(STEPS + plan.rank):
        model(torch.ones(8, WIDTH, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        plan.done(step)
plan.end()
