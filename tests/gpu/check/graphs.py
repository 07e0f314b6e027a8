"""graphs.py: collectives captured into CUDA graphs and replayed: the data, what rollcall says, and the cost of a launch."""
import json
import time

import ranks

COLUMNS = ["case", "happened", "verdict", "launch_p50_ns", "launch_p99_ns", "ok"]
LIMIT_S = 30.0
HANG_S = 2.0
CASES = {"healthy, bare": ("healthy", None), "healthy": ("healthy", set()), "capture-some": ("capture-some", {"capture-mismatch"}),
         "graph-differ": ("graph-differ", {"graph-mismatch"})}
NOT_HERE = 77


def run(tree, size, case):
    mode, expected = CASES[case]
    argv, seen = [tree.program("gpu_graphs"), mode], []

    def enough(verdicts):
        if not seen and any(v["code"] in expected for v in verdicts):
            seen.append(time.monotonic())
        return bool(seen) and time.monotonic() - seen[0] > HANG_S

    if expected is None:
        ended = ranks.bare(tree, argv, size, LIMIT_S)
    else:
        ended = ranks.watched(tree, argv, size, LIMIT_S, enough if expected else None)
    found = ended.findings()
    what = {None: "hang", 0: "fine", 8: "wrong data", NOT_HERE: "no graphs in this CUDA runtime"}.get(ended.status, f"status {ended.status}")
    if what.startswith("status"):
        what += ": " + ended.err[-120:].strip()
    ok = ended.status == 0 and not found if not expected else bool(found) and all(v["code"] in expected for v in found)
    figures = json.loads(ended.out.strip().splitlines()[-1])["graph_launch"] if ended.status == 0 and ended.out.strip() else {}
    return {"case": case, "happened": what, "verdict": "; ".join(f"{v['certainty']} {v['code']} {v['culprits_text'] or 'tie'}" for v in found) or "none",
            "launch_p50_ns": figures.get("p50_ns"), "launch_p99_ns": figures.get("p99_ns"), "ok": ok}


def main(tree, results, part, options, until):
    done = results.begin(part, COLUMNS)
    left = [case for case in CASES if case not in done]
    while left and time.monotonic() < until:
        results.row(part, run(tree, options.ranks, left.pop(0)))
    return sum(not row["ok"] for row in results.data["parts"][part]["rows"]), not left
