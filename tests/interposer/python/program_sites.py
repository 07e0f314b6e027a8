"""program_sites.py: makes NCCL calls from every kind of Python frame, and says where each came from as Python itself
sees it: one JSON array a call, [function, file, line] of each frame, innermost first, in the order of the calls.

The call and the look at the frames stand on one line, so that both see the same line numbers."""
import asyncio
import ctypes
import json
import signal
import sys
import threading
import time

nccl = ctypes.CDLL("libnccl.so.2")  # lets the interpreter's lock go around each call, as PyTorch does
held = ctypes.PyDLL("libnccl.so.2")  # keeps it
comm = ctypes.c_void_p()


class UniqueId(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]


for library in nccl, held:
    library.ncclAllReduce.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                                      ctypes.c_void_p, ctypes.c_void_p]
nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
NAMED = sys.version_info >= (3, 11)  # code objects have qualified names
told = []


def seen():
    """The count of the next call, which says which it is; notes the frames of the caller. Where Python has no line, as
    at the beginning of a module's code from 3.11 on, the first line of the code is the nearest."""
    frame, frames = sys._getframe(1), []
    while frame is not None:
        code = frame.f_code
        frames.append([code.co_qualname if NAMED else code.co_name, code.co_filename,
                       frame.f_lineno or code.co_firstlineno])
        frame = frame.f_back
    told.append(frames)
    return len(told)


def plain():
    nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)


def lock_is_held():
    held.ncclAllReduce(None, None, seen(), 7, 0, comm, None)


def two_lines():
    nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)
    nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)


def deep(n):
    if n > 0:
        deep(n - 1)
    else:
        plain()


class Trainer:
    def step(self):
        (lambda: nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None))()

    @property
    def loss(self):
        nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)
        return 1

    def __enter__(self):
        plain()

    def __exit__(self, *error):
        plain()


def generator():
    for _ in range(3):
        nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)
        yield


async def coroutine():
    await asyncio.sleep(0)
    nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)


async def both():
    await asyncio.gather(coroutine(), coroutine())


def executed():
    for i in range(40):  # code objects that come and go, perhaps at one address, each with its call on another line
        source = "\n" * i + f"def made_{i}():\n" + "    call()\n" * (i % 3) + "    pass\nmade_%d()" % i
        exec(compile(source, f"<made {i}>", "exec"), {"call": plain})


def entered():
    """Calls while the frames below have run nothing of their code yet."""
    def at_call(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == "<entered>":
            plain()
    code = compile("\n\nclass C:\n    pass\n(lambda: None)()", "<entered>", "exec")
    sys.setprofile(at_call)
    exec(code)
    sys.setprofile(None)


def on_signal(number, frame):
    nccl.ncclAllReduce(None, None, seen(), 7, 0, comm, None)


def in_thread(n):
    for _ in range(n):
        plain()
        deep(2)


def threads():
    """One after the other: the order of the calls is what the test goes by."""
    for n in range(3):
        thread = threading.Thread(target=in_thread, args=(n,))
        thread.start()
        thread.join()


def sorted_by(key):
    return sorted([3, 1, 2], key=key)  # C code that calls Python


def key(x):
    plain()
    return x


def greenlets():
    import greenlet
    main = greenlet.getcurrent()

    def other():
        plain()
        main.switch()
        deep(1)
    other = greenlet.greenlet(other)
    other.switch()
    plain()
    other.switch()


def long_names():
    exec(compile("def f" + "x" * 900 + "():\n    call()\nf" + "x" * 900 + "()", "/" + "d" * 2000 + "/\u00e9\u4e2d.py",
                 "exec"), {"call": plain})


def main():
    nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)
    plain()
    lock_is_held()
    two_lines()
    deep(3)
    deep(200)
    Trainer().step()
    Trainer().loss
    with Trainer():
        plain()
    list(generator())
    for _ in generator():
        plain()
    asyncio.run(both())
    executed()
    entered()
    signal.signal(signal.SIGUSR1, on_signal)
    signal.raise_signal(signal.SIGUSR1)
    threads()
    sorted_by(key)
    long_names()
    if "greenlet" in sys.argv:
        greenlets()
    deep(0)


def replaced(n):
    """Code objects that share all but their first line, one after the other at one address."""
    base = plain.__code__
    for i in range(n):
        plain.__code__ = base  # lets go of the code of the time before
        plain.__code__ = base.replace(co_firstlineno=1000 + i)
        plain()


def compiled(n):
    """The same source compiled again and again, and then a communicator."""
    source = "def made():\n    nccl.ncclAllReduce(None, None, 1, 7, 0, comm, None)\nmade()"
    for _ in range(n):
        exec(compile(source, "<made>", "exec"), {"nccl": nccl, "comm": comm})


def other_places(n):
    for i in range(n):
        exec(compile("\n" * i + "nccl.ncclAllReduce(None, None, 1, 7, 0, comm, None)", "<made>", "exec"),
             {"nccl": nccl, "comm": comm})


def ended():
    """Threads that are in C, and call NCCL again and again, while the interpreter ends."""
    loop = ctypes.CDLL(sys.argv[2]).embedded_loop
    loop.argtypes = [ctypes.c_void_p]
    for _ in range(4):
        threading.Thread(target=lambda: loop(comm), daemon=True).start()
    time.sleep(0.1)


if len(sys.argv) > 1 and sys.argv[1] in ("replaced", "compiled", "other_places", "ended"):
    nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)
    globals()[sys.argv[1]](*map(int, sys.argv[3:]))
    if sys.argv[1] != "ended":
        last = ctypes.c_void_p()
        nccl.ncclCommInitRank(ctypes.byref(last), 1, UniqueId(), 0)
        nccl.ncclAllReduce(None, None, 77777, 7, 0, last, None)
    for frames in told:
        print(json.dumps(frames))
elif "stress" in sys.argv:
    nccl.ncclCommInitRank(ctypes.byref(comm), 1, UniqueId(), 0)
    calls, depth = int(sys.argv[2]), 0
    while calls > 0:
        depth = (depth * 5 + 3) % 37
        deep(depth)
        calls -= 1
        told.clear()
else:
    main()
    for frames in told:
        print(json.dumps(frames))
