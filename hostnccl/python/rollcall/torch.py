"""rollcall.torch: names for what a PyTorch job does, for verdicts (docs/PYTORCH.md).

    import rollcall.torch

is enough: process groups get the names that the job gives them and the line that made them; each step of the first
optimizer is a step, which begins where the job clears the gradients, if it does so at the head of its loop; the
collectives of DistributedDataParallel and FullyShardedDataParallel get the names of the parameters whose gradients or
shards they carry. A job that counts its steps itself calls step(number).

Where rollcall is not preloaded nothing of this happens, and step() returns at once. PyTorch may be imported before or
after. Nothing here raises: a name that cannot be had is left out.
"""
import functools
import os
import sys
import weakref

from rollcall import tell

__all__ = ["active", "name_group", "step"]

_OURS = os.path.dirname(os.path.abspath(__file__))
_tell_step = tell.step
active = _tell_step is not None  # rollcall is preloaded into this process


def _quietly(function):
    """A name that cannot be had must not cost the job anything."""
    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except Exception:
            return None
    return call


# steps

# by: the optimizer whose steps are counted; own: the job counts; begins: a step begins where the optimizer's gradients
# are cleared, because the job did so before the optimizer's first step (None: it has not yet been seen); over: the step
# is over and the next one has not begun.
_counted = {"step": 0, "by": None, "own": False, "begins": None, "over": False}


def _is_compiling():
    """Whether torch.compile traces this: it can follow no call of ours. _follow puts PyTorch's own function here."""
    return False


if active:
    def step(number):
        """Tells that the training step of this number (from 0) begins. From the first call on only these count. Within
        a function that torch.compile compiles it tells nothing."""
        if not _is_compiling():
            _step(number)
else:
    def step(number):
        """Tells that the training step of this number (from 0) begins; rollcall is not here, and nothing happens."""


@_quietly
def _step(number):
    number = int(number)
    _counted["own"] = True
    _tell_step(number, tell.JOB)
    if _waiting:
        _name_waiting()


def _is_counted(optimizer):
    by = _counted["by"]
    return not _counted["own"] and by is not None and by() is optimizer


def _optimizer_made(optimizer):
    if not _counted["own"] and (_counted["by"] is None or _counted["by"]() is None):
        _counted.update(by=weakref.ref(optimizer), begins=None, over=False)
        _tell_step(_counted["step"], tell.OPTIMIZER)


@_quietly
def _optimizer_stepped(optimizer, _args, _kwargs):
    if _is_counted(optimizer):
        # One whose gradients were not cleared since its last step: that is no sign of a step's beginning here.
        _counted["begins"] = bool(_counted["begins"]) and not _counted["over"]
        _counted["step"] += 1
        _counted["over"] = _counted["begins"]
        if not _counted["over"]:
            _tell_step(_counted["step"], tell.OPTIMIZER)
    if _waiting:
        _name_waiting()


def _gradients_cleared(optimizer):
    """The beginning of a loop's body, where the job clears before its first step: so what comes behind the last step of
    the optimizer is of that step, and not of one that never begins."""
    if _is_counted(optimizer):
        if _counted["begins"] is None:
            _counted["begins"] = True
        elif _counted["over"]:
            _counted["over"] = False
            _tell_step(_counted["step"], tell.OPTIMIZER)


def _profiler_stepped(profiler):
    """torch.profiler counts from where it was started, so its count is told only where nothing better is."""
    _tell_step(max(int(profiler.step_num), 0), tell.PROFILER)


def _profiler_stopped(_profiler):
    _tell_step(tell.NO_STEP, tell.PROFILER)


# groups

def _caller(torch_folder):
    """(file, line, function) of the job's own line that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_OURS, torch_folder, "<frozen")) and not name.endswith("/functools.py"):
            return name, frame.f_lineno or 0, frame.f_code.co_name
        frame = frame.f_back
    return "", 0, ""


@_quietly
def name_group(group, name):
    """Names a process group of torch.distributed; the job's word beats the description that the group was made with."""
    _group_made(group, name)


def _label(group):
    return getattr(group, "group_name", "") or ""


def _group_made(group, name=None):
    if tell.name is not None:
        tell.group(group, _caller(os.path.dirname(os.path.abspath(sys.modules["torch"].__file__)) + os.sep), name)


# tensors

_waiting = []  # [rounds left, weak reference to a DistributedDataParallel, what is known of its buckets]


def _size(count):
    for unit in "bytes", "KiB", "MiB", "GiB":
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024


def _span(names):
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _name_call(group, count, what, names, shapes, size):
    inside = f"{len(names)} parameters, {_size(size)}" if len(names) != 1 else f"{shapes[0]}, {_size(size)}"
    text = tell.text(f"{what}{_span(names)} ({inside})")
    for label in {_label(group), ""}:  # releases that give NCCL no name of the group have communicators without a label
        tell.name(tell.TENSORS, count, group.size(), tell.text(label), text, b"", b"", 0)


@_quietly
def _name_buckets(model, before):
    """Names the buckets of a DistributedDataParallel; those of its first steps are not those of the others."""
    data = model._get_ddp_logging_data()
    indices = data.get("rebuilt_per_bucket_param_indices") or data.get("initial_per_bucket_param_indices", "")
    if not indices or indices == before:
        return before
    named = {id(p): name for name, p in model.module.named_parameters()}
    kept = [p for name, p in model.module.named_parameters()
            if p.requires_grad and name not in getattr(model, "parameters_to_ignore", ())]
    for number, bucket in enumerate(indices.split(",")):
        parameters = [kept[int(i)] for i in bucket.split()]
        names = [named[id(p)] for p in parameters]
        _name_call(model.process_group, sum(p.numel() for p in parameters), f"bucket {number}: ", names,
                   [str(list(p.shape)) for p in parameters],
                   sum(p.numel() * p.element_size() for p in parameters))
    return indices


def _name_waiting():
    for entry in list(_waiting):
        model = entry[1]()
        if model is not None:
            entry[2] = _name_buckets(model, entry[2])
        entry[0] -= 1
        if entry[0] == 0 or model is None:
            _waiting.remove(entry)


def _ddp_made(model):
    # PyTorch tells the buckets that it keeps once it has told of an iteration with them: its third, as a rule.
    _waiting.append([8, weakref.ref(model), ""])


@_quietly
def _name_shards(group):
    """Names the all-gathers and reduce-scatters of one group of parameters of FSDP2."""
    parameters = group.fsdp_params
    names = [p._param_fqn or "?" for p in parameters]
    count = sum(p._sharded_param_data.numel() for p in parameters)
    size = sum(p._sharded_param_data.numel() * p._sharded_param_data.element_size() for p in parameters)
    name = getattr(group, "_module_fqn", None)
    _name_call(group._all_gather_process_group, count, f"shards of {name}: " if name else "shards of ", names,
               [str(list(p._orig_size)) for p in parameters], size * group._all_gather_process_group.size())


# following PyTorch

def _after(owner, name, told, outside=None):
    """Has told(first argument or result) called behind owner.name. outside: keeps a function out of what torch.compile
    compiles."""
    plain = getattr(owner, name, None)
    if plain is None or hasattr(plain, "_rollcall_torch"):
        return None
    told = _quietly(told)

    @functools.wraps(plain)
    def call(*args, **kwargs):
        result = plain(*args, **kwargs)
        told(args, result)
        return result

    call = call if outside is None else outside(call)
    call._rollcall_torch = True
    setattr(owner, name, call)
    return plain, call


def _follow_groups(c10d):
    for name in "_new_process_group_helper", "split_group":
        changed = _after(c10d, name, lambda _, made: _group_made(made[0] if isinstance(made, tuple) else made))
        for where, module in list(sys.modules.items()) if changed else ():  # a module of others may load when asked
            if where.startswith("torch.distributed") and vars(module).get(name) is changed[0]:
                setattr(module, name, changed[1])  # others of PyTorch's modules have imported it by its name
    for group in list(getattr(c10d, "_world", None).pg_map if hasattr(c10d, "_world") else ()):
        _group_made(group)  # those that were there before us


@_quietly
def _follow():
    global _is_compiling
    import torch
    import torch.distributed as distributed
    _is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", _is_compiling)
    _after(torch.profiler.profile, "start", lambda args, _: _profiler_stepped(args[0]))
    _after(torch.profiler.profile, "step", lambda args, _: _profiler_stepped(args[0]))
    _after(torch.profiler.profile, "stop", lambda args, _: _profiler_stopped(args[0]))
    if not distributed.is_available():
        return
    from torch.distributed import distributed_c10d
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import optimizer
    _follow_groups(distributed_c10d)
    _after(DistributedDataParallel, "__init__", lambda args, _: _ddp_made(args[0]))
    _after(torch.optim.Optimizer, "__init__", lambda args, _: _optimizer_made(args[0]))
    _after(torch.optim.Optimizer, "zero_grad", lambda args, _: _gradients_cleared(args[0]),
           getattr(torch, "_disable_dynamo", None))
    optimizer.register_optimizer_step_post_hook(_optimizer_stepped)
    for name in "torch.distributed.fsdp._fully_shard._fsdp_param_group", \
            "torch.distributed._composable.fsdp._fsdp_param_group":
        try:
            module = __import__(name, fromlist=["FSDPParamGroup"])
        except ImportError:
            continue
        _after(module.FSDPParamGroup, "lazy_init", lambda args, _: _name_shards_once(args[0]))


def _name_shards_once(group):
    if not getattr(group, "_rollcall_named", False):  # lazy_init is called again
        group._rollcall_named = True
        _name_shards(group)


if active:
    _follow()
