"""rows.py: the jobs of this folder, and what must come of each. A row is one ctest per number of ranks, with the name
rehearse.NAME.RANKS; `check_rehearse.py --list` tells CMake the names.

A job prints "rank R step S" for each step. It reads from the environment what it does wrong: MISTAKE (a word that the
job knows) and CULPRIT (the rank that does it). Rows of one framework stand in a list of their own.
"""
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Said:
    """One finding: its code is one of `codes`, or one of them is what it may be; exactly these ranks did it."""
    codes: tuple
    culprits: tuple
    certainty: tuple = ("proven",)
    op: str = ""  # of the call in question, at the culprits or at their peers: "AllReduce"


@dataclass(frozen=True)
class Row:
    name: str
    script: str  # job_SCRIPT.py
    ranks: tuple = (2, 4)
    steps: int = 4
    needs: str = "torch"  # the module that the interpreter must have
    env: dict = field(default_factory=dict)
    mistake: str = ""  # "": a healthy job, about which nothing is said
    culprit: int = -1  # the last rank where negative
    says: tuple = ()  # of Said, in any order; a sick job's, and no other finding
    alone: bool = True  # a healthy job also runs without rollcall, and must do the same


TORCH = [
    Row("ddp", "ddp", steps=6),
    Row("ddp.skip", "ddp", ranks=(4,), steps=6, mistake="skip", culprit=1,
        says=(Said(("call-skipped",), (1,), ("proven", "suspected"), "AllReduce"),)),
    # Where small operations are computed on the host torch.compile leaves functions as they are.
    Row("compiled", "compiled", ranks=(2,), needs="triton", env={"ROLLCALL_REHEARSE_COMPUTE": "off"}),
    Row("compiled.skip", "compiled", ranks=(4,), needs="triton", mistake="skip", culprit=1,
        env={"ROLLCALL_REHEARSE_COMPUTE": "off"},
        says=(Said(("call-skipped",), (1,), ("proven", "suspected"), "AllReduce"),)),
]

MEGATRON = [
    Row("megatron_moe", "megatron_moe", steps=2, needs="megatron.core", alone=False),
]

ROWS = TORCH + MEGATRON


def tests():
    """The tests as (name, row, ranks)."""
    return [(f"{row.name}.{n}", row, n) for row in ROWS for n in row.ranks]
