"""Of job_layer.py: what rollcall.moe.shards says of a layer, on all ranks together, is the whole model that gather_full
gives, each number once; every rank can take its part out of it again."""
import torch

from rollcall.moe import shards


def gathered(world, tensor):
    return world.all_gather(tensor) if world is not None else tensor[None]


def check_shares(what, layer, world, full, fail):
    """A collective call. full: the layer's gather_full()."""
    said = shards.of(layer)
    size = world.size if world is not None else 1
    ranks = [[] for _ in range(size)]
    for key, value in layer.state_dict().items():
        share = said.get(key) or shards.share(key, value.shape, {})
        if (share.key, share.shape, share.local) != (key, tuple(full[key].shape), tuple(value.shape)):
            fail(f"{what}: of {key} is said {share}")
        boxes = [[*piece.whole, *piece.local, *piece.sizes] for piece in share.pieces]
        boxes = gathered(world, torch.tensor(boxes, device=value.device))
        values, dims = gathered(world, value), value.dim()
        whole = torch.full(share.shape, float("nan"), dtype=value.dtype, device=value.device)
        times = torch.zeros(share.shape, dtype=torch.int64, device=value.device)
        for rank in range(size):
            pieces = tuple(shards.Piece(*(tuple(row[i * dims:(i + 1) * dims]) for i in range(3)))
                           for row in boxes[rank].tolist())
            ranks[rank].append(share._replace(pieces=pieces))
            shards.put(ranks[rank][-1], values[rank], whole)
            for piece in pieces:
                shards.box(times, piece.whole, piece.sizes).add_(1)
        if not torch.equal(whole, full[key]):
            fail(f"{what}: the boxes of {key} do not give the whole")
        if int(times.min()) < 1 or int(times.min()) != int(times.max()):
            fail(f"{what}: numbers of {key} are on {int(times.min())} to {int(times.max())} ranks")
        part = torch.full_like(value, float("nan"))
        shards.take(share, full[key], part)
        if not torch.equal(part, value):
            fail(f"{what}: what is taken out of the whole {key} is not this rank's part")
    numbers = shards.replicas(ranks)  # raises where the boxes are not the whole model, each number once
    stored = sum(number == 0 for mine in numbers for number in mine.values())
    if stored != len({box for mine in numbers for box in mine}):
        fail(f"{what}: {stored} boxes would be stored")
