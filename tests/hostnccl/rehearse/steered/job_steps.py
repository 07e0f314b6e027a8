"""Trains for ever, unless it is stopped. STEPS_BY: optimizer, two (optimizers), told (rehearse.step), begun
(rehearse.begin_step), thread (the training stands in a thread of its own)."""
import datetime
import os
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rollcall.rehearse as rehearse

rank, size, by = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["STEPS_BY"]
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)).cuda())
first, second = (list(m.parameters()) for m in model.module)
optimizers = ([torch.optim.SGD(first, lr=0.1), torch.optim.AdamW(second)] if by == "two"
              else [torch.optim.SGD(first + second, lr=0.1)])


def train():
    torch.cuda.set_device(rank % torch.cuda.device_count())  # of this thread
    step = 0
    while True:
        if by == "begun":
            rehearse.begin_step(100 + step)
        loss = model(torch.ones(4, 8, device="cuda")).sum()
        loss.backward()
        for o in optimizers:
            if by != "told" and by != "begun":
                o.step()
            o.zero_grad()
        dist.all_reduce(loss.detach())
        print(f"rank {rank} step {step}\n", end="", flush=True)
        step += 1
        if by == "told":
            rehearse.step()


try:
    if by == "thread":
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    else:
        train()
finally:
    print(f"rank {rank} ends\n", end="", flush=True)
