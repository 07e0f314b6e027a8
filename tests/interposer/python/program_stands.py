"""program_stands.py: calls of NCCL by threads without Python, as autograd's: while the main thread waits for them, and
while it goes on. Says where the main thread stood at each call that it waited for, as program_sites.py does."""
import ctypes
import json
import sys
import threading

import program_library as library

nccl, comm = ctypes.CDLL("libnccl.so.2"), ctypes.c_void_p()
loop = ctypes.CDLL(sys.argv[1])
told = []


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
loop.embedded_elsewhere.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
loop.embedded_begin.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]


def seen():
    frame, frames = sys._getframe(1), []
    while frame is not None:
        frames.append([frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno])
        frame = frame.f_back
    told.append(frames)
    return len(told)


def first():
    loop.embedded_elsewhere(comm, seen())


def second():
    loop.embedded_elsewhere(comm, seen())
    loop.embedded_elsewhere(comm, seen())


def deep(n):
    first() if n == 0 else deep(n - 1)


def made():
    """Code that takes the place of other code, again and again, as the cells of a notebook do."""
    for i in range(50):
        source = "\n" * i + "loop.embedded_elsewhere(comm, seen())"
        exec(compile(source, f"<cell {i}>", "exec"), {"loop": loop, "comm": comm, "seen": seen})


def entered():
    """Stands at the beginning of a module's code, as a thread does that waits there for the interpreter's lock."""
    code = compile("\n\n'of no instruction before line 3'", "<entered>", "exec")
    sys.setprofile(lambda frame, event, argument: first() if frame.f_code is code and event == "call" else None)
    exec(code)
    sys.setprofile(None)


def goes_on(rounds):
    """Frames and code that come and go while another thread looks at them."""
    space = {}
    for i in range(rounds):
        source = f"def f{i % 7}(n):\n" + "    pass\n" * (i % 50) + f"    return n and f{i % 7}(n - 1)"
        exec(compile(source, "<on>", "exec"), space)
        space[f"f{i % 7}"](i % 40)


nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)
if sys.argv[2] == "waits":
    for _ in range(3):
        first()
        second()
    library.backward(first)
    deep(12)
    deep(200)
    made()
    entered()
    second()
else:
    for _ in range(int(sys.argv[3])):
        loop.embedded_begin(comm, 1, 4000)
        goes_on(1000)
        loop.embedded_end()
for frames in told:
    print(json.dumps(frames))
