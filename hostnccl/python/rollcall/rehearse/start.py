"""start.py: puts the dispatch mode on, once PyTorch has been imported. Needs no PyTorch by itself: it waits for the
job's import, so that a program without PyTorch pays nothing."""
import importlib.util
import sys
import threading

from rollcall.rehearse import settings

_thread_start = threading.Thread.start
_is_on = False  # threads that start inherit the mode


class _AfterTorch:
    """A finder that lets all others find torch, and is told when torch has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module):
            del loader.exec_module  # the loader's own again
            execute(module)
            _on_torch()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            settings.complain("PyTorch comes from a loader that cannot be followed: nothing is computed on the host")
        return spec


def _on_torch():
    try:
        from rollcall.rehearse import cache, groups, steps
        steps.follow()
        groups.follow()
        cache.follow(sys.modules["torch"])
        cuda = getattr(sys.modules["torch"].backends, "cuda", None)
        if hasattr(cuda, "enable_cudnn_sdp"):
            cuda.enable_cudnn_sdp(False)  # it asks cuDNN for an engine, and the stand-in has none; others remain
        if settings.now.bytes is not None:
            from rollcall.rehearse import mode
            mode.push()
    except Exception as why:  # the job runs on
        settings.complain(f"nothing is computed on the host: {type(why).__name__}: {why}")


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
    if getattr(sys.modules.get("torch"), "nn", None) is not None:
        _on_torch()
    elif not any(isinstance(f, _AfterTorch) for f in sys.meta_path):
        sys.meta_path.insert(0, _AfterTorch())


def disable():
    global _is_on
    _is_on = False
    mode = sys.modules.get("rollcall.rehearse.mode")
    if mode is not None:
        mode.pop()
