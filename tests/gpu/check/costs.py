"""costs.py: what single calls cost, bare, recorded, and with each way of learning completion; and our record alone, on
a fake NCCL.

The five sides take turns, so that a drift of the machine meets all of them; a row has the median over the rounds of
each side's p50 and p99. A side whose way was refused (the library says so, and its rings do) has no figures: those of
"off" under another name would be a lie.
"""
import json
import statistics
import time

import ranks

QUANTILES = ("p50_ns", "p99_ns")
# ROLLCALL_COMPLETION
SIDES = {"bare": None, "recorded": "off", "write": "write", "counter": "counter", "event": "event"}
COLUMNS = ["call", *(f"{side}_{q}" for side in SIDES for q in QUANTILES), "difference_p50_ns", "calls", "runs", "ok"]
LIMIT_S = 90.0
PART_S = 180.0  # no further round after so long: the other parts want their time as well


def one(tree, side):
    """The figures of one run, and what its rings say."""
    way = SIDES[side]
    preload, more = (None, {}) if way is None else (tree.preload, {"ROLLCALL_COMPLETION": way})
    ended = ranks.bare(tree, [tree.program("gpu_costs")], 2, LIMIT_S, preload, **more)
    if ended.status != 0:
        raise RuntimeError(f"gpu_costs, {side}: status {ended.status}: {ended.err[-300:].strip()}")
    return json.loads(ended.out.strip().splitlines()[-1]), ended


def refused(side, ended):
    """Why a way of learning completion was not in force, or None. A ring that never saw anything complete is no proof
    that it was."""
    if SIDES[side] is None:
        return None
    if len(ended.rings) != 2:
        return f"{len(ended.rings)} ranks of 2 were recorded: {ended.err[-200:].strip()}"
    for ring in ended.rings:
        if ring["way"] != SIDES[side]:
            return f"the library refused: {ended.err[-200:].strip()}"
        if SIDES[side] != "off" and ring["done"] == 0:
            return "nothing was ever complete"
    return None


def record(tree):
    """Our record with call site, by the program that roll_bench uses."""
    # The rank finds its own NCCL, a fake one, by its run path.
    ended = ranks.bare(tree, [tree.bench], 1, LIMIT_S, tree.preload, LD_LIBRARY_PATH="")
    if ended.status != 0:
        raise RuntimeError(f"roll_bench_rank: status {ended.status}: {ended.err[-300:].strip()}")
    sides = json.loads(ended.out)
    bare, ours = sides["bare"], sides["preloaded"]
    return {"call": "one record, call site of 8 frames (fake NCCL, per call in batches)",
            "bare_p50_ns": bare["batch_p50"], "bare_p99_ns": bare["batch_p99"], "recorded_p50_ns": ours["batch_p50"],
            "recorded_p99_ns": ours["batch_p99"], "difference_p50_ns": round(ours["batch_p50"] - bare["batch_p50"], 1),
            "runs": 1, "ok": True}


def measure(tree, rounds, until):
    """side -> its runs, in turn; and side -> why it has none."""
    runs, without = {side: [] for side in SIDES}, {}
    while len(runs["bare"]) < rounds and (not runs["bare"] or time.monotonic() < until):
        for side in SIDES:
            if side not in without:
                figures, ended = one(tree, side)
                why = refused(side, ended)
                without.update({side: why} if why else {})
                runs[side].append(figures)
    return {side: found for side, found in runs.items() if side not in without}, without


def main(tree, results, part, options, until):
    done = results.begin(part, COLUMNS)
    if done:
        return 0, True
    runs, without = measure(tree, options.repeat, min(until, time.monotonic() + PART_S))
    rows = [record(tree)]
    for call, first in runs["bare"][0].items():
        row = {"call": call, "runs": len(runs["bare"]), "ok": True}
        if first is not None:
            for side, found in runs.items():
                for q in QUANTILES:
                    row[f"{side}_{q}"] = statistics.median(run[call][q] for run in found)
            row["calls"] = first["calls"]
            if "recorded" in runs:
                row["difference_p50_ns"] = row["recorded_p50_ns"] - row["bare_p50_ns"]
        rows.append(row)
    for row in rows:
        results.row(part, row)
    for side, why in without.items():
        results.note(part, f"{side}: no figures: {why}")
    return int("recorded" in without), True
