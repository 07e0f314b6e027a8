#!/usr/bin/env python3
"""The ctypes declarations of moe_core.py and of rollcall.moe.linear against what the compiler says: check_layout.py
LAYOUT_PROGRAM. Every struct, member and enumerator on both sides."""
import ctypes
import subprocess
import sys

import moe_core
from rollcall.moe import linear

PREFIX = {"SCORE": "MOE_SCORE_", "ACTIVATION": "MOE_", "PLACE": "MOE_PROB_", "DISPATCHER": "MOE_DISPATCH_",
          "TP_MODE": "MOE_TP_", "ROUTER_SUM": "MOE_ROUTER_SUM_", "RECOMPUTE": "MOE_RECOMPUTE_", "UNEVEN": "MOE_UNEVEN_",
          "PHASE": "ROLL_PHASE_", "ERROR": "MOE_E_"}
TYPES = {"torch.float32": "MOE_F32", "torch.bfloat16": "MOE_BF16", "torch.float16": "MOE_F16"}


def of_c(program):
    sizes, members, enums = {}, {}, {}
    for line in subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, *rest = line.split()
        if kind == "enum":
            enums[rest[0]] = int(rest[1])
        elif kind == "size":
            sizes[" ".join(rest[:-1])] = int(rest[-1])
        else:
            members[" ".join(rest[:-3]), rest[-3]] = (int(rest[-2]), int(rest[-1]))
    return sizes, members, enums


def of_python():
    structs = [s for s in [*vars(moe_core).values(), *vars(linear).values()] if isinstance(s, type) and
               issubclass(s, ctypes.Structure) and s is not ctypes.Structure]
    sizes = {s._c_name_: ctypes.sizeof(s) for s in structs}
    members = {(s._c_name_, name): (getattr(s, name).offset, getattr(s, name).size) for s in structs
               for name, _ in s._fields_}
    enums = {prefix + word.upper(): value for table, prefix in PREFIX.items()
             for word, value in getattr(moe_core, table).items()}
    enums.update({TYPES[str(dtype)]: value for dtype, value in moe_core.DTYPE.items()})
    enums.update({"MOE_MICROBATCH_FIRST": linear.FIRST, "MOE_MICROBATCH_LATER": linear.LATER})
    enums.update({"MOE_LOSS_" + name.upper(): i for i, name in enumerate(moe_core.LOSSES)})
    enums.update({"MOE_LAYER_" + name.upper(): i for i, name in enumerate(moe_core.PARAMETERS)})
    return sizes, members, enums


bad = 0
for what, ours, theirs in zip(("size", "member", "enumerator"), of_python(), of_c(sys.argv[1])):
    for key in sorted(ours.keys() | theirs.keys(), key=str):
        if ours.get(key) != theirs.get(key):
            print(f"{what} {key}: moe_core.py has {ours.get(key)}, the headers have {theirs.get(key)}")
            bad += 1
    print(f"{len(theirs)} {what}s compared")
sys.exit(1 if bad else 0)
