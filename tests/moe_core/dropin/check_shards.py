#!/usr/bin/env python3
"""rollcall.moe.shards without PyTorch: check_shards.py PACKAGE_FOLDER. In every layout of ep, etp and dp ranks the
boxes of all ranks are the whole model, each number once, and each number of a rank's tensor is the one that the
layout's own arithmetic finds (lookup(): nothing of shards.py); with a further cut of what a rank has, as FSDP makes it,
too; what does not fit is refused."""
import itertools
import sys

from plain_tensor import Tensor

sys.path.insert(0, sys.argv[1])
from rollcall.moe import shards  # noqa: E402

E, H, F, S = 8, 3, 4, 8  # experts, hidden, ffn, the shared expert's ffn
SIZES = (1, 2, 4)
# name: shape of the whole, and by dimension who cuts it and in how many blocks.
MODEL = {
    "gate": ((E, H), {}), "expert_bias": ((E,), {}),
    "w1": ((E, 2 * F, H), {0: ("ep", 1), 1: ("etp", 2)}), "b1": ((E, 2 * F), {0: ("ep", 1), 1: ("etp", 2)}),
    "w2": ((E, H, F), {0: ("ep", 1), 2: ("etp", 1)}), "b2": ((E, H), {0: ("ep", 1)}),
    "shared_w1": ((2 * S, H), {0: ("etp", 2)}), "shared_w2": ((H, S), {1: ("etp", 1)}),
    "scalar": ((), {}),
}


def fail(text):
    sys.exit(f"check_shards: {text}")


def want(what, got, wanted):
    if got != wanted:
        fail(f"{what}: {got!r}, wanted {wanted!r}")


def refused(what, text, function, *arguments):
    try:
        function(*arguments)
    except ValueError as error:
        if text not in str(error):
            fail(f"{what}: the error lacks {text!r}: {error}")
    else:
        fail(f"{what} was accepted")


def numbered(shape):
    tensor = Tensor(shape)
    tensor.memory = list(range(100, 100 + len(tensor.memory)))
    return tensor


class Module:
    """As much of a module as shards.of_model() asks for."""

    def __init__(self, tensors=None, cuts=None, **children):
        self.tensors, self.children = tensors or {}, children
        if cuts is not None:
            self.cuts = lambda: cuts

    @property
    def _parameters(self):
        return {name: value for name, value in self.tensors.items() if name != "expert_bias"}

    @property
    def _buffers(self):
        return {name: value for name, value in self.tensors.items() if name == "expert_bias"}

    @property
    def _modules(self):
        return self.children


class DistributedDataParallel(Module):
    """Its name is what counts."""


def lookup(name, index, ranks, sizes):
    """Where number `index` of a rank's tensor is in the whole."""
    shape, by = MODEL[name]
    place = list(index)
    for dim, (who, blocks) in by.items():
        run = shape[dim] // blocks  # length of a run in the whole
        here = run // sizes[who]
        place[dim] = index[dim] // here * run + ranks[who] * here + index[dim] % here
    return tuple(place)


def layouts():
    for ep, etp, dp in itertools.product(SIZES, SIZES, (1, 2)):
        sizes = {"ep": ep, "etp": etp, "dp": dp}
        yield sizes, [dict(zip(sizes, place)) for place in itertools.product(range(ep), range(etp), range(dp))]


def module_of(ranks, sizes):
    """A rank's module: its tensors hold the numbers that lookup() finds."""
    tensors, cuts = {}, {}
    for name, (shape, by) in MODEL.items():
        whole = numbered(shape)
        local = Tensor([n // sizes[by[dim][0]] if dim in by else n for dim, n in enumerate(shape)])
        for i, index in enumerate(itertools.product(*map(range, local.shape))):
            local.memory[i] = whole.at(*lookup(name, index, ranks, sizes))
        tensors[name] = local
        cuts[name] = (name, {dim: (ranks[who], sizes[who], blocks) for dim, (who, blocks) in by.items()})
    return Module(tensors, cuts)


def check_whole(what, ranks):
    """ranks: of every rank [(Share, tensor)]. Those with number 0 are the whole, each number once; the numbers of a box
    count the ranks that have it."""
    numbers = shards.replicas([[share for share, _ in mine] for mine in ranks])
    built, seen = {name: Tensor(shape) for name, (shape, _) in MODEL.items()}, {}
    for mine, replica in zip(ranks, numbers):
        for share, tensor in mine:
            for piece in share.pieces:
                seen.setdefault((share.key, piece.whole), []).append(replica[share.key, piece.whole])
                if replica[share.key, piece.whole]:
                    continue
                to = shards.box(built[share.key], piece.whole, piece.sizes)
                if any(to.memory[place] is not None for place in to.places()):
                    fail(f"{what}: {share.key}: the box at {piece.whole} is written a second time")
                to.copy_(shards.box(tensor, piece.local, piece.sizes))
    for name, (shape, _) in MODEL.items():
        want(f"{what}: {name}", built[name].memory, numbered(shape).memory)
    for where, found in seen.items():
        want(f"{what}: replicas of {where}", found, list(range(len(found))))


def check_layout(sizes, places):
    what = f"{sizes}"
    modules = [module_of(ranks, sizes) for ranks in places]
    shares = [shards.of_model(module) for module in modules]
    check_whole(what, [[(share, module.tensors[name]) for name, share in mine.items()]
                       for mine, module in zip(shares, modules)])
    for mine, module in zip(shares, modules):
        for name, share in mine.items():
            shape, by = MODEL[name]
            want(f"{what}: shapes of {name}", (share.key, share.shape, share.local),
                 (name, shape, module.tensors[name].shape))
            want(f"{what}: {name} is whole", share.is_whole(), all(sizes[who] == 1 for who, _ in by.values()))
            local = Tensor(share.local)
            shards.take(share, numbered(shape), local)
            want(f"{what}: {name}, taken", local.memory, module.tensors[name].memory)
            whole = Tensor(shape)
            shards.put(share, local, whole)
            want(f"{what}: {name}, put", sorted(n for n in whole.memory if n is not None), sorted(local.memory))


def check_sharded_again(sizes, places, among):
    """What a rank has is cut along its first dimension among `among` ranks, as FSDP does: the first ones have one more,
    the last ones may have nothing."""
    ranks = []
    for place, number in itertools.product(places, range(among)):
        module, mine = module_of(place, sizes), []
        for name, share in shards.of_model(module).items():
            if not share.local:
                continue
            each = -(-share.local[0] // among)
            begin = min(number * each, share.local[0])
            length = min(each, share.local[0] - begin)
            offsets, box = (begin,) + (0,) * (len(share.local) - 1), (length,) + share.local[1:]
            mine.append((shards.within(share, offsets, box), shards.box(module.tensors[name], offsets, box)))
        if place is places[0] and number == 0:
            mine.append((shards.share("scalar", (), {}), module.tensors["scalar"]))
        ranks.append(mine)
    check_whole(f"{sizes}, cut again among {among}", ranks)


def check_names():
    part = module_of({"ep": 1, "etp": 0}, {"ep": 2, "etp": 1})
    renamed = Module({"weight0": numbered((2, 3))}, {"weight0": ("weight5", {})})
    renamed.tensors["bias0"] = None  # a parameter that the module does without
    renamed.cuts()["bias0"] = ("bias5", {})
    inner = Module(moe=part, module=renamed, other=Module({"w1": numbered((2,))}), none=None)
    model = DistributedDataParallel(module=Module(layers=Module(_orig_mod=inner), _checkpoint_wrapped_module=part))
    found = shards.of_model(model)
    want("names", sorted(found), sorted([f"layers.moe.{n}" for n in MODEL] + ["layers.module.weight0"] + list(MODEL)))
    want("a name of the whole model", found["layers.module.weight0"].key, "layers.module.weight5")
    want("keys", {found[f"layers.moe.{n}"].key for n in MODEL}, {f"layers.moe.{n}" for n in MODEL})


def check_refused():
    half = [shards.share("w", (2, 3), {0: (rank, 2, 1)}) for rank in range(2)]
    want("both halves", shards.replicas([[one] for one in half]), [{("w", (0, 0)): 0}, {("w", (2, 0)): 0}])
    refused("a hole", "w: the ranks have 6 of 12", shards.replicas, [[half[0]], [half[0]]])
    refused("another cut", "overlap", shards.replicas, [[half[0]], [half[1]], [shards.share("w", (4, 3), {})]])
    refused("another shape", "has the shape (4, 4)", shards.replicas, [[half[0]], [shards.share("w", (4, 4), {})]])
    refused("no such part", "part 2 of 2", shards.share, "w", (2, 3), {0: (2, 2, 1)})
    refused("blocks that do not fit", "3 blocks in 2", shards.share, "w", (2, 3), {0: (0, 2, 3)})
    refused("no such dimension", "w is cut along [2]", shards.share, "w", (2, 3), {2: (0, 2, 1)})
    want("a module that says nothing", shards.of_model(Module({"w1": numbered((2,))})), {})


count = 0
for one in layouts():
    check_layout(*one)
    count += 1
for sizes, among in itertools.product(({"ep": 2, "etp": 2}, {"ep": 4, "etp": 1}, {"ep": 1, "etp": 2}), (2, 3)):
    check_sharded_again(sizes, [dict(zip(sizes, p)) for p in itertools.product(*map(range, sizes.values()))], among)
    count += 1
check_names()
check_refused()
print(f"{count} layouts: the ranks' boxes are the whole model, number by number")
