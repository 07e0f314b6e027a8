"""start.py: puts the dispatch mode on, once PyTorch has been imported. Needs no PyTorch by itself: it waits for the
job's import, so that a program without PyTorch pays nothing."""
import functools
import importlib.util
import sys
import threading

from rollcall.rehearse import settings

_thread_start = threading.Thread.start
_is_on = False  # threads that start inherit the mode


class _After:
    """A finder that lets all others find one module, and calls a function with it when it has been executed."""

    def __init__(self, name, then):
        self.name, self.then = name, then

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module):
            del loader.exec_module  # the loader's own again
            execute(module)
            _safely(self.then, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            settings.complain(f"{name} comes from a loader that cannot be followed: what its operations compute is not "
                              "known")
        return spec


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
    """Calls then(module) when the module is there, now or later."""
    module = sys.modules.get(name)
    if module is not None:
        _safely(then, module)
    elif not any(isinstance(f, _After) and f.name == name for f in sys.meta_path):
        sys.meta_path.insert(0, _After(name, then))


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


def enable():
    global _is_on
    _is_on = True
    threading.Thread.start = _start_with_mode
    wait()


def wait():
    """Waits for PyTorch: for ranks that are stood in for also where nothing is computed."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "nn", None) is None:
        return  # it is being imported, and whoever imports it has its finder
    _after("torch", _on_torch)


def disable():
    global _is_on
    _is_on = False
    mode = sys.modules.get("rollcall.rehearse.mode")
    if mode is not None:
        mode.pop()
