"""nccl.py: NCCL and the CUDA runtime through ctypes, the way inference frameworks bind them.

A table of functions, each fetched by getattr from a CDLL (dlsym on its handle), the library named by VLLM_NCCL_SO_PATH
or found by its soname. Nothing here knows of rollcall: that is the point of the job. Written for these jobs; only the
manner is the frameworks'.
"""
import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_void_p

SUM, MAX = 0, 2
INT8, INT32, INT64, FLOAT32, FLOAT64 = 0, 2, 4, 7, 8


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", c_char * 128)]


FUNCTIONS = [
    ("ncclGetErrorString", c_char_p, [c_int]),
    ("ncclGetVersion", c_int, [POINTER(c_int)]),
    ("ncclGetUniqueId", c_int, [POINTER(UniqueId)]),
    ("ncclCommInitRank", c_int, [POINTER(c_void_p), c_int, UniqueId, c_int]),
    ("ncclAllReduce", c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    ("ncclAllGather", c_int, [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p]),
    ("ncclBroadcast", c_int, [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]),
    ("ncclCommDestroy", c_int, [c_void_p]),
]
CUDART = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")


class Nccl:
    """One library; each function checks its result."""

    def __init__(self):
        self.lib = ctypes.CDLL(os.environ.get("VLLM_NCCL_SO_PATH", "libnccl.so.2"))
        self.function = {}
        for name, result, arguments in FUNCTIONS:
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
            self.function[name] = function

    def call(self, name, *arguments):
        result = self.function[name](*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: {self.function['ncclGetErrorString'](result).decode()}")

    def unique_id(self):
        value = UniqueId()
        self.call("ncclGetUniqueId", byref(value))
        return value

    def init(self, size, unique_id, rank):
        comm = c_void_p()
        self.call("ncclCommInitRank", byref(comm), size, unique_id, rank)
        return comm

    def all_reduce(self, send, recv, count, dtype, op, comm, stream):
        self.call("ncclAllReduce", send, recv, count, dtype, op, comm, stream)

    def all_gather(self, send, recv, count, dtype, comm, stream):
        self.call("ncclAllGather", send, recv, count, dtype, comm, stream)

    def broadcast(self, send, recv, count, dtype, root, comm, stream):
        self.call("ncclBroadcast", send, recv, count, dtype, root, comm, stream)

    def destroy(self, comm):
        self.call("ncclCommDestroy", comm)


class Cuda:
    """The few calls of the runtime that a stream needs."""

    def __init__(self):
        for name in CUDART:
            try:
                self.lib = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise RuntimeError("no CUDA runtime: " + ", ".join(CUDART))
        self.lib.cudaStreamSynchronize.argtypes = [c_void_p]
        self.lib.cudaEventRecord.argtypes = [c_void_p, c_void_p]
        self.lib.cudaEventSynchronize.argtypes = [c_void_p]

    def call(self, name, *arguments):
        result = getattr(self.lib, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: error {result}")

    def stream(self):
        stream = c_void_p()
        self.call("cudaStreamCreate", byref(stream))
        return stream

    def event(self):
        event = c_void_p()
        self.call("cudaEventCreate", byref(event))
        return event

    def record(self, event, stream):
        self.call("cudaEventRecord", event, stream)

    def wait(self, event):
        self.call("cudaEventSynchronize", event)

    def synchronize(self, stream):
        self.call("cudaStreamSynchronize", stream)
