"""FSDP2: fully_shard on each block and on the whole, with prefetching as it comes. A rank can leave out one block's
forward, or the reduction of the loss."""
import plan
import torch
import torch.distributed as dist

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before 2.6
    from torch.distributed._composable.fsdp import fully_shard

STEPS, WIDTH = 4, 64
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
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, 7)
        self.step = 0

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            if number == 1 and plan.sick(self.step, "skip_forward"):
                continue
            x = block(x)
        return self.head(x)


model = Model().to(device)
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    model.step = step
    loss = model(torch.ones(8, WIDTH, device=device)).sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if not plan.sick(step, "skip"):
        dist.all_reduce(loss.detach())
    loss.item()
    optimizer.zero_grad()
    plan.done(step)
plan.end()
