"""Groups as jobs make them, where only some of the ranks may run: a mesh, groups by new_group and split_group, objects,
messages, an all-gather of several sizes. What ranks that do not run give is what the lowest of their group that runs
gave, so the values are known."""
import os

import plan
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

STEPS = 3
device = plan.start()
run, _, _ = os.environ.get("HOSTNCCL_PRESENT", "").partition(":")
running = []
for part in run.split(","):
    first, _, last = part.partition("-")
    running += range(int(first), int(last or first) + 1)


def given(ranks, of):
    """What the ranks give: of(r), and of the lowest that runs for one that does not."""
    lowest = min(r for r in ranks if r in running)
    return [of(r if r in running else lowest) for r in ranks]


mesh = init_device_mesh("cuda", (plan.size // 4, 4), mesh_dim_names=("dp", "tp"))
every_fourth = list(range(plan.rank % 4, plan.size, 4))
columns = [dist.new_group(list(range(c, plan.size, 4))) for c in range(4)]
half = list(range(0, plan.size // 2)) if plan.rank < plan.size // 2 else list(range(plan.size // 2, plan.size))
halves = dist.split_group(split_ranks=[list(range(0, plan.size // 2)), list(range(plan.size // 2, plan.size))])
gloo = dist.new_group(every_fourth, backend="gloo", use_local_synchronization=True)
for step in range(STEPS):
    for group, ranks in ((None, list(range(plan.size))), (columns[plan.rank % 4], every_fourth), (halves, half),
                         (mesh["dp"].get_group(), every_fourth),
                         (mesh["tp"].get_group(), list(range(plan.rank // 4 * 4, plan.rank // 4 * 4 + 4)))):
        x = torch.full((3,), float(plan.rank + step), device=device)
        dist.all_reduce(x, group=group)
        assert x.tolist() == [sum(given(ranks, lambda r: r + step))] * 3, (ranks, x)
    objects = [None] * plan.size
    dist.all_gather_object(objects, {"rank": plan.rank})
    assert objects == given(range(plan.size), lambda r: {"rank": r}), objects
    sizes = [r % 3 + 1 for r in given(range(plan.size), lambda r: r)]
    parts = [torch.zeros(n, device=device) for n in sizes]
    dist.all_gather(parts, torch.full((sizes[plan.rank],), float(plan.rank), device=device))
    assert [p.tolist() for p in parts] == given(range(plan.size), lambda r: [float(r)] * (r % 3 + 1)), parts
    counts = torch.arange(plan.size, device=device) + 100 * plan.rank
    received = torch.empty_like(counts)
    dist.all_to_all_single(received, counts)
    assert received.tolist() == [100 * r + plan.rank if r in running else 100 * plan.rank + r
                                 for r in range(plan.size)], received
    absent = next(r for r in range(plan.size) if r not in running)
    wrong = ""
    try:
        dist.broadcast_object_list([None], src=absent)
    except RuntimeError as why:
        wrong = str(why)
    assert wrong.startswith("HOSTNCCL_PRESENT: broadcast_object_list from rank "), wrong
    try:
        dist.barrier(group=gloo)
        wrong = ""
    except Exception as why:  # PyTorch's own kinds of errors
        wrong = str(why)
    assert (wrong == "") == (set(every_fourth) <= set(running)), wrong
    dist.barrier()
    plan.done(step)
plan.end()
