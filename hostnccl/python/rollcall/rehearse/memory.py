"""memory.py: a device's memory as host tensors. On hostcuda a device pointer is an address of this process, so a tensor
of the host over the same bytes is no copy. Whoever reads or writes through one has waited for the stream before."""
import ctypes

import torch

_is_hostcuda = None
_runtime = None
_synchronize = None


def is_hostcuda():
    """Whether the driver of this process is the stand-in: on a real device an address must not be touched."""
    global _is_hostcuda
    if _is_hostcuda is None:
        try:
            _is_hostcuda = hasattr(ctypes.CDLL("libcuda.so.1"), "hostcuda_register_kernel")
        except OSError:
            _is_hostcuda = False
    return _is_hostcuda


def span(t):
    """(first byte in the storage, end): what the tensor's elements span."""
    size = t.element_size()
    first = t.storage_offset() * size
    if t.numel() == 0:
        return first, first
    if t.is_contiguous():
        return first, first + t.numel() * size
    return first, first + (1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))) * size


def is_readable(t):
    return t.layout == torch.strided and not t.is_quantized and not t.is_nested and \
        (t.numel() == 0 or t.data_ptr() != 0)


def host(t):
    """The host tensor over the bytes of `t`, a CUDA tensor for which is_readable holds, or that has such parts."""
    if t.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(host(t._indices()), host(t._values()), t.shape, is_coalesced=t.is_coalesced(),
                                       check_invariants=False)
    if t.numel() == 0:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    first, end = span(t)
    flat = torch.frombuffer((ctypes.c_char * (end - first)).from_address(t.data_ptr()), dtype=t.dtype)
    h = flat if t.dim() == 1 and t.is_contiguous() else flat.as_strided(t.shape, t.stride())
    if t.dtype.is_complex and t.is_conj():
        h = h.conj()  # the memory holds the conjugate
    return torch._neg_view(h) if t.is_neg() else h


def wait(index):
    """Waits for the current stream of the device: what an operation on it would wait for."""
    global _synchronize
    if _synchronize is None:
        _synchronize = getattr(ctypes.CDLL(None), "cudaStreamSynchronize", False)
        if _synchronize:
            _synchronize.argtypes = [ctypes.c_void_p]
    # Without a stream's object, which takes longer than all else here; PyTorch's own way tells of an error.
    if not _synchronize or _synchronize(torch._C._cuda_getCurrentRawStream(index)) != 0:
        torch.cuda.current_stream(index).synchronize()


def zero(t):
    """Fills a tensor without holes with zero, in stream order, and gives its whole pages back. True when that was
    done."""
    global _runtime
    if _runtime is None:
        try:
            _runtime = ctypes.CDLL(None).cudaMemsetAsync
            _runtime.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p]
        except AttributeError:
            _runtime = False
    if not _runtime:
        return False
    with torch.cuda.device(t.device):
        return _runtime(t.data_ptr(), 0, t.numel() * t.element_size(), torch.cuda.current_stream().cuda_stream) == 0
