"""sites.py: the line of the job that reads a value back, and the hooks of value_at. Needs no PyTorch.

A line is the innermost frame outside PyTorch, this package and the standard library's glue: that of a framework, where
the framework reads."""
import os
import sys

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BESIDE = os.path.join(os.path.dirname(os.path.dirname(_OURS)), "torch.py")  # rollcall.torch
_GLUE = {os.path.join(os.path.dirname(os.path.abspath(os.__file__)), name)
         for name in ("contextlib.py", "functools.py", "threading.py", "runpy.py")}
NOWHERE = ("(no Python line)", 0, "")  # the autograd engine's own thread, in the backward of PyTorch's operations

_hooks = {}  # place -> function


def _torch_folder():
    torch = sys.modules.get("torch")
    place = getattr(torch, "__file__", None)
    return os.path.dirname(os.path.abspath(place)) + os.sep if place else "\0"


def of_caller():
    """(file, line, function)."""
    torch, frame = _torch_folder(), sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, _BESIDE, torch, "<frozen")) and name not in _GLUE and name != "<string>":
            return name, frame.f_lineno or 0, frame.f_code.co_name
        frame = frame.f_back
    return NOWHERE


def set_hook(place, function):
    if not isinstance(place, str) or not place:
        raise ValueError('a place is "FILE:LINE", "FILE:FUNCTION" or a function\'s name')
    if function is None:
        _hooks.pop(place, None)
    elif not callable(function):
        raise TypeError("value_at wants a function that takes the read")
    else:
        _hooks[place] = function


def _ends_with(path, tail):
    return path == tail or path.endswith(os.sep + tail)


def fits(place, site):
    file, line, function = site
    if ":" not in place:
        return function == place
    tail, last = place.rsplit(":", 1)
    return _ends_with(file, tail) and (int(last) == line if last.isdigit() else last == function)


def hook_of(site):
    for place, function in _hooks.items():
        if fits(place, site):
            return function
    return None


def has_hooks():
    return bool(_hooks)
