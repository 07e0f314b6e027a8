"""costs.py: what single calls cost, bare and recorded, in turn; and our record alone, on a fake NCCL.

Bare and preloaded runs alternate, so that a drift of the machine meets both; a row has the median over the runs of each side's p50 and p99.
"""
import json
import statistics
import time

import ranks

COLUMNS = ["call", "bare_p50_ns", "bare_p99_ns", "recorded_p50_ns", "recorded_p99_ns", "difference_p50_ns", "runs", "ok"]
LIMIT_S = 60.0


def one(tree, preload):
    ended = ranks.bare(tree, [tree.program("gpu_costs")], 2, LIMIT_S, preload)
    if ended.status != 0:
        raise RuntimeError(f"gpu_costs {'with' if preload else 'without'} the preload: status {ended.status}: {ended.err[-300:].strip()}")
    return json.loads(ended.out.strip().splitlines()[-1])


def record(tree):
    """Our record with call site, by the program that roll_bench uses."""
    ended = ranks.bare(tree, [tree.bench], 1, LIMIT_S, tree.preload, LD_LIBRARY_PATH="")  # its own NCCL, a fake one, by run path
    if ended.status != 0:
        raise RuntimeError(f"roll_bench_rank: status {ended.status}: {ended.err[-300:].strip()}")
    sides = json.loads(ended.out)
    bare, ours = sides["bare"], sides["preloaded"]
    return {"call": "one record, call site of 8 frames (fake NCCL, per call in batches)", "bare_p50_ns": bare["batch_p50"],
            "bare_p99_ns": bare["batch_p99"], "recorded_p50_ns": ours["batch_p50"], "recorded_p99_ns": ours["batch_p99"],
            "difference_p50_ns": round(ours["batch_p50"] - bare["batch_p50"], 1), "runs": 1, "ok": True}


def main(tree, results, part, options, until):
    done = results.begin(part, COLUMNS)
    if done:
        return 0, True
    sides = {None: [], tree.preload: []}
    while len(sides[None]) < options.repeat and (not sides[None] or time.monotonic() < until):
        for preload, runs in sides.items():
            runs.append(one(tree, preload))
    for call, first in sides[None][0].items():
        row = {"call": call, "runs": len(sides[None]), "ok": True}
        if first is not None:
            for name, preload in (("bare", None), ("recorded", tree.preload)):
                for q in ("p50_ns", "p99_ns"):
                    row[f"{name}_{q}"] = statistics.median(run[call][q] for run in sides[preload])
            row["difference_p50_ns"] = row["recorded_p50_ns"] - row["bare_p50_ns"]
        results.row(part, row)
    results.row(part, record(tree))
    return 0, True
