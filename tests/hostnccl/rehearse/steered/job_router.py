"""A router whose counts steer a branch: the experts' owners reduce them only where expert 0 has tokens. On memory that
no kernel has written there are none. With MISTAKE=data the rank CULPRIT has tokens for other experts, and so makes no
reduction."""
import datetime
import os

import torch
import torch.distributed as dist

STEPS, TOKENS, WIDTH, EXPERTS = 3, 32, 16, 4
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
torch.manual_seed(7)
weight = torch.randn(WIDTH, EXPERTS, device="cuda")
is_sick = os.environ.get("MISTAKE") == "data" and os.environ.get("CULPRIT") == str(rank)
for step in range(STEPS):
    tokens = torch.randn(TOKENS, WIDTH, device="cuda")
    logits = tokens @ weight
    if is_sick and step == 1:
        logits[:, 0] = -1e9
    counts = torch.bincount(logits.argmax(-1) + 1, minlength=EXPERTS + 1)[1:]
    if counts[0].item() > 0:
        dist.all_reduce(counts)
    everywhere = torch.empty(size * EXPERTS, dtype=counts.dtype, device="cuda")
    dist.all_gather_into_tensor(everywhere, counts)
    print(f"rank {rank} step {step} counts {everywhere.tolist()}\n", end="", flush=True)
dist.destroy_process_group()
