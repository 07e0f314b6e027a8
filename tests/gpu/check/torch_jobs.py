"""torch_jobs.py: PyTorch jobs on this GPU, alone, under the preload, and with a branch that depends on the rank."""
import os
import socket
import sys
import time

import mismatch
import place
import ranks

COLUMNS = ["case", "happened", "verdict", "seconds", "ok"]
LIMIT_S = 90.0
HANG_S = 2.0
SKIPPED = {"call-skipped", "call-added", "sequence-tie", "count-mismatch", "op-mismatch"}
CASES = [("ddp", False), ("ddp", True), ("moe", False), ("moe", True)]


def python(stand_in):
    """The Python that holds torch: the one that runs this, for its NCCL is the one under test; with the stand-in
    Debian's may be another."""
    look = "import importlib.util; print('torch' if importlib.util.find_spec('torch') else '')"
    for path in (sys.executable, "/usr/bin/python3") if stand_in else (sys.executable,):
        if place.output(path, "-c", look):
            return path
    raise RuntimeError(f"{sys.executable} has no PyTorch: run gpu-check with the Python that has")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def losses(ended):
    return [float(line.split()[3]) for line in ended.out.splitlines() if line.startswith("step ")]


def equal(one, other):
    """Loss curves, but for what a device's own order of additions may do."""
    return len(one) == len(other) > 0 and all(abs(a - b) <= 1e-3 * max(1.0, abs(a)) for a, b in zip(one, other))


def run(tree, size, kind, mistake):
    more = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [python(tree.stand_in), os.path.join(place.ROOT, "tests", "gpu", "torch_job.py"), kind]
    argv += ["--backend", "hostnccl"] if tree.stand_in else []
    case = f"{kind} {'sick' if mistake else 'healthy'}"
    if mistake:
        seen = []

        def enough(verdicts):
            if not seen and any(v["certainty"] != "note" for v in verdicts):
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() - seen[0] > HANG_S

        ended = ranks.watched(tree, argv + ["--mistake"], size, LIMIT_S, enough, MASTER_PORT=free_port(), **more)
        found = ended.findings()
        may_follow = set() if tree.stand_in else mismatch.CONSEQUENCES
        ok = bool(found) and found[0]["code"] in SKIPPED and all(v["code"] in SKIPPED | may_follow
                                                                 for v in found) and (size == 2
                                                                                      or any(v["culprits"] == [size - 1]
                                                                                             for v in found))
        what = "hang" if ended.status is None else f"status {ended.status}"
    else:
        alone = ranks.bare(tree, argv, size, LIMIT_S, MASTER_PORT=free_port(), **more)
        ended = ranks.watched(tree, argv, size, LIMIT_S, MASTER_PORT=free_port(),
                              **more) if alone.status == 0 else alone
        found = ended.findings()
        same = equal(losses(alone), losses(ended))
        ok = alone.status == 0 and ended.status == 0 and same and not found
        what = f"status {alone.status} alone, {ended.status} recorded, losses {'equal' if same else 'differ'}"
        if not ok:
            what += ": " + (ended.err or alone.err)[-200:].strip()
    said = "; ".join(f"{v['certainty']} {v['code']} {v['culprits_text'] or 'tie'}" for v in found) or "none"
    return {"case": case, "happened": what, "verdict": said, "seconds": round(ended.seconds, 1), "ok": ok}


def main(tree, results, part, options, until):
    if not tree.stand_in:
        python(False)
        version, usable = place.torch_version() or (None, False)
        if not usable:
            raise RuntimeError(f"PyTorch {version} of {sys.executable} has no NCCL, or sees no GPU")
    done = results.begin(part, COLUMNS)
    cases = [c for c in CASES if not tree.stand_in or c[0] == "ddp"]
    left = [(k, m) for k, m in cases if f"{k} {'sick' if m else 'healthy'}" not in done]
    while left and time.monotonic() < until:
        results.row(part, run(tree, min(options.ranks, 4), *left.pop(0)))
    return sum(not row["ok"] for row in results.data["parts"][part]["rows"]), not left
