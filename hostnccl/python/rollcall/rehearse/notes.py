"""notes.py: what a process tells the report of the rehearsal. Needs no PyTorch.

In the folder of HOSTCUDA_REPORT each process that had a reason to say something has a file `steered.PID`:

    rank 3                                       the variable RANK, where it is set
    size 65536                                   tensors up to so many bytes are computed; also: values TEXT, steps K
    ops computed 00000000000000000123            operations: computed, left out, failed, captured
    failed 00000000000000000002 aten.foo.default
    left 00000000000000000007 aten::mm           operations that were left out, by name
    read skipped item 00000000000000000012 17 router.py    origin, kind, how often, line, path; see below
    step 00000000000000000003                    steps that are over
    step_end last 00000000001234567890           when the first, second, third and last of them ended (CLOCK_MONOTONIC)
    stopped 00000000000000000003                 the process stopped itself after so many steps
    odd nan computed 00000000000000000012 17 train.py      the newest read of a number that is none: the how manyth read
    odd_step 00000000000000000003                          and how many steps were over then
    group 4 21 0<tab>default_pg<tab>train.py<tab>main      ranks and line; name, description, file and function
    allocator 0 00000000000004194304             most bytes that PyTorch's allocator gave out on device 0

A line of a read (and an odd one) goes on with the function, behind a tab. Numbers have a fixed width and are
overwritten in place, so the file is right at every moment, also when the process is killed. Only the counters of
operations are written in bundles, because they change with every operation: what was counted behind the last read or
step, up to BUNDLE of them, is lost then."""
import atexit
import os
import threading

DIGITS = 20
BUNDLE = 256
LEFT_MOST = 64     # operations that were left out, by name, in one bundle
LINES_MOST = 4096  # reading lines of one process; what comes beyond counts under one line

_lock = threading.RLock()
_file = None   # descriptor
_pid = None    # whose it is
_end = 0
_at = {}       # key -> [offset of the number, number]
_ops = {}      # not yet written: word -> number
_left = {}     # not yet written: operation -> number
_reads = 0     # of this process


def _begin():
    """Opens the file of this process. A child of fork has its own, and none of its parent's numbers."""
    global _file, _pid, _end, _reads
    if _pid == os.getpid():
        return
    _pid, _end, _file, _reads = os.getpid(), 0, None, 0
    _at.clear()
    _ops.clear()
    _left.clear()
    folder = os.environ.get("HOSTCUDA_REPORT", "")
    if not folder:
        return
    try:
        _file = os.open(os.path.join(folder, f"steered.{_pid}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                        0o600)
    except OSError:
        return  # the job comes first; the report then lacks this process
    rank = os.environ.get("RANK", "")
    if rank.isdigit():
        _line(f"rank {rank}\n")


def _line(text):
    global _end
    data = text.encode("utf-8", "replace")
    at = _end
    if _file is not None:
        try:
            os.pwrite(_file, data, at)
        except OSError:
            pass  # a full disk costs the report, not the job
    _end += len(data)
    return at


def say(text):
    """A line without a number that changes."""
    with _lock:
        _begin()
        _line(text.replace("\n", " ") + "\n")


def _number(before, by, behind, is_set=False):
    key = (before, behind)
    place = _at.get(key)
    if place is None:
        at = _line(f"{before} {0:0{DIGITS}d}{behind}\n") + len(before.encode("utf-8", "replace")) + 1
        place = _at[key] = [at, 0]
    place[1] = by if is_set else place[1] + by
    if _file is not None:
        try:
            os.pwrite(_file, b"%0*d" % (DIGITS, place[1]), place[0])
        except OSError:
            pass
    return place[1]


def add(before, behind="", by=1):
    with _lock:
        _begin()
        return _number(before, by, behind)


def put(before, number):
    with _lock:
        _begin()
        _number(before, number, "", True)


def _clean(text):
    return str(text).replace("\n", " ").replace("\t", " ")


def _place(site):
    file, line, function = site
    return f" {line} {_clean(file)}\t{_clean(function)}"


def read(origin, kind, site):
    """A read-back. Returns how many there were before at this place."""
    global _reads
    with _lock:
        _begin()
        _reads += 1
        flush()
        behind = _place(site)
        if (f"read {origin} {kind}", behind) not in _at and len(_at) >= LINES_MOST:
            behind = " 0 (other lines)\t"
        return _number(f"read {origin} {kind}", 1, behind) - 1


def odd(what, origin, site, steps):
    """The read that was just told brought `what` (nan, inf)."""
    with _lock:
        _begin()
        behind = _place(site)
        if (f"odd {what} {origin}", behind) in _at or len(_at) < LINES_MOST:
            _number(f"odd {what} {origin}", _reads, behind, True)
            _number("odd_step", steps, "", True)


def group(size, name, description, site):
    file, line, function = site
    say(f"group {size} {line} {_clean(name)}\t{_clean(description)}\t{_clean(file)}\t{_clean(function)}")


def failed(name):
    add("failed", f" {_clean(name)}")


def left(name):
    """An operation was left out."""
    op("left")
    if name in _left or len(_left) < LEFT_MOST:
        _left[name] = _left.get(name, 0) + 1


def op(word):
    """One more operation of this kind. Not atomic between threads on purpose: an operation more or less is no loss, and
    a lock on each would be."""
    if _pid != os.getpid():
        with _lock:
            _begin()
    n = _ops.get(word, 0) + 1
    _ops[word] = n
    if n >= BUNDLE:
        flush()


def flush():
    with _lock:
        if _pid != os.getpid():
            return
        for word in list(_ops):
            _number(f"ops {word}", _ops.pop(word), "")
        for name in list(_left):
            _number("left", _left.pop(name), f" {_clean(name)}")


def _after_fork():
    """Another thread may have held the lock, and does not live in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(flush)
