"""Reads back what is too long to be computed, twice, and values that hooks supply."""
import os

import torch

import rollcall.rehearse as rehearse

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)


def say(text):
    print(text + "\n", end="", flush=True)  # one write: the ranks share the output


def read_loss(loss):
    return loss.item()


def read_count(counts):
    return int(counts[1])


rehearse.value_at("job_values.py:read_count", lambda read: 40 + read.rank + read.count)
rehearse.value_at("read_list", lambda read: read.value * 0 + 3)
long = torch.zeros(1 << 20, device="cuda")
loss = long.mul(2).sum()
say(f"rank {rank} loss {read_loss(loss)} {read_loss(loss)}")
whole = torch.zeros(1 << 20, device="cuda", dtype=torch.long).mul(2).sum()
say(f"rank {rank} whole {whole.item()} flag {bool(long.mul(2).sum() > 2)}")
say(f"rank {rank} counts {[read_count(torch.ones(2, dtype=torch.long, device='cuda')) for _ in range(2)]}")


def read_list(values):
    return values.tolist()


say(f"rank {rank} list {read_list(torch.arange(3, device='cuda'))}")
say(f"rank {rank} end {torch.arange(4, device='cuda').sum().item()}")
