"""mode.py: the dispatch mode: an operation whose CUDA tensors are all small is computed on the host as well.

PyTorch's own operation runs as ever (its checks, allocations and launches are those of the job; the kernels are
skipped), and then the host computes the same operation over the same memory and writes what the kernel would have
written. No shadow tensors: the device's memory is the host's, so views and operations in place are right by
themselves. What simpler ways were rejected: host tensors beside the device's (every copy, view and collective would
have to be followed), and host functions in the stream (PyTorch frees device memory with the interpreter's lock held,
and cudaFree waits for the stream: a host function that needs that lock would never run). So the host waits for the
current stream before it computes, as with CUDA_LAUNCH_BLOCKING.

The mode belongs to a thread; the autograd engine's threads take it over from the backward that they work for, and
start.py hands it to threads that Python starts. For each storage the mode notes where its bytes come from (origin.py):
on the storage's own object, which lives as long as the storage."""
import sys
import threading
import types

import torch
import torch._subclasses.fake_tensor
import torch._subclasses.functional_tensor
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from rollcall.rehearse import forms, memory, notes, numbers, origin, settings, sites, steps

devices = set()        # indices on which something was seen
_here = threading.local()
_rng_lock = threading.RLock()
_is_said = False       # the settings stand in the notes
_is_nested_said = False

# Operations whose first argument is overwritten whole: what it held does not matter.
OVERWRITES = frozenset("aten::" + name for name in (
    "copy_", "zero_", "fill_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_",
    "log_normal_", "cauchy_", "eye.out", "arange.start_out", "_foreach_copy_", "_foreach_zero_"))
INDEXED = frozenset("aten::" + name for name in ("index", "index_put_", "index_put", "_index_put_impl_"))
WITH_BETA = frozenset("aten::" + name for name in ("addmm", "addmv", "addr", "addbmm", "baddbmm"))
# Metadata only, or not ours to do twice.
LEFT_ALONE = frozenset("aten::" + name for name in (
    "set_", "resize_", "resize_as_", "record_stream", "detach_", "requires_grad_", "_pin_memory", "pin_memory",
    "is_pinned", "_has_compatible_shallow_copy_type", "rename_", "_coalesced_", "squeeze_", "unsqueeze_", "transpose_",
    "t_", "swapdims_", "swapaxes_", "as_strided_", "_cudnn_init_dropout_state", "is_same_size", "_use_cudnn_ctc_loss",
    "_use_miopen_ctc_loss", "cudnn_is_acceptable"))
FRESH_MAKERS = frozenset("aten::" + name for name in (
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"))
ZERO_MAKERS = frozenset("aten::" + name for name in ("zeros", "zeros_like", "new_zeros", "zero_"))
# What these make depends on the shape of their argument alone.
SHAPED_MAKERS = frozenset("aten::" + name for name in (
    "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_zeros", "new_ones",
    "new_full"))
SHORT_FLOATS = frozenset(getattr(torch, name) for name in ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
                         if hasattr(torch, name))
HOST_NAMESPACES = ("aten::", "fsdp::", "prims::", "torchvision::")  # others may have a kernel that does anything
ODD_MOST = 16  # numbers in a tensor that is read back, among which nan and inf are looked for
INTEGERS = 16
NO_ENGINE = ("find an engine", "CUDNN_STATUS", "cuDNN", "No valid execution plans")
# Operations that write to places of their first argument; the number of the argument that they write.
PLACED = {"aten::index_copy_": 3, "aten::index_put_": 2, "aten::_index_put_impl_": 2, "aten::scatter_": 3}
_set_eval_frame = torch._C._dynamo.eval_frame.set_eval_frame
COPIES = frozenset("aten::" + name for name in ("copy_", "clone", "_to_copy", "_copy_from"))
# FSDP2 defines these in Python. Each as a whole writes to tensors that its schema does not name, or has lists of which
# some tensors may be long; so what they are made of comes to the mode.
IN_PYTHON = frozenset("fsdp::" + name for name in ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat"))


def _flat(values):
    """The tensors among arguments or results; lists are one deep."""
    found = []
    for v in values:
        if isinstance(v, torch.Tensor):
            found.append(v)
        elif isinstance(v, (list, tuple)):
            found += [x for x in v if isinstance(x, torch.Tensor)]
    return found


def _results(out):
    return _flat(out) if isinstance(out, (list, tuple)) else _flat((out,))


def _map(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in value):
        return type(value)(change(x) if isinstance(x, torch.Tensor) else x for x in value) \
            if type(value) in (list, tuple) else [change(x) if isinstance(x, torch.Tensor) else x for x in value]
    return value


def _bytes(t):
    return t.numel() * t.element_size()


# origins


def _parts(t, state=None):
    """The states of the storage of `t`, made with `state` where there are none; None without a storage."""
    try:
        storage = t.untyped_storage()
        parts = storage.__dict__.get("_rollcall_parts")
        if parts is None and state is not None:
            parts = storage._rollcall_parts = origin.Parts(state)
        return parts
    except (NotImplementedError, RuntimeError, AttributeError):
        return None


def state_of(t):
    if t.numel() == 0:
        return origin.COMPUTED
    if t.layout != torch.strided:
        return origin.UNKNOWN  # its parts have states of their own, and come here when it is taken apart
    parts = _parts(t)
    return origin.UNKNOWN if parts is None else parts.get(*memory.span(t))


def _mark(t, state):
    if t.layout != torch.strided:
        return
    parts = _parts(t)
    if parts is None:
        _parts(t, state)  # a new storage: all of it
        return
    if t.numel() == 0:
        return
    first, end = memory.span(t)
    if end - first == _bytes(t):
        parts.set(first, end, state, t.untyped_storage().nbytes())
    else:
        parts.touch(first, end, state, t.untyped_storage().nbytes())


FAKE_TYPES = frozenset(getattr(module, name) for module, name in (
    (torch._subclasses.fake_tensor, "FakeTensor"), (torch._subclasses.functional_tensor, "FunctionalTensor"))
    if hasattr(module, name))
_plain_types = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer} if hasattr(torch.nn, "Buffer") else \
    {torch.Tensor, torch.nn.Parameter}


def _is_plain_type(t):
    """Whether the operations of a subclass are those of every tensor."""
    return t in _plain_types or getattr(t, "__torch_dispatch__", None) in (
        torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)


def _in_python(name):
    """PyTorch's own function for an operation of IN_PYTHON; None for others, or where there is none."""
    short = name.partition("::")[2]
    for module in ("torch.distributed.fsdp._fully_shard._fsdp_collectives",
                   "torch.distributed._composable.fsdp._fsdp_collectives"):
        for kind in (f"{short}_cuda", short) if name in IN_PYTHON else ():
            found = getattr(sys.modules.get(module), kind, None)
            if isinstance(found, types.FunctionType):
                return found
    return None


class _Way:
    """What is known of an operation from its schema, once."""

    def __init__(self, func):
        schema = func._schema
        self.name = schema.name
        self.full = func.name()
        self.is_c10d = schema.name.startswith(("c10d::", "_c10d_functional::"))
        self.arguments = [a.name for a in schema.arguments]
        self.written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        reads = [a for a in schema.arguments if a.alias_info is not None and not a.alias_info.is_write]
        self.is_view = bool(reads) and not self.written and schema.name != "aten::lift_fresh"
        self.is_plain = self.is_view or schema.name in LEFT_ALONE or \
            (not schema.name.startswith(HOST_NAMESPACES + ("c10d::", "_c10d_functional::")) and not schema.returns and
             not self.written) or (schema.name.startswith("fsdp::") and not schema.returns and not self.written)
        tags = func.tags
        self.is_random = torch.Tag.nondeterministic_seeded in tags
        self.is_shaped = torch.Tag.dynamic_output_shape in tags
        self.is_scalar = torch.Tag.data_dependent_output in tags
        self.is_foreach = schema.name.startswith(("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd",
                                                  "aten::_fused_adagrad", "aten::_amp_foreach_non_finite"))
        # An argument that is written and not read: what it held is no reason to distrust the result.
        overwrites = self.full in OVERWRITES or schema.name in OVERWRITES
        self.unread = {a.name for a in schema.arguments if a.name in self.written and a.kwarg_only}
        if overwrites and self.arguments:
            self.unread.add(self.arguments[0])
        self.makes_sparse = schema.name.startswith(("aten::_to_sparse", "aten::to_sparse")) and len(reads) == 0
        # What a question about a tensor's form answers is of the host already.
        answers = bool(schema.returns) and not any("Tensor" in str(r.type) for r in schema.returns)
        self.is_plain = self.is_plain or (answers and not self.written and not self.is_scalar and not self.is_c10d)
        self.is_convolution = "convolution" in schema.name
        # Nothing is looked at but how long its tensors are: the way of most operations of a long model.
        self.is_simple = not (self.is_scalar or self.is_shaped or self.makes_sparse or self.is_foreach or
                              schema.name in COPIES or schema.name in FRESH_MAKERS or schema.name in INDEXED or
                              schema.name in ZERO_MAKERS or schema.name in ("aten::lift_fresh", "aten::masked_select"))
        self.has_indices = schema.name in INDEXED
        self.in_python = _in_python(schema.name)
        self.has_host = schema.name.startswith(HOST_NAMESPACES)  # until PyTorch says that it has no such kernel

    def named(self, args, kwargs):
        return list(zip(self.arguments, args)) + list(kwargs.items())


class HostValues(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ways = {}

    @classmethod
    def ignore_compile_internals(cls):
        return True  # torch.compile compiles, without this mode, and what it has compiled runs beneath the mode

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else PyTorch wraps the method below in a function that imports its compiler, which takes seconds

    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        # In what torch.compile has left to Python its hook for frames is on, and is not for frames of ours.
        hook = _set_eval_frame(None)
        try:
            return self._dispatch(func, kinds, args, kwargs or {})
        finally:
            if hook is not None:
                _set_eval_frame(hook)

    def _dispatch(self, func, kinds, args, kwargs):
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)  # DTensor asks for shapes: no tensor has memory, and only the call knows how
        for t in kinds:
            if t in FAKE_TYPES:
                return func(*args, **kwargs)  # shapes without numbers
            if t is not torch.Tensor and not _is_plain_type(t):
                return NotImplemented  # a subclass takes itself apart, and its parts come here
        way = self.ways.get(func)
        if way is None:
            way = self.ways[func] = _Way(func)
        if way.is_plain:
            return func(*args, **kwargs)
        cuda = [t for t in _flat(args) if t.is_cuda]
        if kwargs:
            cuda += [t for t in _flat(kwargs.values()) if t.is_cuda]
        target = kwargs.get("device")
        to_cuda = target is not None and getattr(target, "type", None) == "cuda"
        if way.in_python is not None and cuda and memory.is_hostcuda():
            with self:
                return way.in_python(*args, **kwargs)
        if way.is_c10d:
            return _collective(func, way, args, kwargs) if memory.is_hostcuda() else func(*args, **kwargs)
        if (not cuda and not to_cuda) or not memory.is_hostcuda():
            return func(*args, **kwargs)
        _say_settings()
        return _operation(func, way, args, kwargs, cuda)


def _say_nested(tensors):
    """Once: what is left out of nested tensors of the older layout, however small they are."""
    global _is_nested_said
    if not _is_nested_said and any(t.is_nested and t.layout == torch.strided for t in tensors):
        _is_nested_said = True
        settings.complain("operations on nested tensors of the layout torch.strided are not computed on the host; "
                          "those of torch.jagged are")


def _say_settings():
    global _is_said
    if not _is_said or notes._pid != notes.os.getpid():
        _is_said = True
        s = settings.now
        notes.say(f"size {s.bytes}")
        notes.say("values zero" if s.seed is None else f"values random:{s.seed},{'same' if s.is_same else 'different'}")


def _is_small(tensors):
    """Floats up to the size, other numbers up to INTEGERS times as much: labels, masks and places of tokens are long
    and quickly counted, and what is counted steers."""
    limit = settings.now.bytes
    for t in tensors:
        n = _bytes(t)
        if n > limit and (n > INTEGERS * limit or t.dtype.is_floating_point or t.dtype.is_complex):
            return False
    return True


def _device_of(cuda, kwargs):
    index = cuda[0].device.index if cuda else kwargs["device"].index
    index = torch.cuda.current_device() if index is None else index
    devices.add(index)
    return index


# collectives


def _collective(func, way, args, kwargs):
    """Passed on untouched. What comes from other ranks is as good as what this rank gives them; a payload that is left
    out leaves what was there."""
    given, taken = [], []
    for name, value in way.named(args, kwargs):
        (taken if name.startswith("output") else given).extend(t for t in _flat_deep(value) if t.is_cuda)
    states = {id(t): state_of(t) for t in given + taken}
    out = func(*args, **kwargs)
    if way.name == "_c10d_functional::wait_tensor":
        return out
    taken += [t for t in _flat_deep(out) if t.is_cuda and id(t) not in states]
    arrives = origin.of_result([s for s in (states[id(t)] for t in given) if s != origin.FRESH])
    # hostnccl moves payloads up to the size that the mode computes; of a gather or scatter the shorter side counts.
    most = min((max((_bytes(t) for t in side), default=0) for side in (given, taken) if side), default=0)
    for t in given + taken:
        before = states.get(id(t), origin.FRESH)
        is_given = any(t is g for g in given)
        if is_given and taken:
            continue  # only read
        if most <= settings.now.bytes:
            _mark(t, arrives)
        elif "alltoall" in way.name or "all_to_all" in way.name:
            _mark(t, origin.UNKNOWN)  # made of messages, of which some may be short enough
        elif is_given and before != origin.FRESH:
            _mark(t, max(before, origin.PARTLY))  # its own part is there, that of the others is not
        else:
            _mark(t, origin.SKIPPED)
    return out


def _flat_deep(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _flat_deep(v)] if isinstance(value, (list, tuple)) else []


# values that are read back


def _supply(t, kind):
    """Before the host reads `t`: a hook or seeded numbers replace what nobody computed. Notes the read."""
    site = sites.of_caller()
    state = state_of(t)
    hook = sites.hook_of(site) if sites.has_hooks() else None
    if hook is not None and memory.is_readable(t):
        host = memory.host(t)
        read = Read(site, kind, t, host, origin.WORDS[state])
        value = hook(read)
        if value is not None:
            host.copy_(torch.as_tensor(value))
            state = origin.SUPPLIED
            _mark(t, state)
    elif _fill(t, state, site):
        state = origin.RANDOM
    _count_read(origin.WORDS[state], kind, site)
    what = _odd(t)
    if what is not None:
        notes.odd(what, origin.WORDS[state], site, steps.over())


def _count_read(word, kind, site):
    key = (site, kind)
    Read.counts[key] = Read.counts.get(key, 0) + 1
    notes.read(word, kind, site)


def _odd(t):
    """"nan" or "inf" where a tensor of a few numbers holds one; else None."""
    if not t.dtype.is_floating_point or not 0 < t.numel() <= ODD_MOST or not memory.is_readable(t):
        return None
    host = memory.host(t).double()
    total = float((host - host).sum())  # of what is no number, and of no finite one, the difference is none
    return None if total == 0 else "nan" if bool(host.isnan().any()) else "inf"


class Read:
    """What a hook of value_at is given."""
    counts = {}

    def __init__(self, site, kind, t, host, word):
        self.file, self.line, self.function = site
        self.kind, self.origin = kind, word
        self.shape, self.dtype, self.rank = tuple(t.shape), t.dtype, settings.rank()
        self.count = Read.counts.get((site, kind), 0)
        self.value = host.clone()


def _fill(t, state, site=None):
    """--values random: small memory that nobody computed gets seeded numbers, once. The stream has been waited for."""
    s = settings.now
    if s.seed is None or not origin.is_missing(state) or not memory.is_readable(t) or not _is_small((t,)):
        return False
    numbers.fill(torch, memory.host(t), s.seed, s.is_same, settings.rank(), site or sites.of_caller())
    _mark(t, origin.RANDOM)
    return True


# what is left out


def _is_whole_copy(to, source):
    """Whether PyTorch copies these with one call of the CUDA runtime, which is real, and not with a kernel."""
    return to.dtype == source.dtype and to.shape == source.shape and to.layout == source.layout == torch.strided and \
        (to.is_contiguous() and source.is_contiguous() or
         (to.stride() == source.stride() and memory.span(to)[1] - memory.span(to)[0] == _bytes(to)))


def _left_out_simply(func, way, args, kwargs, cuda):
    out = _run(func, way, args, kwargs, cuda)
    if way.written:
        for name, value in way.named(args, kwargs):
            if name in way.written:
                for t in _flat((value,)):
                    if t.is_cuda:
                        _mark(t, origin.SKIPPED)
    if isinstance(out, torch.Tensor):
        if out.is_cuda:
            _mark(out, origin.SKIPPED)
    else:
        for t in _results(out):
            if t.is_cuda:
                _mark(t, origin.SKIPPED)
    return out


def _left_out(func, way, args, kwargs, cuda):
    """The operation as the stand-in does it, and what that makes of the memory."""
    out = _run(func, way, args, kwargs, cuda)
    written = [t for name, value in way.named(args, kwargs) if name in way.written
               for t in _flat((value,)) if t.is_cuda]
    made = [t for t in _results(out) if t.is_cuda and not any(t is w for w in written)]
    for t in made + written:
        state = origin.SKIPPED
        if way.name in ZERO_MAKERS and memory.is_readable(t) and \
                memory.span(t)[1] - memory.span(t)[0] == _bytes(t) and memory.zero(t):
            state = origin.COMPUTED
        elif way.name in COPIES:
            source = args[1] if way.name == "aten::copy_" else args[0]
            state = state_of(source) if _is_whole_copy(t, source) else origin.SKIPPED
        _mark(t, state)
    return out


# computing


def _operation(func, way, args, kwargs, cuda):
    index = _device_of(cuda, kwargs)
    if torch.cuda.is_current_stream_capturing():
        notes.op("captured")  # the host may not wait here, and a graph would not compute it again
        return _left_out(func, way, args, kwargs, cuda)
    if way.is_simple and cuda and not _is_small(cuda):
        notes.left(way.name)
        return _left_out_simply(func, way, args, kwargs, cuda)
    if way.is_scalar:
        return _answer(func, way, args, kwargs, cuda, index)
    if way.name in COPIES:
        source, to_host = _copy_of(way, args, kwargs)
        if to_host:
            return _copy_to_host(func, args, kwargs, source, index)
        if not source.is_cuda:
            return _copy_to_device(func, args, kwargs, source, index)
    if way.name == "aten::lift_fresh":
        out = func(*args, **kwargs)
        if _parts(out) is None:
            _mark(out, origin.COPIED)  # torch.tensor: PyTorch has copied it to the device without a word to modes
        return out
    if way.name in FRESH_MAKERS:
        out = func(*args, **kwargs)
        for t in _results(out):
            _mark(t, origin.FRESH)
        return out
    if way.makes_sparse or any(t.layout == torch.sparse_coo for t in cuda):
        out = _sparse(func, way, args, kwargs, cuda, index)
        return _left_out(func, way, args, kwargs, cuda) if out is None else out
    is_shaped = way.is_shaped
    if way.has_indices:
        args, is_shaped = _without_masks(way, args, index), False
        cuda = [t for t in _flat(args) if t.is_cuda]
    if way.name == "aten::masked_select" and not _is_small(cuda) and _is_small((args[1],)):
        return _select_some(args, index)
    if way.is_foreach and not _is_small(cuda):
        return _each(func, way, args, kwargs, index)
    if not way.has_host or settings.now.bytes == 0 or not _is_small(cuda) or \
            not all(memory.is_readable(t) for t in cuda):
        notes.left(way.name)
        _say_nested(cuda)
        if is_shaped:
            _read_shape(cuda, index)
        return _left_out(func, way, args, kwargs, cuda)
    return _compute(func, way, args, kwargs, cuda, is_shaped, index)


def _compute(func, way, args, kwargs, cuda, is_shaped, index):
    named = way.named(args, kwargs)
    written = [t for name, value in named if name in way.written for t in _flat((value,)) if t.is_cuda]
    read = [t for name, value in named if name not in way.unread for t in _flat((value,)) if t.is_cuda]
    if way.name in forms.TABLE:
        read = [t for name, value in named if name in forms.READ for t in _flat((value,)) if t.is_cuda]
    if way.name in SHAPED_MAKERS:
        read = []
    if way.name in WITH_BETA and kwargs.get("beta", 1) == 0:
        read = [t for t in read if t is not args[0]]  # what it holds does not matter then, and may be anything
    if written:
        return _in_place(func, way, args, kwargs, written, read, index)
    if is_shaped:
        return _shaped(func, way, args, kwargs, cuda, read, index)
    try:
        out = func(*args, **kwargs)
    except (RuntimeError, IndexError, ValueError):
        out = _made_on_host(func, way, args, kwargs, cuda, read, index)
        if out is None:
            raise  # the job's own mistake, or nothing that the host can do
        return out
    if not _is_small([t for t in _results(out) if t.is_cuda]):
        notes.left(way.name)
        for t in _results(out):
            _mark(t, origin.SKIPPED)
        return out
    memory.wait(index)
    states = _ready(read)
    _write(way, out, _on_host(func, way, args, kwargs, {}), _state_after(way, states), ())
    return out


def _state_after(way, states):
    return states[0] if way.name in COPIES and len(states) == 1 else origin.of_result(states)


def _ready(read):
    """The states of what an operation reads, after --values random."""
    states = []
    for t in read:
        state = state_of(t)
        states.append(origin.RANDOM if _fill(t, state) else state)
    return states


def _on_host(func, way, args, kwargs, instead):
    """The operation on host tensors over the same memory; `instead` has those that stand for a tensor, by id. Returns
    its results in a list; None where the host cannot. What the host cannot do with short floats is tried with long
    ones: some of its kernels have no short ones, and others want statistics in another type than the device's."""
    form = forms.TABLE.get(way.name)
    if form is not None:
        func = form
    why = None
    for is_long in (False, True):
        if is_long and not any(t.dtype in SHORT_FLOATS for t in _flat(args) if t.is_cuda):
            break
        try:
            return _run_on_host(func, way, args, kwargs, instead, is_long)
        except Exception as error:  # an index out of range, say: told by its name and number in the report
            why = error
    if isinstance(why, NotImplementedError):
        way.has_host = False  # PyTorch has no such kernel for the host, and says so before it has done anything
    _failed(way)
    return None


def _run_on_host(func, way, args, kwargs, instead, is_long):
    hosts = {}  # an argument that comes twice is the same host tensor twice

    def change(t):
        if not t.is_cuda:
            return t
        if id(t) not in hosts:
            h = instead.get(id(t))
            h = memory.host(t) if h is None else h
            hosts[id(t)] = h.float() if is_long and h.dtype in SHORT_FLOATS else h
        return hosts[id(t)]

    host_args = [_map(a, change) for a in args]
    host_kwargs = {name: _map(value, change) for name, value in kwargs.items()}
    if getattr(host_kwargs.get("device"), "type", None) == "cuda":
        host_kwargs["device"] = torch.device("cpu")
    host_kwargs.pop("pin_memory", None)
    if way.is_random:
        out = _with_seed(func, host_args, host_kwargs, args, kwargs)
    else:
        out = func(*host_args, **host_kwargs)
    for key, h in instead.items():
        if key in hosts and hosts[key] is not h:
            h.copy_(hosts[key])
    # A result that is an argument is the tensor that stands for it.
    back = {id(h): instead[key] for key, h in hosts.items() if key in instead}
    return [back.get(id(r), r) for r in (_results(out) if not isinstance(out, forms.Results) else out)]


def _failed(way):
    notes.op("failed")
    notes.failed(way.full)


def _generator_of(args, kwargs):
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Generator) and value.device.type == "cuda":
            return value
    return torch.cuda.default_generators[torch.cuda.current_device()]


def _with_seed(func, host_args, host_kwargs, args, kwargs):
    """The device's generator says where its numbers stand; the host's begins there, and is put back afterwards: the
    job's own numbers on the host are those of a run without the mode."""
    g = _generator_of(args, kwargs)
    place = numbers.key(g.initial_seed() & ((1 << 63) - 1), True, None, ("", 0, ""), g.get_offset())
    host_args = [None if isinstance(a, torch.Generator) else a for a in host_args]
    host_kwargs = {n: None if isinstance(v, torch.Generator) else v for n, v in host_kwargs.items()}
    with _rng_lock:
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(place)
        try:
            return func(*host_args, **host_kwargs)
        finally:
            torch.set_rng_state(before)


def _write(way, out, results, state, written):
    """Writes what the host computed into the memory of what the device made, but for `written`."""
    made = _results(out)
    if results is not None and way.name in forms.TABLE:
        wanted = out if isinstance(out, (list, tuple)) else (out,)
        results = [r for r, o in zip(results + [None] * (len(wanted) - len(results)), wanted)
                   if isinstance(o, torch.Tensor)]
    fits = results is not None and len(results) == len(made)
    if fits:
        # What is kept for the backward alone may have another form on the host, or not be there.
        results = [r if r is not None and not m.is_nested and m.shape == r.shape else None
                   for m, r in zip(made, results)]
        fits = not made or results[0] is not None or way.name in forms.TABLE
    if results is not None and not fits:
        _failed(way)
    for i, m in enumerate(made):
        if not m.is_cuda or any(m is w for w in written):
            continue
        is_there = fits and results[i] is not None
        if is_there and memory.is_readable(m):
            memory.host(m).copy_(results[i])
        _mark(m, state if is_there else origin.SKIPPED)
    if fits:
        notes.op("computed")


def _is_covered(func, args, kwargs):
    """Whether an operation that writes to places writes each place of its first argument."""
    cover = torch.zeros(args[0].shape, dtype=torch.uint8)
    at = PLACED[func._schema.name]  # of what is written
    if len(args) <= at or not isinstance(args[at], torch.Tensor) or any(args[at + 1:]) or kwargs:
        return False
    places = [_map(a, lambda t: memory.host(t) if t.is_cuda else t) for a in args[1:at]]
    try:
        func(cover, *places, torch.ones(args[at].shape, dtype=torch.uint8))
        return bool(cover.all())
    except Exception:
        return False


def _in_place(func, way, args, kwargs, written, read, index):
    """The host computes on copies first, because a part of the device's operation may be a real copy or fill."""
    memory.wait(index)
    if way.name in PLACED and state_of(args[0]) >= origin.SKIPPED and _is_covered(func, args, kwargs):
        read = [t for t in read if t is not args[0]]
    if way.name == "aten::_fused_sgd_" and kwargs.get("is_first_step"):
        read = [t for t in read if not any(t is m for m in args[2])]  # momenta begin with this step
    state = _state_after(way, _ready(read))
    copies = {id(t): memory.host(t).clone() for t in written}
    results = _on_host(func, way, args, kwargs, dict(copies))
    out = func(*args, **kwargs)
    memory.wait(index)
    for t in written:
        if results is not None and copies[id(t)].shape == t.shape:
            memory.host(t).copy_(copies[id(t)])
        _mark(t, state if results is not None else origin.SKIPPED)
    if all(any(m is w for w in written) for m in _results(out)):
        if results is not None:
            notes.op("computed")
    else:
        _write(way, out, results, state, written)
    return out


def _each(func, way, args, kwargs, index):
    """An operation on lists, of which some tensors are too long: those of the same place in all lists are left out."""
    lists = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor)]
    out = func(*args, **kwargs)
    if settings.now.bytes == 0 or not lists or not all(
            _is_small([t]) for a in args if isinstance(a, torch.Tensor) for t in (a,)):
        notes.left(way.name)
        return _spoil_each(way, out, args, kwargs, range(len(lists[0]) if lists else 0))
    n = len(lists[0])
    chosen = [i for i in range(n) if all(_is_small((x[i],)) and memory.is_readable(x[i]) and x[i].is_cuda
                                         for x in lists if len(x) == n)]
    left = sorted(set(range(n)) - set(chosen))
    memory.wait(index)
    if chosen:
        def some(a):
            return [a[i] for i in chosen] if isinstance(a, (list, tuple)) and len(a) == n else a

        part_args, part_kwargs = [some(a) for a in args], {name: some(v) for name, v in kwargs.items()}
        named = way.named(part_args, part_kwargs)
        written = [t for name, v in named if name in way.written for t in _flat((v,)) if t.is_cuda]
        read = [t for _, v in named for t in _flat((v,)) if t.is_cuda]
        state = origin.of_result(_ready(read))
        # In place at once: no kernel has run, and the device's operation on lists copies nothing.
        results = _on_host(func, way, part_args, part_kwargs, {id(t): memory.host(t) for t in written})
        for t in written:
            single = not any(t is x for a in part_args if isinstance(a, list) for x in a)
            _mark(t, origin.SKIPPED if results is None else max(state, origin.PARTLY) if single else state)
        if results is not None:
            made = _results(out)
            if made and not written and len(made) == n == len(results) + len(left):
                _write(way, [made[i] for i in chosen], results, state, ())
            else:
                notes.op("computed")
    return _spoil_each(way, out, args, kwargs, left)


def _spoil_each(way, out, args, kwargs, left):
    for name, value in way.named(args, kwargs):
        if name in way.written and isinstance(value, (list, tuple)):
            for i in left:
                if i < len(value):
                    _mark(value[i], origin.SKIPPED)
    made = _results(out)
    if not way.written:
        for i in left:
            if i < len(made):
                _mark(made[i], origin.SKIPPED)
    return out


# values that the host asks for


def _answer(func, way, args, kwargs, cuda, index):
    """An operation whose result is a number of the host."""
    memory.wait(index)
    for t in cuda:
        _supply(t, "item" if way.name == "aten::_local_scalar_dense" else "equal")
    if way.name != "aten::_local_scalar_dense" and settings.now.bytes and _is_small(cuda) and \
            all(memory.is_readable(t) for t in cuda):
        host = {id(t): memory.host(t) for t in cuda}
        return func(*[_map(a, lambda t: host.get(id(t), t)) for a in args], **kwargs)
    return func(*args, **kwargs)


def _copy_of(way, args, kwargs):
    """(source, whether the host receives it)."""
    if way.name == "aten::copy_":
        return args[1], not args[0].is_cuda
    device = kwargs.get("device")
    return args[0], args[0].is_cuda and device is not None and device.type == "cpu"


def _copy_to_host(func, args, kwargs, source, index):
    memory.wait(index)
    _supply(source, "copy")
    out = func(*args, **kwargs)
    if memory.is_readable(source) and source.numel() and not _is_whole_copy(out, source):
        torch.cuda.current_stream(index).synchronize()
        out.copy_(memory.host(source))  # on the device a kernel would have brought it into this form
    return out


def _copy_to_device(func, args, kwargs, source, index):
    out = func(*args, **kwargs)
    if not out.is_cuda:
        return out
    if memory.is_readable(out) and not _is_whole_copy(out, source):
        memory.wait(index)
        memory.host(out).copy_(source)
    for part in _parts_of(out):
        _mark(part, origin.COPIED)
    return out


def _read_shape(tensors, index):
    memory.wait(index)
    for t in tensors:
        _supply(t, "shape")


def _shaped(func, way, args, kwargs, cuda, read, index):
    """The shape of the result depends on values. The device's operation would read a count that no kernel has
    written, so it is left out; its result is made here."""
    _read_shape(cuda, index)
    out = _made_on_host(func, way, args, kwargs, cuda, read, index)
    return _left_out(func, way, args, kwargs, cuda) if out is None else out


def _made_on_host(func, way, args, kwargs, cuda, read, index):
    """The operation without the device's part: its results are made here. None where the host cannot. So is an
    operation computed whose device's part reads back, inside, what no kernel has written, and stumbles over it."""
    memory.wait(index)
    states = _ready(read)
    results = _on_host(func, way, args, kwargs, {})
    if results is None:
        return None
    made = [_to_device(r, cuda[0].device, origin.of_result(states)) for r in results]
    notes.op("computed")
    mask = dict(way.named(args, kwargs)).get("output_mask")
    if mask is not None and len(made) == sum(mask):
        made = [made.pop(0) if is_wanted else None for is_wanted in mask]
    return made[0] if len(made) == 1 and len(func._schema.returns) == 1 else tuple(made)


def _made_by_shape(func, args, kwargs, device):
    """An operation for which cuDNN's stand-in has no engine: its results, as PyTorch's own arithmetic of shapes says
    them, computed by nobody."""
    def change(t):
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")

    out = func(*(_map(a, change) for a in args), **{name: _map(v, change) for name, v in kwargs.items()})

    def to_device(m):
        t = torch.empty_strided(m.shape, m.stride(), dtype=m.dtype, device=device)
        _mark(t, origin.SKIPPED)
        return t

    notes.left(func._schema.name)
    return _map(out, to_device)


def _run(func, way, args, kwargs, cuda):
    """The device's operation."""
    try:
        return func(*args, **kwargs)
    except RuntimeError as why:
        if not way.is_convolution or not any(word in str(why) for word in NO_ENGINE):
            raise
        return _made_by_shape(func, args, kwargs, cuda[0].device)


def _to_device(r, device, state):
    """A device's tensor with the numbers of the host's."""
    if r.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(_to_device(r._indices(), device, state), _to_device(r._values(), device, state),
                                       r.shape, is_coalesced=r.is_coalesced(), check_invariants=False)
    m = torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=device)
    memory.host(m).copy_(r)
    _mark(m, state)
    return m


def _parts_of(t):
    return [t._indices(), t._values()] if t.layout == torch.sparse_coo else [t]


def _sparse(func, way, args, kwargs, cuda, index):
    """An operation on sparse tensors, whose device's part counts with kernels: the host alone does it. None where a
    part is too long, or the result would be written into a sparse tensor."""
    named = way.named(args, kwargs)
    written = [t for name, value in named if name in way.written for t in _flat((value,)) if t.is_cuda]
    parts = [p for t in cuda for p in _parts_of(t)]
    if not way.has_host or settings.now.bytes == 0 or not _is_small(parts) or \
            not all(memory.is_readable(p) for p in parts) or any(t.layout != torch.strided for t in written):
        return None
    read = [p for name, value in named if name not in way.unread for t in _flat((value,)) if t.is_cuda
            for p in _parts_of(t)]
    if not written:
        return _made_on_host(func, way, args, kwargs, cuda, read, index)
    memory.wait(index)
    state = origin.of_result(_ready(read))
    if _on_host(func, way, args, kwargs, {id(t): memory.host(t) for t in written}) is None:
        return None
    for t in written:
        _mark(t, state)
    notes.op("computed")
    return written[0] if len(written) == 1 else tuple(written)


def _without_masks(way, args, index):
    """Masks among the indices become indices, computed by the host: the device's operation would count what a mask
    selects with a kernel."""
    at = way.arguments.index("indices")
    masks = [i for i in args[at] if i is not None and i.is_cuda and i.dtype in (torch.bool, torch.uint8)]
    if not masks or settings.now.bytes == 0 or not _is_small(masks) or not all(memory.is_readable(m) for m in masks):
        if masks:
            _read_shape(masks, index)
        return args
    _read_shape(masks, index)
    indices = []
    for i in args[at]:
        if not any(i is m for m in masks):
            indices.append(i)
            continue
        state = _state_after(way, [state_of(i)])
        for place in memory.host(i).to(torch.bool).nonzero(as_tuple=True):
            one = place.to(i.device)
            _mark(one, state)
            indices.append(one)
    return (*args[:at], indices, *args[at + 1:])


def _select_some(args, index):
    """Of a long tensor the rows that a short mask selects: as many as that, and nobody computed them."""
    source, mask = args
    _read_shape((mask,), index)
    count = int(memory.host(mask).expand(torch.broadcast_shapes(mask.shape, source.shape)).sum())
    out = torch.empty(count, dtype=source.dtype, device=source.device)
    _mark(out, origin.SKIPPED)
    notes.left("aten::masked_select")
    return out


def mark_skipped(t):
    """A kernel that the mode does not see has written to `t`."""
    if settings.now.bytes is not None and memory.is_hostcuda():
        _mark(t, origin.SKIPPED)


# the mode of this thread


def is_here():
    return getattr(_here, "mode", None) is not None


def _follow_printing():
    """PyTorch prints a tensor outside all modes, where nothing would be computed: a short one is printed from the
    host."""
    module = torch._tensor_str
    plain = getattr(module, "_tensor_str", None)
    if plain is None or hasattr(plain, "_rollcall"):
        return

    def of_host(self, indent):
        if is_here() and self.is_cuda and _is_small((self,)) and memory.is_hostcuda() and memory.is_readable(self):
            memory.wait(self.device.index)
            _supply(self, "copy")
            self = memory.host(self.detach()).clone()
        return plain(self, indent)

    of_host._rollcall = True
    module._tensor_str = of_host


def _follow_higher_order():
    """Operations that take functions (torch.cond, flex_attention): PyTorch refuses them under a mode that has no rule
    for each. What they do without a mode is right here, too: the operations of their functions come to the mode."""
    kind = torch._ops.HigherOrderOperator
    plain, key = kind.dispatch, torch._C.DispatchKey
    if hasattr(plain, "_rollcall"):
        return

    def dispatch(self, dispatch_key, /, *args, **kwargs):
        if dispatch_key == key.Python and type(_python_dispatch._get_current_dispatch_mode()) is HostValues:
            dense = self.py_kernels.get(key.CompositeExplicitAutograd)
            if dense is not None and all(_is_plain_type(type(t)) for t in _flat_deep((args, list(kwargs.values())))):
                return _dense(dense, args, kwargs)
        return plain(self, dispatch_key, *args, **kwargs)

    dispatch._rollcall = True
    kind.dispatch = dispatch


def _dense(dense, args, kwargs):
    try:
        return dense(*args, **kwargs)
    except AssertionError as why:
        if "Mode should never be enabled" not in str(why):
            raise
    # Some refuse any mode before they have done anything: of these only the functions run under the mode.
    if dense.__name__ == "cond_op_dense":
        args = (bool(args[0]), *args[1:])  # it is read back here
    mode = _python_dispatch._pop_mode()

    def under(function):
        def call(*args, **kwargs):
            _python_dispatch._push_mode(mode)
            try:
                return function(*args, **kwargs)
            finally:
                _python_dispatch._pop_mode()
        return call if callable(function) and not isinstance(function, torch.Tensor) else function

    try:
        return dense(*(under(a) for a in args), **kwargs)
    finally:
        _python_dispatch._push_mode(mode)


def _keep_from_compiler():
    """torch.compile's hook for frames leaves this one alone; _set_eval_frame does so for those that it calls."""
    code, frames = HostValues.__torch_dispatch__.__code__, torch._C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        frames.skip_code(code)
    elif hasattr(frames, "set_code_exec_strategy"):
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))


def push():
    _keep_from_compiler()
    _follow_printing()
    _follow_higher_order()
    if not is_here():
        _here.mode = HostValues()
        _python_dispatch._push_mode(_here.mode)


def pop():
    if is_here():
        stack = _python_dispatch._get_current_dispatch_mode_stack()
        if not stack or stack[-1] is not _here.mode:
            raise RuntimeError("rollcall.rehearse.disable() inside another dispatch mode")
        _python_dispatch._pop_mode()
        _here.mode = None
