"""after.py: calls a function once a module has been imported, now or later. Other finders find the module as ever; the
finder here only watches. sitecustomize.py uses it before the folder of the job's script is in the path, so it imports
nothing but what every interpreter has built in: an ordinary module that came with it would hide one of the job's own
that has the same name."""
import _frozen_importlib
import _thread
import sys


class _After:
    """A finder that lets all others find one module, and calls `then` with the module when it has been executed.
    Programs look for a module without importing it as well, so the finder stays until then."""

    def __init__(self, name, then):
        self.name, self.then = name, then
        self.here = _thread._local()

    def find_spec(self, name, path=None, target=None):
        if name != self.name or getattr(self.here, "asks", False):
            return None
        self.here.asks = True
        try:
            spec = _frozen_importlib._find_spec(name, path, target)
        finally:
            self.here.asks = False
        if spec is not None and spec.loader is not None:
            self.follow(spec.loader)
        return spec

    def follow(self, loader):
        execute = getattr(loader, "exec_module", None)

        def exec_module(module):
            loader.__dict__.pop("exec_module", None)  # the loader's own again
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.then(module)

        try:
            if execute is None:
                raise AttributeError
            loader.exec_module = exec_module
        except AttributeError:
            _complain(f"{self.name} comes from a loader that cannot be followed: what its operations compute is not "
                      "known")


def _complain(text):
    print(f"rollcall: {text}", file=sys.stderr, flush=True)


def after(name, then):
    """Calls then(module) when the module is there, now or later; an exception of `then` ends the import. Where somebody
    waits for the module already, that is enough."""
    if any(isinstance(f, _After) and f.name == name for f in sys.meta_path):
        return
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        sys.meta_path.insert(0, _After(name, then))
