"""rollcall.moe.shards: which numbers of the whole model's tensors a rank has, in plain tuples.

The whole model is the same module on one rank. A module that has a part of it says so by a method

    cuts()    # {name of a tensor: (its name in the whole model, {dimension: (index, ranks, blocks)})}

Along the dimension the whole consists of `blocks` runs of one length (fc1: the gate's rows, then the linear ones), each
is cut into `ranks` parts of one length, and this rank has part `index` of each, one behind the other. From that follow
boxes, and everything that reads, writes or compares checkpoints works with boxes: Share and Piece below.

A placement for each dimension, as DTensor has it, was rejected: it knows one run for each dimension, so fc1 would have
to be stored as two tensors, and a checkpoint would no longer hold what a model on one rank has.

Nothing here needs PyTorch: a tensor is asked for its shape, narrow() and copy_(), a module for its _parameters,
_buffers and _modules.
"""
import itertools
import math
from typing import NamedTuple, Tuple

# Wrappers whose attribute is no part of a tensor's name in a state dict of torch.distributed.checkpoint.
WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


class Piece(NamedTuple):
    """A box of `sizes` that begins at `whole` in the whole model's tensor, and at `local` in this rank's."""
    whole: Tuple[int, ...]
    local: Tuple[int, ...]
    sizes: Tuple[int, ...]


class Share(NamedTuple):
    """What a rank has of one tensor: its name and shape in the whole model, the shape of this rank's tensor, and the
    boxes that it consists of."""
    key: str
    shape: Tuple[int, ...]
    local: Tuple[int, ...]
    pieces: Tuple[Piece, ...]

    def is_whole(self):
        return self.shape == self.local


def _runs(length, index, ranks, blocks):
    """(offset in the whole, offset here, length) of what a rank has along a dimension of which it has `length`."""
    if not 0 <= index < ranks or blocks < 1 or length % blocks:
        raise ValueError(f"part {index} of {ranks} with {blocks} blocks in {length}")
    one = length // blocks
    return [((block * ranks + index) * one, block * one, one) for block in range(blocks)]


def share(key, local, cut):
    """The Share of a rank whose tensor has the shape `local`, and cut {dimension: (index, ranks, blocks)}. Raises
    ValueError where these do not go together."""
    local = tuple(local)
    if any(not 0 <= dim < len(local) for dim in cut):
        raise ValueError(f"{key} is cut along {sorted(cut)} and has the shape {local}")
    along = [_runs(length, *cut.get(dim, (0, 1, 1))) for dim, length in enumerate(local)]
    pieces = tuple(Piece(*zip(*runs)) for runs in itertools.product(*along)) if local else (Piece((), (), ()),)
    return Share(key, tuple(n * cut.get(dim, (0, 1, 1))[1] for dim, n in enumerate(local)), local, pieces)


def within(whole, offsets, sizes):
    """The Share of a rank that has no more of its tensor than the box of `sizes` at `offsets`, as FSDP leaves it."""
    pieces = []
    for piece in whole.pieces:
        begin = [max(a, b) for a, b in zip(piece.local, offsets)]
        end = [min(a + n, b + m) for a, n, b, m in zip(piece.local, piece.sizes, offsets, sizes)]
        if all(a < b for a, b in zip(begin, end)):
            pieces.append(Piece(tuple(w + a - p for w, a, p in zip(piece.whole, begin, piece.local)),
                                tuple(a - o for a, o in zip(begin, offsets)),
                                tuple(b - a for a, b in zip(begin, end))))
    return whole._replace(local=tuple(sizes), pieces=tuple(pieces))


def box(tensor, offsets, sizes):
    """The box as a view."""
    for dim, (offset, size) in enumerate(zip(offsets, sizes)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def take(of, whole, local):
    """Copies what this rank has out of the whole tensor into its own."""
    for piece in of.pieces:
        box(local, piece.local, piece.sizes).copy_(box(whole, piece.whole, piece.sizes))


def put(of, local, whole):
    """Copies what this rank has into the whole tensor."""
    for piece in of.pieces:
        box(whole, piece.whole, piece.sizes).copy_(box(local, piece.local, piece.sizes))


def of(module):
    """{name: Share} of the tensors of a module, those of its submodules not included; empty where it has no cuts()."""
    cuts = module.cuts() if callable(getattr(module, "cuts", None)) else {}
    # Not named_parameters() and named_children(), which give what has two names, tied, once: a state dict has both.
    have = {name: value for held in (module._parameters, module._buffers) for name, value in held.items()
            if name in cuts and value is not None}
    return {name: share(cuts[name][0], value.shape, cuts[name][1]) for name, value in have.items()}


def of_model(model, prefix=""):
    """{name: Share} of all tensors of a model whose module has cuts(). Names and keys are those of
    torch.distributed.checkpoint.state_dict: without what wrappers add (DistributedDataParallel, torch.compile)."""
    found = {prefix + name: one._replace(key=prefix + one.key) for name, one in of(model).items()}
    for name, child in model._modules.items():
        if child is None:
            continue
        inside = name in WRAPPED or name == "module" and type(model).__name__ == "DistributedDataParallel"
        found.update(of_model(child, prefix if inside else f"{prefix}{name}."))
    return found


def _apart(a, b):
    """Whether two boxes (offsets, sizes) have no number in common."""
    return any(i >= j + m or j >= i + n for i, n, j, m in zip(*a, *b))


def replicas(ranks):
    """ranks: of every rank its Shares. For every rank, {(key, offsets): number}: how many ranks before it have the same
    box. A format that stores each box once stores those with number 0. Raises ValueError, with the tensor's name, where
    the boxes of all ranks are not the whole model, each number once."""
    shapes, boxes, numbers = {}, {}, []
    for shares in ranks:
        mine = {}
        for one in shares:
            if shapes.setdefault(one.key, one.shape) != one.shape:
                raise ValueError(f"{one.key} has the shape {one.shape} and, on a rank before, {shapes[one.key]}")
            for piece in one.pieces:
                count = boxes.setdefault(one.key, {}).setdefault((piece.whole, piece.sizes), 0)
                boxes[one.key][piece.whole, piece.sizes] = count + 1
                mine[one.key, piece.whole] = count
        numbers.append(mine)
    for key, found in boxes.items():
        for a, b in itertools.combinations(found, 2):
            if not _apart(a, b):
                raise ValueError(f"{key}: the boxes {a} and {b} overlap")
        have, want = sum(math.prod(sizes) for _, sizes in found), math.prod(shapes[key])
        if have != want:
            raise ValueError(f"{key}: the ranks have {have} of {want} numbers")
    return numbers
