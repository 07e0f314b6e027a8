"""python_program.py: a Python process whose stacks are known. usage: python_program.py MODE [DEPTH]

Modes: gil (the main thread sleeps in C with the GIL held), threads (two threads, one in a method, one in a generator),
deep (recursion), undumpable (gil, and nobody may read the memory), nccl (a communicator of one rank through ctypes
first, then undumpable).
"""
import ctypes
import os
import sys
import threading
import time

MODE, DEPTH = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
libc = ctypes.PyDLL(None)  # PyDLL: the GIL stays held


def schön(n):
    if n > 0:
        return schön(n - 1)
    return hold()


def hold():
    while True:  # a signal ends a sleep
        libc.sleep(1000)  # the line of the sleep


class Worker:
    def run(self):
        self.wait_日本()

    def wait_日本(self):
        threading.Event().wait()


def numbers():
    yield 1
    time.sleep(1000)
    yield 2


def consume():
    for n in numbers():
        pass


def recurse(n):
    if n == 0:
        hold()
    return recurse(n - 1) + 1


def start():
    for target in (Worker().run, consume):
        threading.Thread(target=target, daemon=True).start()
    me = threading.get_ident()
    while sorted(f.f_code.co_name for thread, f in sys._current_frames().items()
                 if thread != me) != ["numbers", "wait"]:
        time.sleep(0.01)
    time.sleep(0.2)  # from Python's line into its call


if MODE == "nccl":
    nccl = ctypes.CDLL("libnccl.so.2")
    unique, comm = ctypes.create_string_buffer(128), ctypes.c_void_p()

    class UniqueId(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_char * 128)]

    value = UniqueId()
    assert nccl.ncclGetUniqueId(ctypes.byref(value)) == 0
    nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
    assert nccl.ncclCommInitRank(ctypes.byref(comm), 1, value, 0) == 0
if MODE in ("undumpable", "nccl"):
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
if MODE == "threads":
    start()
print(f"ready {os.getpid()} {os.environ.get('ROLLCALL_DIR', '')}" if MODE == "nccl" else "ready", flush=True)
if MODE == "deep":
    sys.setrecursionlimit(DEPTH + 100)
    recurse(DEPTH)
schön(DEPTH)
