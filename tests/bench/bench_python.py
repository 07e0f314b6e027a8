"""bench_python.py: what the lines of Python cost a call that is recorded: with 6 and 20 frames of Python, and with none
(a thread without Python, in a process whose other threads have none that rollcall has seen); a call of such a thread
that depends on where the main thread stands; and the first call at a place. Started by `roll_bench python` with the
preload; prints one JSON object."""
import ctypes
import json
import statistics
import subprocess
import sys

PLACES, ROUNDS = 400, 5
nccl, calls = ctypes.CDLL("libnccl.so.2"), ctypes.CDLL(sys.argv[1])


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
calls.roll_bench_init_elsewhere.restype = ctypes.c_void_p
for f in calls.roll_bench_calls, calls.roll_bench_calls_elsewhere, calls.roll_bench_one_call:
    f.restype, f.argtypes = ctypes.c_double, [ctypes.c_void_p]
if "without" in sys.argv:  # no thread with Python ever calls, so nothing of Python is looked for
    comm = ctypes.c_void_p(calls.roll_bench_init_elsewhere())
    print(min(calls.roll_bench_calls_elsewhere(comm) for _ in range(2)))
    sys.exit()
comm = ctypes.c_void_p()
nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)


def below(n, call):
    return call(comm) if n == 1 else below(n - 1, call)


def shifted(n, call):
    """n frames in all: this function, the module and n - 2 of below()."""
    return below(n - 2, call)


seen = {"without": [], "stands": [], "6": [], "20": []}
for _ in range(ROUNDS):  # in turns, so that what the machine does besides meets all alike
    alone = subprocess.run([sys.executable, __file__, sys.argv[1], "without"], capture_output=True, text=True,
                           check=True)
    seen["without"].append(float(alone.stdout))
    seen["stands"].append(calls.roll_bench_calls_elsewhere(comm))
    seen["6"].append(shifted(6, calls.roll_bench_calls))
    seen["20"].append(shifted(20, calls.roll_bench_calls))
source = "def many(took):\n" + "    took.append(one(comm))\n" * PLACES
space = {"one": calls.roll_bench_one_call, "comm": comm}
exec(compile(source, "<places>", "exec"), space)
first, again = [], []
space["many"](first)
space["many"](again)
print(json.dumps({"python": sys.version.split()[0], "none_ns": min(seen["without"]), "stands_ns": min(seen["stands"]),
                  "six_ns": min(seen["6"]), "twenty_ns": min(seen["20"]), "first_ns": statistics.median(first),
                  "again_ns": statistics.median(again)}))
