"""console.py: commands of the console with a fault in each: they say so and end with 3 (4: incomplete), or do what they
would have done. No crash, no verdict that is not there without the fault, and no half file called whole."""
import collections
import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time

import trial

# exact: it says the same in each run; else but for its numbers. sizes: its files have random contents. part: its file
# may hold what could be read, where it says so. seen: words that stand in all that it says; what else it says changes.
Command = collections.namedtuple("Command", "name words environment exact sizes incomplete part seen",
                                 defaults=({}, True, False, (), False, ()))

# Ranks that wait in the same function, and are awake for a moment now and then.
STACKS = ("idle", "0-2")


def commands(programs, place, rings):
    """All that is tried, on what a healthy job and a sick one have left."""
    sick, trace, digest = trial.fresh(place, "sick"), os.path.join(place, "trace"), os.path.join(place, "node.rdig")
    cookie = {"ROLLCALL_COOKIE": os.path.join(place, "cookie")}
    ranks = [subprocess.Popen([programs.synth_rank, sick, "job", str(rank), "3", "0", "300", "1024",
                               "wrong" if rank == 1 else "hang"]) for rank in range(3)]
    daemon = subprocess.Popen([programs.rollcalld, "--no-supervise", "--dir", sick, "--trace", trace, "--suspect-ms",
                               "200", "--stall-ms", "200", "--http", "127.0.0.1:0"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **cookie})
    try:
        wait_for_verdict(programs, sick)
        here = {"ROLLCALL_DIR": sick, "ROLLCALL_DAEMON": "ipc://%s/root" % sick, **cookie}
        for words in (["why"], ["why", "--json"], ["verdicts"], ["verdicts", "--json"], ["jobs"], ["top", "--once"],
                      ["remedy", "list"], ["page"], ["stacks", "-n1"], ["stacks", "-n1", "--json"]):
            yield Command(".".join(word for word in words if word != "-n1").replace("--", ""), words, here, exact=False,
                          **({"incomplete": (4,), "seen": STACKS} if "stacks" in words else {}))
    finally:
        for process in ranks:
            process.send_signal(signal.SIGKILL)
            process.wait()
        daemon.terminate()
        daemon.wait()
    one = next(os.path.join(rings, name) for name in sorted(os.listdir(rings)))
    subprocess.run([programs.rollcall, "digest", trace, "-o", digest], check=False, capture_output=True)
    yield Command("analyze.rings", ["analyze", rings], incomplete=(4,))
    yield Command("analyze.sick", ["analyze", sick], incomplete=(4,))
    yield Command("analyze.trace", ["analyze", "--json", trace], incomplete=(4,))
    yield Command("analyze.digest", ["analyze", digest], incomplete=(4,))
    yield Command("digest", ["digest", trace, "-o", "node.rdig"], incomplete=(4,))
    yield Command("export", ["export", "--flight-recorder", "--force", trace, "-o", "dumps"], incomplete=(4,))
    yield Command("export.perfetto", ["export", "--perfetto", "--force", trace, "-o", "job.pftrace"], incomplete=(4,),
                  part=True)
    yield Command("export.sqlite", ["export", "--sqlite", "--force", trace, "-o", "job.db"], incomplete=(4,), part=True)
    yield Command("replay.plan", ["replay", "--plan", "plan", trace], incomplete=(4,))
    yield Command("dump.ring", ["dump", one])
    yield Command("keygen", ["keygen", "keys"], sizes=True)
    shutil.rmtree(sick, ignore_errors=True)


def wait_for_verdict(programs, there):
    end = time.monotonic() + trial.HANG_S
    while time.monotonic() < end:
        got = subprocess.run([programs.rollcall, "verdicts", "--daemon", "ipc://%s/root" % there], capture_output=True,
                             check=False)
        if findings(got.stdout):
            return
        time.sleep(0.1)
    raise RuntimeError("no verdict about a job with a wrong call: %r" % got)


def judge(command, clean, outcome):
    """None, or what is wrong."""
    if command.sizes:
        clean, outcome = (o._replace(files={name: len(data) for name, data in o.files.items()})
                          for o in (clean, outcome))
    same = (lambda data: data) if command.exact else (lambda data: trial.plain(data.decode(errors="replace")))
    if command.seen:
        same = lambda data: [word for word in command.seen if word.encode() in data]
    if outcome.code == -signal.SIGABRT and outcome.err == "Unexpected error.\n":
        return None  # glibc 2.36 ends a process by itself that has no memory at all any more
    if outcome.code == "hang" or outcome.code < 0 or outcome.code > 4:
        return "ended by %s: %s" % (outcome.code, outcome.err[-300:])
    left = [name for name in outcome.files if name.startswith("tmp/") or name not in clean.files]
    if left:
        return "left behind: %s" % ", ".join(left)
    if outcome.code == clean.code and same(outcome.out) == same(clean.out):
        return None if outcome.files == clean.files else "its files are not those of a run without the fault"
    said = any(line.startswith("rollcall: ") for line in outcome.err.splitlines())
    less = outcome.code == clean.code and said and findings(outcome.out) <= findings(clean.out)
    if outcome.code not in (3, *command.incomplete) and not less:
        return "ended with %d, but not with the output of %d: %s" % (outcome.code, clean.code,
                                                                     difference(clean, outcome))
    if outcome.state.function.endswith(" of words"):
        return None  # what it says is what could not be written
    if not said:
        return "ended with %d and does not say why: %r" % (outcome.code, outcome.err[-300:])
    half = [name for name, data in outcome.files.items()
            if data != clean.files[name] and not (command.part and is_sound(name, data))]
    return "half a file: %s" % ", ".join(half) if half else None


def is_sound(name, data):
    """Whether an export is whole in itself: what is in it was written to its end."""
    if name.endswith(".pftrace"):
        return is_packets(data)
    with tempfile.NamedTemporaryFile(suffix=".db") as file:
        file.write(data)
        file.flush()
        with contextlib.closing(sqlite3.connect(file.name)) as database:
            try:
                return database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            except sqlite3.DatabaseError:
                return False


def is_packets(data):
    """Packets of a trace for Perfetto: each the field 1, its length, its bytes."""
    at = 0
    while at < len(data):
        if data[at] != 0x0a:
            return False
        at, shift, length = at + 1, 0, 0
        while at < len(data) and data[at] & 0x80:
            length |= (data[at] & 0x7f) << shift
            at, shift = at + 1, shift + 7
        if at == len(data):
            return False
        at += 1 + (length | data[at] << shift)
    return at == len(data)


def findings(out):
    """The verdicts of a text: {(certainty, code)}."""
    return set(re.findall(r"^(PROVEN|SUSPECTED|PREDICTED) +([a-z0-9-]+)", out.decode(errors="replace"), re.MULTILINE))


def difference(clean, outcome):
    mine, theirs = (o.out.decode(errors="replace").splitlines() for o in (outcome, clean))
    return "%.300r in place of %.300r; %r" % ([line for line in mine if line not in theirs][:2],
                                              [line for line in theirs if line not in mine][:2], outcome.err[-200:])
