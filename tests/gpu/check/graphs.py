"""graphs.py: collectives captured into CUDA graphs and replayed: the data, what rollcall says, and the cost of a
launch.

Once more with each way of learning completion: it must neither spoil a capture nor the data, and by the end the device
has to have said that work is complete, and with `counter` how many replays.
"""
import json
import time

import ranks

COLUMNS = ["case", "happened", "verdict", "launch_p50_ns", "launch_p99_ns", "ok"]
LIMIT_S = 30.0
HANG_S = 2.0
CASES = {"healthy, bare": ("healthy", None), "healthy": ("healthy", set()),
         "capture-some": ("capture-some", {"capture-mismatch"}), "graph-differ": ("graph-differ", {"graph-mismatch"})}
COMPLETION = {f"healthy, completion {way}": way for way in ("write", "counter", "event")}
REPLAYS = 208  # of gpu_graphs healthy
NOT_HERE = 77


def outcome(ended):
    what = {None: "hang", 0: "fine", 8: "wrong data",
            NOT_HERE: "no graphs in this CUDA runtime"}.get(ended.status, f"status {ended.status}")
    return what + (": " + ended.err[-120:].strip() if what.startswith("status") else "")


def row(case, ended, what, verdict, ok):
    figures = json.loads(ended.out.strip().splitlines()[-1])[
        "graph_launch"] if ended.status == 0 and ended.out.strip() else {}
    return {"case": case, "happened": what, "verdict": verdict, "launch_p50_ns": figures.get("p50_ns"),
            "launch_p99_ns": figures.get("p99_ns"), "ok": ok}


def learnt(way, rings, size):
    """What is wrong with what the rings say, or None."""
    if [ring["way"] for ring in rings] != [way] * size:
        return f"completion was {', '.join(ring['way'] for ring in rings) or 'in no ring'}"
    if any(ring["done"] == 0 for ring in rings):
        return "nothing was ever complete"
    if way == "counter" and any(ring["replays"] != REPLAYS for ring in rings):
        return f"{', '.join(str(ring['replays']) for ring in rings)} replays counted, not {REPLAYS}"
    return None


def run_completion(tree, size, case):
    way = COMPLETION[case]
    ended = ranks.bare(tree, [tree.program("gpu_graphs"), "healthy"], size, LIMIT_S, tree.preload,
                       ROLLCALL_COMPLETION=way)
    wrong = learnt(way, ended.rings, size) if ended.status == 0 else None
    what = outcome(ended) if wrong is None else f"fine, but {wrong}: {ended.err[-200:].strip()}"
    return row(case, ended, what, None, ended.status == 0 and wrong is None)


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
    ok = ended.status == 0 and not found if not expected else bool(found) and all(v["code"] in expected for v in found)
    said = "; ".join(f"{v['certainty']} {v['code']} {v['culprits_text'] or 'tie'}" for v in found) or "none"
    return row(case, ended, outcome(ended), said, ok)


def main(tree, results, part, options, until):
    done = results.begin(part, COLUMNS)
    left = [(case, cases) for cases in (CASES, COMPLETION) for case in cases if case not in done]
    while left and time.monotonic() < until:
        case, cases = left.pop(0)
        results.row(part, (run if cases is CASES else run_completion)(tree, options.ranks, case))
    return sum(not row["ok"] for row in results.data["parts"][part]["rows"]), not left
