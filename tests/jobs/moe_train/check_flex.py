#!/usr/bin/env python3
"""Uneven numbers of tokens and the Flex dispatchers under rollcall: the hangs are named, their healthy twins have no
finding.

usage: check_flex.py BIN_DIR CASE
"""
import os
import sys
import tempfile

from job import Programs, check, command, findings, read, run, run_until, show

BIN, CASE = sys.argv[1:3]
PROGRAMS = Programs(BIN)
VARY = ["--vary-tokens", "--steps", "4"]
LIMIT_S = 300  # for the verdicts: so late that only one that never comes reaches it


def under_rollcall(tmp, ranks, train_options, policy=()):
    out = os.path.join(tmp, "verdicts.json")
    if os.path.exists(out):
        os.remove(out)
    done = run(command(PROGRAMS, ranks, out, policy, train_options))
    return done, read(out)


def healthy(tmp, ranks, options, policy=()):
    done, verdicts = under_rollcall(tmp, ranks, [*options, "--timeout", "500"], policy)
    check(done.returncode == 0, f"{options}: status {done.returncode}", done.stderr)
    check(not findings(verdicts), f"{options}: a false alarm", show(findings(verdicts)))
    check(f"rollcall: {ranks} ranks, " in done.stderr, "no summary line: was anything recorded?", done.stderr)


def sick(tmp, ranks, options):
    """All that was said up to a proven finding and a moment more, and what of it stands; then the job, which hangs, is
    ended."""
    argv = command(PROGRAMS, ranks, os.path.join(tmp, "verdicts.json"), [], [*options, "--timeout", "500"])
    found, status, err = run_until(argv, os.path.join(tmp, "verdicts.json"),
                                   lambda seen: sum(v["certainty"] == "proven" for v in seen) >= 1, LIMIT_S)
    check(status is None, f"{options} on {ranks} ranks: the job ended by itself, it was to hang", err)
    check([v["certainty"] for v in found] == ["proven"], f"{options} on {ranks} ranks: not one proof", show(found), err)
    return [v for v in read(os.path.join(tmp, "verdicts.json")) if v["certainty"] != "note"], found


def uneven(tmp):
    """Megatron-LM #4816: without the remedy the ranks hang, told before it happens and proven when it has; padded, or
    where nothing needs it, they do not."""
    for ranks in (2, 4, 8):
        for kind in ("allgather",) if ranks == 4 else ("hybridep",):  # hybridep on 4 ranks: check_hazards.py, H7
            found, stands = sick(tmp, ranks, ["--dispatcher", kind, *VARY])
            check(found[0]["certainty"] == "predicted" and stands[0]["number"] != found[0]["number"],
                  "not told before it happens", show(found))
            check(all(v["code"] == "moe-tokens-unequal" for v in found), "another finding about the same cause",
                  show(found))
            check(found[0]["step"] == 0 and found[0]["layer"] == 0, "not the first layer-forward", show(found))
            check(found[0]["remedy"] and found[0]["remedy"]["name"] == "uneven", "no remedy named", found[0])
            check(len(found[0]["evidence"]) == 2 and found[0]["waiting"], "not two sides, or nobody waits", found[0])
        twins = [["hybridep", "--uneven", "max"], ["hybridep", "--uneven", "bound"], ["allgather", "--uneven", "max"]]
        for options in twins[1:] if ranks == 4 else twins[:1]:
            healthy(tmp, ranks, ["--dispatcher", *options, *VARY])
    # With policy auto the ranks agree on UNEVEN when the layers are made: the first batch, which hung above, does not.
    # The same where numbers are equal at first and then are not.
    later = ["--tokens", "3", "--layers", "2", "--seed", "2", *VARY]
    for kind in ("hybridep", "allgather"):
        healthy(tmp, 2 if kind == "hybridep" else 4, ["--dispatcher", kind, *VARY], ["--policy", "auto"])
        found, _ = sick(tmp, 2, ["--dispatcher", kind, *later])
        check(found[0]["step"] > 0, "numbers differ in the first step: the premise failed", show(found))
        healthy(tmp, 2, ["--dispatcher", kind, *later], ["--policy", "auto"])
    print("uneven tokens: named on 2, 4 and 8 ranks; padded, or with a dispatcher that does not mind: no finding")


def early(tmp):
    """A rank that received nothing leaves dispatch early (H6): it is named, its peers wait in forward; without the
    legacy behaviour: no finding."""
    for ranks in (2, 3, 4):
        for kind in ("hybridep",) if ranks == 4 else ("deepep",):  # deepep on 4 ranks: check_hazards.py, H6
            pads = ["--uneven", "max"] if kind == "hybridep" else []  # DeepEP takes different numbers as they are
            options = ["--dispatcher", kind, *pads, "--vary-tokens", "--steps", "40", "--experts", str(16 * ranks)]
            found, stands = sick(tmp, ranks, [*options, "--legacy", "empty-returns-early"])
            check({v["code"] for v in found} == {"moe-obligation-missing"}, f"{kind} on {ranks} ranks", show(found))
            check(found[0]["certainty"] == "predicted" and found[0]["culprits"] and found[0]["culprits"]
                  == stands[0]["culprits"], "not told before it happens, or of others than then", show(found))
            check("skipped its experts" not in found[0]["text"], "it did not skip them", show(found))
            check(all(v["phase"] == "forward" for v in found), "the wait is in forward", show(found))
        healthy(tmp, ranks, ["--dispatcher", "deepep", "--vary-tokens", "--steps", "6", "--experts", str(16 * ranks)])
    print("a rank that returns early: named on 2, 3 and 4 ranks")


with tempfile.TemporaryDirectory() as work:
    {"uneven": uneven, "early": early}[CASE](work)
