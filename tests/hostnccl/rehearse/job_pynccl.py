"""NCCL as inference servers use it (vLLM's and SGLang's pynccl): libnccl.so.2 loaded with ctypes, its id told over
gloo, and calls on PyTorch's current stream, beside PyTorch's own communicator. MISTAKE: skip (a rank leaves out its
reductions)."""
import ctypes

import plan
import torch
import torch.distributed as dist

STEPS, FLOAT, SUM = 4, 7, 0
device = plan.start()
nccl = ctypes.CDLL("libnccl.so.2")


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


nccl.ncclCommInitRank.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                               ctypes.c_void_p, ctypes.c_void_p]
nccl.ncclCommDestroy.argtypes = [ctypes.c_void_p]


def called(result):
    assert result == 0, result


unique = UniqueId()
if plan.rank == 0:
    called(nccl.ncclGetUniqueId(ctypes.byref(unique)))
told = [bytes(unique)]
dist.broadcast_object_list(told, src=0, group=dist.new_group(backend="gloo"))
communicator = ctypes.c_void_p()
called(nccl.ncclCommInitRank(ctypes.byref(communicator), plan.size, UniqueId.from_buffer_copy(told[0]), plan.rank))
for step in range(STEPS):
    values = torch.full((256,), 1.0, device=device)
    sums = torch.empty_like(values)
    for _ in range(3):
        if not plan.sick(step, "skip"):
            called(nccl.ncclAllReduce(values.data_ptr(), sums.data_ptr(), values.numel(), FLOAT, SUM, communicator,
                                      torch.cuda.current_stream().cuda_stream))
    torch.cuda.synchronize()
    dist.all_reduce(sums)
    plan.done(step)
called(nccl.ncclCommDestroy(communicator))
plan.end()
