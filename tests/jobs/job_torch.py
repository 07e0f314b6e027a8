#!/usr/bin/env python3
"""A PyTorch data-parallel job on CPU tensors: DistributedDataParallel over NCCL, with data loader workers forked beside
it.

The last rank may go its own way in one step: `extra` is the barrier that somebody left in a branch, `skip` the metric
that is not reduced, `size` the metric with one element more. Rank 0 prints losses; every rank compares its gradients
with a single-process reference.
"""
import os
import sys

import torch
import torch.distributed as dist
from plan import STEPS, Plan
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import process_group

BATCH = 8


def model():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(12, 48), torch.nn.Tanh(), torch.nn.Linear(48, 24), torch.nn.Tanh(),
                               torch.nn.Linear(24, 1))


def samples(size):
    """All ranks' samples, in the order in which a single process would see them: step, rank, sample."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(STEPS * size * BATCH, 12, generator=generator)
    return x, (x[:, :1] * x[:, 1:2] + x[:, 2:3]).tanh()


def loader(plan):
    x, y = samples(plan.size)
    mine = [s * plan.size * BATCH + plan.rank * BATCH + i for s in range(STEPS) for i in range(BATCH)]
    return DataLoader(TensorDataset(x[mine], y[mine]), batch_size=BATCH, num_workers=1, multiprocessing_context="fork")


def metrics(plan, step, loss):
    """The mean loss, and the branches that depend on the rank."""
    if plan.mistake(step, "extra"):
        dist.barrier()
    if plan.mistake(step, "skip"):
        return loss
    value = torch.full((6 if plan.mistake(step, "size") else 5,), float(loss))
    dist.all_reduce(value)
    return value[0] / plan.size


def reference_gradients(reference, plan, step):
    x, y = samples(plan.size)
    part = slice(step * plan.size * BATCH, (step + 1) * plan.size * BATCH)
    reference.zero_grad()
    torch.nn.functional.mse_loss(reference(x[part]), y[part]).backward()


def train(plan):
    local, reference = model(), model()
    parallel = DistributedDataParallel(local, bucket_cap_mb=0.002)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.2) for m in (local, reference)]
    losses = []
    for step, (x, y) in enumerate(loader(plan)):
        optimizers[0].zero_grad()
        loss = torch.nn.functional.mse_loss(parallel(x), y)
        loss.backward()
        losses.append(float(metrics(plan, step, loss.detach())))
        reference_gradients(reference, plan, step)
        for ours, theirs in zip(local.parameters(), reference.parameters()):
            if not torch.allclose(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6):
                sys.exit(f"job: rank {plan.rank}: gradients differ from the single-process reference in step {step}")
        for optimizer in optimizers:
            optimizer.step()
        if plan.rank == 0:
            print(f"step {step} loss {losses[-1]:.6f}", flush=True)
    if losses[-1] >= losses[0]:
        sys.exit(f"job: the loss did not go down: {losses}")


def main():
    torch.set_num_threads(1)
    plan = Plan()
    dist.init_process_group(process_group.NAME)
    train(plan)
    dist.barrier()
    process_group.groups[0].nccl.destroy(process_group.groups[0].comm)


main()
sys.stdout.flush()
os._exit(0)  # torch 1.13 tears a Python process group down after the interpreter: leave before
