"""kernels.py: every kernel of kernels/ on the device against its twin on the host, outputs poisoned first."""
import json

import ranks

COLUMNS = ["kernel", "shapes", "worst_in_tolerances", "large_shape_ms", "ok"]
LIMIT_S = 120.0


def main(tree, results, part, options, until):
    if results.begin(part, COLUMNS):
        return 0, True
    ended = ranks.bare(tree, [tree.program("gpu_kernels")], 1, LIMIT_S)
    rows = [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]
    for row in rows:
        row["ok"] = row.pop("right")
        results.row(part, row)
    if not rows or ended.status not in (0, 1):
        raise RuntimeError(f"gpu_kernels: status {ended.status}: {ended.err[-300:].strip()}")
    return sum(not row["ok"] for row in rows), True
