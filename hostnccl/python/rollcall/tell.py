"""tell.py: what the job's Python can tell librollcall.so, which exports two functions for it (interposer/wrap/names.c).
For rollcall.torch and rollcall.rehearse. Needs no PyTorch, and nothing here happens where the library is not preloaded.
"""
import ctypes

GROUP, TENSORS = 1, 2  # enum roll_name_kind
# What tells of a step (enum roll_step_by); where several do, the highest counts.
PROFILER, OPTIMIZER, JOB = 1, 3, 5
NO_STEP = 0xffffffff
UNNAMED = ("", "undefined")  # descriptions that PyTorch gives where the job gave none


def _bind():
    """The two functions of librollcall.so; (None, None) where it is not preloaded."""
    try:
        library = ctypes.CDLL(None)
        tell, name = library.rollcall_step_by, library.rollcall_name
    except (AttributeError, OSError):
        return None, None
    tell.argtypes, tell.restype = [ctypes.c_uint32, ctypes.c_uint32], None
    name.argtypes = [ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p,
                     ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint32]
    name.restype = None
    return tell, name


step, name = _bind()


def text(what):
    return str(what).encode("utf-8", "replace")


def group(made, site, own=None):
    """Tells what a process group of torch.distributed is called, and the line (file, number, function) that made it.
    own: the job's own word, which beats the description that the group was made with."""
    if name is None or made is None or not callable(getattr(made, "size", None)):
        return
    word = own if own is not None else getattr(made, "group_desc", "") or ""
    file, line, function = site
    if word not in UNNAMED or line > 0:
        name(GROUP, own is not None, made.size(), text(getattr(made, "group_name", "") or ""),
             text("" if word in UNNAMED else word), text(file if line > 0 else ""), text(function), line)
