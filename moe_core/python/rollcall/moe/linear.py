"""rollcall.moe.linear: the grouped linear of libmoe_core.so (moe/linear.h) as a function with a gradient.

    y = grouped_linear(x, counts, weights)     # x [R,K], counts [L], weights: L of [N,K], or one [L,N,K]; y [R,N]

The rows of expert i begin behind those of the experts before it. y_i = x_i w_i^T (+ b_i). An expert without rows is
no special case anywhere: backward issues the same work, and every weight gets its gradient (zeros, or a main_grad that
keeps every bit). Counts on a GPU are never read by the host.

Nothing is kept in C between a forward and its backward, because backward takes up the forward again with the pointers
of then (moe_linear_resume): so any number of microbatches may be in flight, one C object serves all layers of a shape,
FSDP may gather the weights again in between and checkpointing compute x again, and gradients take memory only in
backward. An object for each microbatch was rejected: its pointers would be those of forward.

Streams. CUDA tensors: the work is enqueued on PyTorch's current stream, like PyTorch's own. CPU tensors: a call returns
when its work is done. A parameter's gradient is given as moe_core.py gives it: through autograd, or with `fused` added
to the parameter's main_grad, as Megatron-LM's distributed data parallel expects of Transformer Engine.
"""
import ctypes
import functools
import sys
import threading
import weakref
from ctypes import POINTER, Structure, byref, c_bool, c_float, c_int, c_int64, c_void_p

from . import core, need_torch

torch = need_torch(__name__)
moe_core = core()
MoeError = moe_core.MoeError
_fail = moe_core._fail

MOST_ROWS = (1 << 31) - 1
FIRST, LATER = 1, 2  # enum moe_microbatch


# The structs of moe/linear.h, member for member (tests/moe_core/python compares sizes and offsets with C).
class CParam(Structure):
    _c_name_ = "struct moe_param"
    _fields_ = [("data", c_void_p), ("scale", c_void_p), ("main_grad", c_void_p), ("main_grad_type", c_int),
                ("has_added_flag", c_bool), ("grad_added_to_main_grad", c_bool), ("zero_out_wgrad", c_bool),
                ("overwrite_main_grad", c_bool)]


class CLinearConfig(Structure):
    _c_name_ = "struct moe_linear_config"
    _fields_ = [("groups", c_int64), ("out_features", c_int64), ("in_features", c_int64), ("max_rows", c_int64),
                ("activation", c_int), ("weight", c_int), ("bias", c_int), ("has_bias", c_bool),
                ("block_scales", c_bool), ("fuse_wgrad_accumulation", c_bool), ("delay_wgrad", c_bool),
                ("packed", c_bool), ("bias_scale", c_float), ("fp8", moe_core.CFp8)]


class CLinearCall(Structure):
    _c_name_ = "struct moe_linear_call"
    _fields_ = [("weights", c_void_p), ("biases", c_void_p), ("bias_grads", c_void_p), ("bias_probs", c_void_p),
                ("weights_frozen", c_bool), ("biases_frozen", c_bool)]


_LINEAR = {
    "moe_linear_new": (c_int, [c_void_p, POINTER(CLinearConfig), POINTER(c_void_p)]),
    "moe_linear_destroy": (None, [POINTER(c_void_p)]),
    "moe_linear_forward_call": (c_int, [c_void_p, POINTER(CLinearCall), c_void_p, c_void_p, c_int64, c_void_p]),
    "moe_linear_resume": (c_int, [c_void_p, POINTER(CLinearCall), c_void_p, c_void_p, c_int64]),
    "moe_linear_backward_call": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_int]),
}


class _Place:
    """Where calls on one stream compute: a device of moe_core, and its C linears by shape and types."""

    def __init__(self, backend, stream):
        self.device = moe_core.Device(backend, stream=stream)
        self.lib = self.device.lib
        self.lib.declare(_LINEAR, self.lib.core)
        self.lock = threading.RLock()  # a device is for one thread at a time; so are a resume and its backward
        self.linears = {}

    def linear(self, config):
        """config: the members of struct moe_linear_config that differ, as a tuple of pairs."""
        handle = self.linears.get(config)
        if handle is None:
            handle, members = c_void_p(), CLinearConfig(max_rows=MOST_ROWS, fuse_wgrad_accumulation=True,
                                                        **dict(config))
            self.lib.check(self.lib.moe_linear_new(self.device.handle, byref(members), byref(handle)))
            weakref.finalize(self.device, self.lib.moe_linear_destroy, byref(handle))
            self.linears[config] = handle
        return handle


_places, _places_lock = {}, threading.Lock()


def _place_of(x):
    """The place for a tensor's device and, of a GPU, PyTorch's current stream."""
    cuda = x.device.type == "cuda"
    stream = torch.cuda.current_stream(x.device).cuda_stream if cuda else None
    key = (x.device.type, x.device.index, stream)
    with _places_lock:
        if key not in _places:
            if x.device.type not in ("cpu", "cuda"):
                _fail("unsupported", f"x is on {x.device}: moe_core computes on CPU and CUDA tensors")
            if cuda:
                with torch.cuda.device(x.device):
                    _places[key] = _Place("cuda", stream)
            else:
                _places[key] = _Place("host", None)
        return _places[key]


class _Call:
    """One call of grouped_linear: what stays the same from forward to backward."""

    def __init__(self, x, outer, weights, biases, fused, later):
        self.outer = outer  # the shape of y, but for its last dimension
        self.packed = len(weights) == 1 and weights[0].dim() == 3
        self.groups = weights[0].shape[0] if self.packed else len(weights)
        self.n, self.k = weights[0].shape[-2:]
        self.weights, self.biases, self.fused, self.later = len(weights), len(biases), fused, later
        self.type, self.weight_type = x.dtype, weights[0].dtype
        self.bias_type = biases[0].dtype if biases else None

    def config(self):
        return (("groups", self.groups), ("out_features", self.n), ("in_features", self.k),
                ("activation", moe_core.DTYPE[self.type]), ("weight", moe_core.DTYPE[self.weight_type]),
                ("bias", moe_core.DTYPE[self.bias_type] if self.biases else 0), ("has_bias", self.biases > 0),
                ("packed", self.packed))

    def check(self, x, counts, bias_probs, weights, biases):
        shape = (self.groups, self.n, self.k) if self.packed else (self.n, self.k)
        each = [(f"weight{i}", w, shape, self.weight_type) for i, w in enumerate(weights)]
        each += [(f"bias{i}", b, (self.n,), self.bias_type) for i, b in enumerate(biases)]
        if bias_probs is not None:
            each += [("bias_probs", bias_probs, (x.shape[0],), torch.float32)]
        for what, tensor, want, dtype in each:
            if tensor.dtype != dtype or tensor.device != x.device:
                _fail("arg", f"{what} is {tensor.dtype} on {tensor.device}, wanted {dtype} on {x.device}")
            if tuple(tensor.shape) != tuple(want) or not tensor.is_contiguous():
                _fail("shape", f"{what} is {tuple(tensor.shape)}, wanted {tuple(want)}, contiguous")
        for what, dtype in (("x", self.type), ("the weights", self.weight_type), ("the biases", self.bias_type)):
            if dtype is not None and dtype not in moe_core.DTYPE:
                _fail("arg", f"{what} of {dtype}: there are {', '.join(map(str, moe_core.DTYPE))}")
        if biases and len(biases) != self.groups:
            _fail("arg", f"{len(biases)} biases for {self.groups} experts")
        if x.shape[-1] != self.k:
            _fail("shape", f"x is {tuple(x.shape)}, its last dimension must be {self.k}")
        if counts.numel() != self.groups:
            _fail("shape", f"{counts.numel()} counts for {self.groups} experts")


class _Arguments:
    """struct moe_linear_call and what it points to; it lives as long as C may read it. gradients: {index: tensor} of
    where the gradients of weights and biases (in one count) go."""

    def __init__(self, call, weights, biases, bias_probs, gradients=None):
        places = gradients or {}
        grad_type = next((moe_core.DTYPE[g.dtype] for g in places.values()), 0)
        self.params = (CParam * len(weights))(*(
            CParam(data=w.data_ptr(), main_grad=places[i].data_ptr() if i in places else None, main_grad_type=grad_type)
            for i, w in enumerate(weights)))
        self.pointers = (POINTER(CParam) * len(weights))(*(ctypes.pointer(p) for p in self.params))
        self.biases = (c_void_p * len(biases))(*(b.data_ptr() for b in biases))
        at = len(weights)
        bias_grads = [places[at + i].data_ptr() for i in range(len(biases)) if at + i in places]
        self.bias_grads = (c_void_p * len(bias_grads))(*bias_grads)
        self.call = CLinearCall(weights=ctypes.addressof(self.pointers),
                                biases=ctypes.addressof(self.biases) if biases else None,
                                bias_grads=ctypes.addressof(self.bias_grads) if bias_grads else None,
                                bias_probs=bias_probs.data_ptr() if bias_probs is not None else None,
                                weights_frozen=0 not in places, biases_frozen=not bias_grads)


def _pointer(tensor):
    return tensor.data_ptr() if tensor is not None else None


def main_grad_of(parameter):
    """The main_grad of a parameter, or None; Megatron's FSDP makes it when it is asked for."""
    if parameter is None:
        return None
    if getattr(parameter, "main_grad", None) is None and callable(getattr(parameter, "get_main_grad", None)):
        return parameter.get_main_grad()
    return getattr(parameter, "main_grad", None)


def _check_main_grad(grad, weight, i):
    if grad.dtype not in moe_core.DTYPE or grad.device != weight.device:
        _fail("arg", f"main_grad of weight{i} is {grad.dtype} on {grad.device}, the weight on {weight.device}")
    if grad.shape != weight.shape or not grad.is_contiguous():
        _fail("shape", f"main_grad of weight{i} is {tuple(grad.shape)}, the weight {tuple(weight.shape)}; it must be "
              "contiguous")


class _Gradients:
    """Where the gradients of a backward go: {index: tensor} of weights, then biases. main: the indices of main_grads;
    all other places are new memory. A frozen weight beside others that are not has a place, too, because C computes all
    of them or none."""

    def __init__(self, call, leaves, weights, biases, weights_wanted, biases_wanted):
        mains = {i: main_grad_of(leaf) for i, leaf in enumerate(leaves) if call.fused and weights_wanted[i]}
        mains = {i: grad for i, grad in mains.items() if grad is not None}
        for i, grad in mains.items():
            _check_main_grad(grad, weights[i], i)
        dtype = next((g.dtype for g in mains.values()), weights[0].dtype)
        if any(g.dtype != dtype for g in mains.values()):
            _fail("arg", f"main_grads of several types: {', '.join(sorted({str(g.dtype) for g in mains.values()}))}")
        self.leaves, self.main = leaves, set(mains)
        self.accumulate = bool(mains)  # one answer for a call: new places then begin as zeros
        self.tensors = (*weights, *biases)
        self.places = dict(mains)
        wanted = list(range(len(weights))) if any(weights_wanted) else []
        wanted += range(len(weights), len(self.tensors)) if any(biases_wanted) else []
        for i in wanted:
            if i not in mains:
                self.places[i] = (torch.zeros_like if mains else torch.empty_like)(self.tensors[i], dtype=dtype)
            elif getattr(leaves[i], "overwrite_main_grad", False):
                mains[i].zero_()

    def result(self, i):
        """What autograd is given for a weight or a bias."""
        if i in self.main:
            return _told(self.leaves[i])
        return self.places[i].to(self.tensors[i].dtype) if i in self.places else None


def _placeholder(parameter):
    """What autograd is given for a gradient that is in main_grad: zeros without memory of their own, so that a model's
    worth of placeholders costs nothing until each is accumulated."""
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)


def _told(parameter):
    """Says that main_grad has the gradient; the placeholder that the framework's hook wants to see, or None."""
    if not hasattr(parameter, "grad_added_to_main_grad"):
        return None
    parameter.grad_added_to_main_grad = True
    return _placeholder(parameter)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call, leaves, x, counts, exact, bias_probs, *tensors):
        weights, biases = tensors[:call.weights], tensors[call.weights:]
        place = _place_of(x)
        # Slack, the rows behind the last expert's, is never written by C. No view: the caller may write into it, and
        # FSDP hangs its hooks on it.
        y = (torch.empty if exact else torch.zeros)((*call.outer, call.n), dtype=x.dtype, device=x.device)
        arguments = _Arguments(call, weights, biases, bias_probs)
        with place.lock, place.device.order():
            place.lib.check(place.lib.moe_linear_forward_call(place.linear(call.config()), byref(arguments.call),
                                                              _pointer(x), _pointer(counts), x.shape[0], _pointer(y)))
        ctx.call, ctx.leaves, ctx.exact, ctx.has_probs = call, leaves, exact, bias_probs is not None
        ctx.save_for_backward(x, counts, *((bias_probs,) if ctx.has_probs else ()), *tensors)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        call, (x, counts, *tensors) = ctx.call, ctx.saved_tensors
        bias_probs = tensors.pop(0) if ctx.has_probs else None
        weights, biases = tensors[:call.weights], tensors[call.weights:]
        _, _, x_wanted, _, _, probs_wanted, *wanted = ctx.needs_input_grad
        weights_wanted, biases_wanted = wanted[:call.weights], wanted[call.weights:]
        dy = dy.to(x.dtype).reshape(-1, call.n).contiguous()
        dx = (torch.empty_like if ctx.exact else torch.zeros_like)(x) if x_wanted else None
        d_probs = torch.zeros_like(bias_probs) if probs_wanted else None
        now = [False] * call.weights if call.later is not None else weights_wanted
        gradients = _Gradients(call, ctx.leaves, weights, biases, now, biases_wanted)
        _backward(call, weights, biases, bias_probs, gradients, x, counts, dy, dx, d_probs)
        if call.later is not None and any(weights_wanted):
            call.later.append((call, ctx.leaves, weights, weights_wanted, x, counts, dy, _stream_of(x)))
        of_parameters = (gradients.result(i) if wants else None for i, wants in enumerate(wanted))
        return (None, None, dx, None, None, d_probs, *of_parameters)


def _backward(call, weights, biases, bias_probs, gradients, x, counts, dy, dx, d_probs):
    place = _place_of(x)
    arguments = _Arguments(call, weights, biases, bias_probs, gradients.places)
    with place.lock, place.device.order():
        linear, lib = place.linear(call.config()), place.lib
        lib.check(lib.moe_linear_resume(linear, byref(arguments.call), _pointer(x), _pointer(counts), x.shape[0]))
        lib.check(lib.moe_linear_backward_call(linear, _pointer(dy), _pointer(dx), _pointer(d_probs),
                                               LATER if gradients.accumulate else FIRST))


def _stream_of(x):
    """PyTorch's current stream for a tensor on a GPU; None on the CPU."""
    return torch.cuda.current_stream(x.device) if x.is_cuda else None


def _come_from(stream, tensors):
    """Orders the current stream behind `stream`, where backward left these tensors, and tells PyTorch's allocator that
    they are read here, too: it would give their memory to the next user on `stream` at once."""
    here = _stream_of(tensors[0])
    if stream == here:
        return
    here.wait_stream(stream)
    for tensor in tensors:
        tensor.record_stream(here)


def backward_later(later):
    """The weight gradients of all backwards that left theirs in `later`, the oldest first: into main_grad with `fused`,
    else added to .grad; on the stream that is current now, behind all that backward's stream holds now. Raises MoeError
    "state" where there are none."""
    if not later:
        _fail("state", "no weight gradients wait")
    while later:
        call, leaves, weights, wanted, x, counts, dy, stream = later.pop(0)
        _come_from(stream, (x, counts, dy, *weights))
        alone = _Call(x, call.outer, weights, (), call.fused, None)
        gradients = _Gradients(alone, leaves, weights, (), wanted, ())
        _backward(alone, weights, (), None, gradients, x, counts, dy, None, None)
        for i, leaf in enumerate(leaves):
            grad = gradients.result(i) if wanted[i] else None
            if grad is not None:
                leaf.grad = grad if leaf.grad is None else leaf.grad + grad


def counts_of(counts, x):
    """Counts as int64 on the device of x, and their sum where the host knows it."""
    tensor = torch.as_tensor(counts)
    known = tensor.device.type == "cpu"
    if tensor.is_floating_point() and known and not bool((tensor == tensor.round()).all()):
        _fail("count", f"counts {tensor.tolist()} are not whole numbers")
    total = int(tensor.sum()) if known else None
    return tensor.detach().to(device=x.device, dtype=torch.int64).contiguous(), total


def _eager(function):
    """torch.compile runs the function as it is, because C cannot be traced. Who does not compile does not pay for the
    import of the compiler."""
    disabled = []

    @functools.wraps(function)
    def call(*arguments, **more):
        if "torch._dynamo" not in sys.modules or not hasattr(torch, "compiler"):
            return function(*arguments, **more)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*arguments, **more)
    return call


@_eager
def grouped_linear(x, counts, weights, biases=(), bias_probs=None, fused=False, later=None, slack=True):
    """y [..., N] of x [..., K]: y_i = x_i w_i^T + p b_i over the rows of each expert.

    counts: L numbers, a list or a tensor of any whole or floating type, on the CPU or on the device of x. Their sum may
    be less than the rows of x: the rest is slack, whose y and dx are zero; without `slack` it is an error where the
    host knows the counts. weights: L tensors [N,K], or a list of one [L,N,K]. biases: none, or L of [N]. bias_probs [R]
    float32: what each row's bias is multiplied by. fused: weight gradients go to main_grad where a weight has one.
    later: None, or a list in which backward leaves the weight gradients for backward_later(). Types: float32, bfloat16,
    float16, x and the weights each their own. Raises MoeError: "shape", "arg", "count", "split".
    """
    weights, biases = tuple(weights), tuple(biases)
    shape, flat = x.shape, x.reshape(-1, x.shape[-1]).contiguous()
    counts, total = counts_of(counts, flat)
    if not slack and total is not None and total != flat.shape[0]:
        _fail("split", f"counts of {total} rows, and x has {flat.shape[0]}")
    call = _Call(flat, shape[:-1], weights, biases, fused, later)
    call.check(flat, counts, bias_probs, weights, biases)
    # The parameters themselves have main_grad; what autograd saves may be another tensor of the same memory.
    leaves = tuple(w if w.is_leaf else None for w in weights)
    if later is not None and any(w.requires_grad and not w.is_leaf for w in weights):
        _fail("arg", "later: weights that are no parameters have no place for their gradients")
    return _Apply.apply(call, leaves, flat, counts, total == flat.shape[0], bias_probs, *weights, *biases)
