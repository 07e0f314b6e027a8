"""groups.py: what the job calls its process groups, and which of its lines made them. NCCL's communicators have the
name that PyTorch gives them, and that is a number as a rule. The report has them by a note, and verdicts while the job
runs by the library that records it (rollcall.tell), where that is preloaded. Called once PyTorch is there."""
import functools
import sys

from rollcall import tell
from rollcall.rehearse import notes, sites


def _tell(made):
    group = made[0] if isinstance(made, tuple) else made
    size, name = getattr(group, "size", None), getattr(group, "group_name", None)
    if callable(size) and name is not None:
        site = sites.of_caller()
        notes.group(size(), name, getattr(group, "group_desc", ""), site)
        tell.group(group, site)


def follow():
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    for name in "_new_process_group_helper", "split_group":
        plain = getattr(c10d, name, None)
        if plain is None or hasattr(plain, "_rollcall"):
            continue

        def make(*args, _plain=plain, **kwargs):
            made = _plain(*args, **kwargs)
            try:
                _tell(made)
            except Exception:
                pass  # the report lacks a name
            return made

        functools.update_wrapper(make, plain)
        make._rollcall = True
        for module in [m for n, m in list(sys.modules.items()) if n.startswith("torch.distributed")]:
            if vars(module).get(name) is plain:  # others of PyTorch's modules have imported the function by its name
                setattr(module, name, make)
