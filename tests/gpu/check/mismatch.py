"""mismatch.py: every program of the fault catalogue on this NCCL: what really happens, and what rollcall says.

What happens is one of: hang (not over when it should be), error (a call refused), wrong data (over, and some rank got
something else), died (the program's own death is its mistake), fine. It is compared with the table of docs/HOSTNCCL.md:
on the stand-in with its column "Here", which must hold; on a real NCCL with its column "NCCL", where a difference is a
finding of this check, not a failure. What rollcall says must hold everywhere.

Several ranks take turns on one GPU, so a program may take milliseconds or seconds: its healthy twin runs first, and a
sick one hangs when it takes that much longer than the twin did after the verdict. A fixed limit would call a slow
machine's corruption a hang.
"""
import concurrent.futures
import os
import re
import subprocess
import time

import place
import ranks

COLUMNS = ["program", "expected", "happened", "verdict", "verdict_ms", "seconds", "as_expected", "ok"]
# With the verdict there, a job hangs that has not ended for so long, and for longer than its healthy twin took.
HANG_S = 4.0
LIMIT_S = 60.0   # for any program: several ranks that share a GPU start slowly
# What a real NCCL may do to the ranks of a sick job once it has been found sick: an error on the network, and they end.
CONSEQUENCES = {"rank-dead", "rank-finished"}
STAND_IN_HANG_S = 1.0

# Program: the row of docs/HOSTNCCL.md that it is a case of, and what its column "Here" comes to.
ROW = {
    "wrong-op": ("different function", "hang"),
    "wrong-count": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "wrong-count-gather": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "wrong-dtype": ("different type, equal bytes, in a reduction", "wrong data"),
    "wrong-redop": ("different reduction operation", "wrong data"),
    "wrong-root": ("different root", "hang"),
    "zero-count": ("zero count on one rank", "hang"),
    "skipped": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "added": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "reordered": ("different order on one communicator", "hang"),
    "branches": ("different function", "hang"),
    "barrier-branch": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "bytes-differ": ("less sent than received", "hang"),
    "unmatched": ("send without receive, receive without send", "hang"),
    "head-to-head": ("two ranks that both send first, without a group", "hang"),
    "alltoallv": ("less sent than received", "hang"),
    "opposite-host": ("different order of two communicators on one stream", "hang"),
    "opposite-stream": ("different order of two communicators on one stream", "hang"),
    "opposite-events": ("different order of two communicators on one stream", "hang"),
    "ring-of-pairs": ("different order of two communicators on one stream", "hang"),
    "killed": ("a peer dies", "hang"),
    "crashed": ("a peer dies", "hang"),
    "finished": ("a rank does not come", "hang"),
    "stopped": ("a rank does not come", "hang"),
    "busy": ("a rank does not come", "hang"),
    "blocked": ("send without receive, receive without send", "hang"),
    "never-joined": ("init, split or window registration without a rank", "hang"),
    "empty-forward": ("send without receive, receive without send", "hang"),
    "empty-backward": ("send without receive, receive without send", "hang"),
    "empty-alone": ("send without receive, receive without send", "hang"),
    "lone-caller": ("a rank does not come", "hang"),
    "lone-behind": ("a rank does not come", "hang"),
    "wrong-comm": ("a rank does not come", "hang"),
    "abort-left": ("a rank does not come", "hang"),
    "abort-stays": ("a rank does not come", "hang"),
    "abort-beside": ("a rank does not come", "hang"),
    "left-behind": ("a peer dies", "hang"),
    "skip-then-split": ("a rank does not come", "hang"),
    "split-skipped": ("init, split or window registration without a rank", "hang"),
    "sizes-differ": ("init with different sizes, or one rank twice", "hang"),
    "rank-twice": ("init with different sizes, or one rank twice", "hang"),
    "skip-then-messages": ("a rank does not come", "hang"),
    "zero-then-messages": ("zero count on one rank", "hang"),
    "added-in-group": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "then-killed": ("a peer dies", "hang"),
    "then-skipped": ("different bytes in a reduction, all-gather, broadcast, reduce-scatter", "hang"),
    "group-opposite-old": ("the same inside one group, with `HOSTNCCL_GROUP_ORDER=program`", "hang"),
    "second-stream": ("send without receive, receive without send", "hang"),
    "order-across-streams": ("send without receive, receive without send", "hang"),
    "send-first": ("two ranks that both send first, without a group", "hang"),
    "null-buffer": ("a null buffer of more than zero elements", "hang"),
    "other-type-gather": ("different type, equal bytes, in all-gather, broadcast, point-to-point", "fine"),
    "other-type-broadcast": ("different type, equal bytes, in all-gather, broadcast, point-to-point", "fine"),
    "poll-turns": ("different order of two communicators on one stream", "hang"),
    "poll-opposite": ("different order of two communicators on one stream", "hang"),
    "poll-skipped": ("a rank does not come", "hang"),
    "same-bytes": ("different type, equal bytes, in all-gather, broadcast, point-to-point", "fine"),
}


def documented():
    """The table of docs/HOSTNCCL.md: case -> (here, NCCL)."""
    with open(os.path.join(place.ROOT, "docs", "HOSTNCCL.md")) as f:
        text = f.read()
    table = text[text.index("## What a disagreement does"):]
    return {case.strip(): (here.strip(), nccl.strip())
            for case, here, nccl in re.findall(r"(?m)^\| ([^|]+)\|([^|]+)\|([^|]+)\|$", table)}


def waiting():
    """Sick programs that the engine does not tell yet, or not as it should: tests/catalogue/CMakeLists.txt."""
    with open(os.path.join(place.ROOT, "tests", "catalogue", "CMakeLists.txt")) as f:
        found = re.search(r"(?s)set\(roll_catalogue_waiting ([^)]*)\)", f.read())
    return set(found.group(1).split()) if found else set()


def programs(tree):
    """The catalogue's own table: name -> (verdict codes, culprit rule, least ranks)."""
    listed = subprocess.run([tree.program("roll_catalogue"), "--list"], capture_output=True, text=True, check=True,
                            env=dict(os.environ, LD_LIBRARY_PATH=tree.libraries)).stdout
    rows = [line.split("\t") for line in listed.splitlines()]
    for r in rows:
        r[1:3] = ("-", "-") if r[3] == "note" else r[1:3]  # nothing hangs, and a note is no finding
    return {r[0]: (re.split(r"[|+]", r[1]), re.split(r"[|+]", r[2]), int(r[5])) for r in rows}


def happened(ended):
    """What a program came to, from its status and what its ranks said."""
    if ended.status is None:
        return "hang"
    if "wrong data" in ended.err:
        return "wrong data"
    if ended.status == 0:
        return "fine"
    said = re.search(r"catalogue: (nccl.*|cuda.*)", ended.err)
    if ended.status == 9 or said:
        return "error: " + (said.group(1)[-60:] if said else "unknown")
    return f"status {ended.status}"


def tells(verdict, expected):
    """Whether it is the expected verdict. Where a check waits for each call nothing follows the mistake: then it may
    only be said which it may be."""
    return verdict["code"] in expected or verdict["certainty"] != "proven" and bool(expected
                                                                                    & set(verdict.get("may_be") or ()))


def may_follow(text, what):
    """Whether the documented outcome of a real NCCL, a sentence, allows what happened."""
    kind = what.split(":")[0]
    words = {"hang": "hang|wait|same", "wrong data": "wrong data|corruption|garbage|short data|silent",
             "fine": "right|may pass|may run|done", "error": "error|InvalidUsage", "status": "error"}
    return re.search(words.get(kind, "$^"), text) is not None


class Check:
    def __init__(self, tree, size, results, part):
        self.tree, self.size, self.results, self.part = tree, size, results, part
        self.table, self.documented = programs(tree), documented()
        self.hang_s = STAND_IN_HANG_S if tree.stand_in else HANG_S

    def cases(self, names=None):
        """Programs with the modes to run, the healthy twin first."""
        for name, (codes, _, least) in self.table.items():
            if least <= self.size and (names is None or name in names):
                told = name not in waiting() and (name in ROW or codes != ["-"])
                yield name, ("healthy", "sick") if told else ("healthy",)

    def judge(self, name, mode, what):
        """What is documented to happen, whether that did, and whether it has to."""
        if mode == "healthy":
            return "fine", what == "fine", True
        if name not in ROW:
            return None, None, False
        row, here = ROW[name]
        if self.tree.stand_in:
            return here, what == here, True
        nccl = self.documented[row][1]
        wanted = f"{self.documented[row][0]} ({nccl})" if nccl.startswith("same") else nccl
        return wanted, may_follow(wanted, what), False

    def fits(self, found, right):
        """Whether the right verdict came first and nothing wrong after it: on a real NCCL ranks may then really die."""
        wrong = [v for v in found if v not in right]
        return bool(right) and found[0] in right and (not wrong or not self.tree.stand_in
                                                      and all(v["code"] in CONSEQUENCES for v in wrong))

    def run(self, name, mode, twin_s):
        """One row; `twin_s`: how long the healthy twin took."""
        codes, codes_two, _ = self.table[name]
        expected = set(codes_two if self.size == 2 else codes) - {"-"}
        sick = mode == "sick" and bool(expected)
        seen = []

        def enough(verdicts):
            if not seen and any(tells(v, expected) for v in verdicts):
                seen.append(time.monotonic())
            return bool(seen) and time.monotonic() - seen[0] > max(self.hang_s, twin_s)

        more = {"ROLL_CATALOGUE_CHECK": "1"}
        ended = ranks.watched(self.tree, [self.tree.program("roll_catalogue"), name, mode], self.size, LIMIT_S,
                              enough if sick else None, **more)
        found = ended.findings()
        right = [v for v in found if tells(v, expected)]
        what = happened(ended)
        wanted, as_expected, must = self.judge(name, mode, what)
        # The message fitted a buffer: nothing is to be said.
        passed = what == "fine" and as_expected and not found and not self.tree.stand_in
        verdict_ok = self.fits(found, right) or passed if sick else not found
        ok = verdict_ok and (as_expected or not must)
        ms = round((right[0]["time_ns"] - right[0]["event_ns"]) / 1e6, 1) if right else None
        said = "; ".join(sorted({f"{v['certainty']} {v['code']} {v['culprits_text'] or 'tie'}"
                                 for v in found})) or "none"
        return {"program": f"{name} {mode}", "expected": wanted, "happened": what, "verdict": said, "verdict_ms": ms,
                "seconds": round(ended.seconds, 1), "as_expected": as_expected, "ok": ok}


def main(tree, results, part, options, until):
    """Every case that has no row yet, a few at once; stops in time. Returns how many rows are wrong, and whether all
    are there."""
    check = Check(tree, options.ranks, results, part)
    done = results.begin(part, COLUMNS)
    todo = [(name, [m for m in modes if f"{name} {m}" not in done]) for name, modes in check.cases(options.programs)]
    todo = [(name, modes) for name, modes in todo if modes]
    took = {row["program"]: row["seconds"] for row in results.data["parts"][part]["rows"]}

    def pair(name, modes):
        rows = []
        for mode in modes:
            rows.append(check.run(name, mode, took.get(f"{name} healthy", 0.0)))
            took[f"{name} {mode}"] = rows[-1]["seconds"]
        return rows

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        waiting = set()
        while (todo and time.monotonic() < until) or waiting:
            while todo and len(waiting) < options.jobs and time.monotonic() < until:
                waiting.add(pool.submit(pair, *todo.pop(0)))
            finished, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in finished:
                for row in future.result():
                    results.row(part, row)
    rows = results.data["parts"][part]["rows"]
    return sum(not row["ok"] for row in rows), not todo
