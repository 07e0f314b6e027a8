"""represent.py: PyTorch's process groups where only some of the job's ranks run (`rollcall rehearse --represent`, which
sets HOSTNCCL_PRESENT=RANKS:WORLD). hostnccl stands in for the others in communicators; here they are stood in for
wherever ranks meet before there is a communicator:

- The store of a job waits for all ranks, and rank 0 serves it: it waits for those that run, and the lowest serves it.
- A group's first rank makes the unique id. Where that rank does not run, the lowest that does puts an id in its place.
- The members of each group are told to hostnccl (hostncclTell), which cannot know them otherwise.
- Groups are not made by ncclCommSplit, to which each rank would bring its colour, but by an id of their own.
- Gloo connects its ranks among themselves, and nothing stands in for them: where some do not run it is left out, with
  a line. Calls on tensors of the host then fail in PyTorch, which says that no backend is there for them.

All of this is PyTorch's inside: a release that does it in another way is refused when it is imported, because its ranks
would wait for ever.
"""
import ctypes
import functools
import inspect
import os
import sys

VARIABLE = "HOSTNCCL_PRESENT"
LEFT_OUT = "left_out_by_represent"  # the backend that stands for gloo
BUILT_FROM_IDS = 4  # communicators of one group, each with an id of its own
_told_lines = set()


def say(text):
    """One line, once, of the lowest rank that runs: all ranks would say the same."""
    if text not in _told_lines and _is_lowest(world.running):
        print(f"rollcall: {text}", file=sys.stderr, flush=True)
    _told_lines.add(text)


class World:
    """The ranks that the job believes in, and those that run."""

    def __init__(self, text):
        ranks, _, size = text.partition(":")
        self.size, self.running = int(size), []
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            self.running += range(int(first), int(last or first) + 1)

    def of(self, ranks):
        """Those of the ranks that run, in their order."""
        running = set(self.running)
        return [r for r in ranks if r in running]


world = None


def own_rank():
    return int(os.environ.get("RANK", "-1"))


def _is_lowest(running):
    return bool(running) and own_rank() == running[0]


def _tell(name, ranks):
    numbers = (ctypes.c_int * max(len(ranks), 1))(*ranks)
    if ctypes.CDLL(None).hostncclTell(None if name is None else name.encode(), numbers, len(ranks)) != 0:
        raise RuntimeError(f"{VARIABLE}: hostnccl cannot be told of the group {name}")


def _new_id():
    unique = ctypes.create_string_buffer(128)
    if ctypes.CDLL(None).ncclGetUniqueId(unique) != 0:
        raise RuntimeError(f"{VARIABLE}: ncclGetUniqueId failed")
    return unique.raw


def _put_ids(c10d, store, name, devices):
    """Puts ids where the members of the group look for them (ProcessGroupNCCL, NCCL's part of torch 2.15)."""
    for device in devices:
        at = c10d.PrefixStore(f"{device}/", c10d.PrefixStore(f"{name}/", store))
        for number in range(BUILT_FROM_IDS):
            unique = _new_id()
            at.set(str(number), unique)
            c10d.PrefixStore(name, at).set(f"nccl_storekey_{number}", unique)


def _without_gloo(c10d, backend, name, ranks):
    """The backend of a group of which some ranks do not run."""
    config = c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map()
    kept = {device: kind for device, kind in config.items() if kind != "gloo"}
    if len(kept) == len(config):
        return backend
    say(f"gloo is left out of groups of which some ranks do not run, as of '{name}' of {len(ranks)} ranks: calls on "
        "its host tensors fail")
    return ",".join(f"{device}:{kind}" for device, kind in kept.items()) or LEFT_OUT


def _prepared(c10d, size, ranks, backend, store, name, options):
    """Makes a group's members known, before it is made. Returns the backend that it can have."""
    if not ranks:
        _tell(None, [])  # the default group is the first: nothing of an earlier one holds any more
        ranks = list(range(size))
    if own_rank() not in ranks:
        return backend
    given = getattr(getattr(options, "config", None), "comm_name", None)
    for one in {name, given} - {None, ""}:
        _tell(str(one), ranks)
    running = world.of(ranks)
    if len(running) == len(ranks):
        return backend
    backend = _without_gloo(c10d, backend, name, ranks)
    if ranks[0] not in running and own_rank() == running[0] and "nccl" in str(backend):
        _put_ids(c10d, store, name, c10d.BackendConfig(c10d.Backend(backend)).get_device_backend_map())
    return backend


def _register_left_out(c10d):
    """A backend whose calls fail."""
    def create(store, rank, size, timeout):
        from torch._C._distributed_c10d import FakeProcessGroup

        options = FakeProcessGroup.Options()
        options.error_on_collective = True
        return FakeProcessGroup._create_internal(rank, size, options)

    c10d.Backend.register_backend(LEFT_OUT, create, devices=["cpu", "cuda"])


def _wrap(module, name, make, is_old=True):
    """Puts make(original) in the place of a function, also where other modules have taken it by its name. What is not
    old need not be there: a release without it makes no such calls."""
    original = getattr(module, name, None)
    if original is None:
        if is_old:
            raise ImportError(f"{VARIABLE}: this PyTorch has no {module.__name__}.{name}, so nothing can stand in for "
                              "ranks in its groups: rehearse all ranks")
        return
    wrapper = functools.wraps(original)(make(original))
    for other in list(sys.modules.values()):
        if getattr(other, "__name__", "").startswith("torch.distributed") and vars(other).get(name) is original:
            setattr(other, name, wrapper)


def _store(original):
    def create(hostname, port, rank, world_size, *rest, **more):
        if world_size == world.size and rank in world.running:
            rank, world_size = world.running.index(rank), len(world.running)
        return original(hostname, port, rank, world_size, *rest, **more)
    return create


def _barrier(original):
    def wait(rank, store, group_name, count, *rest, **more):
        # Of a group that its members make among themselves nothing but the number is known here.
        if count == world.size:
            count = len(world.running)
        elif count in _counts.get(str(group_name), {}):
            count = _counts[str(group_name)][count]
        return original(rank, store, group_name, count, *rest, **more)
    return wait


_counts = {}  # name of a group: number of its ranks: how many of them run


def _helper(c10d):
    def make(original):
        def new(size, rank, ranks, backend, store, group_name, *rest, **more):
            members = list(ranks) or list(range(max(size, 0)))
            _counts[str(group_name)] = {len(members): len(world.of(members))}
            options = more.get("backend_options", more.get("pg_options", rest[0] if rest else None))
            backend = _prepared(c10d, size, list(ranks), backend, store, str(group_name), options)
            return original(size, rank, ranks, backend, store, group_name, *rest, **more)
        return new
    return make


def _split(c10d):
    def make(_):
        def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None, group_desc=None, **more):
            parent = parent_pg or c10d._get_default_group()
            of_parent = {place: rank for rank, place in c10d._world.pg_group_ranks[parent].items()}
            for part in split_ranks or ():
                ranks = [of_parent[place] for place in part]
                if own_rank() in ranks:
                    return c10d.new_group(ranks, timeout=timeout, pg_options=pg_options, group_desc=group_desc,
                                          use_local_synchronization=True,
                                          **{name: more[name] for name in ("backend",) if more.get(name)})
            return c10d.GroupMember.NON_GROUP_MEMBER
        return split_group
    return make


def _objects(c10d):
    """Objects that come from a rank that does not run: what another rank holds in their place is none of them."""
    def make(original):
        signature = inspect.signature(original)

        def call(*rest, **more):
            given = signature.bind(*rest, **more)
            given.apply_defaults()
            of = given.arguments
            source, group = of.get("src"), of.get("group") or c10d._get_default_group()
            place = of.get("group_src")
            if source is None and (place is not None or original.__name__ != "recv_object_list"):
                source = c10d.get_global_rank(group, place or 0)
            if source is not None and not world.of([source]):
                raise RuntimeError(f"{VARIABLE}: {original.__name__} from rank {source}, which is stood in for: nobody "
                                   "knows its objects; let it be one of the ranks that run")
            return original(*rest, **more)
        return call
    return make


def follow():
    """Once torch has been imported."""
    global world
    text = os.environ.get(VARIABLE, "")
    if not text or world is not None:
        return
    import torch.distributed as dist
    if not dist.is_available():
        return
    import torch.distributed.device_mesh  # takes functions by their names
    import torch.distributed.rendezvous  # a function of that name hides the module
    from torch.distributed import distributed_c10d as c10d
    world = World(text)
    _register_left_out(c10d)
    _wrap(sys.modules["torch.distributed.rendezvous"], "_create_c10d_store", _store)
    _wrap(c10d, "_store_based_barrier", _barrier)
    _wrap(c10d, "_new_process_group_helper", _helper(c10d))
    for name in ("broadcast_object_list", "scatter_object_list", "recv_object_list"):
        _wrap(c10d, name, _objects(c10d), is_old=False)
    _wrap(c10d, "split_group", _split(c10d), is_old=False)
    _wrap(c10d, "_get_split_source", lambda original: lambda *rest, **more: None, is_old=False)
