#!/usr/bin/env python3
"""fail_every.py: every allocation and every system call of rollcall's own code fails once, each with the errors that a
machine gives for it.

    fail_every.py BUILD                 all of it (an hour)
    fail_every.py BUILD --sample        a fixed sample of it, which is what ctest runs
    fail_every.py BUILD --scene NAME    one scene: shim.plain, daemon.agent, console.analyze...
    fail_every.py BUILD --list          the scenes, with the number of their faults

A scene is one thing that rollcall does: a rank under the preloaded library, a daemon, a command. What may come of a
fault is in the module of the scene (shim.py, daemon.py, console.py, job.py). Short scenes are run once for each n;
daemons, which do most things again and again, for the first call of each place in the code, and for a later one.
"""
import argparse
import collections
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import threading
import time

import console
import daemon
import job
import shim
import trial

# What did not bear a fault once, and is mended: the sample has all faults of these functions.
MENDED = {
    "daemon.standalone": ["read_some", "roll_lock_take"],
    "daemon.sick": ["side_to_json"],
    "daemon.agent": ["roll_agent_trace_new"],
    "console.export": ["write_file", "roll_export"],
    "console.keygen": ["write_key"],
    "console.analyze.sick": ["say_text"],
    "console.analyze.trace": ["roll_trace_reader_new"],
}

SAMPLE = {"shim": 17, "daemon": 31, "console": 71, "job": 71}  # one of so many,
LEAST, MOST = 10, 40  # and of a scene about so many at least, and at most

Scene = collections.namedtuple("Scene", "name run judge faults")


class Programs:
    def __init__(self, build):
        self.bin = os.path.join(build, "bin")
        self.library = os.path.join(build, "tests/faults/fail_nth.so")
        self.preload = os.path.join(build, "lib/librollcall.so")
        self.hostnccl = os.path.join(build, "lib/hostnccl")
        self.ranks = os.path.join(build, "tests/interposer/interposer_ranks")
        self.rollcall = os.path.join(build, "bin/rollcall")
        self.rollcalld = os.path.join(build, "bin/rollcalld")
        self.synth_rank = os.path.join(build, "tests/synth_rank")

        self.objects = {1: self.rollcalld, 2: self.rollcall, 3: self.preload}  # `ours` of fail_nth.c
        self.names = {}

    def place(self, number, offset):
        """(function, file:line) of the call that returns to this offset."""
        if (number, offset) not in self.names:
            got = subprocess.run(["addr2line", "-f", "-e", self.objects[number], hex(offset - 1)], capture_output=True,
                                 text=True, check=False)
            function, line = (got.stdout.split("\n") + ["", ""])[:2]
            self.names[number, offset] = function, line.split("/../")[-1]
        return self.names[number, offset]

    def function(self, key):
        return self.place(key >> 56, key & (1 << 40) - 1)[0]

    def where(self, state):
        number = next(n for n, path in self.objects.items() if os.path.basename(path) == state.object)
        return ", ".join(self.place(number, state.offset))


def scenes(programs, place):
    """All of them; each with a run without a fault behind it."""
    for manner in shim.MANNERS:
        def run(fault, at, _clean, manner=manner):
            return shim.run(programs, manner, fault, at)
        yield Scene("shim." + manner, run, lambda _, o, at: shim.judge(programs, o, at), trial.every_nth)
    rings = daemon.prepare(programs, place)
    for role in daemon.ROLES:
        def run(fault, at, clean, role=role):
            return daemon.run(programs, role, fault, at, rings, clean)
        yield Scene("daemon." + role, run, lambda clean, o, _: daemon.judge(clean, o),
                    lambda clean: trial.every_site(clean, later=(3,)))
    for command in console.commands(programs, place, rings):
        def run(fault, at, _clean, command=command):
            return trial.run([programs.rollcall, *command.words], fault, at, programs.library, **command.environment)

        def judge(clean, outcome, _at, command=command):
            return console.judge(command, clean, outcome)
        yield Scene("console." + command.name, run, judge, trial.every_nth)
    for name, words in job.scenes(programs, place).items():
        def run(fault, at, _clean, words=words):
            return job.run(programs, words, fault, at)
        yield Scene("job." + name, run, lambda clean, o, _: job.judge(clean, o), job.faults)


class Count:
    """Trials of all scenes, and what went wrong, said as it comes."""

    def __init__(self, programs):
        self.programs, self.lock, self.tried, self.failed = programs, threading.Lock(), 0, 0

    def wrong(self, scene, fault, state, what):
        with self.lock:
            self.failed += 1
            where = self.programs.where(state) if state.failed else "nowhere"
            print("%s: %s (%s)\n    %s\n    %s" % (scene.name, state.fault(), where, what, fault), flush=True)


def try_scene(scene, place, count, sample, jobs):
    spots = [trial.fresh(place, "%s.%d" % (scene.name, i)) for i in range(jobs)]
    clean = scene.run(None, spots[0], None)
    wrong = scene.judge(clean, clean, spots[0])
    if wrong:
        count.wrong(scene, None, clean.state, "without a fault: " + wrong)
        return 0
    faults = list(scene.faults(clean.state))
    step = SAMPLE[scene.name.split(".")[0]]
    if sample:
        step = max(1, min(step, len(faults) // LEAST), -(-len(faults) // MOST))
        faults = faults[step // 2::step]
        kept = trial.mended(clean.state, MENDED.get(scene.name, ()), count.programs.function)
        faults += [fault for some in kept.values() for fault in some]
        for name in MENDED.get(scene.name, ()):
            if name not in kept:
                count.wrong(scene, None, clean.state, "nothing is called by %s: MENDED is out of date" % name)
    free, done = list(spots), []

    def one(fault):
        with count.lock:
            spot = free.pop()
        try:
            outcome = scene.run(fault, spot, clean)
            if not trial.is_double(outcome.state, fault):
                wrong = scene.judge(clean, outcome, spot)
                if wrong:
                    count.wrong(scene, fault, outcome.state, wrong)
                done.append(fault)
        finally:
            with count.lock:
                free.append(spot)

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for n, _ in enumerate(pool.map(one, faults), 1):
            if sys.stderr.isatty():
                print("\r\033[K%s: %d of %d" % (scene.name, n, len(faults)), end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    count.tried += len(done)
    return len(done)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--scene", action="append", default=[])
    parser.add_argument("-j", "--jobs", type=int, default=4)
    o = parser.parse_args()
    programs = Programs(os.path.abspath(o.build))
    count = Count(programs)
    with tempfile.TemporaryDirectory(prefix="rollcall-fail-") as place:
        for scene in scenes(programs, place):
            if o.scene and not any(scene.name == name or scene.name.startswith(name + ".") for name in o.scene):
                continue
            begin = time.monotonic()
            if o.list:
                n = len(list(scene.faults(scene.run(None, trial.fresh(place, scene.name), None).state)))
                print("%-22s %5d" % (scene.name, n))
                continue
            # Daemons mostly wait; the others are as fast as the processor.
            n = try_scene(scene, place, count, o.sample, o.jobs * (4 if scene.name.startswith("daemon") else 1))
            print("%-22s %5d faults, %.1f s" % (scene.name, n, time.monotonic() - begin), flush=True)
    if not o.list:
        print("%d faults, %d of them not met as they should be" % (count.tried, count.failed))
    return 1 if count.failed or not (o.list or count.tried) else 0


if __name__ == "__main__":
    sys.exit(main())
