#!/usr/bin/env python3
"""The hazards of docs/MOE.md, each as a program of moe_train that has it, with its healthy twin: what rollcall says of
both, and that a remedy cures what it says it cures.

usage: check_hazards.py BIN_DIR [OPTION of rollcall run]...

Of each finding are checked the code, how certain it is, the ranks it accuses, the step, the communicator and the layer.
Which ranks are without tokens, where and when, the healthy twin says itself (--verbose): it routes alike. A cured job
ends, and has the losses of the healthy one, digit by digit: by name without a tool (MOE_REMEDIES), and under policy
auto, where the remedy is reported as used, and no other one. The healthy twin runs on another number of ranks as well.
With options of rollcall run only the findings are checked, not the cures and not that.

Programs run three at a time. One that hangs is ended as soon as it has been named: its own watchdog only ends what
rollcall does not see.
"""
import concurrent.futures
import os
import re
import sys
import tempfile

from job import Programs, command, findings, losses, read, run, run_until, show

PROGRAMS = Programs(sys.argv[1])
MORE = sys.argv[2:]
AT_ONCE, RANKS = 3, 4
STEPS, WATCHDOG, LIMIT_S = ["--steps", "6"], ["--timeout", "500"], 300
ALL = [0, 1, 2, 3]


class Empty:
    """The ranks without tokens of the first step that has any, as the healthy twin tells: {layer: ranks}."""

    def __init__(self, err):
        told = [tuple(map(int, m)) for m in re.findall(r"rank (\d+): step (\d+), layer (\d+): no tokens", err)]
        self.step = min((step for _, step, _ in told), default=None)
        self.layers = {}
        for rank, step, layer in told:
            if step == self.step:
                self.layers.setdefault(layer, set()).add(rank)

    def of_group(self, group, last):
        """The layer in which the ranks of this group come to grief, the last one or the first one, and who of them."""
        layers = [layer for layer, ranks in self.layers.items() if ranks & group]
        layer = (max if last else min)(layers, default=None)
        return layer, self.layers.get(layer, set()) & group


def told_by(layer, culprits, comm, step):
    """What is expected where the program fixes it: one finding."""
    return lambda empty: [(step, layer, culprits, comm)]


def in_groups(last):
    """One finding for each ep group of two ranks: experts are skipped by the ranks without tokens."""
    def places(empty):
        groups = [empty.of_group(group, last) for group in ({0, 1}, {2, 3})]
        return [(empty.step, layer, sorted(ranks), "ep") for layer, ranks in groups if ranks]
    return places


def everywhere(layer, comm="edp"):
    """All ranks that have no tokens at all in that step."""
    return lambda empty: [(empty.step, layer, sorted(set.intersection(*empty.layers.values())), comm)]


class Case:
    """sick, healthy: options of moe_train. code, certainty, places: what must be found, and nothing else but `also`,
    codes of consequences that may be told beside it. cures: remedies by name; auto: the one that policy auto grants;
    beside: others that are reported as used then."""

    def __init__(self, hazard, sick, healthy, finding, cures=(), auto=None, also=(), beside=()):
        self.hazard, self.sick, self.healthy, self.also, self.beside = hazard, sick, healthy, also, beside
        (self.code, self.certainty), self.places = finding
        self.cures, self.auto = cures, auto
        # How many ranks the healthy twin's other run has: two of its groups of four, else one of two.
        self.others = 8 if re.search("--tp 2|--ep 4", healthy) else 2


def program(name, finding, also=()):
    number = {"aux-tracker": "H8", "overlap-order": "H10", "comm-order": "H11", "grad-norm": "H17", "found-inf": "H18",
              "idle-rank": "H22"}.get(name, "H16")
    return Case(f"{number} {name}", f"--ep 2 --hazard {name}", f"--ep 2 --hazard {name}:healthy", finding, also=also)


EMPTY = "--ep 2 --empty-every 3"
# Predicted first; the proven verdict confirms it and is what stands.
OBLIGATION = ("moe-obligation-missing", "proven")
PREDICTED = ("moe-obligation-missing", "moe-tokens-unequal", "moe-capacity-differs")
UNSUMMED = ("gradient-not-summed", "proven")
ANY = "any"  # of a layer or communicator: a finding about several of them names one
CASES = [
    Case("H1 skip-empty", f"{EMPTY} --legacy skip-empty", EMPTY, (OBLIGATION, in_groups(last=True)),
         cures=("fill", "pad", "dummy"), auto="fill"),
    Case("H2 bucket-wait", "--ep 1 --overlap --vary-tokens --legacy skip-empty --legacy bucket-wait",
         "--ep 1 --overlap --vary-tokens", (("moe-obligation-missing", "suspected"), everywhere(layer=0)),
         cures=("fill",), auto="fill"),
    Case("H3 only-with-grad", "--ep 1 --buckets 100000 --vary-tokens --legacy skip-empty --legacy only-with-grad",
         "--ep 1 --buckets 100000 --vary-tokens", (("zero-count", ("predicted", "proven")), everywhere(layer=None)),
         cures=("fill",), auto="fill"),
    Case("H4 empty-unpermute", f"{EMPTY} --dispatcher allgather --legacy empty-unpermute",
         f"{EMPTY} --dispatcher allgather", (("zero-count", "proven"), in_groups(last=False)),
         cures=("fill",), auto="fill"),
    Case("H5 empty-from-input", f"{EMPTY} --legacy empty-from-input", EMPTY, (OBLIGATION, in_groups(last=True)),
         cures=("fill",), auto="fill"),
    Case("H6 empty-returns-early", f"{EMPTY} --dispatcher deepep --legacy empty-returns-early",
         f"{EMPTY} --dispatcher deepep", (OBLIGATION, in_groups(last=False)), cures=("fill",), auto="fill"),
    # H3 is predicted by the calls alone: the hosts wait in copies, which leave no record.
    # Two ranks in a group: no majority says whose number is right.
    Case("H7 uneven tokens", "--ep 2 --dispatcher hybridep --vary-tokens",
         "--ep 2 --dispatcher hybridep --vary-tokens --uneven max",
         (("moe-tokens-unequal", "proven"), told_by(0, [], "ep", step=0))),
    program("aux-tracker", (("count-mismatch", "proven"), told_by(None, [1], "world", step=2))),
    # Backward begins with the last layer, and every rank's first token has a choice that falls the other way.
    Case("H9 recompute-flip", "--ep 2 --recompute --legacy recompute-flip",
         "--ep 2 --recompute --legacy recompute-flip --keep-routing",
         (("moe-recompute-differs", "proven"), told_by(3, ALL, "ep", step=0)),
         cures=("routing",), auto="routing",
         also=("p2p-unmatched", "p2p-bytes", "alltoallv-mismatch", "rank-finished")),
    # Two ranks in a group, one of each order; and two ranks of the job in each.
    program("overlap-order", (("calls-reordered", "suspected"), told_by(None, [], "ep", step=2))),
    program("comm-order", (("circular-wait", "proven"), told_by(None, [], ANY, step=2))),
    Case("H12 static-rows", "--ep 2 --capacity 0.5 --legacy static-rows", "--ep 2 --capacity 0.5",
         (("moe-split-sum", "proven"), told_by(0, [0, 2], "ep", step=0)), cures=("splits",), auto="splits"),
    Case("H13 local-capacity",
         "--ep 4 --experts 4 --tokens 32 --capacity 1 --pad-capacity --vary-tokens --legacy local-capacity",
         "--ep 4 --experts 4 --tokens 32 --capacity 1 --pad-capacity",
         (("moe-capacity-differs", "proven"), told_by(0, [], "ep", step=0))),
    # Memory that nobody wrote holds NaN the second time: on every rank, and for the experts without rows of each.
    Case("H14 wgrad-uninitialised", f"{EMPTY} --facts --legacy wgrad-uninitialised", f"{EMPTY} --facts",
         (("gradient-not-finite", "proven"), told_by(ANY, ALL, "ep", step=1)), cures=("zero-wgrad",),
         auto="zero-wgrad"),
    Case("H15 router-unsummed", "--ep 2 --tp 2 --tp-mode shard --facts --legacy router-unsummed",
         "--ep 2 --tp 2 --tp-mode shard --facts", (UNSUMMED, told_by(ANY, ALL, "tp", step=0)), cures=("router-sum",),
         auto="router-sum"),
    Case("H15 router-summed-twice", "--ep 2 --tp 2 --tp-mode split --facts --legacy router-summed-twice",
         "--ep 2 --tp 2 --tp-mode split --facts", (UNSUMMED, told_by(ANY, ALL, "tp", step=0))),
    program("bias-bf16", (UNSUMMED, told_by(0, ALL, "world", step=2))),
    program("bias-group", (UNSUMMED, told_by(0, ALL, "world", step=2))),
    program("bias-twice", (UNSUMMED, told_by(0, ALL, "world", step=2))),
    program("grad-norm", (UNSUMMED, told_by(None, ALL, "world", step=2))),
    program("found-inf", (("rank-finished", "proven"), told_by(ANY, [1], "world", step=2))),
    program("idle-rank", (("circular-wait", "suspected"), told_by(None, [1], "ep", step=2))),
]


def lacks(case, found, places):
    """What is not told as it should be, of the findings with the case's code: lines. One finding may tell of several
    groups together; all of them must be accused, and nobody else."""
    ours = [v for v in found if v["code"] == case.code]
    wrong, accused = [], set().union(*[v["culprits"] for v in ours]) if ours else set()
    guilty = {rank for _, _, culprits, _ in places for rank in culprits}
    if not ours or accused != guilty:
        wrong.append(f"no {case.code}" if not ours else f"accused are {sorted(accused)}, guilty {sorted(guilty)}")
    for v in ours:
        steps, layers, _, comms = zip(*places)
        label = (v["comm"] or {}).get("label")
        for what, got, want in (("step", v["step"], steps), ("layer", v["layer"], layers),
                                ("communicator", label, comms)):
            if got not in want and ANY not in want:
                wrong.append(f"{what} {got}, wanted {want}")
        if v["certainty"] not in ((case.certainty,) if isinstance(case.certainty, str) else case.certainty):
            wrong.append(f"it is {v['certainty']}, wanted {case.certainty}")
    return wrong


def cured(case, tmp, number, want):
    """What is wrong about the runs with a remedy on: lines."""
    wrong = []
    for name in case.cures:
        done = run([PROGRAMS.train, "--spawn", str(RANKS), "--exact", *case.sick.split(), *STEPS, *WATCHDOG],
                   env=dict(os.environ, MOE_REMEDIES=name))
        if done.returncode != 0 or losses(done.stdout) != want:
            wrong += [f"{case.hazard}: with {name}: status {done.returncode}, not the losses of the healthy twin",
                      done.stderr[-400:]]
    if case.auto:
        out = os.path.join(tmp, f"{number}-auto.json")
        done = run(command(PROGRAMS, RANKS, out, ["--policy", "auto"], [*case.sick.split(), *STEPS, *WATCHDOG]))
        verdicts = read(out)
        names = [v["remedy"]["name"] for v in verdicts if v["remedied"] and v["remedy"]]
        used = [name for name in names if name == case.auto]
        if done.returncode != 0 or losses(done.stdout) != want or not used:
            wrong += [f"{case.hazard}: policy auto: status {done.returncode}, {len(used)} reports that {case.auto} was "
                      "used, or not the losses of the healthy twin", show(verdicts), done.stderr[-400:]]
        wrong += [f"{case.hazard}: policy auto: {name} is reported as used, and there was nothing to cure for it"
                  for name in sorted({*names} - {case.auto, *case.beside})]
        wrong += [f"{case.hazard}: policy auto: a finding in a job that was cured: {v['text']}"
                  for v in findings(verdicts) if not v["remedied"]]
    return wrong


def elsewhere(case, tmp, number):
    """What is wrong about the healthy twin on another number of ranks: lines."""
    out = os.path.join(tmp, f"{number}-elsewhere.json")
    done = run(command(PROGRAMS, case.others, out, ["--policy", "observe"], [*case.healthy.split(), *STEPS, *WATCHDOG]))
    found = findings(read(out))
    if not found and done.returncode == 0 and len(losses(done.stdout)) == int(STEPS[1]):
        return []
    return [f"{case.hazard}: the healthy twin on {case.others} ranks: status {done.returncode}", show(found),
            done.stderr[-400:]]


def faults(tmp, number):
    """What is wrong about one case: lines, empty where all is as it should be."""
    case = CASES[number]
    wrong = []
    sick, healthy = (os.path.join(tmp, f"{number}-{twin}.json") for twin in ("sick", "healthy"))
    argv = {out: command(PROGRAMS, RANKS, out, ["--policy", "observe", *MORE], [*options.split(), *STEPS, *WATCHDOG])
            for out, options in ((sick, case.sick), (healthy, case.healthy + " --verbose"))}
    done = run(argv[healthy])
    if findings(read(healthy)) or done.returncode != 0:
        wrong += [f"{case.hazard}: the healthy twin: status {done.returncode}", show(findings(read(healthy))),
                  done.stderr[-400:]]
    places = case.places(Empty(done.stderr))
    if not places:
        return [*wrong, f"{case.hazard}: no rank was ever without tokens: the premise failed"]
    found, _, err = run_until(argv[sick], sick, lambda seen: not lacks(case, seen, places), LIMIT_S)
    wrong += [f"{case.hazard}: {line}" for line in lacks(case, found, places)]
    wrong += [f"{case.hazard}: {v['code']} was not predicted" for v in found
              if v["code"] in PREDICTED and v["certainty"] == "proven" and v["confirms"] is None]
    others = [v for v in found if v["code"] != case.code and v["code"] not in case.also]
    if others:
        wrong += [f"{case.hazard}: findings about something else"]
    wrong += cured(case, tmp, number, losses(done.stdout)) + elsewhere(case, tmp, number) if not MORE else []
    return [*wrong, show(found), err[-400:]] if wrong else []


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda number: faults(folder, number), range(len(CASES))))
    lines = [str(line) for result in results for line in result]
    cures = sum(len(case.cures) + (case.auto is not None) for case in CASES)
    print("\n".join(lines) or f"{len(CASES)} hazards named, {len(CASES)} healthy twins silent, {cures} cures hold")
    sys.exit(1 if lines else 0)
