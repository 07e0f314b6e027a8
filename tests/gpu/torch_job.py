#!/usr/bin/env python3
"""A PyTorch job of several ranks that may share one GPU: DistributedDataParallel, and a small mixture-of-experts layer
over all-to-all.

usage: torch_job.py ddp|moe [--mistake] [--backend nccl|hostnccl]

With --mistake the last rank leaves out one all-reduce of the metrics, as a rank-dependent branch would. Rank 0 prints
losses. The back end hostnccl is that of tests/jobs, on CPU tensors, for a machine without a GPU; it has no all-to-all,
so ddp only.
"""
import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEPS, MISTAKE_STEP, TOKENS, WIDTH = 12, 6, 64, 64


class Exchange(torch.autograd.Function):
    """all_to_all_single with unequal splits; its backward sends everything back."""

    @staticmethod
    def forward(ctx, rows, send, recv):
        ctx.splits = send, recv
        out = rows.new_empty(sum(recv), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), recv, send)
        return out

    @staticmethod
    def backward(ctx, grad):
        send, recv = ctx.splits
        out = grad.new_empty(sum(send), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), send, recv)
        return out, None, None


class Moe(torch.nn.Module):
    """One expert a rank, top-1 routing; only the router is replicated."""

    def __init__(self, size, device):
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, size, device=device)
        self.expert = torch.nn.Sequential(torch.nn.Linear(WIDTH, 2 * WIDTH, device=device), torch.nn.SiLU(),
                                          torch.nn.Linear(2 * WIDTH, WIDTH, device=device))

    def forward(self, x):
        score, choice = self.router(x).softmax(-1).max(-1)
        order = choice.argsort(stable=True)
        send = torch.bincount(choice, minlength=self.router.out_features)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        back = Exchange.apply(self.expert(Exchange.apply(x[order], send, recv)), recv, send)
        return x + torch.zeros_like(x).index_copy(0, order, back) * score[:, None]


def build(kind, rank, size, device):
    torch.manual_seed(3)
    layers = [torch.nn.Linear(WIDTH, WIDTH, device=device), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1, device=device)]
    if kind == "ddp":
        return DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.01)
    moe = Moe(size, device)
    torch.manual_seed(100 + rank)
    for p in moe.expert.parameters():
        torch.nn.init.normal_(p, std=0.1)
    model = torch.nn.Sequential(layers[0], moe, *layers[1:])
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model,
                                                                        [n for n, _ in model.named_parameters()
                                                                         if ".expert." in n])
    return DistributedDataParallel(model)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["ddp", "moe"])
    parser.add_argument("--mistake", action="store_true")
    parser.add_argument("--backend", default="nccl")
    options = parser.parse_args()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if options.backend == "nccl":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "jobs"))
        import process_group  # noqa: F401  registers the back end
        device = torch.device("cpu")
    dist.init_process_group(options.backend)
    model = build(options.kind, rank, size, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(50 + rank)
    for step in range(STEPS):
        x = torch.randn(TOKENS, WIDTH, generator=generator).to(device)
        loss = torch.nn.functional.mse_loss(model(x), x[:, :1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = torch.stack([loss.detach()] * 3)
        if not (options.mistake and step == MISTAKE_STEP and rank == size - 1):
            dist.all_reduce(metrics)
        if rank == 0:
            print(f"step {step} loss {float(metrics[0]) / size:.4f}", flush=True)
    dist.barrier()
    if options.backend == "nccl":
        torch.cuda.synchronize()
        dist.destroy_process_group()


main()
sys.stdout.flush()
os._exit(0)  # a Python process group is torn down after the interpreter: leave before
