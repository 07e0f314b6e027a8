"""steps.py: training steps, and the stop after K of them (ROLLCALL_REHEARSE_STEPS). Needs no PyTorch before follow().

A step is told by the job (step, begin_step), or learned from PyTorch's optimizers: the optimizer that steps first
begins a round, and the round is a step. Where there are several optimizers the last one of the round before ends it;
where K is 1 there was no round before, and the job stops as the first optimizer is about to step again.

Every rank stops itself at its K-th step: first it lets its devices finish, so that its part of each collective is
done, then it waits until the other ranks have stopped as well, and then the main thread raises SystemExit(0). Asking
the ranks to agree over a collective of ours was rejected: it would be in the record. The wait for the others
looks into their notes, and has an end (MEET_S), after which the rank leaves."""
import glob
import os
import sys
import threading
import time
import weakref

from rollcall.rehearse import allocator, notes, settings

MEET_S = 120

_over = 0               # steps that are over
_is_told = False        # the job tells its steps: optimizers are not looked at
_first_number = None    # of begins()
_first = None           # weak: the optimizer that begins a round
_round = []             # ids of those that stepped in this round
_last = None            # id of the one that ended the round before
_built = weakref.WeakSet()
_follows = False
_is_stopping = False


def over():
    return _over


def ended():
    global _is_told
    _is_told = True
    _one_more()


def begins(number):
    global _is_told, _first_number, _over
    _is_told = True
    if _first_number is None:
        _first_number = number
    if number - _first_number > _over:
        _over = number - _first_number - 1
        _one_more()


def _one_more():
    global _over
    _over += 1
    notes.put("step", _over)
    for name, is_now in ("first", _over == 1), ("second", _over == 2), ("third", _over == 3), ("last", True):
        if is_now:
            notes.put(f"step_end {name}", time.monotonic_ns())
    notes.flush()
    allocator.note()
    if settings.now.steps and _over >= settings.now.steps:
        stop()


def _before_step(optimizer, args, kwargs):
    if not _is_told and settings.now.steps and _first is not None and _first() is optimizer and \
            len(_round) > 0 and _over + 1 >= settings.now.steps:
        _one_more()


def _after_step(optimizer, args, kwargs):
    global _first, _last
    if _is_told:
        return
    if _first is None or _first() is None:
        _first = weakref.ref(optimizer)
        _round.clear()
        _last = None
    elif _first() is optimizer:
        if _round:
            _last = _round[-1]
            _one_more()
        _round.clear()
    _round.append(id(optimizer))
    if len(_built) == 1 or (_last is not None and _last == id(optimizer)):
        _round.clear()
        _one_more()


def _on_built(optimizer):
    _built.add(optimizer)
    if settings.now.steps and _over == 0:
        notes.put("step", 0)  # this process takes part: those that have stopped wait for it, also before its first step


def follow():
    """Called once PyTorch is there."""
    global _follows
    from torch.optim import optimizer as module
    if _follows:
        return
    _follows = True
    module.register_optimizer_step_pre_hook(_before_step)
    module.register_optimizer_step_post_hook(_after_step)
    build = module.Optimizer.__init__

    def init(self, *args, **kwargs):
        build(self, *args, **kwargs)
        _on_built(self)

    init.__wrapped__ = build
    module.Optimizer.__init__ = init


def _let_devices_finish():
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    mode = sys.modules.get("rollcall.rehearse.mode")
    for device in {cuda.current_device(), *(mode.devices if mode is not None else ())}:
        cuda.synchronize(device)


def _is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (OSError, IndexError):
        return False


def _still_at_work(folder, away):
    """Whether a process that has told of a step (0: it will take some) has neither stopped nor ended. `away`: the notes
    of those that have, which are read no more: each of many ranks looks into the notes of all others."""
    for path in glob.glob(os.path.join(glob.escape(folder), "steered.*")):
        if path in away:
            continue
        pid = path.rsplit(".", 1)[1]
        try:
            with open(path, encoding="utf-8", errors="replace") as f:
                words = {line.split(" ", 1)[0] for line in f}
        except OSError:
            continue
        is_away = "stopped" in words or not pid.isdigit() or not _is_alive(int(pid))
        if is_away:
            away.add(path)
        elif "step" in words:
            return True
    return False


def _meet():
    folder, end = os.environ.get("HOSTCUDA_REPORT", ""), time.monotonic() + MEET_S
    away, pause = set(), 0.01
    while folder and time.monotonic() < end:
        if not _still_at_work(folder, away):
            return
        pause = min(2 * pause, 0.5)  # whoever is waited for wants the processor
        time.sleep(pause)


def stop():
    global _is_stopping
    if not _is_stopping:
        _is_stopping = True
        _let_devices_finish()
        notes.put("stopped", _over)
        notes.flush()
        _meet()
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(0)
    # SystemExit would end this thread alone, and the main thread would wait for it for ever.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            pass
    os._exit(0)
