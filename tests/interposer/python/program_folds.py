"""program_folds.py: calls of NCCL through a library, and by what the library calls back; see test_sites.py."""
import ctypes
import sys
import threading

import program_library as library

nccl, comm = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p()


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                               ctypes.c_void_p, ctypes.c_void_p]


def user():
    nccl.ncclAllReduce(None, None, 2, 7, 0, comm, None)


nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)
library.outer(lambda: nccl.ncclAllReduce(None, None, 1, 7, 0, comm, None))
library.calls_back(user)
own = {}
exec(compile("def dispatch(call):\n    call()", "/lib/rollcall/rehearse/mode.py", "exec"), own)
own["dispatch"](user)
thread = threading.Thread(target=library.outer, args=(user,))
thread.start()
thread.join()
if sys.version_info >= (3, 12):  # an interpreter within: its own frames are the thread's
    try:
        import _interpreters as within
    except ImportError:
        import _xxsubinterpreters as within
    made = within.create(isolated=False) if sys.version_info < (3, 13) else within.create()
    source = "import ctypes\nnccl = ctypes.CDLL('libnccl.so.2')\n" \
             "nccl.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 2 " \
             "+ [ctypes.c_void_p] * 2\ndef inside():\n    nccl.ncclAllReduce(None, None, 4, 7, 0, %d, None)\ninside()"
    (within.run_string if hasattr(within, "run_string") else within.exec)(made, source % comm.value)
    within.destroy(made)
    user()
