#!/usr/bin/env python3
"""The hazards of docs/MOE.md, each as a program of moe_train that has it, with its healthy twin: what rollcall says of
both.

usage: check_hazards.py BIN_DIR [OPTION of rollcall run]...

Programs run three at a time. One that hangs is ended as soon as it has been named: its own watchdog only ends what
rollcall does not see.
"""
import concurrent.futures
import os
import sys
import tempfile

from job import Programs, command, findings, read, run, run_until, show

PROGRAMS = Programs(sys.argv[1])
AT_ONCE = 3
STEPS, WATCHDOG, LIMIT_S = ["--steps", "6"], ["--timeout", "500"], 300


class Case:
    """sick, healthy: options of moe_train. want: the findings that must be there, {(code, certainty): culprits or None
    for any}. only: no other codes than those."""

    def __init__(self, hazard, sick, healthy, want, ranks=4, also=()):
        self.hazard, self.sick, self.healthy = hazard, sick, healthy
        self.want, self.ranks, self.also = want, ranks, also


def program(name, want, also=()):
    number = {"aux-tracker": "H8", "overlap-order": "H10", "comm-order": "H11", "grad-norm": "H17", "found-inf": "H18",
              "idle-rank": "H22"}.get(name, "H16")
    return Case(f"{number} {name}", f"--ep 2 --hazard {name}", f"--ep 2 --hazard {name}:healthy", want, also=also)


ALL = [0, 1, 2, 3]
EMPTY = "--ep 2 --empty-every 3"
# Predicted first; the proven verdict confirms it and is what stands.
OBLIGATION = {("moe-obligation-missing", "proven"): None}
PREDICTED = ("moe-obligation-missing", "moe-tokens-unequal", "moe-capacity-differs")
CASES = [
    Case("H1 skip-empty", f"{EMPTY} --legacy skip-empty", EMPTY, OBLIGATION),
    Case("H2 bucket-wait", "--ep 1 --overlap --vary-tokens --legacy skip-empty --legacy bucket-wait",
         "--ep 1 --overlap --vary-tokens", {("moe-obligation-missing", "suspected"): None}),
    Case("H3 only-with-grad", "--ep 1 --buckets 100000 --vary-tokens --legacy skip-empty --legacy only-with-grad",
         "--ep 1 --buckets 100000 --vary-tokens", {("zero-count", "proven"): [0, 2]}),
    Case("H4 empty-unpermute", f"{EMPTY} --dispatcher allgather --legacy empty-unpermute",
         f"{EMPTY} --dispatcher allgather", {("zero-count", "proven"): None}),
    Case("H5 empty-from-input", f"{EMPTY} --legacy empty-from-input", EMPTY, OBLIGATION),
    Case("H6 empty-returns-early", f"{EMPTY} --dispatcher deepep --legacy empty-returns-early",
         f"{EMPTY} --dispatcher deepep", OBLIGATION),
    Case("H7 uneven tokens", "--ep 2 --dispatcher hybridep --vary-tokens",
         "--ep 2 --dispatcher hybridep --vary-tokens --uneven max", {("moe-tokens-unequal", "proven"): None}),
    program("aux-tracker", {("count-mismatch", "proven"): [1]}),
    Case("H9 recompute-flip", "--ep 2 --recompute --legacy recompute-flip",
         "--ep 2 --recompute --legacy recompute-flip --keep-routing", {("moe-recompute-differs", "proven"): None},
         also=("call-skipped", "p2p-unmatched", "p2p-bytes", "alltoallv-mismatch", "rank-finished", "rank-dead")),
    program("overlap-order", {("calls-reordered", "suspected"): None}),
    # Two ranks in each order.
    program("comm-order", {("circular-wait", "proven"): []}),
    Case("H12 static-rows", "--ep 2 --capacity 0.5 --legacy static-rows", "--ep 2 --capacity 0.5",
         {("moe-split-sum", "proven"): None}, also=("p2p-unmatched", "rank-finished", "rank-dead", "call-skipped")),
    Case("H13 local-capacity",
         "--ep 4 --experts 4 --tokens 32 --capacity 1 --pad-capacity --vary-tokens --legacy local-capacity",
         "--ep 4 --experts 4 --tokens 32 --capacity 1 --pad-capacity", {("moe-capacity-differs", "proven"): None}),
    Case("H14 wgrad-uninitialised", f"{EMPTY} --facts --legacy wgrad-uninitialised", f"{EMPTY} --facts",
         {("gradient-not-finite", "proven"): None}),
    Case("H15 router-unsummed", "--ep 2 --tp 2 --tp-mode shard --facts --legacy router-unsummed",
         "--ep 2 --tp 2 --tp-mode shard --facts", {("gradient-not-summed", "proven"): ALL}),
    Case("H15 router-summed-twice", "--ep 2 --tp 2 --tp-mode split --facts --legacy router-summed-twice",
         "--ep 2 --tp 2 --tp-mode split --facts", {("gradient-not-summed", "proven"): None}),
    program("bias-bf16", {("gradient-not-summed", "proven"): ALL}),
    program("bias-group", {("gradient-not-summed", "proven"): ALL}),
    program("bias-twice", {("gradient-not-summed", "proven"): ALL}),
    program("grad-norm", {("gradient-not-summed", "proven"): ALL}),
    program("found-inf", {("rank-finished", "proven"): [1]}),
    program("idle-rank", {("circular-wait", "suspected"): [1]}),
]


def missing(case, found):
    """The findings that the case wants and that are not there."""
    return [(code, certainty) for (code, certainty), culprits in case.want.items()
            if not any(v["code"] == code and v["certainty"] in (certainty, "proven")
                       and culprits in (None, v["culprits"]) for v in found)]


def faults(tmp, number):
    """What is wrong about one case: lines, empty where all is as it should be."""
    case = CASES[number]
    wrong = []
    sick, healthy = (os.path.join(tmp, f"{number}-{twin}.json") for twin in ("sick", "healthy"))
    argv = {out: command(PROGRAMS, case.ranks, out, ["--policy", "observe", *sys.argv[2:]],
                         [*options.split(), *STEPS, *WATCHDOG])
            for out, options in ((sick, case.sick), (healthy, case.healthy))}
    done = run(argv[healthy])
    if findings(read(healthy)) or done.returncode != 0:
        wrong += [f"{case.hazard}: the healthy twin: status {done.returncode}", show(findings(read(healthy))),
                  done.stderr[-400:]]
    found, _, err = run_until(argv[sick], sick, lambda seen: not missing(case, seen), LIMIT_S)
    if missing(case, found):
        wrong += [f"{case.hazard}: no finding {missing(case, found)}", show(found), err[-400:]]
    wrong += [f"{case.hazard}: {v['code']} was not predicted" for v in found
              if v["code"] in PREDICTED and v["certainty"] == "proven" and v["confirms"] is None]
    allowed = {code for code, _ in case.want} | set(case.also)
    others = [v for v in found if v["code"] not in allowed]
    if others:
        wrong += [f"{case.hazard}: findings about something else", show(others)]
    return wrong


with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
    results = list(pool.map(lambda number: faults(folder, number), range(len(CASES))))
lines = [str(line) for result in results for line in result]
print("\n".join(lines) or f"{len(CASES)} hazards named, {len(CASES)} healthy twins silent")
sys.exit(1 if lines else 0)
