"""start.py: puts the dispatch mode on, once PyTorch has been imported. Needs no PyTorch by itself: it waits for the
job's import, so that a program without PyTorch pays nothing."""
import _thread
import functools
import sys
import threading

from rollcall import after
from rollcall.rehearse import settings

_thread_start = threading.Thread.start
_start_new = _thread.start_new_thread
_is_on = False  # threads that start inherit the mode


def _safely(then, module):
    if module.__name__ == "torch":
        from rollcall.rehearse import represent
        represent.follow()  # what fails here ends the import: ranks that are stood in for would be waited for
        if settings.is_off():
            return
    try:
        then(module)
    except Exception as why:  # the job runs on
        name = module.__name__
        lost = "nothing is computed on the host" if name == "torch" else f"what {name} launches is not known"
        settings.complain(f"{lost}: {type(why).__name__}: {why}")


def _after(name, then):
    after.after(name, lambda module: _safely(then, module))


def _without_cudnn():
    """Recurrent layers take PyTorch's own kernels: their cells have a form on the host (forms.py), and cuDNN's kernel
    for all layers and times has none."""
    import torch
    from torch.nn.modules import rnn

    def quiet(function):
        @functools.wraps(function)
        def call(*args, **kwargs):
            before = torch._C._get_cudnn_enabled()
            torch._C._set_cudnn_enabled(False)
            try:
                return function(*args, **kwargs)
            finally:
                torch._C._set_cudnn_enabled(before)
        return call

    for kind in (rnn.RNN, rnn.LSTM, rnn.GRU):
        if not hasattr(kind.forward, "__wrapped__"):
            kind.forward = quiet(kind.forward)
    if not hasattr(rnn.RNNBase.flatten_parameters, "__wrapped__"):
        rnn.RNNBase.flatten_parameters = quiet(rnn.RNNBase.flatten_parameters)


def _on_torch(torch):
    from rollcall.rehearse import cache, groups, steps
    steps.follow()
    groups.follow()
    cache.follow(torch)
    cuda = getattr(torch.backends, "cuda", None)
    if hasattr(cuda, "enable_cudnn_sdp"):
        cuda.enable_cudnn_sdp(False)  # it asks cuDNN for an engine, and the stand-in has none; others remain
    if settings.now.bytes is not None:
        from rollcall.rehearse import compiled, mode
        _without_cudnn()
        mode.push()
        for name, follow in compiled.FOLLOWED.items():
            _after(name, follow)


def _start_with_mode(thread):
    """threading.Thread.start: a dispatch mode belongs to a thread, so the new thread takes it over."""
    mode = sys.modules.get("rollcall.rehearse.mode")
    if _is_on and mode is not None and mode.is_here():
        run = thread.run

        def with_mode():
            mode.push()
            run()

        try:
            thread.run = with_mode
        except AttributeError:
            pass  # an object without a dictionary: its values are unknown
    _thread_start(thread)


def _start_new_with_mode(function, args, *more):
    """_thread.start_new_thread, for who uses it without threading. One that was taken from the module before stays the
    interpreter's own, threading's for instance."""
    mode = sys.modules.get("rollcall.rehearse.mode")
    if not _is_on or mode is None or not mode.is_here() or not callable(function):
        return _start_new(function, args, *more)

    def with_mode(*args, **kwargs):
        mode.push()
        function(*args, **kwargs)

    return _start_new(with_mode, args, *more)


def enable():
    global _is_on
    _is_on = True
    threading.Thread.start = _start_with_mode
    _thread.start_new_thread = _thread.start_new = _start_new_with_mode
    wait()


def wait():
    """Waits for PyTorch: for ranks that are stood in for also where nothing is computed."""
    _after("torch", _on_torch)


def disable():
    global _is_on
    _is_on = False
    mode = sys.modules.get("rollcall.rehearse.mode")
    if mode is not None:
        mode.pop()
