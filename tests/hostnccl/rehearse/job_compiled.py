"""DistributedDataParallel over a model that torch.compile makes kernels for, and a kernel written for Triton: both are
compiled here for a GPU, loaded through the driver, and launched. Kernels are skipped, the calls are real."""
import plan
import torch
import torch.distributed as dist
import triton
import triton.language as tl
from torch.nn.parallel import DistributedDataParallel

STEPS = 4
BLOCK = 128


@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n) * 0.5, mask=at < n)


plan.start()
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128),
                             torch.nn.Linear(128, 8))
model = torch.compile(DistributedDataParallel(layers.cuda()))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(STEPS):
    x = torch.empty(16, 64, device="cuda")
    half = torch.empty_like(x)
    scale[(triton.cdiv(x.numel(), BLOCK),)](x, half, x.numel(), BLOCK=BLOCK)
    loss = model(half).sum()
    loss.backward()
    optimizer.step()
    if not plan.sick(step, "skip"):
        dist.all_reduce(loss.detach())
    loss.item()
    optimizer.zero_grad()
    plan.done(step)
dist.destroy_process_group()
