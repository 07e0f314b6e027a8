#!/usr/bin/env python3
"""rollcall analyze on dumps of PyTorch's Flight Recorder: sick jobs and their healthy twins, damage, mixtures.

usage: check_dumps.py ROLLCALL NAME

The dumps are made here (make_dumps.py), in the shapes of real ones. The real ones, of other people and under another
licence, are not in this tree: `real` takes them from the folder that ROLL_FLIGHT_RECORDER_DATA names, or from
../shared/data/flight_recorder where that is there, and is skipped where it is not.
"""
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_dumps
from make_dumps import Call, Group, Job, experts, flat, stand_still

ROLLCALL = os.path.abspath(sys.argv[1])
SKIPPED = 77
RANKS = [2, 3, 4, 8, 64]
PROGRAMS = ["wrong-op", "wrong-count", "wrong-dtype", "wrong-redop", "wrong-root", "skipped", "added"]


def analyze(*paths, code=None):
    run = subprocess.run([ROLLCALL, "analyze", "--json", *paths], capture_output=True, text=True, timeout=300)
    lines = [json.loads(x) for x in run.stdout.splitlines()]
    verdicts = [v for v in lines if v["schema"] == "rollcall.verdict/1"]
    gone = {v[k] for v in verdicts for k in ("supersedes", "confirms", "withdraws") if v.get(k)}
    findings = [v for v in verdicts if v["certainty"] != "note" and v["number"] not in gone]
    said = run.stderr.splitlines()
    for line in said:
        assert line.startswith("rollcall: "), line
    if code is not None and run.returncode != code:
        raise AssertionError(f"code {run.returncode}: {findings} {said}")
    return findings, said, verdicts


def expect(findings, *wanted):
    """Exactly these (codes, culprits); codes: one, or several divided by |."""
    found = sorted((v["culprits"], v["code"]) for v in findings)
    good = len(found) == len(wanted) and all(c == list(w[1]) and k in w[0].split("|")
                                             for (c, k), w in zip(found, sorted(wanted, key=lambda w: list(w[1]))))
    if not good:
        raise AssertionError(f"wanted {wanted}, found {found}: " + "\n".join(v["text"] for v in findings))


def in_folder(test):
    def run():
        with tempfile.TemporaryDirectory() as folder:
            test(folder)
    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def written(folder, job, name="job", **how):
    path = os.path.join(folder, name)
    job.run()
    job.write(path, **how)
    return path


CALLS = [("all_reduce", 64, None, "Float", 10), ("all_gather", 16, 64, "Float", 11), ("broadcast", 8, None, "Long", 12),
         ("all_reduce", 32, None, "Float", 13)] * 4


def odd(ranks, program, **keywords):
    """A job whose last rank has another program."""
    return flat(ranks, CALLS, **{f"r{ranks - 1}": (program, keywords)})


@in_folder
def healthy(folder):
    """A job that is through has no finding, whatever its dumps hold."""
    for n in RANKS:
        for i, how in enumerate(({}, {"window": 5}, {"active": True}, {"form": "json"}, {"stacks": False})):
            path = written(folder, flat(n, CALLS), f"flat{n}-{i}", **how)
            findings, said, _ = analyze(path, code=0)
            assert findings == [] and said == [], (findings, said)
    for how in ({}, {"active": True}, {"window": 9}):
        path = written(folder, experts(16), "experts" + str(len(how)) + str(how.get("window")), **how)
        expect(analyze(path, code=0)[0])


@in_folder
def sick(folder):
    """Each mistake of one rank, at several sizes, names that rank."""
    resize = CALLS[:9] + [("all_gather", 17, 64, "Float", 11)] + CALLS[10:]
    for n in RANKS[1:]:
        last = (n - 1,)
        for name, job, codes in (
                ("skip", odd(n, CALLS[:8] + CALLS[9:]), "call-skipped|op-mismatch"),
                ("add", odd(n, CALLS[:8] + [("all_reduce", 5, None, "Float", 30)] + CALLS[8:]),
                 "call-added|op-mismatch|count-mismatch"),
                ("resize", odd(n, resize), "count-mismatch"),
                ("dtype", odd(n, CALLS[:8] + [("all_reduce", 64, None, "Half", 10)] + CALLS[9:]), "dtype-mismatch"),
                ("zero", odd(n, CALLS[:8] + [("all_reduce", 0, None, "Float", 10)] + CALLS[9:]),
                 "zero-count|call-skipped"),
                ("stops", odd(n, CALLS, stops=8), "rank-busy"),
                ("device", odd(n, CALLS, stops=8, device_stops=5), "rank-blocked")):
            for form in ("pickle", "json"):
                path = written(folder, job, f"{name}{n}{form}", form=form)
                findings, _, _ = analyze(path, code=1)
                expect(findings, (codes, last))
                assert n == 64 or name == "stops" or findings[0]["comm"]["label"] == "default_pg", findings
                if form == "pickle" and name in ("skip", "add"):
                    frames = [f for c in findings[0]["callsites"] for f in c["frames"]]
                    assert any(f["file"] == "/job/train.py" and f["function"] == "step" for f in frames), frames
            path = written(folder, job, f"{name}{n}window", window=12)
            expect(analyze(path, code=1)[0], (codes, last))


@in_folder
def two(folder):
    """Two ranks of a real layout hang, as in the real dumps: one finding for each, and nobody else."""
    for ranks, faulty in ((16, (9, 14)), (16, (1,)), (64, (40, 63)), (256, (3, 200))):
        for device, code in ((False, "rank-busy"), (True, "rank-blocked")):
            for how in ({"active": True, "stacks": False, "prefix": "_dump_"}, {}, {"window": 11}):
                path = written(folder, experts(ranks, faulty, device), f"e{ranks}{device}{len(how)}", **how)
                expect(analyze(path, code=1)[0], *((code, (r,)) for r in faulty))
                shutil.rmtree(path)


@in_folder
def missing(folder):
    """A rank without a dump: one line, and a suspicion where all others wait; none where they are through."""
    path = written(folder, flat(4, CALLS, r2=(CALLS, {"stops": 9})), leave_out=(2,))
    findings, said, _ = analyze(path, code=1)
    expect(findings, ("rank-busy", (2,)))
    assert len(said) == 1 and "no dump of rank 2" in said[0], said
    assert "there is none" in findings[0]["text"], findings
    path = written(folder, flat(4, CALLS), "through", leave_out=(1, 2))
    findings, said, _ = analyze(path, code=0)
    assert findings == [] and "no dump of ranks 1-2" in said[0], said
    path = written(folder, flat(6, CALLS, r2=(CALLS, {"stops": 9})), "other", leave_out=(4,))
    findings, said, _ = analyze(path, code=1)
    expect(findings, ("rank-busy", (2,)))  # the one whose dump says so, and not the one without
    path = written(folder, flat(8, CALLS, r2=(CALLS, {"stops": 9})), "half", leave_out=(2, 3, 4, 5))
    expect(analyze(path, code=0)[0])  # the files of a node were not collected


@in_folder
def running(folder):
    """Dumps of a job that ran on are no evidence that a rank is late."""
    behind = flat(4, CALLS, r1=(CALLS, {"stops": 9}))
    ahead = flat(4, CALLS)
    behind.run()
    ahead.run()
    path = os.path.join(folder, "skewed")
    ahead.write(path, leave_out=(1,))
    behind.write(path, leave_out=(0, 2, 3))
    findings, said, _ = analyze(path, code=0)
    assert findings == [] and len(said) == 1 and "ran on" in said[0], (findings, said)
    path = os.path.join(folder, "fresh")  # written at the moment of the newest call
    behind.write(path)
    for name in os.listdir(path):
        stand_still(os.path.join(path, name), -59)
    expect(analyze(path, code=0)[0])


@in_folder
def mixed(folder):
    """Dumps of two jobs in one place are judged one by one, whether in one folder or in two."""
    sick_one = flat(4, CALLS, r3=(CALLS[:8] + CALLS[9:], {}))
    for form in ("two", "one"):
        place = os.path.join(folder, form)
        written(place, sick_one, "a" if form == "two" else ".", prefix="a_")
        written(place, flat(8, CALLS), "b" if form == "two" else ".", prefix="b_")
        findings, said, _ = analyze(place, code=1)
        expect(findings, ("call-skipped|op-mismatch", (3,)))
        assert len(said) == 1 and "2 jobs" in said[0], said
    node = os.path.join(folder, "nodes")  # the ranks of one job in a folder for each node
    sick_one.write(os.path.join(node, "n0"), leave_out=(2, 3))
    sick_one.write(os.path.join(node, "n1"), leave_out=(0, 1))
    findings, said, _ = analyze(node, code=1)
    expect(findings, ("call-skipped|op-mismatch", (3,)))
    assert said == [], said


@in_folder
def damaged(folder):
    """A file that is cut, or that wants to run code, is one line; the rest is judged all the same."""
    path = written(folder, flat(6, CALLS, r3=(CALLS[:8] + CALLS[9:], {})))
    cut = os.path.join(path, "nccl_trace_rank_5")
    with open(cut, "rb") as f:
        whole = f.read()
    proof = os.path.join(folder, "ran")

    class Hostile:
        def __reduce__(self):
            return (os.mkdir, (proof,))

    for data, word in ((whole[:len(whole) // 2], "cut short"), (whole[:2] + b"\xff" + whole[3:], "code"),
                       (pickle.dumps(Hostile(), 2), "refused"), (pickle.dumps(Hostile(), 4), "refused"),
                       (b'{"version": "2.10", "entries": [', "JSON"), (b"\x80\x02", "cut short")):
        with open(cut, "wb") as f:
            f.write(data)
        stand_still(cut)
        findings, said, _ = analyze(path, code=1)
        expect(findings, ("call-skipped|op-mismatch", (3,)))
        assert len(said) == 2 and word in said[0] and cut in said[0] and "no dump of rank 5" in said[1], said
        assert not os.path.exists(proof)
    nameless = os.path.join(folder, "nameless")
    with open(nameless, "wb") as f:
        f.write(whole)
    _, said, _ = analyze(nameless, code=3)
    assert len(said) == 1 and "rank is not known" in said[0], said


@in_folder
def names(folder):
    """The rank is the number at the end of a file's name, whatever stands before and behind it."""
    job = flat(3, CALLS, r2=(CALLS[:8] + CALLS[9:], {}))
    job.run()
    for prefix, suffix in (("PREFIX", ""), ("nccl_trace_rank_", ".pickle"), ("x-", ".json")):
        path = os.path.join(folder, prefix)
        job.write(path, prefix=prefix, form="json" if suffix == ".json" else "pickle")
        for name in os.listdir(path):
            os.rename(os.path.join(path, name), os.path.join(path, name + suffix))
        expect(analyze(path, code=1)[0], ("call-skipped|op-mismatch", (2,)))
    path = os.path.join(folder, "inside")  # a loader has added the rank
    os.makedirs(path)
    for rank in job.ranks:
        with open(os.path.join(path, f"file{9 - rank}"), "wb") as f:
            pickle.dump(dict(job.dump(rank), rank=rank, host_name="h"), f, protocol=4)
    expect(analyze(path)[0], ("call-skipped|op-mismatch", (2,)))


@in_folder
def circle(folder):
    """Two groups in opposite orders: no rank lacks a call of the other tools' sort, and both wait."""
    a, b = Group("a", "weights", range(4)), Group("b", "numbers", range(4))
    job = Job([a, b])
    for rank in range(4):
        first, second = (b, a) if rank == 2 else (a, b)
        job.add(rank, [Call(a, "all_reduce"), Call(b, "all_reduce"), Call(first, "all_reduce", 64, line=40),
                       Call(second, "all_reduce", 64, line=41)], ahead=1)
    path = written(folder, job)
    expect(analyze(path, code=1)[0], ("circular-wait", (2,)))


def put(path, dump):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        pickle.dump(dump, f, protocol=2)
    stand_still(path)


def batched(dump, parts=4):
    """Each call as several that were issued together: of these the end alone tells whether they are complete."""
    out = []
    for e in dump["entries"]:
        for k in range(parts):
            out.append(dict(e, input_sizes=[[10 * k + 10]], state="scheduled"))
        out.append(dict(e, profiling_name="nccl:ALLGATHER_coalesced", input_sizes=[], output_sizes=[]))
    return dict(dump, entries=[dict(e, record_id=i) for i, e in enumerate(out)])


@in_folder
def together(folder):
    """Calls that were issued together: a dump that holds some of them only shows no size that differs."""
    job = flat(3, [("all_reduce", 64, None, "Float", 10)] * 12)
    job.run()
    for name, cut in (("whole", lambda rank, all_of_it: all_of_it),
                      ("begun", lambda rank, all_of_it: all_of_it[22 if rank == 0 else 20:])):
        for rank in range(3):
            dump = batched(job.dump(rank))
            dump["entries"] = cut(rank, dump["entries"])
            put(f"{folder}/{name}/nccl_trace_rank_{rank}", dump)
        findings, said, _ = analyze(f"{folder}/{name}", code=0)
        assert findings == [] and said == [], (findings, said)
        run = subprocess.run([ROLLCALL, "analyze", f"{folder}/{name}"], capture_output=True, text=True)
        assert "not all" not in run.stdout, run.stdout
    for left in (1, 2, 3, 4):  # rank 0 has issued so many of the last four when its dump is written
        for rank in range(3):
            dump = batched(job.dump(rank))
            dump["entries"][-1]["state"] = "scheduled"
            dump["entries"] = dump["entries"][:-5 + left] if rank == 0 else dump["entries"]
            put(f"{folder}/open{left}/nccl_trace_rank_{rank}", dump)
        findings, _, _ = analyze(f"{folder}/open{left}")
        assert not [v for v in findings if v["code"] == "count-mismatch"], findings
    # What nobody leaves before all are in shows that the job ran on, also where another sort of call comes behind it.
    job = flat(3, [("all_reduce", 64, None, "Float", 10), ("broadcast", 8, None, "Long", 12)] * 6)
    job.run()
    for rank in range(3):
        dump = job.dump(rank)
        if rank == 1:
            dump["entries"] = dump["entries"][:7]
        put(f"{folder}/ran/nccl_trace_rank_{rank}", dump)
    findings, said, _ = analyze(f"{folder}/ran", code=0)
    assert findings == [] and "has completed call 11" in said[0], (findings, said)


@in_folder
def anew(folder):
    """A group that was destroyed and made anew counts from 1 again; windows reach back to either."""
    first, second = flat(3, CALLS), flat(3, CALLS[:8], r2=(CALLS[:5] + CALLS[6:8], {}))
    for name, job in (("healthy", flat(3, CALLS[:7])), ("sick", second)):
        first.run()
        job.run()
        for rank in range(3):
            old, new = first.dump(rank), job.dump(rank)
            entries = old["entries"] + [dict(e, time_created_ns=e["time_created_ns"] + 10 ** 9)
                                        for e in new["entries"]]
            entries = [dict(e, record_id=i) for i, e in enumerate(entries)]
            put(f"{folder}/{name}/nccl_trace_rank_{rank}", dict(new, entries=entries[(0, 5, 16)[rank]:]))
        if name == "healthy":
            findings, said, _ = analyze(f"{folder}/{name}", code=0)
            assert findings == [] and said == [], (findings, said)
        else:
            expect(analyze(f"{folder}/{name}", code=1)[0], ("call-skipped|op-mismatch", (2,)))


@in_folder
def bombs(folder):
    """Parts of a pickle that stand in many places at once do not make the work larger than the file."""
    n = 400000
    entry = {"process_group": "0", "profiling_name": "nccl:all_reduce", "collective_seq_id": 1, "time_created_ns": 1}
    frame = {"filename": "f" * 100}
    keys = {f"k{i}": None for i in range(n)}
    ranks = "[0" + ",0" * n + "]"
    path = os.path.join(folder, "rank_0")
    for dump in ({"entries": [keys] * n}, {"entries": [dict(entry, frames=[frame] * n)] * n},
                 {"entries": [dict(entry, frames=[keys] * n)] * n},
                 {"entries": [dict(entry, input_sizes=[[1] * n] * n)] * n},
                 {"entries": [], "pg_config": {str(i): {"ranks": ranks} for i in range(60000)}}):
        with open(path, "wb") as f:
            pickle.dump({"version": "2.10", **dump}, f, protocol=2)
        _, said, _ = analyze(path, code=3)
        assert len(said) == 1 and "is not what a Flight Recorder dump holds" in said[0], said
    with open(path, "wb") as f:
        f.write(b"\x80\x02(" + b"]" * 40000000 + b"t.")
    _, said, _ = analyze(path, code=3)
    assert len(said) == 1 and "limit" in said[0], said


def changed(change, protocol=2, rank=1):
    """What changes the dump of one rank."""
    def change_file(path):
        name = f"{path}/nccl_trace_rank_{rank}"
        with open(name, "rb") as f:
            dump = pickle.load(f)
        change(dump)
        with open(name, "wb") as f:
            pickle.dump(dump, f, protocol=protocol)
        stand_still(name)
    return change_file


def entries(of=slice(None), **members):
    """Each of these entries with other members; a function is given the entry."""
    def change(dump):
        for e in dump["entries"][of]:
            e.update({k: v(e) if callable(v) else v for k, v in members.items()})
    return changed(change)


def instead(make):
    """Another thing lies where the dump of rank 1 was."""
    def change(path):
        name = f"{path}/nccl_trace_rank_1"
        os.unlink(name)
        make(name)
    return change


def content(data):
    def make(name):
        with open(name, "wb") as f:
            f.write(data)
    return instead(make)


def ranks(text):
    return changed(lambda d: d["pg_config"]["0"].update(ranks=text))


# What is done to the dump of rank 1, and the words of the one line that says so, if it is worth one.
HARM = {
    "directory": (instead(os.mkdir), "no plain file"),
    "pipe": (instead(os.mkfifo), "no plain file"),
    "loop": (instead(lambda name: os.symlink(name, name)), "symbolic links"),
    "dangling": (instead(lambda name: os.symlink("gone", name)), "No such file"),
    "empty": (content(b""), "nothing was written into it"),
    "one-byte": (content(b"\x80"), "neither"),
    "garbage": (content(bytes(range(256)) * 20), "neither"),
    "zeros": (content(bytes(100000)), "neither"),
    "protocol-0": (changed(lambda d: None, 0), "neither"),
    "protocol-1": (changed(lambda d: None, 1), "neither"),
    "protocol-3": (changed(lambda d: None, 3), None),
    "protocol-5": (changed(lambda d: None, 5), None),
    "code": (content(pickle.dumps(os.system, protocol=2)), "asks for code"),
    "huge-id": (entries(slice(-1, None), collective_seq_id=2 ** 64 + 5), "more than 64 bits"),
    "large-id": (entries(slice(-1, None), collective_seq_id=2 ** 63 - 1, pg_id=2 ** 63 - 1), "could not be used"),
    "negative": (entries(collective_seq_id=-7), "could not be used"),
    "state": (entries(state="mystery"), None),
    "clock-0": (entries(time_created_ns=0), None),
    "clock-future": (entries(time_created_ns=2 ** 62), None),
    "clock-back": (entries(slice(8, None), time_created_ns=lambda e: e["time_created_ns"] - 3600 * 10 ** 9), None),
    "shuffled": (changed(lambda d: d["entries"].sort(key=lambda e: e["record_id"] * 7 % 16)), "ran on"),
    "version": (changed(lambda d: d.update(version="3.0")), "versions 2.x are read"),
    "no-groups": (changed(lambda d: d.pop("pg_config")), None),
    "no-entries": (changed(lambda d: d.pop("entries")), None),
    "entries-map": (changed(lambda d: d.update(entries={"a": 1})), None),
    "other-members": (ranks("[0, 1, 2, 4, 3]"), "other members"),
    "twice-a-member": (ranks("[0, 1, 1, 3, 4]"), "other members"),
    "not-a-member": (ranks("[0, 2, 3, 4, 5]"), "other members"),
    "fewer-members": (ranks("[0, 1, 2, 3]"), "2 jobs"),
    "many-groups": (changed(lambda d: d["pg_config"].update({str(i): {"name": str(i), "ranks": "[0, 1, 2, 3, 4]"}
                                                             for i in range(1, 3000)})), None),
    "new-name": (entries(slice(-1, None), profiling_name="nccl:brand_new", state="scheduled"), "not known here"),
}


@in_folder
def hostile(folder):
    """What is wrong with one rank's dump is one line, makes no finding, and hides none of another rank."""
    for name, (harm, word) in HARM.items():
        for sick_too in (False, True):
            how = {"r3": (CALLS[:8] + CALLS[9:], {})} if sick_too else {}
            path = written(folder, flat(5, CALLS, **how), f"{name}{sick_too}")
            harm(path)
            findings, said, _ = analyze(path)
            print(name, sick_too, [(v["code"], v["culprits"]) for v in findings], said)
            lines = [x for x in said if word and word in x]
            assert len(lines) == (word is not None or 0) or name == "shuffled", (name, said)
            found = [("call-skipped|op-mismatch", (3,))] if sick_too else []
            expect(findings, *found)


@in_folder
def unusable(folder):
    """Dumps of which no entry is usable are not clean: one line says so and why, and so does the code."""
    def harm(path, rank, **members):
        name = f"{path}/nccl_trace_rank_{rank}"
        with open(name, "rb") as f:
            dump = pickle.load(f)
        for e in dump["entries"]:
            e.update(members)
        with open(name, "wb") as f:
            pickle.dump(dump, f, protocol=2)

    for members, why in (({"collective_seq_id": -7}, "process_group"),
                         ({"profiling_name": "nccl:brand_new"}, "no operation that is known here")):
        path = written(folder, flat(3, CALLS), "none" + why[:4])
        for rank in range(3):
            harm(path, rank, **members)
        findings, said, _ = analyze(path, code=4)
        lines = [x for x in said if "nothing could be judged" in x]
        assert findings == [] and len(lines) == 1 and why in lines[0] and "the rest" not in lines[0], said
        run = subprocess.run([ROLLCALL, "analyze", path], capture_output=True, text=True, timeout=300)
        assert run.returncode == 4 and "nothing could be judged" in run.stdout and "clean" not in run.stdout, run.stdout
        assert "nothing lost" not in run.stdout, run.stdout
        sound = written(folder, flat(3, CALLS), "sound" + why[:4])
        findings, said, _ = analyze(path, sound, code=4)  # one of two jobs was judged
        assert findings == [] and len([x for x in said if "nothing could be judged" in x]) == 1, said
        sick_too = written(folder, odd(3, CALLS[:8] + CALLS[9:]), "sick" + why[:4])
        expect(analyze(path, sick_too, code=1)[0], ("call-skipped|op-mismatch", (2,)))
    path = written(folder, flat(3, CALLS), "one")
    harm(path, 1, collective_seq_id=-7)
    assert not [x for x in analyze(path, code=0)[1] if "nothing could be judged" in x]  # the others' are usable


@in_folder
def named(folder):
    """What the folders of jobs are called, and whether two are called alike, takes nothing from what is judged."""
    for name in ("two words", "\u00e9", ".hidden", "x/job", "y/job"):
        path = written(folder, odd(3, CALLS[:8] + CALLS[9:]), name)
        expect(analyze(path, code=1)[0], ("call-skipped|op-mismatch", (2,)))
    written(folder, flat(3, CALLS), "z/job")
    for other in ("x", "y"):
        for paths in (("z", other), (other, "z")):
            findings, _, _ = analyze(*(os.path.join(folder, p, "job") for p in paths), code=1)
            expect(findings, ("call-skipped|op-mismatch", (2,)))


@in_folder
def many(folder):
    """Messages of many pairs on many groups are laid side by side in a time that grows as they do."""
    ranks_, groups = 64, []
    job = Job([Group(0, "default_pg", range(ranks_))])
    for i in range(1, ranks_):
        groups.append(Group(i, "PIPE", range(ranks_)))
    job.groups += groups
    for r in range(ranks_):
        program = []
        for i, g in enumerate(groups, 1):
            peer = r ^ i
            first, second = ("send", "recv") if r < peer else ("recv", "send")
            program += [Call(g, first, 8, peer=peer), Call(g, second, 8, peer=peer)]
        job.add(r, program)
    path = written(folder, job, stacks=False)
    findings, said, verdicts = analyze(path, code=0)
    assert findings == [] and said == [], (findings, said)


@in_folder
def exported(folder):
    """A trace of a real job on hostnccl, as dumps: the same ranks are named as in the trace."""
    program = os.environ.get("ROLL_CATALOGUE")
    if not program:
        print("SKIPPED: ROLL_CATALOGUE names no program: hostnccl is not built")
        sys.exit(SKIPPED)
    python = os.environ.get("ROLL_REHEARSE_PYTHON")
    reader = os.path.join(os.path.dirname(python), "torchfrtrace") if python else ""
    if not os.path.exists(reader):
        print("torchfrtrace is not run: ROLL_REHEARSE_PYTHON names no interpreter that has it")
    for name in PROGRAMS:
        for twin in ("sick", "healthy"):
            trace, dumps = os.path.join(folder, name + twin), os.path.join(folder, name + twin + "-dumps")
            subprocess.run([ROLLCALL, "run", "-n", "4", "--hostnccl", "--quiet", "--timeout", "5", "--grace", "1",
                            "--trace", trace, "--", program, name, twin], capture_output=True, timeout=300)
            run = subprocess.run([ROLLCALL, "export", "--flight-recorder", trace, "-o", dumps], capture_output=True,
                                 text=True, check=True)
            assert run.stdout.startswith("4 dumps in "), run
            for path in os.listdir(dumps):
                stand_still(os.path.join(dumps, path), 4e8)
            want, got = analyze(trace)[0], analyze(dumps)[0]
            culprits = sorted({tuple(v["culprits"]) for v in want})
            assert sorted({tuple(v["culprits"]) for v in got}) == culprits, (name, twin, want, got)
            assert bool(want) == (twin == "sick"), (name, twin, want)
            assert {v["code"] for v in want} == {v["code"] for v in got}, (name, [v["code"] for v in want], got)
            if os.path.exists(reader):
                said = subprocess.run([reader, dumps, "-p", "nccl_trace_rank_"], capture_output=True, text=True)
                assert said.returncode == 0, said.stderr
            print(name, twin, [(v["code"], v["culprits"]) for v in got])


def real():
    """The dumps of a real job: exactly the ranks into which the faults were injected."""
    here = os.path.dirname(os.path.abspath(__file__))
    folder = os.environ.get("ROLL_FLIGHT_RECORDER_DATA") or os.path.join(
        here, "..", "..", "..", "..", "shared", "data", "flight_recorder")
    if not os.path.isdir(folder):
        print("SKIPPED: no real dumps: ROLL_FLIGHT_RECORDER_DATA names no folder, and ../shared/data is not there")
        sys.exit(SKIPPED)
    for case in sorted(os.listdir(folder)):
        with open(os.path.join(folder, case, "fault_injection.log"), encoding="utf-8") as f:
            faulty = [int(r) for r in re.search(r"\[(.*?)\]", f.read()).group(1).split(",")]
        expect(analyze(os.path.join(folder, case), code=1)[0], *(("rank-busy|rank-blocked", (r,)) for r in faulty))
        print(f"{case}: ranks {faulty}, and nobody else")


if __name__ == "__main__":
    globals()[sys.argv[2]]()
