"""Of the jobs that test rollcall.moe: exact answers in float64 with how far from them a result may be, positions of
empty experts, and what an assertion says."""
import sys

import torch

from rollcall.moe import linear

UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half a unit of the last place
TINY = {torch.float32: 0.0, torch.bfloat16: 0.0, torch.float16: 2.0**-25}
COUNTS = {  # of four experts
    "none": [3, 1, 4, 2], "first": [0, 3, 1, 4], "second": [3, 0, 1, 4], "third": [2, 5, 0, 1], "last": [3, 1, 4, 0],
    "all but one": [0, 0, 5, 0], "first and last": [0, 4, 3, 0], "middle": [4, 0, 0, 3], "all": [0, 0, 0, 0],
}


def fail(text):
    sys.exit(f"{sys.argv[0]}: {text}")


def want(what, got, wanted):
    if got != wanted:
        fail(f"{what}: {got!r}, wanted {wanted!r}")


def same(what, got, wanted):
    """Equal in every bit, shape and type."""
    if got is None or got.shape != wanted.shape or got.dtype != wanted.dtype or not torch.equal(got, wanted):
        fail(f"{what}: {got}, wanted {wanted}")


def refused(what, kind, text, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except kind as error:
        if text not in str(error) and text != getattr(error, "name", None):
            fail(f"{what}: the error lacks {text!r}: {error}")
    else:
        fail(f"{what} was accepted")


def near(what, got, exact, size, terms, dtype):
    """got may be as far from the exact sum as float32 sums of so many terms, whose absolute values add up to size, and
    one rounding to dtype allow."""
    if got is None or tuple(got.shape) != tuple(exact.shape) or got.dtype != dtype:
        fail(f"{what}: {None if got is None else (tuple(got.shape), got.dtype)}, wanted {(tuple(exact.shape), dtype)}")
    sums = (terms + 2) * 2.0**-24 * 1.001 * size
    bound = sums + UNIT[dtype] * (exact.abs() + sums) + TINY[dtype]
    off = ~((got.detach().double() - exact).abs() <= bound)
    if bool(off.any()):
        at = tuple(off.nonzero()[0].tolist())
        fail(f"{what} at {at}: {float(got[at])}, wanted {float(exact[at])} within {float(bound[at])}")


def close(what, got, wanted, tolerance):
    """Within a part of the largest number; NaN is never within."""
    if got is None or got.shape != wanted.shape:
        fail(f"{what}: {None if got is None else tuple(got.shape)}, wanted {tuple(wanted.shape)}")
    got, wanted = got.detach().double(), wanted.detach().double()
    largest = max(float(wanted.abs().max()) if wanted.numel() else 0.0, 1e-30)
    worst = float((got - wanted).abs().max()) if wanted.numel() else 0.0
    if not worst <= tolerance * largest:
        fail(f"{what}: off by {worst / largest:.3g} of the largest, {tolerance} is allowed")


def poison(*shapes):
    """Memory of these shapes holds NaN when it is given back: what is then left unwritten in new memory is seen."""
    for _ in range(4):
        held = [torch.full(shape, float("nan"), dtype=dtype) for shape in shapes for dtype in UNIT]
        del held


class Counted:
    """A context: which functions of the library are called, and with how many rows."""

    NAMES = ("moe_linear_forward_call", "moe_linear_resume", "moe_linear_backward_call")

    def __enter__(self):
        self.calls, place = [], linear._place_of(torch.empty(0))
        self.lib = place.lib
        for name in self.NAMES:
            setattr(self.lib, name, self._wrapped(name, getattr(self.lib, name)))
        return self

    def _wrapped(self, name, function):
        def call(*arguments):
            self.calls.append(name)
            return function(*arguments)
        call.function = function
        return call

    def __exit__(self, *error):
        for name in self.NAMES:
            setattr(self.lib, name, getattr(self.lib, name).function)


class Group:
    """As much of a process group as the modules ask for."""

    def __init__(self, size=1, rank=0):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


class Groups:
    """As much of Megatron's ProcessGroupCollection."""

    def __init__(self, ep=(1, 0), expt_tp=(1, 0), expt_dp=(1, 0)):
        self.ep, self.expt_tp, self.expt_dp = Group(*ep), Group(*expt_tp), Group(*expt_dp)
