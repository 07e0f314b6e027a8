"""Compiled code among plain operations: what is read back of each."""
import os

import torch
import torch._dynamo.utils
import torch.distributed as dist

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


def say(text):
    print(f"rank {rank} {text}\n", end="", flush=True)  # one write: the ranks share the output


@torch.compile
def loss_of(x):
    return torch.nn.functional.gelu(x * 2 + 1).sum()


@torch.compile
def add_one(x):
    x.add_(1)


def read_compiled(t):
    return t.item()


def read_backward(t):
    return t.sum().item()


def read_written(t):
    return t.sum().item()


def read_eager(t):
    return (t * 2).sum().item()


def read_kept(t):
    return t.tolist()


x = torch.ones(10, device="cuda", requires_grad=True)
loss = loss_of(x)
read_compiled(loss)
loss.backward()
read_backward(x.grad)
written = torch.ones(4, device="cuda")
add_one(written)
read_written(written)
say(f"eager {read_eager(x.detach())}")
kept = torch.tensor([8.0]).cuda()  # given to compiled code, and only read there
loss_of(kept)
say(f"kept {read_kept(kept)[0]}")
chosen = torch.cond(torch.tensor(True).cuda(), lambda t: t + 2, lambda t: t - 2, (torch.tensor(1.0).cuda(),))
say(f"cond {read_eager(chosen) / 2}")
dist.all_reduce(x.detach())
say(f"graphs {2 if torch._dynamo.utils.counters['stats']['unique_graphs'] >= 2 else 0}")
dist.destroy_process_group()
