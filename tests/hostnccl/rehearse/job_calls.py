"""The calls of torch.distributed that frameworks make beside a training loop: objects, batches of messages, barriers,
groups of some ranks, meshes, handles that are waited for later, tensors of each form of gather and scatter."""
import datetime

import plan
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

STEPS = 3
device = plan.start()
rank, size = plan.rank, plan.size
halves = [dist.new_group(list(range(i, i + size // 2))) for i in (0, size // 2)]
half = halves[rank // (size // 2)]
gloo = dist.new_group(backend="gloo")
mesh = init_device_mesh("cuda", (2, size // 2), mesh_dim_names=("rows", "columns"))
for step in range(STEPS):
    # Objects, whose sizes a kernel adds up: over the host's group they are real.
    everybody = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "step": step}, group=gloo)
    assert [e["rank"] for e in everybody] == list(range(size)), everybody
    word = ["from the first rank" if rank == 0 else None]
    dist.broadcast_object_list(word, src=0, group=gloo)
    assert word == ["from the first rank"]
    received = [None]
    dist.scatter_object_list(received, [f"for {r}" for r in range(size)] if rank == 0 else None, src=0, group=gloo)
    assert received == [f"for {rank}"]

    # A ring of messages, as one batch, and then one by one.
    ahead, behind = torch.full((16,), float(rank), device=device), torch.empty(16, device=device)
    batch = [dist.P2POp(dist.isend, ahead, (rank + 1) % size), dist.P2POp(dist.irecv, behind, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    if rank % 2 == 0:
        dist.send(ahead, rank + 1)
        dist.recv(behind, rank + 1)
    else:
        dist.recv(behind, rank - 1)
        dist.send(ahead, rank - 1)

    # Handles: two are in flight, and are waited for in the other order.
    first, second = torch.ones(64, device=device), torch.ones(128, device=device)
    handles = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, op=dist.ReduceOp.MAX, async_op=True)]
    for handle in reversed(handles):
        handle.wait()

    # Tensors.
    part, whole = torch.ones(32, device=device), torch.empty(32 * size, device=device)
    dist.all_gather_into_tensor(whole, part)
    dist.reduce_scatter_tensor(part, whole)
    dist.all_gather([torch.empty(8, device=device) for _ in range(size)], torch.ones(8, device=device))
    dist.all_to_all_single(torch.empty_like(whole), whole)
    uneven = [1 + (rank + r) % 3 for r in range(size)]
    dist.all_to_all_single(torch.empty(sum(uneven), device=device), torch.ones(sum(uneven), device=device), uneven,
                           uneven)
    dist.all_to_all([torch.empty(4, device=device) for _ in range(size)],
                    [torch.ones(4, device=device) for _ in range(size)])
    dist.reduce(first, dst=size - 1)
    dist.gather(part, [torch.empty_like(part) for _ in range(size)] if rank == 1 else None, dst=1)
    dist.scatter(part, [torch.ones_like(part) for _ in range(size)] if rank == 0 else None, src=0)
    dist.broadcast(part, src=1)

    # Groups: those of half of the ranks, and those of a mesh.
    dist.all_reduce(first, group=half)
    dist.barrier(group=half)
    dist.all_reduce(first, group=mesh.get_group("rows"))
    dist.all_gather_into_tensor(torch.empty(8 * mesh["columns"].size(), device=device), torch.ones(8, device=device),
                                group=mesh.get_group("columns"))
    dist.monitored_barrier(gloo, timeout=datetime.timedelta(seconds=300))
    dist.barrier()
    torch.cuda.synchronize()
    plan.done(step)
dist.destroy_process_group(half)
plan.end()
