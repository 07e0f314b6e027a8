"""zygote.py: an interpreter that imports the frameworks once, and then becomes the ranks of a job.

`rollcall rehearse` starts it (run_zygote.c) as `python [FLAG...] zygote.py SOCKET FOLDER MODULES [-m|-c] SCRIPT
[ARGUMENT...]`, where the flags and everything behind MODULES are the job's own. It imports MODULES, forks once for each
rank that is asked for, and ends; the ranks share the pages of what was imported until they write them. A rank runs
SCRIPT as its interpreter would have done.

Messages on SOCKET, one packet each: from here `ready`, or `no REASON`; then for each rank from there its variables
(`RANK=0 LOCAL_RANK=0`, with its standard output and error where they are pipes), from here `pid N`, from there `go`.
The end of file ends this process, and ranks that have not been told to go.

What a fork would make different is refused with a reason, and the ranks get interpreters of their own: a module that
reads which rank it is, that has started threads, or that uses CUDA while it is imported; one that the job's own folder
has as well, which the job's interpreter would take first.
"""
import atexit
import fcntl
import gc
import importlib
import importlib.machinery
import io
import os
import runpy
import signal
import socket
import sys
import threading
import time
import types
import warnings

RANK_NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK")  # those that differ between ranks; all others are set already
# What the first step of a job imports, when nobody names more: PyTorch imports its compiler in the first step of an
# optimizer, and the parts of a parallel job when they are used.
BELONGS = {"torch": ("torch.distributed", "torch.nn.parallel", "torch.optim", "torch._dynamo", "torch.distributed.fsdp",
                     "torch.distributed.tensor.parallel", "triton")}
LEAVE_S = 30


class Refusal(Exception):
    """Why ranks cannot be forked from this process."""


def import_watched(names):
    """Imports the modules; a module that asks the environment which rank it is would get one answer for all ranks."""
    kind, asked = type(os.environ), []

    class Watched(kind):
        def __getitem__(self, name):
            if name in RANK_NAMES:
                frame = sys._getframe(1)
                while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
                    frame = frame.f_back
                asked.append((frame.f_globals.get("__name__"), name))
            return super().__getitem__(name)

    os.environ.__class__ = Watched
    try:
        for name in names:
            importlib.import_module(name)
            for more in BELONGS.get(name, ()):
                try:
                    importlib.import_module(more)
                except ImportError:
                    pass  # a release without it
    except BaseException as error:
        raise Refusal(f"importing {name} ends with {type(error).__name__}: {error}") from error
    finally:
        os.environ.__class__ = kind
    if asked:
        raise Refusal(f"{asked[0][0]} reads {asked[0][1]} while it is imported")


def folder_of(how, name):
    """The folder that the job's interpreter looks into before all others; None where it looks into none."""
    if getattr(sys.flags, "safe_path", False) or sys.flags.isolated:
        return None
    return os.getcwd() if how != "script" else name if os.path.isdir(name) else os.path.dirname(os.path.realpath(name))


def check_unhidden(folder):
    """Refuses where the job has a module of its own in place of one that was imported here, without its folder."""
    ends = importlib.machinery.all_suffixes()
    for entry in sorted(os.listdir(folder)) if folder is not None and os.path.isdir(folder) else ():
        name = entry.split(".", 1)[0]
        origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None)
        if name in ("sitecustomize", "usercustomize") or origin in (None, "built-in", "frozen"):
            continue  # the job's interpreter does not look for them there
        for path in (os.path.join(folder, name + inner + end) for inner in ("", "/__init__") for end in ends):
            if os.path.isfile(path) and os.path.realpath(path) != os.path.realpath(origin):
                raise Refusal(f"{path} hides the module {name} that was imported")


def check_forkable():
    if threading.active_count() > 1 or len(os.listdir("/proc/self/task")) > 1:
        raise Refusal("a module has started threads while it was imported, which a fork leaves behind "
                      "(OMP_NUM_THREADS=1 keeps a mathematics library from it)")
    if os.path.exists(os.path.join(os.environ.get("HOSTCUDA_REPORT", ""), f"hostcuda.{os.getpid()}")):
        raise Refusal("a module has used CUDA while it was imported")


def leave(folder):
    """The last that a rank does in Python. An interpreter that ends writes most pages that it shared, so only as many
    ranks as there are processors do that at one time; a rank waits for its turn, but not for ever."""
    slots = len(os.sched_getaffinity(0))
    until = time.monotonic() + LEAVE_S
    at = os.getpid()
    while time.monotonic() < until:
        at += 1
        try:
            fd = os.open(os.path.join(folder, f"leave.{at % slots}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            break
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back by the end of the process
            break
        except OSError:
            os.close(fd)
        if at % slots == 0:
            time.sleep(0.01)
    gc.unfreeze()


def run(how, name, arguments, flags):
    """Runs the job as the interpreter runs what stands behind its options, in the module __main__."""
    main = sys.modules["__main__"]
    sys.argv = [name if how == "script" else how] + arguments
    sys.orig_argv = [sys.executable, *flags, *(() if how == "script" else (how,)), name, *arguments]
    space = main.__dict__
    space.clear()
    space.update(__name__="__main__", __doc__=None, __package__=None, __loader__=None, __spec__=None,
                 __annotations__={}, __builtins__=sys.modules["builtins"])
    is_safe = getattr(sys.flags, "safe_path", False) or sys.flags.isolated
    if how == "-m":
        if not is_safe:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(name)
    elif how == "-c":
        if not is_safe:
            sys.path.insert(0, "")
        exec(compile(name, "<string>", "exec"), space)
    elif os.path.isdir(name):
        sys.path.insert(0, name)
        runpy._run_module_as_main("__main__", False)
    else:
        path = os.path.abspath(name)
        if not is_safe:
            sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
        try:
            with io.open_code(path) as f:
                text = f.read()
        except OSError as error:
            print(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
                  file=sys.stderr)
            raise SystemExit(2) from None
        code = compile(text, path, "exec")
        space.update(__file__=path, __cached__=None,
                     __loader__=importlib.machinery.SourceFileLoader("__main__", path))
        exec(code, space)


def become_rank(variables, outputs, job):
    for variable in variables.split():
        os.environ.__setitem__(*variable.split("=", 1))
    for number, fd in enumerate(outputs, 1):
        os.dup2(fd, number)
        os.close(fd)
    if hasattr(sys, "_rollcall_announce"):  # of sitecustomize.py
        sys._rollcall_announce = sys._rollcall_announce()  # a file that must stay open
    if "numpy.random" in sys.modules:  # its generator was seeded when it was imported; those of random are seeded anew
        sys.modules["numpy.random"].seed()
    try:
        run(*job)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename == run.__code__.co_filename:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
        if isinstance(error, KeyboardInterrupt):
            sys.stdout.flush()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        raise SystemExit(1) from None


def fork_rank(link, life, variables, outputs):
    """Forks a rank that waits until rollcall knows of it, and until this process, which alone holds the writing end of
    the pipe `life`, has ended. Returns whether this is the rank."""
    hold, release = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        link.close()
        os.close(release)
        os.close(life[1])
        os.setpgid(0, 0)
        if os.read(hold, 1) != b"g":
            os._exit(1)
        os.close(hold)
        # A rank may ask for a signal at its parent's end, and means its launcher's. It sleeps until then: many ranks
        # that look would take the processor from the one that forks.
        os.read(life[0], 1)
        os.close(life[0])
        while os.getppid() == parent:  # a process lets go of its files a moment before it ends
            time.sleep(0.001)
        return True
    os.close(hold)
    for fd in outputs:
        os.close(fd)
    try:
        os.setpgid(pid, pid)
    except OSError:
        pass  # the rank has done it, and has run another program since
    link.send(b"pid %d" % pid)
    if link.recv(16) == b"go":
        os.write(release, b"g")
    os.close(release)
    return False


def main(argv):
    link = socket.socket(fileno=int(argv[1]))
    link.set_inheritable(False)
    folder, modules, rest = argv[2], argv[3], argv[4:]
    how = rest.pop(0) if rest[0] in ("-m", "-c") else "script"
    flags = sys.orig_argv[1:-len(argv)] if hasattr(sys, "orig_argv") else []
    job = how, rest[0], rest[1:], flags
    for name in (*RANK_NAMES, "ROLLCALL_ZYGOTE"):
        os.environ.pop(name, None)
    atexit.register(leave, folder)  # first, so that it runs last
    try:
        import_watched(modules.split(","))
        check_forkable()
        check_unhidden(folder_of(how, rest[0]))
    except Refusal as refusal:
        link.send(b"no " + " ".join(str(refusal).split())[:400].encode())
        os._exit(0)
    gc.collect()
    gc.freeze()  # a collection would write to every object, and its page would be shared no more
    sys.stdout.flush()
    sys.stderr.flush()
    link.send(b"ready")
    life = os.pipe()
    while True:
        try:
            message, outputs, _, _ = socket.recv_fds(link, 4096, 2)
        except OSError:
            message = b""
        if not message:
            os._exit(0)
        if fork_rank(link, life, message.decode(), outputs):
            become_rank(message.decode(), outputs, job)
            return


if __name__ == "__main__":
    if not (getattr(sys.flags, "safe_path", False) or sys.flags.isolated):
        del sys.path[0]  # the folder of this file
    # The module __main__ belongs to the job, so the functions above live in a module of their own.
    rollcall_zygote = sys.modules["rollcall_zygote"] = types.ModuleType("rollcall_zygote")
    with open(__file__, "rb") as source:
        exec(compile(source.read(), __file__, "exec"), rollcall_zygote.__dict__)
    rollcall_zygote.main(sys.argv)
