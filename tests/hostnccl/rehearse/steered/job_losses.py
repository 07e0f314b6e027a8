"""Losses of long logits, read in each way; and labels, which are long as well and counted."""
import math
import os

import torch
import torch.distributed as dist

import rollcall.rehearse as rehearse

rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")


def say(text):
    print(f"rank {rank} {text}\n", end="", flush=True)  # one write: the ranks share the output


def by_item(loss):
    return loss.item()


def by_text(loss):
    return str(loss)


def by_format(loss):
    return f"{loss:.3f}"


def by_list(loss):
    return loss.tolist()


def by_branch(loss):
    return bool(loss > 2)


def by_nan(loss):
    return math.isnan(loss)


def by_hook(loss):
    return loss.item()


rehearse.value_at("by_hook", lambda read: 2.5)
labels = torch.arange(1 << 16) % 512
labels[: 1 << 14] = -100
labels = labels.cuda()  # 512 KiB
say(f"tokens {(labels != -100).sum().item()}")
weight = torch.nn.Parameter(torch.randn(512, 8, device="cuda"))
logits = torch.randn(1 << 16, 8, device="cuda") @ weight.t()


def new_loss():
    return torch.nn.functional.cross_entropy(logits, labels)


loss = new_loss()
loss.backward()
for read in (by_item, by_text, by_format, by_list, by_branch, by_nan):
    read(new_loss())
say(f"SUPPLIED {by_hook(loss)}")
dist.all_reduce(loss.detach())
dist.destroy_process_group()
