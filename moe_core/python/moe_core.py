"""moe_core.py: the MoE layer of libmoe_core.so as a torch.nn.Module. ctypes only; nothing is compiled, nothing is
global.

    device = moe_core.Device("host")                          # CPU tensors; "cuda" for CUDA tensors
    world = moe_core.Communicator.from_environment(device)    # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    layer = moe_core.MoELayer(hidden=64, ffn=128, experts=8, topk=2, max_tokens=512, device=device,
                              router=moe_core.Router(after=True, switch_loss=0.01), groups=moe_core.Groups(ep=world))
    y = layer(x)                                              # [..., hidden]; backward as usual

What the options mean is said once, in the C headers (moe/layer.h, moe/router.h, moe/experts.h, moe/shared.h); here they
have the same names.

Tensors and streams. On the host back end tensors are CPU tensors, and a call returns when its work is done. On the CUDA
back end they are CUDA tensors; the library has a stream of its own, which waits for torch's current stream at the begin
of a call and is waited for by it at the end, so a call is ordered like any torch operation and the host does not wait.
With Device(stream=...) it is the caller's, and where that is torch's current one there is nothing to wait for.
Call and use layers from one thread at a time. Failures inside a CUDA stream are raised by Device.synchronize().

A parameter with requires_grad off is frozen: backward does no work for it, on any rank. All ranks must freeze the same
parameters (MoeError "arg" on all of them where they do not).

Gradients. They arrive in .grad through autograd. A parameter with an attribute main_grad (float32) has its gradient
added there instead, by the library; then autograd is given nothing, or, where the parameter has an attribute
grad_added_to_main_grad, a placeholder of its shape and the flag is set (zeros with zero_out_wgrad, else no numbers that
mean anything); with overwrite_main_grad the gradient replaces what is there. That is the contract that Megatron's
distributed data parallel expects of Transformer Engine (moe/linear.h). Gradients are sums over this rank's tokens:
reduce() or your framework sums replicas. The gradients of the router's losses are added in backward, times
set_loss_scale; the losses are not part of y.

Several microbatches in flight: a layer keeps the state of a forward until its backward. in_flight says of how many; one
more is an error, not a wrong gradient. They count together for the expert bias and the global loss.

The library is the file that MOE_CORE_LIBRARY names, else the libmoe_core.so of the installation or build tree that this
file belongs to, else what the loader finds.
"""
import copy
import ctypes
import os
import sys
import weakref
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_float, c_int, c_int32, c_int64,
                    c_size_t, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p)
from dataclasses import dataclass, fields
from typing import Optional

import torch

__all__ = ["Communicator", "Device", "Dispatch", "Experts", "Groups", "MoELayer", "MoeError", "Router", "begin_step",
           "reduce", "update_expert_bias"]

# The library's enumerations (tests/moe_core/python compares them with the headers).
SCORE = {"softmax": 0, "sigmoid": 1, "sqrtsoftplus": 2}
ACTIVATION = {"swiglu": 0, "geglu": 1, "swiglu_clamped": 2, "geglu_tanh": 3}
PLACE = {"source": 0, "activation": 1, "input": 2}
DISPATCHER = {"alltoall": 0, "allgather": 1, "deepep": 2, "hybridep": 3}
TP_MODE = {"sequence": 0, "split_tokens": 1, "shard_experts": 2}
ROUTER_SUM = {"layer": 0, "caller": 1}
RECOMPUTE = {"none": 0, "activation": 1, "fc1": 2}
UNEVEN = {"none": 0, "max": 1, "bound": 2}
DTYPE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
PHASE = {"none": 0, "forward": 1, "backward": 2, "recompute": 3, "reduce": 4, "optimizer": 5}
PLACES = 64  # MOE_UNEVEN_MICROBATCHES of moe/uneven.h
EXPERT_PARAMETERS = ("w1", "b1", "w2", "b2")
PARAMETERS = ("gate", "gate_bias", *EXPERT_PARAMETERS, "shared_w1", "shared_b1", "shared_w2", "shared_b2",
              "shared_gate")
LOSSES = ("switch", "sequence", "global", "z")
ERROR = {"nomem": -1, "arg": -2, "shape": -3, "capacity": -4, "split": -5, "count": -6, "expert": -7, "map": -8,
         "comm": -9, "device": -10, "state": -11, "unsupported": -12, "nan": -13}


class MoeError(RuntimeError):
    """A call of the library failed. The message has rank, layer and numbers; .code is the code of moe/err.def, .name
    its name there in lower case."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code, self.name = code, {value: name for name, value in ERROR.items()}.get(code, "unknown")


def _fail(name, message):
    raise MoeError(ERROR[name], message)


# The structs of the headers, member for member (tests/moe_core/python compares sizes and offsets with C).
class CRouterOptions(Structure):
    _c_name_ = "struct moe_router_options"
    _fields_ = [("score", c_int), ("after", c_bool), ("gate_bias", c_bool), ("expert_bias", c_bool),
                ("groups", c_int32), ("group_topk", c_int32), ("scale", c_float), ("capacity_factor", c_float),
                ("by_position", c_bool), ("pad_to_capacity", c_bool), ("coeff", c_float * 4), ("sequences", c_int64),
                ("gate_type", c_int)]


class CRouterConfig(Structure):
    _c_name_ = "struct moe_router_config"
    _fields_ = [("max_tokens", c_int64), ("hidden", c_int64), ("experts", c_int64), ("topk", c_int32),
                ("renormalise", c_bool), ("options", CRouterOptions), ("balance", c_void_p), ("global", c_void_p)]


class CDispatcherLegacy(Structure):
    _c_name_ = "struct moe_dispatcher_legacy"
    _fields_ = [(name, c_bool) for name in ("empty_unpermute", "empty_from_input", "empty_returns_early", "static_rows",
                                            "local_capacity", "slack_uninitialised")]


class COptions(Structure):
    _c_name_ = "struct moe_options"
    _fields_ = [(name, c_bool) for name in ("legacy_skip_empty", "legacy_wgrad_uninitialised", "legacy_recompute_flip",
                                            "legacy_router_unsummed", "legacy_router_summed_twice")]
    _fields_ += [("dispatcher", CDispatcherLegacy), ("keep_routing", c_bool), ("sanitize", c_bool)]


class CGroups(Structure):
    _c_name_ = "struct moe_groups"
    _fields_ = [(name, c_void_p) for name in ("ep", "etp", "tp_ep", "tp")]


class CClamp(Structure):
    _c_name_ = "struct moe_clamp"
    _fields_ = [("alpha", c_float), ("limit", c_float), ("offset", c_float)]


class CFp8(Structure):
    _c_name_ = "struct moe_fp8"
    _fields_ = [("rows", c_int), ("grad", c_int), ("wide_wgrad", c_bool)]


class CLayerConfig(Structure):
    _c_name_ = "struct moe_layer_config"
    _fields_ = [("layer", c_uint32), ("world_rank", c_int32), ("max_tokens", c_int64), ("hidden", c_int64),
                ("ffn", c_int64), ("experts", c_int64), ("topk", c_int32), ("renormalise", c_bool),
                ("router", CRouterOptions), ("balance", c_void_p), ("global", c_void_p), ("ep", c_void_p),
                ("options", COptions), ("dispatcher", c_int), ("groups", CGroups), ("tp_mode", c_int),
                ("router_sum", c_int), ("type", c_int), ("weight", c_int), ("bias", c_int), ("block_scales", c_bool),
                ("fp8", CFp8), ("has_bias", c_bool), ("activation", c_int), ("clamp", CClamp), ("place", c_int),
                ("experts_recompute", c_int), ("recompute", c_bool), ("delay_wgrad", c_bool), ("shared_ffn", c_int64),
                ("shared_bias", c_bool), ("shared_gate", c_bool), ("shared_overlap", c_bool), ("uneven", c_int),
                ("token_bound", c_int64), ("row_multiple", c_int64), ("row_budget", c_int64),
                ("budget_factor", c_float), ("in_flight", c_int32), ("facts", c_void_p), ("ready", c_void_p),
                ("ready_arg", c_void_p)]


class CSharedWeights(Structure):
    _c_name_ = "struct moe_shared_weights"
    _fields_ = [(name, c_void_p) for name in ("w1", "w2", "b1", "b2", "gate", "d_w1", "d_w2", "d_b1", "d_b2",
                                              "d_gate")] + [("overwrite", c_bool), ("frozen", c_uint32)]


class CLayerWeights(Structure):
    _c_name_ = "struct moe_layer_weights"
    _fields_ = [(name, c_void_p) for name in ("gate", "w1", "w2", "d_gate", "d_w1", "d_w2", "gate_bias", "expert_bias",
                                              "d_gate_bias", "b1", "b2", "d_b1", "d_b2", "scale1",
                                              "scale2")] + [("shared", CSharedWeights), ("frozen", c_uint32)]


class CStep(Structure):
    _c_name_ = "struct moe_step"
    _fields_ = [("step", c_uint32), ("microbatch", c_uint16), ("alone", c_bool), ("tag", c_uint32)]


class CBucket(Structure):
    _c_name_ = "struct moe_bucket"
    _fields_ = [("grad", c_void_p), ("count", c_size_t), ("scale", c_float), ("comm", c_void_p), ("layer", c_uint32)]


_ALLOC = CFUNCTYPE(c_void_p, c_void_p, c_size_t, c_void_p)
_RELEASE = CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_void_p)


class CAllocator(Structure):
    _c_name_ = "struct moe_allocator"
    _fields_ = [("alloc", _ALLOC), ("release", _RELEASE), ("arg", c_void_p)]


class CMemoryFigures(Structure):
    _c_name_ = "struct moe_memory_figures"
    _fields_ = [(name, c_size_t) for name in ("fixed", "in_use", "reserved", "most_in_use", "most_reserved", "most")]
    _fields_ += [("allocations", c_uint64)]


class CUniqueId(Structure):
    _c_name_ = "ncclUniqueId"
    _fields_ = [("internal", c_char * 128)]


# name: (result, arguments). A result of c_int is an error code and is checked.
_MOE = {
    "moe_last_error": (c_char_p, []),
    "moe_error_text": (c_char_p, [c_int]),
    "moe_device_new": (c_int, [c_char_p, POINTER(c_void_p)]),
    "moe_device_new_on": (c_int, [c_char_p, c_void_p, POINTER(c_void_p)]),
    "moe_device_destroy": (None, [POINTER(c_void_p)]),
    "moe_device_stream": (c_void_p, [c_void_p]),
    "moe_device_sync": (c_int, [c_void_p]),
    "moe_device_set_allocator": (c_int, [c_void_p, POINTER(CAllocator)]),
    "moe_device_memory": (None, [c_void_p, POINTER(CMemoryFigures)]),
    "moe_device_memory_restart": (None, [c_void_p]),
    "moe_device_trim": (c_int, [c_void_p, POINTER(c_size_t)]),
    "moe_device_copy": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "moe_router_preset": (c_int, [c_char_p, POINTER(CRouterConfig)]),
    "moe_router_losses": (c_void_p, [c_void_p]),
    "moe_router_counts": (c_void_p, [c_void_p]),
    "moe_router_set_loss_scale": (None, [c_void_p, c_float]),
    "moe_router_set_counting": (None, [c_void_p, c_bool]),
    "moe_router_global_reset": (c_int, [c_void_p]),
    "moe_router_update_bias": (c_int, [POINTER(c_void_p), POINTER(c_void_p), c_int32, c_void_p, c_float]),
    "moe_layer_sizes": (None, [POINTER(c_size_t), POINTER(c_size_t)]),
    "moe_layer_new": (c_int, [c_void_p, POINTER(CLayerConfig), POINTER(c_void_p)]),
    "moe_layer_destroy": (None, [POINTER(c_void_p)]),
    "moe_layer_forward": (c_int, [c_void_p, POINTER(CLayerWeights), POINTER(CStep), c_void_p, c_int64, c_void_p]),
    "moe_layer_backward_of": (c_int, [c_void_p, POINTER(CStep), c_void_p, c_void_p]),
    "moe_layer_drop": (None, [c_void_p, POINTER(CStep)]),
    "moe_layer_backward_dw": (c_int, [c_void_p]),
    "moe_layer_remedies": (c_uint32, [c_void_p]),
    "moe_layer_router": (c_void_p, [c_void_p]),
    "moe_layer_rows": (c_int64, [c_void_p]),
    "moe_layer_skipped": (c_bool, [c_void_p]),
    "moe_reduce": (c_int, [c_void_p, POINTER(CBucket)]),
    "moe_step_report": (None, [POINTER(CStep), c_uint8, ctypes.c_uint64]),
}
_NCCL = {
    "ncclGetErrorString": (c_char_p, [c_int]),
    "ncclGetUniqueId": (c_int, [POINTER(CUniqueId)]),
    "ncclCommInitRank": (c_int, [POINTER(c_void_p), c_int, CUniqueId, c_int]),
    "ncclCommSplit": (c_int, [c_void_p, c_int, c_int, POINTER(c_void_p), c_void_p]),
    "ncclCommCount": (c_int, [c_void_p, POINTER(c_int)]),
    "ncclCommUserRank": (c_int, [c_void_p, POINTER(c_int)]),
    "ncclCommDestroy": (c_int, [c_void_p]),
    "ncclAllGather": (c_int, [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p]),
}
NCCL_SPLIT_NOCOLOR, NCCL_BYTES = -1, 1  # 1: ncclUint8


def _library_path():
    """LIBDIR/rollcall/moe/moe_core.py belongs to LIBDIR/libmoe_core.so, in the build tree as well as installed."""
    beside = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "libmoe_core.so"))
    return os.environ.get("MOE_CORE_LIBRARY") or (beside if os.path.exists(beside) else "libmoe_core.so")


class _Library:
    """libmoe_core.so and the NCCL it is bound to (the same file: it is found by its soname, which is loaded by then).
    Errors become MoeError."""

    def __init__(self):
        path = _library_path()
        try:
            core = ctypes.CDLL(path)
            nccl = ctypes.CDLL("libnccl.so.2")
        except OSError as error:
            _fail("unsupported", f"{path}: {error} (MOE_CORE_LIBRARY names another file)")
        self.path, self.core = path, core
        self.declare(_MOE, core)
        self.declare(_NCCL, nccl)

        config, weights = c_size_t(), c_size_t()
        self.moe_layer_sizes(byref(config), byref(weights))
        if (config.value, weights.value) != (ctypes.sizeof(CLayerConfig), ctypes.sizeof(CLayerWeights)):
            _fail("unsupported", f"{path} is of another version than {os.path.abspath(__file__)}")

    def declare(self, table, library):
        """Gives this object the functions of a table {name: (result, arguments)}."""
        for name, (result, arguments) in table.items():
            function = getattr(library, name, None)
            if function is None:
                _fail("unsupported",
                      f"{self.path} has no {name}: it is of another version than {os.path.abspath(__file__)}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def check(self, code):
        if code != 0:
            message = self.moe_last_error().decode(errors="replace") or self.moe_error_text(code).decode()
            raise MoeError(code, message)

    def check_nccl(self, code, what):
        if code != 0:
            _fail("comm", f"{what}: {self.ncclGetErrorString(code).decode()}")


class _TorchMemory:
    """The functions of struct moe_allocator over PyTorch's allocators. CUDA: the caching allocator, for the library's
    stream, so that what the library does not need is PyTorch's again. CPU: tensors, which are let go only after the
    device's next wait, because a host function of the stream may still use them."""

    def __init__(self, backend, place):
        self.cuda, self.place, self.tensors, self.gone, self.error = backend == "cuda", place, {}, [], None
        self.table = CAllocator(_ALLOC(self.alloc), _RELEASE(self.release), None)

    def alloc(self, _, size, stream):
        try:
            if self.cuda:
                return torch.cuda.caching_allocator_alloc(size, self.place, stream or 0)
            tensor = torch.empty(size, dtype=torch.uint8)
            self.tensors[tensor.data_ptr()] = tensor
            return tensor.data_ptr()
        except Exception as error:  # out of memory, as a rule: the library says how much it wanted
            self.error = error.with_traceback(None)  # whose frames would keep the layer, and so the device, alive
            return None

    def release(self, _, memory, size, stream):
        if self.cuda:
            torch.cuda.caching_allocator_delete(memory)
        else:
            self.gone.append(self.tensors.pop(memory))

    def waited(self):
        self.gone.clear()


def _destroy_device(lib, handle, memory):
    lib.moe_device_destroy(byref(handle))  # calls memory's functions


class Device:
    """Where layers compute: "host" (CPU tensors, BLAS) or "cuda" (CUDA tensors of the device that is torch's current
    one now). One stream; share one object between the layers of a process. Destroyed after everything that was made on
    it. memory: "library", or "torch": the library takes its device memory from PyTorch's allocator. stream: None, the
    library makes one; or the caller's, on which it enqueues everything: a torch.cuda.Stream or another object with
    cuda_stream, or a cudaStream_t as an integer (0: the default stream). It is kept, but must outlive the device."""

    def __init__(self, backend="host", memory="library", stream=None):
        if memory not in ("library", "torch"):
            _fail("arg", f"memory is {memory!r}, one of 'library', 'torch' is wanted")
        self.lib = _Library()
        self.backend = backend
        self.torch = torch.device("cuda", torch.cuda.current_device()) if backend == "cuda" else torch.device("cpu")
        handle, self._stream = c_void_p(), stream
        if stream is None:
            self.lib.check(self.lib.moe_device_new(backend.encode(), byref(handle)))
        else:
            pointer = c_void_p(getattr(stream, "cuda_stream", stream))
            self.lib.check(self.lib.moe_device_new_on(backend.encode(), pointer, byref(handle)))
        self.handle = handle
        self._memory = _TorchMemory(backend, self.torch) if memory == "torch" else None
        weakref.finalize(self, _destroy_device, self.lib, handle, self._memory)
        if self._memory is not None:
            self.lib.check(self.lib.moe_device_set_allocator(handle, byref(self._memory.table)))
        self.stream = self.lib.moe_device_stream(handle) or 0
        self._kept = []

    def synchronize(self):
        """Waits for the work of this device; raises the first error of that work."""
        kept, self._kept = self._kept, []
        code = self.lib.moe_device_sync(self.handle)
        if self._memory is not None:
            self._memory.waited()
        self.lib.check(code)
        del kept

    def memory(self, restart=False):
        """What the library holds of device memory, in bytes: the members of struct moe_memory_figures (moe/device.h) by
        name. restart: the high-water marks begin again."""
        figures = CMemoryFigures()
        self.lib.moe_device_memory(self.handle, byref(figures))
        if restart:
            self.lib.moe_device_memory_restart(self.handle)
        return {name: getattr(figures, name) for name, _ in CMemoryFigures._fields_}

    def trim(self):
        """Gives back what the layers' pool holds and nothing uses; returns the bytes."""
        size = c_size_t()
        self.lib.check(self.lib.moe_device_trim(self.handle, byref(size)))
        return size.value

    def keep(self, *tensors):
        """Keeps tensors alive until the next synchronize: a call failed midway, and work that it enqueued may still use
        them. Waiting for that work could last for ever."""
        self._kept.append(tensors)

    def check_tensor(self, tensor, what, dtype):
        if tensor.device != self.torch or tensor.dtype != dtype:
            _fail("arg", f"{what} is {tensor.dtype} on {tensor.device}, wanted {dtype} on {self.torch}")

    def __deepcopy__(self, memo):
        return self

    def order(self):
        """A context: work enqueued in it runs after torch's work so far and before torch's work from then on."""
        return _Order(self)


class _Order:
    def __init__(self, device):
        self.device = device

    def __enter__(self):
        if self.device.torch.type == "cuda":
            self.guard = torch.cuda.device(self.device.torch)
            self.guard.__enter__()
            current = torch.cuda.current_stream()
            self.ours = None  # one stream: its order is enough
            if current.cuda_stream != self.device.stream:
                self.ours = torch.cuda.ExternalStream(self.device.stream, device=self.device.torch)
                self.ours.wait_stream(current)

    def __exit__(self, kind, value, trace):
        if self.device.torch.type == "cuda":
            if self.ours is not None:
                torch.cuda.current_stream().wait_stream(self.ours)
            self.guard.__exit__(kind, value, trace)
        elif kind is None:
            self.device.synchronize()
        return False


class Communicator:
    """An NCCL communicator: made here, split from another, or borrowed. .rank and .size are this rank's and the number
    of ranks in it."""

    def __init__(self, device, pointer, owned):
        """Use the class methods."""
        self.device, self.pointer = device, pointer
        lib, numbers = device.lib, (c_int(), c_int())
        lib.check_nccl(lib.ncclCommCount(pointer, byref(numbers[0])), "ncclCommCount")
        lib.check_nccl(lib.ncclCommUserRank(pointer, byref(numbers[1])), "ncclCommUserRank")
        self.size, self.rank = numbers[0].value, numbers[1].value
        self._finalizer = weakref.finalize(self, _destroy_communicator, device, pointer) if owned else None

    def __deepcopy__(self, memo):
        return self

    @classmethod
    def create(cls, device, rank, size, store, name="moe_core"):
        """A collective call. The unique id travels through `store`: any object with set(key, bytes) and get(key) that
        waits, as the stores of torch.distributed have. `name` must be the same on all ranks, and another for each
        communicator made through one store."""
        lib, unique_id, comm = device.lib, CUniqueId(), c_void_p()
        if rank == 0:
            lib.check_nccl(lib.ncclGetUniqueId(byref(unique_id)), "ncclGetUniqueId")
            store.set(name, bytes(unique_id))
        unique_id = CUniqueId.from_buffer_copy(store.get(name))
        with device.order():
            lib.check_nccl(lib.ncclCommInitRank(byref(comm), size, unique_id, rank), "ncclCommInitRank")
        return cls(device, comm, True)

    @classmethod
    def from_environment(cls, device, name="moe_core"):
        """Makes the communicator of all ranks of the job from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as
        torchrun and `rollcall run` set them."""
        missing = [variable for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
                   if variable not in os.environ]
        if missing:
            _fail("arg", f"{', '.join(missing)} not set: start the job with torchrun or `rollcall run -n N`, or use "
                  "Communicator.create; one rank alone needs none (Groups())")
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), size, rank == 0)
        comm = cls.create(device, rank, size, store, name)
        comm.store = store  # rank 0 is its server: it lives as long as the communicator
        return comm

    @classmethod
    def from_pointer(cls, device, pointer):
        """Borrows an ncclComm_t that another owner made (an integer or c_void_p); it must outlive all objects that use
        it."""
        return cls(device, pointer if isinstance(pointer, c_void_p) else c_void_p(pointer), False)

    def split(self, color, key=None):
        """A collective call on this communicator: one communicator per colour, ordered by key (default: the rank here).
        color None: in none, returns None."""
        lib, comm = self.device.lib, c_void_p()
        with self.device.order():
            code = lib.ncclCommSplit(self.pointer, NCCL_SPLIT_NOCOLOR if color is None else color,
                                     self.rank if key is None else key, byref(comm), None)
        lib.check_nccl(code, "ncclCommSplit")
        return Communicator(self.device, comm, True) if color is not None else None

    def all_gather(self, tensor):
        """A collective call: [size, ...], every rank's tensor of one shape and type, in the order of ranks."""
        tensor, lib = tensor.contiguous(), self.device.lib
        all_of_them = torch.empty((self.size, *tensor.shape), dtype=tensor.dtype, device=tensor.device)
        with self.device.order():
            code = lib.ncclAllGather(tensor.data_ptr(), all_of_them.data_ptr(),
                                     tensor.numel() * tensor.element_size(), NCCL_BYTES, self.pointer,
                                     self.device.stream)
        lib.check_nccl(code, "ncclAllGather")
        return all_of_them

    def destroy(self):
        """Destroys the communicator now, and not when the object is no longer used. A borrowed one is left alone."""
        if self._finalizer is not None:
            self._finalizer()
        self.pointer = None


def _destroy_communicator(device, pointer):
    device.lib.ncclCommDestroy(pointer)


@dataclass
class Groups:
    """The communicators of a layer (moe/dispatcher.h, moe/router.h); None is one rank."""
    ep: Optional[Communicator] = None       # each rank has its own experts
    etp: Optional[Communicator] = None      # each rank has a slice of the same experts
    tp_ep: Optional[Communicator] = None    # etp x ep: rank = ep rank * etp size + etp rank
    tp: Optional[Communicator] = None       # attention tensor parallel: shared expert, replicated router
    balance: Optional[Communicator] = None  # what the switch and sequence losses count over
    whole: Optional[Communicator] = None    # what the global loss counts over


@dataclass
class Router:
    """How to route (moe/router.h). Router.preset fills it with a published model's numbers."""
    score: str = "softmax"
    after: bool = False
    renormalise: bool = False
    gate_bias: bool = False
    expert_bias: bool = False
    groups: int = 0
    group_topk: int = 0
    scale: float = 0.0
    capacity_factor: float = 0.0
    by_position: bool = False
    pad_to_capacity: bool = False
    switch_loss: float = 0.0
    sequence_loss: float = 0.0
    global_loss: float = 0.0
    z_loss: float = 0.0
    sequences: int = 0
    gate_dtype: torch.dtype = torch.float32  # of gate and gate_bias; logits, scores and weights are float32 always

    @classmethod
    def preset(cls, device, name):
        """(router, experts, topk) of "mixtral", "deepseek-v3", "qwen3-moe" or "gpt-oss"."""
        config = CRouterConfig()
        device.lib.check(device.lib.moe_router_preset(name.encode(), byref(config)))
        options = config.options
        same = {f.name: getattr(options, f.name) for f in fields(cls)
                if f.name not in ("score", "renormalise", "gate_dtype") and not f.name.endswith("_loss")}
        router = cls(score=_word(SCORE, options.score), renormalise=config.renormalise, **same,
                     **{f"{loss}_loss": options.coeff[i] for i, loss in enumerate(LOSSES)})
        return router, config.experts, config.topk

    def c(self):
        same = {f.name: getattr(self, f.name) for f in fields(self)
                if f.name not in ("score", "renormalise", "gate_dtype") and not f.name.endswith("_loss")}
        coeff = (c_float * 4)(*(getattr(self, f"{loss}_loss") for loss in LOSSES))
        return CRouterOptions(score=_number(SCORE, "score", self.score), coeff=coeff,
                              gate_type=_number(DTYPE, "gate_dtype", self.gate_dtype), **same)


def _word(table, number):
    return next(word for word, value in table.items() if value == number)


def _number(table, what, word):
    if word not in table:
        _fail("arg", f"{what} {word!r}: there are {', '.join(map(str, table))}")
    return table[word]


@dataclass
class Experts:
    """What the experts compute (moe/experts.h, moe/shared.h)."""
    activation: str = "swiglu"
    clamp: tuple = (0.0, 0.0, 0.0)  # alpha, limit, offset of "swiglu_clamped"; zeros: those of gpt-oss
    place: str = "source"
    bias: bool = False
    recompute: str = "none"
    shared_ffn: int = 0
    shared_bias: bool = False
    shared_gate: bool = False
    shared_overlap: bool = False


@dataclass
class Dispatch:
    """How tokens travel (moe/dispatcher.h)."""
    kind: str = "alltoall"
    uneven: str = "none"
    token_bound: int = 0
    row_multiple: int = 0
    row_budget: int = 0
    budget_factor: float = 0.0
    tp_mode: str = "sequence"
    router_sum: str = "layer"
    keep_routing: bool = False  # recompute uses the forward's routing
    sanitize: bool = False      # rows without a token are zero
    legacy: tuple = ()  # names of members of struct moe_options: wrong behaviour of frameworks, for reproduction


class _Handle:
    """The C layer, alive as long as a layer or a graph of autograd refers to it."""

    def __init__(self, device, config, groups):
        self.device, self.ended = device, []  # ended: microbatches of which nothing comes any more
        handle = c_void_p()
        with device.order():
            device.lib.check(device.lib.moe_layer_new(device.handle, byref(config), byref(handle)))
        self.pointer = handle
        weakref.finalize(self, _destroy_layer, device, handle, groups)


def _destroy_layer(device, handle, groups):
    """groups: keeps the communicators alive as long as this object."""
    device.lib.moe_layer_destroy(byref(handle))


class _Lease:
    """The place of one microbatch in flight, from its forward to its backward, or until autograd forgets the graph."""

    def __init__(self, handle, flying, step):
        self.handle, self.flying, self.step = handle, flying, step
        if flying is not None:
            flying.add(step.tag)

    def end(self):
        """Nothing in C waits for a backward any more, or ever will. C is told by the next forward: the collector may
        call this on any thread."""
        if self.handle is not None:
            self.handle.ended.append(self.step)
            if self.flying is not None:
                self.flying.discard(self.step.tag)
            self.handle = None

    __del__ = end


class MoELayer(torch.nn.Module):
    """One MoE layer over the ranks of its groups. Input and output [..., hidden] of `dtype`, at most max_tokens tokens,
    0 included.

    Parameters, as the library wants them (L local experts, F' this rank's part of ffn, S' of shared_ffn); gate and its
    bias of the router's gate_dtype, the shared expert float32 always, the experts of `dtype`:
        gate [E,H]   gate_bias [E]   w1 [L,2F',H] (gate rows, then linear rows)   b1 [L,2F']   w2 [L,H,F']   b2 [L,H]
        shared_w1 [2S',H]   shared_b1 [2S']   shared_w2 [H,S']   shared_b2 [H]   shared_gate [H]
    and the buffer expert_bias [E] float32. Those that the options do not ask for are None. New ones are drawn from
    torch's generator, which replicated parameters need to find in the same state on all ranks: load_full gives every
    rank its part of one whole model instead. recompute: the whole forward is done again in backward instead of being
    kept. delay_wgrad: the gradients of the experts come with backward_dw(), into their main_grads.
    """

    def __init__(self, hidden, ffn, experts, topk, max_tokens, device, router=None, expert=None, dispatch=None,
                 groups=None, dtype=torch.float32, layer=0, world_rank=0, in_flight=1, recompute=False,
                 delay_wgrad=False):
        super().__init__()
        self.hidden, self.ffn, self.experts, self.topk = hidden, ffn, experts, topk
        self.max_tokens, self.dtype = max_tokens, dtype
        self.device, self.in_flight, self.recompute, self.delay_wgrad = device, in_flight, recompute, delay_wgrad
        self.router, self.expert = router or Router(), expert or Experts()
        self.dispatch, self.groups = dispatch or Dispatch(), groups or Groups()
        self.layer, self.world_rank = layer, world_rank
        self._step, self._counted = None, 0  # set_step's; forwards so far
        self._loss_scale = 1.0
        self._config = self._c_config()
        self._cut_by = self._cut_along()
        self._make_parameters()
        self._open()

    def _open(self):
        self._flying, self._tags, self._delayed = set(), 0, []  # tags of microbatches in flight; forwards so far
        self._places = {}  # set_step's of the last forwards, oldest first
        self._handle = _Handle(self.device, self._config, self.groups)
        self.device.lib.moe_router_set_loss_scale(self._router(), self._loss_scale)

    def _router(self):
        """The C router of the last forward."""
        return self.device.lib.moe_layer_router(self._handle.pointer)

    def __deepcopy__(self, memo):
        """Parameters of its own and nothing in flight, on the same device and communicators. Where making a layer is a
        collective call, so is this."""
        other = memo[id(self)] = self.__class__.__new__(self.__class__)
        own = {name: value for name, value in self.__dict__.items() if name not in ("_handle", "_flying", "_delayed",
                                                                                    "_places", "_config")}
        other.__dict__.update(copy.deepcopy(own, memo))
        other._config = other._c_config()
        other._open()
        return other

    def __getstate__(self):
        _fail("unsupported", "a layer holds communicators and cannot be pickled: save its state_dict()")

    @classmethod
    def from_preset(cls, name, hidden, ffn, max_tokens, device, experts=None, topk=None, **more):
        """With the router, activation and biases of "mixtral", "deepseek-v3", "qwen3-moe" or "gpt-oss"; experts and
        topk can be made smaller."""
        router, all_experts, best = Router.preset(device, name)
        if "expert" not in more and name == "gpt-oss":
            more["expert"] = Experts(activation="swiglu_clamped", place="activation", bias=True)
        if experts is not None and router.groups > experts:
            router.groups = router.group_topk = 0
        return cls(hidden, ffn, experts or all_experts, topk or best, max_tokens, device, router=router, **more)

    def _shapes(self):
        """{name: (shape of this rank's tensor, type, whether the options ask for it)} of all parameters."""
        e, h, f, s, options = self.experts, self.hidden, self.ffn, self.expert.shared_ffn, self.expert
        wide, one, gate = self.dtype, torch.float32, self.router.gate_dtype
        whole = {"gate": ((e, h), gate, True), "gate_bias": ((e,), gate, self.router.gate_bias),
                 "w1": ((e, 2 * f, h), wide, True), "b1": ((e, 2 * f), wide, options.bias),
                 "w2": ((e, h, f), wide, True), "b2": ((e, h), wide, options.bias),
                 "shared_w1": ((2 * s, h), one, s > 0), "shared_b1": ((2 * s,), one, s > 0 and options.shared_bias),
                 "shared_w2": ((h, s), one, s > 0), "shared_b2": ((h,), one, s > 0 and options.shared_bias),
                 "shared_gate": ((h,), one, s > 0 and options.shared_gate)}
        parts = {name: {dim: comm.size for dim, (comm, _) in cut.items()} for name, cut in self._cut_by.items()}
        return {name: (tuple(n // parts.get(name, {}).get(dim, 1) for dim, n in enumerate(shape)), dtype, wanted)
                for name, (shape, dtype, wanted) in whole.items()}

    def _make_parameters(self):
        for name, (shape, dtype, wanted) in self._shapes().items():
            value = None
            if wanted:
                value = torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=self.device.torch))
            self.register_parameter(name, value)
        bias = torch.zeros(self.experts, dtype=torch.float32,
                           device=self.device.torch) if self.router.expert_bias else None
        self.register_buffer("expert_bias", bias)
        self.reset_parameters()

    def reset_parameters(self):
        """Biases zero; weights normal with the deviation 1 / sqrt(inputs)."""
        for name, value in self.named_parameters(recurse=False):
            with torch.no_grad():
                if value.dim() == 1 or name in ("b1", "b2"):
                    value.zero_()
                else:
                    value.copy_(torch.randn(value.shape) / value.shape[-1] ** 0.5)

    def _cut_along(self):
        """{name: {dimension: (communicator, blocks)}}: along the dimension the whole tensor is so many runs of one
        length (gate rows, linear rows), each of which is spread over the ranks of the communicator."""
        g = self.groups
        beside = g.tp if self.dispatch.tp_mode == "shard_experts" and (g.etp is None or g.etp.size == 1) else g.etp
        cuts = {"w1": {0: (g.ep, 1), 1: (beside, 2)}, "w2": {0: (g.ep, 1), 2: (beside, 1)}, "b2": {0: (g.ep, 1)},
                "shared_w1": {0: (g.tp, 2)}, "shared_w2": {1: (g.tp, 1)}}
        cuts.update(b1=cuts["w1"], shared_b1=cuts["shared_w1"])
        return {name: {dim: by for dim, by in cut.items() if by[0] is not None and by[0].size > 1}
                for name, cut in cuts.items()}

    def cuts(self):
        """How this rank's tensors lie in those of the whole model: {name: (name there, {dimension: (index, ranks,
        blocks)})}. Along the dimension the whole is `blocks` runs of one length, and this rank has part `index` of
        `ranks` of each (rollcall.moe.shards). Other dimensions, and tensors without any, are whole here."""
        return {name: (name, {dim: (comm.rank, comm.size, blocks) for dim, (comm, blocks) in cut.items()})
                for name, cut in self._cut_by.items()}

    def load_full(self, full):
        """From the tensors of one whole model, {"gate": [E,H], "w1": [E,2F,H], ...}: this rank takes its experts and
        its slices. MoeError "shape" where they are not this layer's."""
        cuts = self.cuts()
        with torch.no_grad():
            for name, value in self.state_dict(keep_vars=True).items():
                given, cut = full[name], cuts.get(name, (name, {}))[1]
                want = tuple(n * cut[dim][1] if dim in cut else n for dim, n in enumerate(value.shape))
                if tuple(given.shape) != want:
                    _fail("shape", f"layer {self.layer}: {name} of the whole model is {tuple(given.shape)}, wanted "
                          f"{want}")
                for dim, (index, ranks, blocks) in cut.items():
                    runs = [run.chunk(ranks, dim)[index] for run in given.chunk(blocks, dim)]
                    given = runs[0] if blocks == 1 else torch.cat(runs, dim)
                value.copy_(given)

    def gather_full(self):
        """The inverse of load_full: the tensors of the whole model, on every rank, {"gate": [E,H], "w1": [E,2F,H],
        ...}, of the layer's types, and copies. A collective call on ep, etp and tp, in the same order of layers on all
        ranks. load_full of a layer in another layout takes it: so a model moves between layouts. Replicated parameters
        are this rank's own."""
        full = {}
        for name, value in self.state_dict().items():
            whole = value.detach().contiguous()
            for dim, (comm, blocks) in reversed(self._cut_by.get(name, {}).items()):
                pieces = [piece.chunk(blocks, dim) for piece in comm.all_gather(whole)]
                whole = torch.cat([piece[block] for block in range(blocks) for piece in pieces], dim)
            full[name] = whole.clone()
        return full

    def _c_config(self):
        f, d, g = self.expert, self.dispatch, self.groups
        options = COptions(keep_routing=d.keep_routing, sanitize=d.sanitize)
        for name in d.legacy:
            place = options if name.startswith("legacy_") else options.dispatcher
            if name not in dict(place._fields_):
                _fail("arg", f"no legacy behaviour {name!r}")
            setattr(place, name, True)
        pointer = {name: getattr(g, name).pointer if getattr(g, name) else None
                   for name in ("ep", "etp", "tp_ep", "tp", "balance", "whole")}
        config = CLayerConfig(layer=self.layer, world_rank=self.world_rank, max_tokens=self.max_tokens,
                              hidden=self.hidden, ffn=self.ffn, experts=self.experts, topk=self.topk,
                              renormalise=self.router.renormalise, router=self.router.c(), balance=pointer["balance"],
                              ep=pointer["ep"], options=options, dispatcher=_number(DISPATCHER, "dispatcher", d.kind),
                              groups=CGroups(*(pointer[n] for n in ("ep", "etp", "tp_ep", "tp"))),
                              tp_mode=_number(TP_MODE, "tp_mode", d.tp_mode),
                              router_sum=_number(ROUTER_SUM, "router_sum", d.router_sum),
                              type=_number(DTYPE, "dtype", self.dtype), weight=_number(DTYPE, "dtype", self.dtype),
                              bias=_number(DTYPE, "dtype", self.dtype), has_bias=f.bias,
                              activation=_number(ACTIVATION, "activation", f.activation), clamp=CClamp(*f.clamp),
                              place=_number(PLACE, "place", f.place),
                              experts_recompute=_number(RECOMPUTE, "recompute", f.recompute), recompute=self.recompute,
                              delay_wgrad=self.delay_wgrad, shared_ffn=f.shared_ffn, shared_bias=f.shared_bias,
                              shared_gate=f.shared_gate, shared_overlap=f.shared_overlap,
                              uneven=_number(UNEVEN, "uneven", d.uneven), token_bound=d.token_bound,
                              row_multiple=d.row_multiple, row_budget=d.row_budget, budget_factor=d.budget_factor,
                              in_flight=self.in_flight + 1)  # one more place for an evaluation
        setattr(config, "global", pointer["whole"])
        return config

    def _lease(self, training):
        """The place of the next forward: one of in_flight; an evaluation has one more, for when all wait for their
        backward."""
        if training and len(self._flying) == self.in_flight:
            _fail("state", f"rank {self.world_rank}, layer {self.layer}: forward of one more microbatch while "
                  f"{self.in_flight} wait for their backward: raise in_flight")
        while self._handle.ended:
            self.device.lib.moe_layer_drop(self._handle.pointer, byref(self._handle.ended.pop()))
        self.device.lib.moe_router_set_counting(self._router(), training)
        return _Lease(self._handle, self._flying if training else None, self._next_step())

    def _weights(self, gradients, training):
        """The struct, from the parameters and {name: tensor} of where their gradients go. Where no backward follows,
        nothing is frozen: C would keep what a backward through frozen parameters needs."""
        frozen = sum(1 << bit for bit, name in enumerate(PARAMETERS)
                     if training and not getattr(getattr(self, name), "requires_grad", True))
        weights = CLayerWeights(frozen=frozen)
        for name, value in [*self.named_parameters(recurse=False), ("expert_bias", self.expert_bias)]:
            if value is not None:
                place, member = (weights.shared, name[7:]) if name.startswith("shared_") else (weights, name)
                setattr(place, member, value.data_ptr())
                if name in gradients:
                    setattr(place, "d_" + member, gradients[name].data_ptr())
        return weights

    def forward(self, x):
        self._check_parameters()
        if not isinstance(x, torch.Tensor):
            _fail("arg", f"x is a {type(x).__name__}, wanted a tensor")
        if x.is_floating_point() and (torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()):
            x = x.to(self.dtype)  # under autocast, what comes in has the type of the operation before
        self.device.check_tensor(x, "x", self.dtype)
        if x.dim() == 0 or x.shape[-1] != self.hidden:
            _fail("shape", f"x is {tuple(x.shape)}, its last dimension must be {self.hidden}")
        names, values = zip(*self.named_parameters(recurse=False))
        training = torch.is_grad_enabled() and any(value.requires_grad for value in (x, *values))
        return _Apply.apply(self, training, names, x, *values)

    def _check_parameters(self):
        """C takes bare pointers: what was put in a parameter's place, or made of it by .to(), must be what the layer
        was made with."""
        want = {name: (shape, dtype) for name, (shape, dtype, wanted) in self._shapes().items() if wanted}
        if self.router.expert_bias:
            want["expert_bias"] = ((self.experts,), torch.float32)
        for name, (shape, dtype) in want.items():
            value = getattr(self, name)
            if value is None or value.dtype != dtype or value.device != self.device.torch:
                what = "missing" if value is None else f"{value.dtype} on {value.device}"
                _fail("arg", f"layer {self.layer}: {name} is {what}, wanted {dtype} on {self.device.torch}: a layer "
                      "keeps the types and the device it was made with")
            if value.shape != shape or not value.is_contiguous():
                _fail("shape", f"layer {self.layer}: {name} is {tuple(value.shape)}, wanted {shape}, contiguous")

    def backward_dw(self):
        """With delay_wgrad: the gradients of the experts of all backwards so far, oldest first, into their
        main_grads."""
        if not self._delayed:
            _fail("state", f"rank {self.world_rank}, layer {self.layer}: no weight gradients wait")
        try:
            with self.device.order():
                self.device.lib.check(self.device.lib.moe_layer_backward_dw(self._handle.pointer))
        except MoeError:
            self.device.keep(*self._delayed)
            raise
        finally:  # C has ended all of them, behind a failure, too
            for lease, *_ in self._delayed:
                lease.end()
            self._delayed.clear()
        for name in EXPERT_PARAMETERS:
            value = getattr(self, name)
            if getattr(value, "requires_grad", False) and hasattr(value, "grad_added_to_main_grad"):
                value.grad_added_to_main_grad = True

    # What the last forward left. Each waits for the device.

    def losses(self):
        """The router's losses of the last forward, this rank's share, before the loss scale: {"switch": ...,
        "sequence": ..., "global": ..., "z": ...}."""
        return dict(zip(LOSSES, self._read(self.device.lib.moe_router_losses, torch.float32, len(LOSSES)).tolist()))

    def counts(self):
        """Tokens of this rank for each expert in the last forward, [E] int64 on the CPU."""
        return self._read(self.device.lib.moe_router_counts, torch.int64, self.experts)

    def rows(self):
        """Rows that this rank's experts received in the last forward."""
        return self.device.lib.moe_layer_rows(self._handle.pointer) if self._tags else 0

    def remedies(self):
        """The remedies that were in force in the last forward, bits of moe/remedy.h."""
        return self.device.lib.moe_layer_remedies(self._handle.pointer) if self._tags else 0

    def _read(self, function, dtype, count):
        if self._tags == 0:
            _fail("state", "nothing was routed yet")
        to = torch.zeros(count, dtype=dtype)
        self.device.lib.check(self.device.lib.moe_device_copy(self.device.handle, to.data_ptr(),
                                                              function(self._router()),
                                                              to.numel() * to.element_size()))
        self.device.synchronize()
        return to

    def set_loss_scale(self, scale):
        """What the gradients of the router's losses are multiplied by from the next backward on."""
        self._loss_scale = scale
        self.device.lib.moe_router_set_loss_scale(self._router(), scale)

    def set_step(self, step, microbatch=0):
        """Where in training the next forwards are, for what the library reports: an observer compares the ranks by
        step, microbatch and layer, and what ranks agree on for a microbatch (uneven "max") is agreed once for all its
        layers: the layers of a place have the same number of tokens. A second forward of this layer at the same place
        agrees for itself, and so does every forward without set_step, which is a step of its own. Ranks call this
        alike; with pad_to_capacity the step must be the same on all of them, too."""
        self._step = (step, microbatch)
        _tell_rehearsal(step)

    def _next_step(self):
        self._tags += 1
        # Another microbatch by the same name may have other tokens while the first one is still in flight. Whether it
        # is follows from calls that all ranks make, and not from what this rank's collector has forgotten.
        alone = self._step is None or self._step in self._places
        if not alone:
            self._places[self._step] = None
            if len(self._places) > PLACES:
                del self._places[next(iter(self._places))]
        step = CStep(*(self._step or (self._counted, 0)), alone=alone, tag=self._tags & 0xFFFFFFFF)
        self._counted += 1
        return step

    def extra_repr(self):
        return (f"hidden={self.hidden}, ffn={self.ffn}, experts={self.experts}, topk={self.topk}, dtype={self.dtype}, "
                f"{self.dispatch.kind}")


class _Apply(torch.autograd.Function):
    """y of a layer. What C borrows between forward and backward (x and the weights) is saved for backward, so that
    autograd sees when it was changed."""

    @staticmethod
    def forward(ctx, layer, training, names, x, *values):
        flat = x.detach().reshape(-1, layer.hidden).contiguous()
        lib, lease = layer.device.lib, layer._lease(training)
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)  # no view: the caller may write into it
        # C takes the places of gradients with the forward: main_grads, or zeros made here; none where no backward
        # follows.
        gradients = {name: _place_of_gradient(layer, name, value)
                     for name, value in zip(names, values) if value.requires_grad} if training else {}
        weights = layer._weights(gradients, training)
        try:
            with layer.device.order():
                lib.check(lib.moe_layer_forward(lease.handle.pointer, byref(weights), byref(lease.step),
                                                flat.data_ptr(), flat.shape[0], y.data_ptr()))
        except MoeError:
            layer.device.keep(flat, y, gradients)
            lease.end()
            raise
        if not training:
            lease.end()
            return y
        ctx.layer, ctx.names, ctx.lease = layer, names, lease
        ctx.gradients, ctx.flat, ctx.shape = gradients, flat, x.shape
        ctx.save_for_backward(x, *values)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        layer, lease = ctx.layer, ctx.lease
        _, *values = ctx.saved_tensors  # raises when an optimizer or other code wrote into them
        if lease is None or lease.handle is None:
            _fail("state", f"rank {layer.world_rank}, layer {layer.layer}: backward a second time through one forward")
        dy = dy.reshape(-1, layer.hidden).contiguous()
        dx, lib = torch.empty_like(ctx.flat), layer.device.lib
        for name, value in zip(ctx.names, values):
            if getattr(value, "overwrite_main_grad", False) and getattr(value, "main_grad", None) is not None and \
                    name in ctx.gradients:
                ctx.gradients[name].zero_()
        try:
            with layer.device.order():
                lib.check(lib.moe_layer_backward_of(lease.handle.pointer, byref(lease.step), dy.data_ptr(),
                                                    dx.data_ptr()))
        except MoeError:
            layer.device.keep(ctx.flat, dy, dx, ctx.gradients, values)
            lease.end()
            raise
        ctx.lease = None
        if layer.delay_wgrad:  # C borrows all of it until then
            layer._delayed.append((lease, ctx.gradients, ctx.flat, dy, values))
        else:
            lease.end()
        later = EXPERT_PARAMETERS if layer.delay_wgrad else ()
        grads = [_autograd_grad(value, ctx.gradients.get(name), wanted and name not in later)
                 for name, value, wanted in zip(ctx.names, values, ctx.needs_input_grad[4:])]
        ctx.gradients = ctx.flat = None
        return None, None, None, dx.reshape(ctx.shape), *grads


def _place_of_gradient(layer, name, value):
    main_grad = getattr(value, "main_grad", None)
    if main_grad is None and layer.delay_wgrad and name in EXPERT_PARAMETERS:
        _fail("arg", f"delay_wgrad: {name} has no main_grad")
    if main_grad is None:
        return torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    layer.device.check_tensor(main_grad, f"main_grad of {name}", torch.float32)
    if main_grad.shape != value.shape or not main_grad.is_contiguous():
        _fail("shape", f"main_grad of {name} is {tuple(main_grad.shape)}, the parameter {tuple(value.shape)}; it must "
              "be contiguous")
    return main_grad


def _autograd_grad(value, gradient, wanted):
    """What autograd is given for a parameter: the table of moe_linear_weight_grad (moe/linear.h)."""
    if not wanted:
        return None
    if getattr(value, "main_grad", None) is None:
        return gradient.to(value.dtype)
    if not hasattr(value, "grad_added_to_main_grad"):
        return None
    value.grad_added_to_main_grad = True
    return torch.zeros_like(value) if getattr(value, "zero_out_wgrad", False) else torch.empty_like(value)


def reduce(device, tensor, comm=None, scale=1.0, layer=None):
    """tensor *= scale, then summed over comm (None: one rank). float32, contiguous, in place: the gradient reduction of
    moe/reduce.h."""
    device.check_tensor(tensor, "the gradient", torch.float32)
    if not tensor.is_contiguous():
        _fail("shape", "the gradient is not contiguous")
    bucket = CBucket(tensor.data_ptr(), tensor.numel(), scale, comm.pointer if comm else None,
                     0xFFFFFFFF if layer is None else layer)
    with device.order():
        device.lib.check(device.lib.moe_reduce(device.handle, byref(bucket)))


def begin_step(device, step, microbatch=0, phase="forward", tokens=0):
    """Tells an observer (rollcall) which part of a training step begins: a key of PHASE, and with how many tokens of
    this rank."""
    device.lib.moe_step_report(byref(CStep(step, microbatch)), _number(PHASE, "phase", phase), tokens)
    _tell_rehearsal(step)


def _tell_rehearsal(step):
    """`rollcall rehearse --steps` ends the job when so many steps are over, and learns of them here."""
    rehearsal = sys.modules.get("rollcall.rehearse")
    if rehearsal is not None:
        rehearsal.begin_step(step)


def update_expert_bias(layers, comm, rate):
    """Loss-free balancing: each layer's expert_bias += rate * sign(mean(c) - c), c the tokens counted since the last
    time, of all microbatches in flight, summed over comm (None: one rank) in one collective for all layers. Layers on
    one device."""
    device = layers[0].device
    if any(layer.expert_bias is None or layer.device is not device for layer in layers):
        _fail("unsupported", "layers without expert_bias, or on several devices")
    routers = (c_void_p * len(layers))(*(layer._router() for layer in layers))
    biases = (c_void_p * len(layers))(*(layer.expert_bias.data_ptr() for layer in layers))
    with device.order():
        device.lib.check(device.lib.moe_router_update_bias(routers, biases, len(layers), comm.pointer if comm else None,
                                                           rate))
