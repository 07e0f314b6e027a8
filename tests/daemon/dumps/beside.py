#!/usr/bin/env python3
"""What rollcall says of dumps and what torchfrtrace says of them, and how long each takes.

usage: beside.py ROLLCALL PYTHON [FOLDER | RANKS]...

PYTHON has PyTorch. Of it only the analyzer's own files are used, without the rest of torch, whose import alone takes
seconds. A number makes the dumps of a job of so many ranks of which two hang (make_dumps.py). Figures are printed, and
none of them is a pass or fail; what rollcall must say of the jobs that are made here is.
"""
import glob
import os
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import make_dumps

TIMES = 15
LONG_S = 2  # what takes longer is run three times


def once(command, env, out):
    """Seconds from the start of a process to its end, and its exit code; its output goes into a file."""
    out.seek(0)
    out.truncate()
    to = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, out.fileno(), 2)]
    began = time.monotonic()
    pid = os.posix_spawn(command[0], command, env, file_actions=to)
    _, status = os.waitpid(pid, 0)
    return time.monotonic() - began, os.waitstatus_to_exitcode(status)


def together(*sides):
    """The shortest of several runs of each side, by turns, so that both have the same machine: seconds, output, code."""
    best = [None] * len(sides)
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        for i in range(TIMES):
            for k, (command, env) in enumerate(sides):
                if i >= 3 and best[k][0] > LONG_S:
                    continue
                took, code = once(command, env or os.environ, out)
                out.seek(0)
                if best[k] is None or took < best[k][0]:
                    best[k] = took, out.read(), code
    return best


def analyzer(python, work):
    """An environment in which the analyzer can be run by itself."""
    where = subprocess.run([python, "-c", "import importlib.util as u; print(u.find_spec('torch').submodule_search_"
                            "locations[0])"], capture_output=True, text=True, check=True).stdout.strip()
    package = os.path.join(work, "torch", "distributed")
    os.makedirs(package)
    for path in (os.path.join(work, "torch"), package):
        with open(os.path.join(path, "__init__.py"), "w", encoding="utf-8"):
            pass
    os.symlink(os.path.join(where, "distributed", "flight_recorder"), os.path.join(package, "flight_recorder"))
    return dict(os.environ, PYTHONPATH=work)


def prefix_of(folder):
    name = next(n for n in sorted(os.listdir(folder)) if n[-1].isdigit())
    return name.rstrip("0123456789")


def beside(rollcall, python, env, folder, what):
    files = [p for p in glob.glob(os.path.join(folder, "*")) if p[-1].isdigit()]
    (ours, said, _), (theirs, lines, code) = together(
        ([rollcall, "analyze", folder], None),
        ([python, "-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", prefix_of(folder)], env))
    findings = [x for x in said.splitlines() if x.split(" ")[0] in ("SUSPECTED", "PREDICTED", "PROVEN")]
    lines = lines.splitlines()
    end = f", ends with {code}: {lines[-1][:80]}" if code else ""
    print(f"{what}: {len(files)} dumps, {sum(os.path.getsize(p) for p in files) / 1e6:.1f} MB")
    print(f"  rollcall      {ours * 1e3:9.1f} ms  " + "; ".join(" ".join(x.split()[1:]) for x in findings))
    print(f"  torchfrtrace  {theirs * 1e3:9.1f} ms  {len(lines)} lines{end}")
    print(f"  {theirs / ours:.0f} times as fast", flush=True)
    return findings


def main():
    rollcall, python, places = os.path.abspath(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["16", "1024"]
    with tempfile.TemporaryDirectory() as work:
        env = analyzer(python, os.path.join(work, "py"))
        for place in places:
            if not place.isdigit():
                beside(rollcall, python, env, place, place)
                continue
            ranks = int(place)
            faulty = (ranks // 2 + 1, ranks - 2)
            folder = os.path.join(work, place)
            job = make_dumps.experts(ranks, faulty, steps=6, ahead=20)
            job.write(folder, prefix="_dump_", active=True, stacks=False)
            found = beside(rollcall, python, env, folder, f"a job of {ranks} ranks, of which {faulty} hang")
            named = [x.split()[-1] for x in found]
            assert named == [str(r) for r in faulty], found


if __name__ == "__main__":
    main()
