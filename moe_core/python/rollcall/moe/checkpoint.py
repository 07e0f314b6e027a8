"""rollcall.moe.checkpoint: models with moe_core's layers and experts in torch.distributed.checkpoint (DCP).

    import torch.distributed.checkpoint as dcp
    from rollcall.moe import checkpoint

    dcp.save({"app": checkpoint.State(model, optimizer)}, checkpoint_id=folder)
    dcp.load({"app": checkpoint.State(model, optimizer)}, checkpoint_id=folder)    # in any other layout of ranks, too

The checkpoint holds the tensors of the whole model, under the names that they have on one rank; each rank writes and
reads the boxes that it has (shards.py). Tensors of other modules are left to DCP: a DTensor is a part, every other one
is a replica.

What DCP is given in place of a tensor is a Whole: an object of the whole tensor's size that knows boxes of the local
one, by the protocol that DTensor has, too (__create_write_items__, __create_chunk_list__, __get_tensor_shard__). The
simpler idea, attributes on the local tensors themselves, was rejected: whatever copies a tensor forgets them, and DCP
then takes the part of one rank for the whole, without a word.
"""
import sys

from . import need_torch, shards

torch = need_torch(__name__)

__all__ = ["State", "Whole", "to_local", "to_whole"]

STATE, GROUPS = "state.", "param_groups."  # of a flattened state dict of an optimizer


class Whole(torch.Tensor):
    """A tensor of the whole model, of which this rank has boxes of `local`. Numbers are in `local` only: operations
    raise NotImplementedError."""

    @staticmethod
    def __new__(cls, local, share):
        made = torch.Tensor._make_wrapper_subclass(cls, torch.Size(share.shape), dtype=local.dtype, device=local.device)
        made.local = local
        # Plain tuples: what stages a state dict for an asynchronous save copies them.
        made.pieces = tuple(tuple(map(tuple, piece)) for piece in share.pieces)
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.new_empty.default:  # for a copy, whose attributes are copied next
            like, size = args[:2]
            device = (kwargs or {}).get("device") or like.device
            return cls(torch.empty(0, dtype=like.dtype, device=device), shards.Share("", tuple(size), (0,), ()))
        raise NotImplementedError(f"{func} of a tensor of which this rank has a part: {cls.__name__}.local has it")

    def __repr__(self, *, tensor_contents=None):
        return f"Whole({tuple(self.shape)}, {self.dtype}, {len(self.pieces)} boxes here)"

    def _chunks(self):
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
        return [ChunkStorageMetadata(offsets=torch.Size(whole), sizes=torch.Size(sizes))
                for whole, _, sizes in self.pieces]

    def __create_write_items__(self, fqn, object):
        from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
        from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
        return [WriteItem(index=MetadataIndex(fqn, chunk.offsets, i), type=WriteItemType.SHARD,
                          tensor_data=TensorWriteData(chunk=chunk, properties=TensorProperties(dtype=self.dtype),
                                                      size=self.size()))
                for i, chunk in enumerate(self._chunks())]

    def __create_chunk_list__(self):
        return self._chunks()

    def __get_tensor_shard__(self, index):
        for whole, local, sizes in self.pieces:
            if index.offset is not None and whole == tuple(index.offset):
                return shards.box(_numbers(self.local), local, sizes)
        raise ValueError(f"{index.fqn}: this rank has no box at {index.offset}")


def _numbers(tensor):
    """What this rank has of a DTensor, or the tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _whole(name, value, share):
    """A Whole of a tensor of a module with cuts(); the tensor where there is nothing to say about it."""
    if not hasattr(value, "shape") or share.is_whole():
        return value
    if tuple(value.shape) != share.local:
        if value.numel() == 1:  # a number of steps
            return value
        raise ValueError(f"{name} is {tuple(value.shape)}, and what it belongs to {share.local}: how it goes with the "
                         f"whole, {share.shape}, is not known")
    if hasattr(value, "to_local"):  # a DTensor: FSDP has cut what the layer has
        chunk, = value.__create_chunk_list__()
        share = shards.within(share, tuple(chunk.offsets), tuple(chunk.sizes))
    return Whole(value, share)


def _split(name, names):
    """(before, name of a tensor, behind) of a key of a model's or a flattened optimizer's state dict; None where it
    belongs to none of the names."""
    if name in names:
        return "", name, ""
    before = next((word for word in (STATE, GROUPS) if name.startswith(word)), None)
    end = name.rfind(".") if before else -1
    while end > 0:
        if name[len(before):end] in names:
            return before, name[len(before):end], name[end:]
        end = name.rfind(".", 0, end)
    return None


def to_whole(model, state):
    """A state dict as DCP wants it: the tensors of modules with cuts() become Wholes, under their names in the whole
    model. state: get_model_state_dict(model), or get_optimizer_state_dict(model, ..., flattened). Raises ValueError for
    a tensor of an optimizer that has another shape than its parameter, where that is a part."""
    named, found = shards.of_model(model), {}
    for name, value in state.items():
        place = _split(name, named)
        if place is None:
            found[name] = value
        else:
            before, own, behind = place
            found[before + named[own].key + behind] = _whole(name, value, named[own])
    return found


def to_local(model, state):
    """The inverse of to_whole, of the same model: the tensors that DCP has loaded into."""
    named, found = {share.key: name for name, share in shards.of_model(model).items()}, {}
    for key, value in state.items():
        place = _split(key, named)
        name = key if place is None else place[0] + named[place[1]] + place[2]
        found[name] = value.local if isinstance(value, Whole) else value
    return found


def _need_protocol():
    """A release that does not ask for __create_write_items__ would take a Whole for a tensor like any other."""
    try:
        from torch.distributed.tensor import DTensor
        known = hasattr(DTensor, "__create_write_items__")
    except ImportError:
        known = False
    if not known:
        raise ImportError(f"rollcall.moe.checkpoint needs PyTorch 2.5 or later, and this is {torch.__version__}")


def _refuse_cut_elsewhere(model):
    """Megatron-LM cuts the parameters of other modules, too, and only its own checkpoints know how."""
    megatron = sys.modules.get("megatron.core.parallel_state")
    if megatron is None or not megatron.model_parallel_is_initialized() or \
            megatron.get_tensor_model_parallel_world_size() == 1:
        return
    known = {id(value) for module in model.modules() if shards.of(module)
             for value in module.parameters(recurse=False)}
    for name, value in model.named_parameters():
        if getattr(value, "tensor_model_parallel", False) and id(value) not in known:
            raise ValueError(f"{name} is cut by Megatron-LM: save with its dist_checkpointing, which asks modules for "
                             "their sharded_state_dict()")


class State:
    """A model and its optimizers (one, several or none) as an object for the dictionary that DCP saves and loads. The
    model may be wrapped in DistributedDataParallel and sharded by FSDP2. Loading overwrites the tensors in place. Needs
    PyTorch 2.5."""

    def __init__(self, model, optimizers=()):
        _need_protocol()
        _refuse_cut_elsewhere(model)
        self.model = model
        self.optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)

    def _options(self):
        from torch.distributed.checkpoint.state_dict import StateDictOptions
        # By name, not by place in a list: another layout has other parameters.
        return StateDictOptions(flatten_optimizer_state_dict=True)

    def state_dict(self):
        """Called by DCP. {"model": ..., "optimizer": ...}; views of what the model has, not copies."""
        from torch.distributed.checkpoint import state_dict as torch_state
        found = {"model": to_whole(self.model, torch_state.get_model_state_dict(self.model))}
        if self.optimizers:
            flat = torch_state.get_optimizer_state_dict(self.model, self.optimizers, options=self._options())
            found["optimizer"] = to_whole(self.model, flat)
        return found

    def load_state_dict(self, state):
        """Called by DCP, when it has loaded into what state_dict() gave."""
        from torch.distributed.checkpoint import state_dict as torch_state
        torch_state.set_model_state_dict(self.model, to_local(self.model, state["model"]))
        if self.optimizers:
            torch_state.set_optimizer_state_dict(self.model, self.optimizers,
                                                 to_local(self.model, state["optimizer"]), options=self._options())
