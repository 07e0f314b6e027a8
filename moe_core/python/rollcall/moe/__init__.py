"""rollcall.moe: moe_core's experts as drop-in modules of other frameworks.

    rollcall.moe.megatron      TEGroupedMLP, and the grouped linears that Megatron-LM's own TEGroupedMLP can be built of
    rollcall.moe.torchtitan    GroupedExperts
    rollcall.moe.checkpoint    models with these experts, or with layers of moe_core.py, in torch.distributed.checkpoint
    rollcall.moe.shards        which numbers of the whole model a rank has; needs nothing but Python
    rollcall.moe.linear        the grouped linear that both stand on, as a function with a gradient
    rollcall.moe.layout        where each framework keeps which number of an expert; needs nothing but Python

Importing this package imports neither PyTorch nor a framework. The modules import PyTorch; Megatron-LM and torchtitan
are imported by the functions that need them, and by no others.
"""
import importlib.util
import os
import sys


def need_torch(who):
    """PyTorch, or an ImportError that says what to do."""
    try:
        import torch
    except ImportError as error:
        raise ImportError(f"{who} needs PyTorch, which {sys.executable} does not have ({error}): pip install torch, or "
                          "start the Python that has it; rollcall.moe.layout works without") from error
    return torch


def core():
    """The module moe_core: the one that is imported or on the path, else the one of this installation."""
    if "moe_core" in sys.modules:
        return sys.modules["moe_core"]
    spec = importlib.util.find_spec("moe_core")
    if spec is None:
        # LIBDIR/rollcall/python/rollcall/moe/__init__.py goes with LIBDIR/rollcall/moe/moe_core.py.
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.path.normpath(os.path.join(here, "..", "..", "..", "moe", "moe_core.py"))
        if not os.path.exists(path):
            raise ImportError(f"rollcall.moe needs moe_core.py, which is neither on the path nor at {path}")
        spec = importlib.util.spec_from_file_location("moe_core", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["moe_core"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["moe_core"]
        raise
    return module
