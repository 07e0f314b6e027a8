"""A reduction in a group that has a description. NAMED: the job imports rollcall.torch, and calls the group by a word
of its own. A rank can reduce more than the others."""
import os

import plan
import torch
import torch.distributed as dist

STEPS = 4
device = plan.start()
group = dist.new_group(group_desc="mesh_dp")
if os.environ.get("NAMED"):
    import rollcall.torch
    rollcall.torch.name_group(group, "replicas")
for step in range(STEPS):
    dist.all_reduce(torch.ones(7 if plan.sick(step, "resize") else 1, device=device), group=group)
    torch.cuda.synchronize()
    plan.done(step)
plan.end()
