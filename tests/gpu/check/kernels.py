"""kernels.py: every function of the CUDA back end on the GPU against the host's, outputs poisoned first, with the speed
of those whose speed matters.

On the stand-in both sides are the host's: that tries the check, not the kernels.
"""
import json
import os
import sys

import place
import ranks

COLUMNS = ["kernel", "shapes", "worst_in_tolerances", "large_shape_ms", "tb_per_s", "of_copy", "tflops", "beside",
           "note", "ok"]
LIMIT_S = 420.0


def torch_beside(tree, results, part):
    """The speed of torch's grouped product over the same shapes, where this Python has it."""
    ended = ranks.bare(tree, [sys.executable, os.path.join(place.ROOT, "tests", "gpu", "torch_grouped.py")], 1, LIMIT_S)
    for line in ended.out.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            row["ok"] = row.pop("right")
            results.row(part, row)
    if ended.status != 0:
        results.row(part, {"kernel": "torch forward bf16",
                           "note": (ended.err.strip().splitlines() or ["no answer"])[-1][:200], "ok": True})


def main(tree, results, part, options, until):
    if results.begin(part, COLUMNS):
        return 0, True
    rehearsal = ["--rehearse"] if tree.stand_in else []
    ended = ranks.bare(tree, [tree.program("gpu_kernels"), *rehearsal], 1, LIMIT_S)
    rows = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    for row in rows:
        row["ok"] = row.pop("right")
        if tree.stand_in:
            row["note"] = "host against host"
        elif not row["compared"]:
            row.setdefault("note", "nothing was compared: this GPU has no such kernel")
        results.row(part, row)
    if not rows or ended.status not in (0, 1):
        raise RuntimeError(f"gpu_kernels: status {ended.status}: {ended.err[-300:].strip()}")
    if not tree.stand_in:
        torch_beside(tree, results, part)
    return sum(not row["ok"] for row in rows), True
