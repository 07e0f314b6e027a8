"""Steps that a job marks itself, as MARKS says: "nvtx", ranges of torch.cuda.nvtx; "cleared", the optimizer's gradients
are cleared at the head of the loop. Behind the optimizer's step a metric is reduced, which is of the same step."""
import os

import rollcall.torch
import plan
import torch
import torch.distributed as dist

FIRST = 100  # by which the job's own count differs from that of the optimizer's steps
device = plan.start()
has_marks = os.environ["MARKS"] == "nvtx"
model = torch.nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    if has_marks:
        torch.cuda.nvtx.range_push(f"step {FIRST + step}")
    optimizer.zero_grad()
    model(torch.empty(4, 8, device=device)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
    if not plan.sick(step, "skip"):
        dist.all_reduce(torch.zeros(7 if plan.sick(step, "resize") else 1, device=device))
    if has_marks:
        torch.cuda.nvtx.range_pop()
    plan.done(step)
assert not rollcall.torch.active or rollcall.torch._counted["begins"]
plan.end()
