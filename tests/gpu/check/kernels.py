"""kernels.py: every function of the CUDA back end on the GPU against the host's, outputs poisoned first, with the speed of those whose speed matters.

On the stand-in both sides are the host's: that tries the check, not the kernels.
"""
import json

import ranks

COLUMNS = ["kernel", "shapes", "worst_in_tolerances", "large_shape_ms", "tb_per_s", "of_copy", "tflops", "beside", "note", "ok"]
LIMIT_S = 420.0


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
        results.row(part, row)
    if not rows or ended.status not in (0, 1):
        raise RuntimeError(f"gpu_kernels: status {ended.status}: {ended.err[-300:].strip()}")
    return sum(not row["ok"] for row in rows), True
