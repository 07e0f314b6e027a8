"""cache.py: PyTorch's cache of device memory, which a rehearsal keeps off: blocks hold what their last user left, and a
rank that reads them back would steer by that. PYTORCH_NO_CUDA_MEMORY_CACHING does so for the life of a process, and
PyTorch cannot capture a CUDA graph then: what a graph works on must come from a pool of the cache. So where PyTorch has
a switch for the cache (2.6 and later) the switch is used instead of the variable, and the cache is on during captures.

A capture is begun in the relaxed mode: memory from before, which was not cached, is given back by cudaFree, and the
other modes forbid that to a capture. On a cluster the cache takes such memory back without a call."""
import os

_VARIABLE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_MARK = "ROLLCALL_REHEARSE_CACHE"  # for the processes that the job starts: the variable is gone by then
_captures = 0


def is_off():
    """Whether PyTorch's allocator caches nothing, and so keeps no account."""
    return os.environ.get(_VARIABLE) == "1" or os.environ.get(_MARK) == "off"


def follow(torch):
    """Takes the place of the variable, where it is set; before PyTorch has allocated anything."""
    switch = getattr(torch._C, "_cuda_cudaCachingAllocator_enable", None)
    graph = getattr(getattr(torch.cuda, "graphs", None), "CUDAGraph", None)
    if switch is None or not hasattr(graph, "capture_begin") or not is_off() or torch.cuda.is_initialized():
        return
    os.environ.pop(_VARIABLE, None)
    os.environ[_MARK] = "off"
    switch(False)
    begin, end = graph.capture_begin, graph.capture_end

    def count(change):
        global _captures
        _captures = max(0, _captures + change)
        switch(_captures > 0)

    def capture_begin(self, pool=None, capture_error_mode="global", **more):
        count(1)
        try:
            return begin(self, pool, "relaxed", **more)
        except BaseException:
            count(-1)
            raise

    def capture_end(self, *args, **named):
        try:
            return end(self, *args, **named)
        finally:
            count(-1)

    graph.capture_begin, graph.capture_end = capture_begin, capture_end
