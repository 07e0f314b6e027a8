"""rollcall.rehearse: real values in a rehearsed PyTorch job (docs/REHEARSE.md, "Values that steer").

`rollcall rehearse` puts this package beside every Python program of the job, which needs no change. A job that wants
more imports it:

    import rollcall.rehearse as rehearse
    rehearse.value_at("router.py:120", lambda read: 7)    # what the host reads back there
    rehearse.step()                                       # the end of a training step, for --steps

Where the device is a real one, value_at and step do nothing, and no operation is looked at. PyTorch is imported by the
job and never from here.
"""
from rollcall.rehearse import settings as _settings
from rollcall.rehearse import sites as _sites
from rollcall.rehearse import start as _start
from rollcall.rehearse import steps as _steps

__all__ = ["begin_step", "disable", "enable", "step", "value_at"]


def enable(size=None, values=None, steps=None):
    """Has operations on CUDA tensors of up to `size` bytes (64 KiB) computed on the host as well, in this thread, in
    the backward passes that it starts, and in threads that it starts later. `values` is "zero" or "random:SEED[,same or
    ,different]", `steps` the number of training steps after which the job stops (0: none). What is left out is taken
    from the environment. May be called before PyTorch is imported, and again. ROLLCALL_REHEARSE=0 keeps it off."""
    _settings.change(size, values, steps)
    if not _settings.is_off():
        _start.enable()


def disable():
    """PyTorch is left alone again, in this thread."""
    _start.disable()


def value_at(place, function):
    """At the reading calls of `place`, function(read) supplies the value that the host reads back: a number, or
    whatever torch.as_tensor takes and the shape holds; None leaves the value alone. `place` is "FILE:LINE" (the end of
    a path is enough), "FILE:FUNCTION" or a function's name. `read` has file, line, function, kind ("item", "copy",
    "shape", "equal"), shape, dtype, rank, origin (a word: "computed", "skipped" ...), count (reads there before) and
    value, a host tensor with what would be read. The value is written into the device memory, so that whatever is
    computed from it agrees. None as the function takes the hook away."""
    _sites.set_hook(place, function)


def step():
    """Tells the end of a training step. With --steps the job stops in the K-th call."""
    _steps.ended()


def begin_step(number):
    """Tells that the step of this number begins; the first number that is told is the first step."""
    _steps.begins(number)
