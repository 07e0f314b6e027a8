"""Two groups of all ranks, as a framework has one for gradients and one for numbers that are logged. A rank can use
them in the other order."""
import plan
import torch
import torch.distributed as dist

STEPS = 4
device = plan.start()
groups = [dist.new_group(group_desc=name) for name in ("gradients", "numbers")]
for step in range(STEPS):
    order = reversed(groups) if plan.sick(step, "order") else groups
    for group in order:
        total = torch.ones(1024, device=device)
        dist.all_reduce(total, group=group)
        total.sum().item()
    plan.done(step)
plan.end()
