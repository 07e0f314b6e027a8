#!/usr/bin/env python3
"""A job that binds NCCL by ctypes alone: a wrapper class over a CDLL, as vLLM and SGLang have."""
import os
import sys

from nccl import FLOAT32, SUM, Cuda, Nccl, UniqueId
from plan import STEPS, Plan, buffer, forked_child

LAYERS = (96, 160, 224)


class Communicator:
    def __init__(self, plan):
        self.nccl, self.cuda = Nccl(), Cuda()
        self.stream = self.cuda.stream()
        unique_id = UniqueId.from_buffer_copy(plan.meet(self.nccl.unique_id))
        self.comm = self.nccl.init(plan.size, unique_id, plan.rank)

    def all_reduce(self, values):
        send, recv = buffer(values), buffer([0.0] * len(values))
        self.nccl.all_reduce(send, recv, len(values), FLOAT32, SUM, self.comm, self.stream)
        self.cuda.synchronize(self.stream)
        return list(recv)


def reduce_layer(group, plan, step, layer, count):
    """One layer's all-reduce, and where the last rank goes its own way."""
    if layer == 1 and plan.mistake(step, "skip"):
        return 0.0
    if layer == 1 and plan.mistake(step, "size"):
        count -= 8
    if layer == 1 and plan.mistake(step, "extra"):
        group.all_reduce([1.0] * 40)
    return sum(group.all_reduce([float(plan.rank + step + layer)] * count))


def main():
    plan = Plan()
    group = Communicator(plan)
    total = 0.0
    for step in range(STEPS):
        if step == 2:
            # One ends by _exit, as multiprocessing's workers do, one through exit handlers.
            if forked_child(os._exit) != 0 or forked_child(sys.exit) != 0:
                sys.exit("job: a forked child failed")
        for layer, count in enumerate(LAYERS):
            total += reduce_layer(group, plan, step, layer, count)
        if plan.rank == 0:
            print(f"step {step} total {total:.1f}", flush=True)
    group.nccl.destroy(group.comm)


main()
