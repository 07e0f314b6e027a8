"""torch.distributed.pipelining: one stage on each rank, with the schedule that SCHEDULE names. A rank can leave the
schedule out in one step. The shapes between stages are given: stages that tell them to each other do so by objects,
whose sizes a kernel adds up."""
import os

import plan
import torch
import torch.distributed as dist
from torch.distributed import pipelining

STEPS, WIDTH, BATCH, MICROBATCHES = 4, 16, 8, 4
device = plan.start()
example = torch.ones(BATCH // MICROBATCHES, WIDTH, device=device, requires_grad=plan.rank > 0)
layers = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()).to(device)
stage = pipelining.PipelineStage(layers, plan.rank, plan.size, device, input_args=example,
                                 output_args=torch.ones_like(example, requires_grad=True))
kind = getattr(pipelining, "Schedule" + os.environ.get("SCHEDULE", "1F1B"))
schedule = kind(stage, n_microbatches=MICROBATCHES, loss_fn=lambda out, target: (out - target).pow(2).sum())
optimizer = torch.optim.SGD(stage.submod.parameters(), lr=0.1)
for step in range(STEPS):
    x, target = (torch.ones(BATCH, WIDTH, device=device) for _ in range(2))
    arguments = (x,) if plan.rank == 0 else ()
    if not plan.sick(step, "skip"):
        schedule.step(*arguments, **({"target": target} if plan.rank == plan.size - 1 else {}))
        optimizer.step()
    optimizer.zero_grad()
    dist.barrier()
    plan.done(step)
plan.end()
