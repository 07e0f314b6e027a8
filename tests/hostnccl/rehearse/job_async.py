"""Two groups of all ranks whose collectives run beside the host: async_op=True and wait(), which makes streams wait for
each other and no host. A rank can use the groups in the other order. With APART nobody waits between the two calls, and
the last rank uses the other order in each step: that is healthy."""
import os

import plan
import torch
import torch.distributed as dist

STEPS = 4
apart = bool(os.environ.get("APART"))
device = plan.start()
groups = [dist.new_group(group_desc=name) for name in ("gradients", "numbers")]
for group in groups:  # their communicators are made in this order, whatever comes later
    dist.all_reduce(torch.ones(1, device=device), group=group)
for step in range(STEPS):
    swapped = plan.sick(step, "order") or (apart and plan.rank == plan.size - 1)
    totals = [torch.ones(1024, device=device) for _ in groups]
    works = []
    for total, group in zip(totals, reversed(groups) if swapped else groups):
        works.append(dist.all_reduce(total, group=group, async_op=True))
        if not apart:
            works.pop().wait()
    for work in works:
        work.wait()
    sum(totals).sum().item()
    plan.done(step)
plan.end()
