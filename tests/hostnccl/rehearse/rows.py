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


def megatron(name, layout="", ranks=(4,), mistake="", says=(), **more):
    # The mistakes are seen without the values of a rehearsal: what the ranks exchange is empty then.
    env = {"MEGATRON": layout, **({"ROLLCALL_REHEARSE": "0"} if mistake else {})}
    return Row("megatron_moe" + name, "megatron_moe", ranks=ranks, needs="megatron.core", env=env, mistake=mistake,
               culprit=1, says=says, **more)


# The exchange that a rank leaves out is empty on all ranks: it shows as a circle where the rank goes on to its next
# forward, and as a missing exchange where the rank ends.
MEGATRON = [
    megatron("", ranks=(2, 4), alone=False),
    megatron(".pp", "pp=2 ep=2", alone=False),
    megatron(".experts", mistake="experts",
             says=(Said(("circular-wait",), (1,), ("suspected", "proven"), "AllGather"),)),
    megatron(".experts_end", "steps=3", mistake="experts", says=(Said(("alltoallv-mismatch",), (1,)),)),
    megatron(".unequal", "capacity=1", mistake="capacity",
             says=(Said(("count-mismatch",), (1,), ("suspected", "proven"), "AlltoAll"),)),
    megatron(".item", mistake="item",
             says=(Said(("call-added",), (1,), ("suspected", "proven"), "AllReduce"),)),
]

ROWS = TORCH + MEGATRON


def tests():
    """The tests as (name, row, ranks)."""
    return [(f"{row.name}.{n}", row, n) for row in ROWS for n in row.ranks]
