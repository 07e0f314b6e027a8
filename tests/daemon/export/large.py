#!/usr/bin/env python3
"""large.py: what a trace of gigabytes costs `rollcall analyze`, `report` and both exports: processor time, time,
memory, the size of what is written; and that SIGINT in the middle ends each at once, with no half file. It prints
figures, and fails only where a file is left, or memory depends on the length.

usage: large.py ROLLCALL MAKE_TRACE CALLS_A_RANK [TRACE [FORM...]]

make_trace writes 8 ranks, about 2.7 bytes a call: 48000000 calls a rank are a gigabyte. TRACE: one that is there
already, of any job; FORM: one of analyze, report, perfetto, sqlite. An export has 120 bytes a call. ctest runs it
with a trace that is small.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

rollcall, make, calls = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), int(sys.argv[3])
FORMS = {"analyze": ["analyze"], "report": ["report"], "perfetto": ["export", "--perfetto"],
         "sqlite": ["export", "--sqlite"]}
END_S = 60  # a machine may be busy; how long it took is printed


def size_of(path):
    return sum(os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(path) for name in names)


def command(form, trace, out):
    return [rollcall, *FORMS[form], trace, *([] if form == "analyze" else ["--force", "-o", out])]


def watched(form, trace, out):
    """(exit code, seconds, seconds of processor, KiB)."""
    begin = time.monotonic()
    with open(os.devnull, "w", encoding="ascii") as null:
        p = subprocess.Popen(command(form, trace, out), stdout=null, stderr=null)
        _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    return p.returncode, time.monotonic() - begin, used.ru_utime + used.ru_stime, used.ru_maxrss


def interrupted(form, trace, out, after):
    """Seconds from the signal to the end; None: it was done before."""
    with subprocess.Popen(command(form, trace, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
        try:
            p.wait(after)
            return None
        except subprocess.TimeoutExpired:
            begin = time.monotonic()
            p.send_signal(signal.SIGINT)
            p.wait(END_S)
            return time.monotonic() - begin


def main(folder):
    trace = sys.argv[4] if len(sys.argv) > 4 else os.path.join(folder, "trace")
    if len(sys.argv) <= 4:
        subprocess.run([make, trace, "1", "8", str(calls), "sick"], check=True)
    print(f"trace: {size_of(trace) / 1e6:.1f} MB, on {os.cpu_count()} processors, "
          f"load {os.getloadavg()[0]:.0f} when it began", flush=True)
    for form in sys.argv[5:] or FORMS:
        out = os.path.join(folder, form)
        code, wall, processor, kib = watched(form, trace, out)
        assert code in (0, 1), (form, code)
        written = os.path.getsize(out) if form != "analyze" else 0
        stop = interrupted(form, trace, out + "-stopped", processor / 3 + 0.05)
        print(f"{form:9} {wall:8.1f} s  {processor:8.1f} s of processor  {kib / 1024:7.1f} MiB at most  "
              f"{written / 1e6:9.1f} MB written  SIGINT: {'done before' if stop is None else f'{stop:.2f} s'}",
              flush=True)
        left = [name for name in os.listdir(folder) if name.endswith(".part")]
        kept = os.path.exists(out + "-stopped") and stop is not None
        assert left == [] and not kept, (form, left)
        for path in (out, out + "-stopped"):
            if os.path.exists(path):
                os.remove(path)


signal.signal(signal.SIGINT, signal.default_int_handler)  # who is in the background ignores it, and so would they
with tempfile.TemporaryDirectory() as where:
    main(where)
