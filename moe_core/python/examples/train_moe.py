#!/usr/bin/env python3
"""Trains a small language model with a MoE layer of libmoe_core.so in the middle: expert parallel over all ranks, data
parallel for the rest.

    rollcall run -n 4 --hostnccl -- python3 train_moe.py              on CPU tensors, without a GPU
    torchrun --nproc_per_node 4 train_moe.py --device cuda            on GPUs, with the real NCCL

The model guesses the next byte of a text from the last eight: embeddings, two residual blocks of normalisation and MoE,
a head. Each rank has its own places in the text; an expert sees the tokens of all ranks, so its gradient is whole, and
only the replicated parameters are summed over the ranks. Rank 0 prints the loss, the mean over all ranks. Status 1 when
it did not fall.
"""
import argparse
import os
import sys

import torch

try:
    import moe_core
except ImportError:  # beside the folder of the examples, in the source tree and installed
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    import moe_core

CONTEXT = 8


class Model(torch.nn.Module):
    def __init__(self, options, device, world):
        super().__init__()
        hidden = options.hidden
        self.embedding = torch.nn.Embedding(CONTEXT * 256, hidden)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(hidden) for _ in range(options.layers))
        self.moe = torch.nn.ModuleList(moe_core.MoELayer(hidden, 2 * hidden, options.experts, options.topk,
                                                         options.batch, device, layer=i, world_rank=world.rank if world
                                                         else 0, router=moe_core.Router(after=True, switch_loss=0.01),
                                                         groups=moe_core.Groups(ep=world, balance=world))
                                       for i in range(options.layers))
        self.head = torch.nn.Linear(hidden, 256)
        self.to(device.torch)

    def forward(self, x):
        places = torch.arange(CONTEXT, device=x.device) * 256
        h = self.embedding(x + places).sum(1)
        for norm, moe in zip(self.norms, self.moe):
            h = h + moe(norm(h))
        return self.head(h)

    def is_sharded(self, name):
        return name.split(".")[-1] in ("w1", "b1", "w2", "b2")


def batch(text, options, rank, step, device):
    """CONTEXT bytes and the one that follows, from a run of neighbouring places: the tokens of a rank are alike."""
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    begin = int(torch.randint(len(text) - CONTEXT - options.batch, (1,), generator=generator))
    at = begin + torch.arange(options.batch)[:, None]
    return text[at + torch.arange(CONTEXT)].to(device.torch), text[at[:, 0] + CONTEXT].to(device.torch)


def reduce_gradients(model, device, world, size):
    """Makes the mean over all ranks' tokens: multiplies everything by 1 / ranks, and sums replicated gradients in one
    bucket."""
    replicated = [value.grad for name, value in model.named_parameters() if not model.is_sharded(name)]
    flat = torch.cat([grad.flatten() for grad in replicated])
    moe_core.reduce(device, flat, world, scale=1 / size)
    for grad, part in zip(replicated, flat.split([grad.numel() for grad in replicated])):
        grad.copy_(part.view_as(grad))
    for name, value in model.named_parameters():
        if model.is_sharded(name):
            value.grad.mul_(1 / size)


def train(options):
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    device = moe_core.Device("cuda" if options.device == "cuda" else "host")
    world = moe_core.Communicator.from_environment(device) if size > 1 else None
    torch.manual_seed(1)  # the same on all ranks: replicated parameters begin alike
    model = Model(options, device, world)
    torch.manual_seed(2 + rank)  # and each rank's experts are its own
    for moe in model.moe:
        with torch.no_grad():
            for value in (moe.w1, moe.w2):
                value.copy_(torch.randn(value.shape) / value.shape[-1] ** 0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
    with open(options.text, "rb") as f:
        text = torch.tensor(list(f.read()))
    losses = []
    for step in range(options.steps):
        x, y = batch(text, options, rank, step, device)
        for moe in model.moe:
            moe.set_step(step)
        optimizer.zero_grad()
        moe_core.begin_step(device, step, phase="forward", tokens=len(x))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        moe_core.begin_step(device, step, phase="backward", tokens=len(x))
        loss.backward()
        moe_core.begin_step(device, step, phase="reduce", tokens=len(x))
        reduce_gradients(model, device, world, size)
        mean = loss.detach().reshape(1).clone()
        moe_core.reduce(device, mean, world, scale=1 / size)
        moe_core.begin_step(device, step, phase="optimizer", tokens=len(x))
        optimizer.step()
        losses.append(float(mean))
        if rank == 0 and (step % options.every == 0 or step == options.steps - 1):
            rows = ", ".join(str(moe.rows()) for moe in model.moe)
            print(f"step {step} loss {losses[-1]:.4f} (rows of rank 0's experts, layer by layer: {rows})", flush=True)
    tenth = max(options.steps // 10, 1)
    return sum(losses[-tenth:]) < sum(losses[:tenth])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--text", default=os.path.abspath(__file__), help="what to learn (this program)")
    for name, value in dict(steps=100, layers=2, hidden=32, experts=8, topk=2, batch=64, every=10).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--rate", type=float, default=3e-3)
    torch.set_num_threads(1)
    if not train(parser.parse_args()):
        sys.exit("the loss did not fall")


if __name__ == "__main__":
    main()
