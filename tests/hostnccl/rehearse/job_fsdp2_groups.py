"""FSDP2 over two groups: each block of a model is cut among all ranks, in a group of its own, as experts and the rest
of a model are. A rank can go through the blocks in the other order."""
import plan
import torch
import torch.distributed as dist

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import DeviceMesh

STEPS, WIDTH = 4, 256  # wide enough for buffers that are left out, so that nothing waits for their values
device = plan.start()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.step = Block(), Block(), 0

    def forward(self, x):
        blocks = [self.first, self.second]
        for block in reversed(blocks) if plan.sick(self.step, "order") else blocks:
            x = block(x)
        return x


model = Model().to(device)
for block, name in ((model.first, "dense"), (model.second, "experts")):
    fully_shard(block, mesh=DeviceMesh.from_group(dist.new_group(group_desc=name), "cuda"))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    model.step = step
    model(torch.ones(8, WIDTH, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    plan.done(step)
plan.end()
