#!/usr/bin/env python3
"""Dumps as PyTorch's Flight Recorder writes them, of a job of any size that never ran.

usage: make_dumps.py FOLDER RANKS [FAULTY,...]     a mixture-of-experts job of RANKS ranks in which these ranks hang

The job is laid out like the real ones of a public set of dumps (16 ranks, two stages of a pipeline, tensor groups of
four, an expert group for each stage): each rank issues the same program as its peers, runs some calls ahead of its
device, and a call is complete when all members have come to it.
"""
import json
import os
import pickle
import sys

START_NS = 1758580155793872443
LIBRARY = "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"


class Group:
    def __init__(self, name, desc, ranks):
        self.name, self.desc, self.ranks = str(name), desc, list(ranks)


class Call:
    """One call of a program; peer: the place in the group of the other end of a message."""
    def __init__(self, group, op, count=8, out=None, dtype="Float", line=1, peer=None):
        self.group, self.op, self.count, self.dtype, self.line, self.peer = group, op, count, dtype, line, peer
        self.out = count if out is None else out


class Rank:
    def __init__(self, program, stops=None, device_stops=None, ahead=6):
        self.program, self.ahead = program, ahead
        self.stops = len(program) if stops is None else stops  # the host issues no call from this one on
        self.device_stops = len(program) if device_stops is None else device_stops
        # By call: it is over on this rank's device; (collectives, messages) on its group up to it; what it meets.
        self.over, self.numbers, self.keys = [], [], []
        self.first = self.issued = 0


class Job:
    def __init__(self, groups):
        self.groups, self.ranks = groups, {}

    def add(self, rank, program, **how):
        self.ranks[rank] = Rank(program, **how)

    def run(self):
        """Until nothing moves any more: a collective ends when all members have come to it with the same call, and NCCL
        drops one of no elements."""
        came = {}  # what calls meet at -> how many have come, and with what
        for rank, r in self.ranks.items():
            count, met = {}, {}
            r.over, r.numbers, r.keys, r.first, r.issued = [False] * len(r.program), [], [], 0, 0
            for call in r.program:
                name = call.group.name
                colls, messages = count.get(name, (0, 0))
                count[name] = (colls, messages + 1) if call.peer is not None else (colls + 1, messages)
                r.numbers.append(count[name])
                me = call.group.ranks.index(rank)
                pair = None if call.peer is None else (me, call.peer) if call.op == "send" else (call.peer, me)
                place = (name, pair, call.op if pair else None)
                met[place] = met.get(place, 0) + (call.count != 0)
                what = "message" if pair else call.op, 0 if call.op == "all_to_all" else call.count, call.dtype
                r.keys.append(((name, pair, met[place]), 2 if pair else len(call.group.ranks), what))
        moved = True
        while moved:
            moved = False
            for r in self.ranks.values():
                while r.issued < r.stops and r.issued - r.first < r.ahead:
                    key, _, what = r.keys[r.issued]
                    if r.program[r.issued].count != 0:
                        came.setdefault(key, []).append(what)
                    r.issued += 1
                    moved = True
            for r in self.ranks.values():
                while r.first < r.issued:
                    key, members, what = r.keys[r.first]
                    if r.program[r.first].count != 0 and came[key] != [what] * members:
                        break
                    r.over[r.first] = r.first < r.device_stops
                    r.first += 1
                    moved = True

    def entry(self, r, i, ids, stacks):
        call = r.program[i]
        colls, messages = r.numbers[i]
        name = call.op
        if call.peer is not None:
            me = r.place[call.group.name]
            name = f"send {me}->{call.peer}" if call.op == "send" else f"recv {me}<-{call.peer}"
        created = START_NS + i * 1000000
        out = {
            "record_id": i, "pg_id": ids[call.group.name], "process_group": (call.group.name, call.group.desc),
            "thread_name": "python3", "thread_id": "23456244340032", "collective_seq_id": colls,
            "p2p_seq_id": messages, "op_id": colls + messages, "profiling_name": "nccl:" + name,
            "time_created_ns": created, "input_sizes": [[call.count]], "input_dtypes": [call.dtype],
            "output_sizes": [[call.out]], "output_dtypes": [call.dtype],
            "state": "completed" if r.over[i] else "scheduled", "time_discovered_started_ns": None,
            "time_discovered_completed_ns": created + 500000 if r.over[i] else None, "retired": r.over[i],
            "timeout_ms": 600000, "is_p2p": call.peer is not None,
        }
        if stacks:
            out["frames"] = [{"name": "all_reduce", "filename": LIBRARY, "line": 3000},
                             {"name": "step", "filename": "/job/train.py", "line": call.line},
                             {"name": "main", "filename": "/job/train.py", "line": 400}]
        return out

    def dump(self, rank, window=2000, active=False, stacks=True):
        """What this rank's recorder holds."""
        r = self.ranks[rank]
        groups = [g for g in self.groups if rank in g.ranks]
        r.place = {g.name: g.ranks.index(rank) for g in groups}
        ids = {g.name: 2 * i for i, g in enumerate(groups)}
        status = {g.name: [-1, -1] for g in groups}
        for i in range(r.issued):
            colls, messages = r.numbers[i]
            number = colls if r.program[i].peer is None else messages
            status[r.program[i].group.name][0] = number
            if r.over[i]:
                status[r.program[i].group.name][1] = number
        kept = [i for i in range(max(0, r.issued - window), r.issued) if not (active and r.over[i])]
        return {
            "version": "2.10", "comm_lib_version": "2.27.3",
            "pg_config": {g.name: {"name": g.name, "desc": g.desc, "ranks": str(g.ranks)} for g in groups},
            "pg_status": {str(ids[n]): {"last_enqueued_collective": s[0], "last_started_collective": -1,
                                        "last_completed_collective": s[1]} for n, s in status.items()},
            "entries": [self.entry(r, i, ids, stacks) for i in kept],
        }

    def write(self, folder, prefix="nccl_trace_rank_", leave_out=(), form="pickle", **how):
        os.makedirs(folder, exist_ok=True)
        for rank in self.ranks:
            if rank in leave_out:
                continue
            dump = self.dump(rank, **how)
            path = os.path.join(folder, f"{prefix}{rank}")
            if form == "json":
                for e in dump["entries"]:
                    e.pop("frames", None)
                dump["pg_status"] = {k: {n: str(x) for n, x in s.items()} for k, s in dump["pg_status"].items()}
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(dump, f)
            else:
                with open(path, "wb") as f:
                    pickle.dump(dump, f, protocol=2)
            stand_still(path)


def stand_still(path, seconds=600):
    """The file was written so long after the job's calls."""
    at = START_NS / 1e9 + 60 + seconds
    os.utime(path, (at, at))


def flat(ranks, calls, **how):
    """A job of one group; how: for rank R, rR=(program, keywords) in place of the common program."""
    world = Group(0, "default_pg", range(ranks))
    job = Job([world])
    for rank in range(ranks):
        program, keywords = how.get(f"r{rank}", (calls, {}))
        job.add(rank, [Call(world, *c) if isinstance(c, tuple) else Call(world, c) for c in program], **keywords)
    return job


def experts(ranks, faulty=(), device=False, steps=3, ahead=6):
    """A mixture-of-experts job of two stages. The faulty ranks' hosts stop in the last step; device: their devices have
    stopped some calls before."""
    assert ranks % 16 == 0
    half = ranks // 2
    stages = [range(half), range(half, ranks)]
    world = Group(0, "default_pg", range(ranks))
    tensor = [Group(35 + i, "TENSOR_MODEL_PARALLEL_GROUP", range(4 * i, 4 * i + 4)) for i in range(ranks // 4)]
    base = 35 + len(tensor)
    pipe = [Group(base + i, "PIPELINE_MODEL_PARALLEL_GROUP", [i, i + half]) for i in range(half)]
    base += half
    expert = [Group(base + i, "EXPERT_MODEL_PARALLEL_GROUP", stages[i]) for i in range(2)]
    data = [Group(base + 2 + i, "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", stages[i]) for i in range(2)]
    job = Job([world] + tensor + pipe + expert + data)
    for rank in range(ranks):
        stage, peer = rank // half, rank % half
        t, p, e, d = tensor[rank // 4], pipe[peer], expert[stage], data[stage]
        step = [Call(t, "broadcast", 8192, dtype="Long", line=10)]
        if stage == 1:
            step.append(Call(p, "recv", 4096, dtype="BFloat16", line=12, peer=0))
        step += [Call(t, "_all_gather_base", 2048, 8192, dtype="BFloat16", line=14),
                 Call(e, "all_to_all", 2048, 1900 + rank % 200, dtype="BFloat16", line=16),
                 Call(e, "all_to_all", 1900 + rank % 200, 2048, dtype="BFloat16", line=18),
                 Call(t, "_reduce_scatter_base", 8192, 2048, dtype="BFloat16", line=20)]
        if stage == 0:
            step.append(Call(p, "send", 4096, dtype="BFloat16", line=12, peer=1))
        step += [Call(world, "recv" if stage == 0 else "send", 4096, dtype="BFloat16", line=22,
                      peer=rank + half if stage == 0 else rank - half),
                 Call(d, "all_reduce", 264, line=24), Call(t, "all_reduce", 16, dtype="Long", line=26)]
        program = step * steps
        how = {"ahead": ahead}
        if rank in faulty:
            how = {"ahead": ahead, "stops": len(program) - len(step) + 2,
                   "device_stops": len(program) - len(step) - 4 if device else None}
        job.add(rank, program, **how)
    job.run()
    return job


if __name__ == "__main__":
    faulty = [int(r) for r in sys.argv[3].split(",")] if len(sys.argv) > 3 else []
    experts(int(sys.argv[2]), faulty).write(sys.argv[1], prefix="_dump_", active=True, stacks=False)
