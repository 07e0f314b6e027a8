"""Tensor parallel: parallelize_module with column- and row-wise and sequence-parallel plans over DTensor; on a mesh of
two dimensions the other one is data parallel by FSDP2. TENSOR_PARALLEL is the size of the first. A rank can leave out
the gathering of a tensor."""
import os

import plan
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard
    from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor

STEPS, WIDTH = 4, 32
device = plan.start()
rows = plan.size // int(os.environ.get("TENSOR_PARALLEL", "2"))
mesh = init_device_mesh("cuda", (rows, plan.size // rows), mesh_dim_names=("dp", "tp"))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(torch.relu(self.up(self.norm(x))))


model = torch.nn.Sequential(Block(), Block()).to(device)
for block in model:
    parallelize_module(block, mesh["tp"], {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
    })
if rows > 1:
    fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
length = 4 * mesh["tp"].size()
for step in range(STEPS):
    # PyTorch 2.4 has no backward of a norm whose input wants no gradient.
    x = torch.ones(2, length // mesh["tp"].size(), WIDTH, device=device, requires_grad=True)
    x = DTensor.from_local(x, mesh["tp"], [Shard(1)])
    out = model(x.to_local())
    out.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    # A tensor that changes its layout by hand: gathered, and cut anew along another dimension.
    whole = distribute_tensor(torch.zeros(8, 8, device=device), mesh["tp"], [Shard(0)])
    if not plan.sick(step, "skip") and not plan.sick(step, "skip_of_two"):
        whole = whole.redistribute(mesh["tp"], [Replicate()])
    whole.redistribute(mesh["tp"], [Shard(1)]).to_local().sum().item()
    plan.done(step)
plan.end()
