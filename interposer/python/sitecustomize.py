"""sitecustomize.py: put before a job's programs by `rollcall run --python-stacks`: their Python stacks can be asked for
by signal. Also by `rollcall rehearse`, for which it starts the package rollcall.rehearse beside it (docs/REHEARSE.md)
where ROLLCALL_REHEARSE is 1, and where some of the ranks are stood in for (HOSTNCCL_PRESENT).

Registers CPython's own dumper (faulthandler), which needs no GIL, and announces it in ROLLCALL_DIR/PID.pystacks;
docs/STACKS.md describes the file. For interpreters from 3.13 on, whose dumper cannot be found from C, and for any
other. Whatever goes wrong here, the program runs on. The job's own sitecustomize, which this one hides, runs
afterwards.

The folder of the job's script is not in the path yet. So nothing is imported here but what interpreters have built in:
any other module would hide one of the job's own that has the same name.
"""


def _signal_number():
    import _signal as signal
    import os

    text = os.environ.get("ROLLCALL_STACK_SIGNAL", "")
    if not text:
        return signal.SIGRTMIN + 7
    number = int(text) if text.isdigit() else 0
    return number if signal.SIGRTMIN <= number <= signal.SIGRTMAX else 0


def _announce():
    import _signal as signal
    import atexit
    import faulthandler
    import os

    directory, number, pid = os.environ.get("ROLLCALL_DIR", ""), _signal_number(), os.getpid()
    if not number or not os.path.isdir(directory) or signal.getsignal(number) != signal.SIG_DFL:
        return
    path = os.path.join(directory, f"{pid}.pystacks")
    file = open(path, "a", encoding="utf-8",
                opener=lambda name, flags: os.open(name, flags | os.O_TRUNC | os.O_NOFOLLOW, 0o600))
    faulthandler.register(number, file=file, all_threads=True, chain=False)
    file.write(f"rollcall python stacks 1 pid {pid} signal {number}\n")
    file.flush()

    def take_back():
        if os.getpid() == pid:
            os.unlink(path)

    atexit.register(take_back)
    return file  # faulthandler holds the descriptor, somebody must hold the object


def _rehearse():
    """Once PyTorch is there, with all that it imports: rollcall.rehearse needs no other modules."""
    import os

    if os.environ.get("ROLLCALL_REHEARSE") == "1" or os.environ.get("HOSTNCCL_PRESENT"):
        from rollcall.after import after

        after("torch", _enable)


def _enable(torch):
    import os

    try:
        import rollcall.rehearse as rehearse
        from rollcall.rehearse import start
    except Exception as why:
        _complain(why)
        return
    if os.environ.get("ROLLCALL_REHEARSE") == "1":
        rehearse.enable()
    else:
        start.wait()


def _complain(why):
    import sys

    print(f"rollcall: nothing is computed on the host: {type(why).__name__}: {why}", file=sys.stderr)


def _hidden():
    """Runs the sitecustomize that this one stands before."""
    import os
    import sys
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p) != here])
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start():
    try:
        return _announce()
    except Exception:
        return None


def _announce_or_leave():
    """A process that becomes several ranks (zygote.py) leaves the announcement to them."""
    import os
    import sys

    if os.environ.get("ROLLCALL_ZYGOTE"):
        sys._rollcall_announce = _start
        return None
    return _start()


_file = _announce_or_leave()
try:
    _rehearse()
except Exception as why:
    _complain(why)
_hidden()
