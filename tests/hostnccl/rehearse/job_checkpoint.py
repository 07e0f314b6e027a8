"""torch.distributed.checkpoint: the state of an FSDP2 model is saved in each second step, and read at the end; the plan
of what each rank writes goes over NCCL."""
import os
import tempfile

import plan
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard

STEPS, WIDTH = 4, 32
device = plan.start()
model = fully_shard(torch.nn.Sequential(torch.nn.Linear(WIDTH, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).to(device))
folder = [tempfile.mkdtemp() if plan.rank == 0 else None]
dist.broadcast_object_list(folder, src=0)
for step in range(STEPS):
    model(torch.ones(8, WIDTH, device=device)).sum().backward()
    if step % 2 == 0 and not plan.sick(step, "save"):
        dcp.save(get_model_state_dict(model), checkpoint_id=os.path.join(folder[0], str(step)))
    plan.done(step)
state = get_model_state_dict(model)
dcp.load(state, checkpoint_id=os.path.join(folder[0], "2"))
set_model_state_dict(model, state)
plan.end()
