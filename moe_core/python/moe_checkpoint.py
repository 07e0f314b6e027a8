"""moe_checkpoint.py: reads the checkpoints of moe_train as a plain state dict: names, shapes, numbers. Needs no torch.

    state, facts = moe_checkpoint.read("DIR/step-00000010.safetensors")
    state["model.layers.0.experts.w1"]          # a torch tensor where torch can be imported, else a Plain
    layer.load_full(moe_checkpoint.layer(state, 0))   # moe_core.MoELayer: this rank takes its part, in any layout

Tensors are whole, whatever layout wrote them; model.NAME, optimizer.mean.NAME and optimizer.variance.NAME have one
shape. The dictionary is what torch.distributed.checkpoint takes, and any library for safetensors reads the file, too;
this reader is here because it checks the checksum and needs nothing.
"""
import array
import json
import os
import sys
from dataclasses import dataclass

__all__ = ["BadCheckpoint", "Plain", "layer", "read"]

FORMAT = "moe_train/1"
# The names of moe_core.MoELayer, and those of a checkpoint behind "model.layers.N.".
LAYER = {"gate": "router.weight", "gate_bias": "router.bias", "expert_bias": "router.expert_bias", "w1": "experts.w1",
         "b1": "experts.b1", "w2": "experts.w2", "b2": "experts.b2", "shared_w1": "shared_expert.w1",
         "shared_b1": "shared_expert.b1", "shared_w2": "shared_expert.w2", "shared_b2": "shared_expert.b2",
         "shared_gate": "shared_expert.gate"}


class BadCheckpoint(ValueError):
    """A file that is damaged, short or something else; the message says which and what about it."""


@dataclass
class Plain:
    """A tensor without torch: float32 numbers, the last side fastest."""
    shape: tuple
    numbers: array.array


def _hash(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def _torch():
    try:
        import torch
    except ImportError:
        return None
    return torch


def _tensor(torch, shape, data):
    numbers = array.array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return Plain(shape, numbers) if torch is None else torch.tensor(numbers, dtype=torch.float32).reshape(shape)


def read(path, verify=True, only=None):
    """(state, facts) of a file. verify: compare the checksum, a microsecond for a dozen bytes; only: a function of a
    name, for those that are wanted. Raises BadCheckpoint and OSError."""
    size = os.path.getsize(path)
    with open(path, "rb") as f:
        length = f.read(8)
        header = f.read(int.from_bytes(length, "little")) if 8 + int.from_bytes(length, "little") <= size else b""
        try:
            table = json.loads(header)
            facts = table.pop("__metadata__")
            begin, end = table.pop("checksum")["data_offsets"]
            size_told = 8 + len(header) + int(end)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadCheckpoint(f"{path} is no checkpoint of moe_train, or its header is damaged") from None
        if not isinstance(facts, dict) or facts.get("format") != FORMAT:
            raise BadCheckpoint(f"{path} is no checkpoint of this moe_train: its format is not {FORMAT}")
        if size != size_told:
            raise BadCheckpoint(f"{path} has {size} bytes, by its header {size_told}")
        data = f.read()
    told = int.from_bytes(data[begin:end], "little")
    if verify and _hash(memoryview(length + header + data)[:-8]) != told:
        raise BadCheckpoint(f"{path} is damaged: its checksum is another than the one it was written with")
    torch, state = _torch(), {}
    for name, entry in table.items():
        begin, end = entry["data_offsets"]
        if only is None or only(name):
            state[name] = _tensor(torch, tuple(entry["shape"]), data[begin:end])
    return state, facts


def layer(state, number):
    """What MoELayer.load_full takes, of one layer: {"gate": [E,H], "w1": [E,2F,H], ...}."""
    here = {name: f"model.layers.{number}.{place}" for name, place in LAYER.items()}
    found = {name: state[place] for name, place in here.items() if place in state}
    if not found:
        raise KeyError(f"the checkpoint has no layer {number}")
    return found
