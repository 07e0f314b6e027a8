"""origin.py: where the bytes of a device's memory come from: a state for each part of a storage. Needs no PyTorch.

States are ordered from good to bad, and a value has the worst state of what it was made of. A part is what one tensor
spans; of a storage with more parts than PARTS_MOST only the worst state is kept, because memory for this must be
bounded."""

COPIED, COMPUTED, SUPPLIED, RANDOM, UNKNOWN, PARTLY, SKIPPED, FRESH = range(8)

# The words of the report. FRESH is memory that no kernel was asked to write; that is as far as the mode sees, and a
# kernel that it does not see (Triton's) is skipped like the others.
WORDS = ("copied", "computed", "supplied", "random", "unknown", "partly", "skipped", "skipped")

PARTS_MOST = 1024


def is_missing(state):
    """Nobody computed this, not even from other values."""
    return state >= SKIPPED


def of_result(states):
    """The state of what is computed from arguments with these states."""
    if not states:
        return COMPUTED
    worst = max(states)
    if is_missing(worst):
        return SKIPPED if all(is_missing(s) for s in states) else PARTLY
    return worst if worst in (RANDOM, UNKNOWN, PARTLY) else COMPUTED


class Parts:
    """The states of one storage of `size` bytes."""
    __slots__ = ("base", "parts")

    def __init__(self, state):
        self.base = state
        self.parts = []  # [first, end, state], in order, none empty, none overlap

    def get(self, first, end):
        """The worst state in a span."""
        if not self.parts:
            return self.base
        worst, at = -1, first
        for a, b, state in self.parts:
            if b <= first:
                continue
            if a >= end:
                break
            worst = max(worst, state, self.base if a > at else -1)
            at = b
        return max(worst, self.base) if at < end else worst

    def set(self, first, end, state, size):
        """The span is written whole."""
        if first <= 0 and end >= size:
            self.base, self.parts = state, []
            return
        kept = []
        for a, b, old in self.parts:
            if a < first:
                kept.append([a, min(b, first), old])
            if b > end:
                kept.append([max(a, end), b, old])
        kept.append([first, end, state])
        kept.sort()
        merged = []
        for part in kept:
            if merged and merged[-1][1] == part[0] and merged[-1][2] == part[2]:
                merged[-1][1] = part[1]
            else:
                merged.append(part)
        self.parts = merged
        if len(merged) > PARTS_MOST:
            self.base, self.parts = self.get(0, size), []

    def touch(self, first, end, state, size):
        """The span is written with holes in it. Memory that nobody has written takes the new state, because who reads
        the holes reads what the program never wrote; a hole of skipped memory makes the span partly so."""
        old = self.get(first, end)
        if old == SKIPPED and not is_missing(state):
            state = PARTLY
        elif old != FRESH:
            state = max(old, state)
        self.set(first, end, state, size)
