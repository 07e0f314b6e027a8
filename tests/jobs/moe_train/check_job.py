#!/usr/bin/env python3
"""The main job end to end: moe_train under rollcall, each case judged against what the job itself says about its empty
ranks.

usage: check_job.py BIN_DIR CASE [--digest]
"""
import collections
import json
import os
import re
import sys
import tempfile

from job import LIMIT_S, Programs, check, command, findings, losses, read, run, run_until, show

BIN, CASE = sys.argv[1:3]
MORE = sys.argv[3:]  # options of rollcall run
PROGRAMS = Programs(BIN)
ROLLCALL, TRAIN = PROGRAMS.rollcall, PROGRAMS.train
KEPT = ("code", "certainty", "culprits", "comm", "seq", "step", "microbatch", "layer", "phase", "field", "waiting",
        "event_ns", "time_ns", "text")


def under_rollcall(tmp, ranks, rollcall_options, train_options):
    out = os.path.join(tmp, "verdicts.json")
    if os.path.exists(out):
        os.remove(out)
    done = run(command(PROGRAMS, ranks, out, rollcall_options, train_options))
    return done, read(out)


def observe(tmp):
    """Policy observe: rank, layer, step and reason, before the job's own timeout; the trace gives the same verdicts."""
    trace = os.path.join(tmp, "trace")
    done, verdicts = under_rollcall(tmp, 8, ["--policy", "observe", "--trace", trace],
                                    ["--legacy-skip", "--verbose", "--timeout", "4"])
    said = re.search(r"rank (\d+): step (\d+), layer (\d+): no tokens, experts skipped", done.stderr)
    check(said, "the job reported no empty rank: its premise failed", done.stderr)
    rank, step, layer = map(int, said.groups())
    check(done.returncode == 3, f"status {done.returncode}, but the job's watchdog ends it with 3", done.stderr)
    found = findings(verdicts)
    check(found, "no finding", done.stderr)
    first = next(v for v in verdicts if v["certainty"] != "note")  # the proof confirms it, and stands in its place
    check(first["code"] == "moe-obligation-missing" and first["certainty"] == "predicted",
          "the first finding is another", show(found))
    check((first["culprits"], first["step"], first["layer"]) == ([rank], step, layer),
          f"the job says rank {rank}, step {step}, layer {layer}", show(found))
    ended = [v for v in verdicts if v["code"] == "rank-dead"]
    check(first["event_ns"] <= first["time_ns"] and all(first["time_ns"] < v["time_ns"] for v in ended),
          "not named before the job's own timeout", show(verdicts))
    check(rank not in first["waiting"] and first["waiting"], "nobody waits, or the culprit waits for itself", first)
    check(first["comm"] and first["comm"]["label"] == "ep", "the communicator is not the expert-parallel one", first)
    check(first["remedy"] and first["remedy"]["name"] == "fill", "no remedy named", first)
    check(first["callsites"] and first["callsites"][0]["frames"]
          and any(f.get("function") for f in first["callsites"][0]["frames"]), "no call site", first)
    check(all(v["code"].startswith("moe-") for v in found), "another finding about the same cause", show(found))
    check(len(found) <= 2, "more than the prediction and its proof", show(found))
    again = run([ROLLCALL, "analyze", "--json", trace])
    check(again.returncode == 1, f"analyze: status {again.returncode}", again.stderr)
    replayed = [json.loads(line) for line in again.stdout.splitlines() if '"rollcall.verdict/1"' in line]
    check([{k: v[k] for k in KEPT} for v in replayed] == [{k: v[k] for k in KEPT} for v in verdicts],
          "analyze gives other verdicts than the live run", show(verdicts), "--", show(replayed))
    print(f"rank {rank}, step {step}, layer {layer}: named {(first['time_ns'] - first['event_ns']) / 1e6:.1f} ms after "
          "the skip; trace agrees")


def auto(tmp):
    """Policy auto: the job completes, with the loss curve of a run in which nothing is skipped."""
    reference = run([TRAIN, "--spawn", "8", "--exact"])
    check(reference.returncode == 0 and len(losses(reference.stdout)) == 60, "the reference run failed",
          reference.stderr)
    done, verdicts = under_rollcall(tmp, 8, ["--policy", "auto"], ["--legacy-skip", "--timeout", "60"])
    check(done.returncode == 0, f"status {done.returncode}", done.stderr)
    check(losses(done.stdout) == losses(reference.stdout), "the loss curve differs from the reference")
    check(any(v["code"] == "moe-remedied" for v in verdicts), "no note about the remedy", show(verdicts))
    notes = [line for line in done.stderr.splitlines() if line.startswith("note ")]
    rest = [line for line in done.stderr.splitlines() if not line.startswith(("note ", "rollcall: "))]
    printed = sum(min(of_code, 8) for of_code in collections.Counter(v["code"] for v in verdicts).values())
    check(len(notes) == printed and rest == [],
          "a note takes more than a line, or more than eight of a code are printed", done.stderr)
    check(not [v for v in findings(verdicts) if not v["remedied"]], "a finding in a job that was cured", show(verdicts))
    print("60 steps, the same loss in each")


# What each wrong behaviour needs to show, and the remedy that policy auto grants for it.
CURED = [
    ("skip-empty", "fill", ["--microbatches", "2"]),
    ("wgrad-uninitialised", "zero-wgrad", []),
    ("recompute-flip", "routing", ["--recompute"]),
    ("router-unsummed", "router-sum", ["--tp", "2", "--tp-mode", "split"]),
]


def tenth(tmp):
    """Policy auto, ranks without tokens in every tenth microbatch at the least: for each wrong behaviour the loss curve
    of the job that has it not."""
    for legacy, remedy, more in CURED:
        options = ["--steps", "21", "--layers", "2", "--hidden", "32", "--ffn", "32", "--empty-every", "10", *more]
        reference = run([TRAIN, "--spawn", "4", "--exact", "--check", *options])
        check(reference.returncode == 0 and len(losses(reference.stdout)) == 21, "the reference run failed",
              reference.stderr)
        done, verdicts = under_rollcall(tmp, 4, ["--policy", "auto"], [*options, "--legacy", legacy, "--timeout", "60"])
        check(done.returncode == 0, f"{legacy}: status {done.returncode}", done.stderr)
        check(losses(done.stdout) == losses(reference.stdout), f"{legacy}: the loss curve differs from the reference")
        used = [v for v in verdicts if v["code"] == "moe-remedied" and f"'{remedy}'" in v["text"]]
        check(used, f"{legacy}: no note about the remedy '{remedy}'", show(verdicts))
        check(not [v for v in findings(verdicts) if not v["remedied"]], f"{legacy}: a finding in a job that was cured",
              show(verdicts))
        print(f"{legacy}: 21 steps, the same loss in each with {remedy}")


LAYOUTS = [
    ["--dispatcher", "allgather", "--ep", "2", "--recompute"],
    ["--dispatcher", "deepep", "--probs", "activation", "--vary-tokens"],
    ["--dispatcher", "hybridep", "--vary-tokens", "--uneven", "max", "--empty-every", "5"],
    ["--etp", "2", "--ep", "2", "--bias", "--probs", "activation", "--empty-every", "5"],
    ["--tp", "2", "--shared", "32", "--shared-gate", "--shared-overlap"],
    ["--tp", "2", "--tp-mode", "split", "--router", "mixtral", "--shared", "8"],
    ["--tp", "2", "--tp-mode", "shard", "--overlap", "--recompute"],
    ["--overlap", "--buckets", "20000", "--microbatches", "2", "--topk", "1", "--empty-every", "5"],
]


def layouts(tmp):
    """Healthy jobs of every dispatcher and layout, with collectives of a layer on several communicators: no finding.
    Compared by digests, facts about tensors included, what ranks observe asks for no records: not even a note is said,
    which a rank without tokens would give. Where a busy machine makes a rank stand, records are asked for all the same:
    such a run says nothing about that, and is made again."""
    for more in LAYOUTS + [[*more, "--facts"] for more in LAYOUTS if MORE]:
        options = ["--steps", "8", "--layers", "2", "--hidden", "32", "--ffn", "32", "--topk", "2", *more]
        for _ in range(20 if MORE else 1):
            done, verdicts = under_rollcall(tmp, 4, MORE, options)
            check(done.returncode == 0 and len(losses(done.stdout)) == 8, f"{more}: status {done.returncode}",
                  done.stderr)
            check(not findings(verdicts), f"{more}: false alarm", show(verdicts))
            if not verdicts:
                break
        check(not MORE or not verdicts, f"{more}: records were asked for each time", show(verdicts))


def advise(tmp):
    """Policy advise: the verdict carries the command that would help."""
    out = os.path.join(tmp, "verdicts.json")
    argv = command(PROGRAMS, 8, out, ["--policy", "advise"], ["--legacy-skip", "--timeout", str(LIMIT_S)])
    found, _, err = run_until(argv, out, lambda found: found, LIMIT_S)
    first = (found or [{}])[0]
    check(first.get("remedy") and "rollcall remedy on fill" in first["remedy"]["command"], "no command", err)
    text = " ".join(err.split())  # lines break where the durations in them let them
    check("on for the steps to come with: rollcall remedy on fill --layer" in text, "the command is not printed", err)
    check("too late for this step: start the job again with it $ rollcall run --policy auto" in text,
          "what helps now is not printed", err)


def pad(tmp):
    """The symmetric remedy, agreed in-band: the job completes and nobody is empty any more."""
    reference = run([TRAIN, "--spawn", "8", "--exact"])
    env = dict(os.environ, MOE_REMEDIES="pad")
    done = run([TRAIN, "--spawn", "8", "--exact", "--legacy-skip", "--timeout", "60"], env=env)
    check(done.returncode == 0, f"status {done.returncode}", done.stderr)
    check(losses(done.stdout) == losses(reference.stdout), "the loss curve differs from the reference")


def healthy(tmp):
    """The healthy twin, at several rank counts: no finding, although ranks without tokens occur."""
    for ranks in (2, 4, 8):
        done, verdicts = under_rollcall(tmp, ranks, [], ["--steps", "40"])
        check(done.returncode == 0, f"{ranks} ranks: status {done.returncode}", done.stderr)
        check(not findings(verdicts), f"{ranks} ranks: false alarm", show(verdicts))
        check(len(losses(done.stdout)) == 40, f"{ranks} ranks: not all steps", done.stdout)
        check(f"{ranks} ranks" in done.stderr, "no summary line", done.stderr)


# How a job ends: the test ends it when the rank has been named, or it ends by itself with this status.
NAMED, DONE, WATCHDOG, KILLED = None, 0, 3, 137
INJECTED = [
    # (fault, codes that may be said, ranks, how it ends)
    ("skip-collective", {"call-skipped"}, 4, NAMED),
    ("extra-collective", {"call-added"}, 4, NAMED),
    ("wrong-count", {"count-mismatch"}, 4, WATCHDOG),  # nothing more is said about ranks that their watchdogs end
    ("zero-count", {"zero-count"}, 4, NAMED),
    ("wrong-dtype", {"dtype-mismatch"}, 4, DONE),  # as many bytes: NCCL notices nothing, the job trains on
    ("wrong-op", {"redop-mismatch"}, 4, DONE),
    ("wrong-root", {"root-mismatch"}, 4, NAMED),
    # On 8 ranks: at 4 there is one replica of each expert, and nothing to swap.
    ("swap-comms", {"circular-wait"}, 8, NAMED),
    ("skip-backward", {"moe-obligation-missing"}, 4, NAMED),
    ("exit", {"rank-finished"}, 4, NAMED),
    ("kill", {"rank-dead"}, 4, NAMED),
    ("kill", {"rank-dead"}, 4, KILLED),  # the watchdogs of the others end them: a consequence, no second finding
    ("stop", {"rank-stopped"}, 4, NAMED),
    ("sleep", {"rank-busy"}, 4, NAMED),  # suspected after 5 s
]


def injected(tmp):
    """Every fault that moe_train can commit: the right verdict about rank 1, and nothing else."""
    wrong, out = [], os.path.join(tmp, "verdicts.json")
    for fault, codes, ranks, end in INJECTED:
        options = ["--steps", "12", "--inject", f"{fault}:rank=1:step=5", "--timeout", "3" if end in (WATCHDOG, KILLED)
                   else str(LIMIT_S)]
        argv = command(PROGRAMS, ranks, out, ["--grace", "1", *MORE], options)
        found, status, _ = run_until(argv, out, (lambda found: found) if end is NAMED else (lambda found: False),
                                     LIMIT_S)
        good = [v for v in found if v["code"] in codes and v["culprits"] == [1]]
        if not good or len(good) != len(found) or status != end:
            wrong.append(f"{fault} (status {status}, wanted {end}):\n{show(found) or '  no finding'}")
        else:
            print(f"{fault}: {good[0]['certainty']} {good[0]['code']}, rank 1")
    check(not wrong, "these faults were not told right", *wrong)


def main():
    cases = {f.__name__: f for f in (observe, auto, tenth, layouts, advise, pad, healthy, injected)}
    with tempfile.TemporaryDirectory() as tmp:
        cases[CASE](tmp)


main()
