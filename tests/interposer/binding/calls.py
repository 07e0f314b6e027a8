"""The calls of calls.h by ctypes, as vLLM and SGLang make them: a list of functions, each by getattr. calls.py LIBRARY
[torch]"""
import ctypes
import sys

# As a framework does that was imported before: its extension brings NCCL in a local scope.
framework = ctypes.CDLL(sys.argv[2]) if len(sys.argv) > 2 else None
nccl = ctypes.CDLL(sys.argv[1])


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_byte * 128)]


p, i, z = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
functions = {
    "ncclGetErrorString": ([i], ctypes.c_char_p),
    "ncclGetVersion": ([ctypes.POINTER(i)], i),
    "ncclGetUniqueId": ([ctypes.POINTER(UniqueId)], i),
    "ncclCommInitRank": ([ctypes.POINTER(p), i, UniqueId, i], i),
    "ncclAllReduce": ([p, p, z, i, i, p, p], i),
    "ncclBcast": ([p, z, i, i, p, p], i),
    "ncclGroupStart": ([], i),
    "ncclGroupEnd": ([], i),
    "ncclCommDestroy": ([p], i),
}
f = {}
for name, (arguments, result) in functions.items():
    f[name] = getattr(nccl, name)
    f[name].argtypes, f[name].restype = arguments, result


def check(result):
    assert result == 0, f["ncclGetErrorString"](result)


# A front lacks what is newer than its release. hostnccl has all that the table has, but one.
lacks = ("ncclCommGrow", "ncclAllReduceConfig", "ncclParamBind")
if not hasattr(nccl, "roll_front"):
    lacks = ("ncclResetDebugInitInternal",)
for absent in lacks + ("ncclNoSuchFunction",):
    try:
        getattr(nccl, absent)
    except AttributeError as error:
        assert absent in str(error), error
    else:
        raise SystemExit(absent + " is there")

version, uid, comm = i(), UniqueId(), p()
data = (ctypes.c_float * 4)()
at = ctypes.addressof(data)
check(f["ncclGetVersion"](ctypes.byref(version)))
check(f["ncclGetUniqueId"](ctypes.byref(uid)))
check(f["ncclCommInitRank"](ctypes.byref(comm), 1, uid, 0))
for _ in range(3):
    check(f["ncclAllReduce"](at, at, 4, 7, 0, comm, None))
check(f["ncclGroupStart"]())
check(f["ncclAllReduce"](at, at, 2, 7, 0, comm, None))
check(f["ncclGroupEnd"]())
check(f["ncclBcast"](at, 4, 7, 0, comm, None))
check(f["ncclCommDestroy"](comm))
assert version.value >= 20000
