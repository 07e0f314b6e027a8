"""allocator.py: the most memory that PyTorch's own allocator gave out, for the report, which puts it beside what the
stand-in for the device saw. Needs no PyTorch before the job has used a device. Where the allocator's cache is off, it
keeps no account, and nothing is told. A job may reset PyTorch's peak, so the most of what was seen is kept."""
import atexit
import sys

from rollcall.rehearse import cache, notes

_most = {}  # device -> bytes


def note():
    """At the end of a step, and of the process."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or cache.is_off() or not cuda.is_initialized():
        return
    mode = sys.modules.get("rollcall.rehearse.mode")
    try:
        for device in {cuda.current_device(), *(mode.devices if mode is not None else ())}:
            peak = cuda.max_memory_allocated(device)
            if peak > _most.get(device, 0):
                _most[device] = peak
                notes.put(f"allocator {device}", peak)
    except Exception:
        pass  # an allocator of another kind, or a device in error: the report says that it does not know


atexit.register(note)
