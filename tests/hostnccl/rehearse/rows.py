"""rows.py: the jobs of this folder, and what must come of each. A row is one ctest per number of ranks, with the name
rehearse.NAME.RANKS; `check_rehearse.py --list` tells CMake the names.

A job prints "rank R step S" for each step. It reads from the environment what it does wrong: MISTAKE (a word that the
job knows) and CULPRIT (the rank that does it). Rows of one framework stand in a list of their own.
"""
import os
import re
from dataclasses import dataclass, field

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")


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
    script: str  # job_SCRIPT.py; with a "/": a file of the tree
    ranks: tuple = (2, 4)
    steps: int = 4
    needs: str = "torch"  # the module that the interpreter must have
    release: str = ""  # it runs in the environment of this release, "megatron-core-0.12.3", and in no other
    env: dict = field(default_factory=dict)
    mistake: str = ""  # "": a healthy job, about which nothing is said
    culprit: int = -1  # the last rank where negative
    says: tuple = ()  # of Said, in any order; a sick job's, and no other finding
    shows: tuple = ()  # pieces of what the console prints; numbers of calls (#17) need not be the same
    alone: bool = True  # a healthy job also runs without rollcall, and must do the same
    launches: bool = False  # the job starts its ranks itself, as many as `ranks` says
    represent: tuple = ()  # the ranks that run, and how many the job believes in: ((0, 1, 2, 3), 16); (): all run
    options: tuple = ()  # of `rollcall rehearse`
    compared: str = ""  # of a sick job: it is a row of docs/COMPARED.md, with these words for the mistake


def of_readme():
    """What the README's first screen shows of the job's finding: the rank, the call and its lines. Who waits, below,
    depends on the moment."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as f:
        return re.search(r"^```\n(PROVEN .*?\n)waiting ", f.read(), re.M | re.S).group(1)


# PyTorch is left alone, as on a cluster: nothing is computed.
PLAIN = {"ROLLCALL_REHEARSE_COMPUTE": "off"}

# A job that hangs makes no further call, so which mistake it was may stay open: UNSURE.
UNSURE = ("proven", "suspected")


def sick(script, mistake, codes, words, culprits=(2,), certainty=("proven",), op="", **more):
    """A sick job at four ranks, of which rank 2 makes the mistake."""
    return Row(f"{script}.{mistake}", script, ranks=(4,), mistake=mistake, culprit=2,
               says=(Said(codes, culprits, certainty, op),), compared=words, **more)


SICK = [
    sick("ddp", "skip", ("call-skipped",), "leaves out the reduction of the loss", certainty=UNSURE, op="AllReduce"),
    sick("ddp", "add", ("call-added",), "makes a reduction more", certainty=UNSURE, op="AllReduce"),
    sick("ddp", "resize", ("count-mismatch",), "reduces 7 elements where the others reduce 1", certainty=UNSURE,
         op="AllReduce"),
    sick("ddp", "barrier", ("call-added",), "has a barrier in a branch", certainty=UNSURE, op="AllReduce",
         shows=("call-added  rank 2", "dist.barrier()")),
    sick("ddp", "loader_ends", ("call-skipped", "rank-finished"), "has fewer batches, and leaves the loop"),
    sick("ddp", "killed", ("rank-dead",), "is killed (SIGKILL)"),
    sick("ddp", "stopped", ("rank-stopped",), "is stopped (SIGSTOP)", op="AllReduce"),
    sick("groups", "order", ("circular-wait",), "uses two groups in the other order", op="AllReduce"),
    sick("fsdp2", "skip_forward", ("call-skipped",), "leaves out the forward of a module", certainty=UNSURE,
         op="AllGather", env=PLAIN),
    sick("fsdp2", "skip", ("call-skipped",), "leaves out the reduction of the loss", certainty=UNSURE, op="AllReduce",
         env=PLAIN),
    sick("tensor_parallel", "skip", ("call-skipped",), "does not gather a tensor that is cut among all ranks",
         certainty=UNSURE, env={"TENSOR_PARALLEL": "4", **PLAIN}),
    # Of two ranks that part, nobody can say who is right.
    sick("tensor_parallel", "skip_of_two", ("sequence-tie", "crossed-wait"), "the same, in a group of ranks 2 and 3",
         culprits=(), certainty=UNSURE, env=PLAIN),
    sick("pipeline", "skip", ("crossed-wait", "p2p-unmatched"), "leaves out a step of the schedule", certainty=UNSURE),
]

TORCH = [
    Row("async", "async"),
    # Nobody waits between the two calls, so that both orders go well at once.
    Row("async.apart", "async", env={"APART": "1"}),
    sick("async", "order", ("circular-wait",), "", op="AllReduce"),
    Row("async.order_of_two", "async", ranks=(2,), mistake="order",
        says=(Said(("circular-wait",), (), op="AllReduce"),)),
    Row("named", "named", steps=6, env=PLAIN),
    Row("readme", "docs/examples/train_ddp.py", ranks=(4,), mistake="odd", culprit=3, shows=(of_readme(),),
        says=(Said(("count-mismatch",), (3,), op="AllReduce"),)),
    Row("described.resize", "described", ranks=(4,), env=PLAIN, mistake="resize", culprit=2,
        says=(Said(("count-mismatch",), (2,), UNSURE, "AllReduce"),),
        shows=("on group mesh_dp (4 ranks)", "made at job_described.py:11 <module>")),
    Row("described.resize_named", "described", ranks=(4,), env={"NAMED": "1", **PLAIN}, mistake="resize", culprit=2,
        says=(Said(("count-mismatch",), (2,), UNSURE, "AllReduce"),),
        shows=("on group replicas (4 ranks)", "made at job_described.py:11 <module>")),
    Row("marks", "marks", ranks=(2,), env={"MARKS": "nvtx", **PLAIN}, options=("--nvtx",)),
    Row("marks.nvtx", "marks", ranks=(4,), env={"MARKS": "nvtx", **PLAIN}, mistake="resize", culprit=2,
        options=("--nvtx",), says=(Said(("count-mismatch",), (2,), UNSURE, "AllReduce"),), shows=(", step 102\n",)),
    # The rank goes on to the next step, and what it calls there stands beside the call of the step before.
    Row("marks.skip", "marks", ranks=(4,), env={"MARKS": "nvtx", **PLAIN}, mistake="skip", culprit=2,
        options=("--nvtx",), says=(Said(("call-skipped",), (2,), UNSURE, "AllReduce"),),
        shows=(", rank 2 in step 103, ranks 0-1,3 in step 102\n",)),
    Row("marks.cleared", "marks", ranks=(4,), env={"MARKS": "cleared", **PLAIN}, mistake="resize", culprit=2,
        says=(Said(("count-mismatch",), (2,), UNSURE, "AllReduce"),), shows=(", step 2\n",)),
    Row("ddp", "ddp", steps=6),
    Row("ddp_no_sync", "ddp_more", env={"DDP_KIND": "no_sync", **PLAIN}),
    Row("ddp_zero1", "ddp_more", env={"DDP_KIND": "zero1", **PLAIN}),
    Row("ddp_static", "ddp_more", env={"DDP_KIND": "static", **PLAIN}),
    Row("fsdp2", "fsdp2", env=PLAIN),
    Row("fsdp2_groups", "fsdp2_groups"),
    # The backward's thread might still make the call: no more than a suspicion, but one within a stall or two.
    sick("fsdp2_groups", "order", ("circular-wait",), "", certainty=UNSURE, op="AllGather"),
    Row("tensor_parallel", "tensor_parallel", env=PLAIN),
    Row("tensor_parallel_whole", "tensor_parallel", ranks=(4,), env={"TENSOR_PARALLEL": "4", **PLAIN}),
    Row("pipeline_1f1b", "pipeline", env={"SCHEDULE": "1F1B", **PLAIN}),
    Row("pipeline_gpipe", "pipeline", env={"SCHEDULE": "GPipe", **PLAIN}),
    Row("calls", "calls", steps=3),
    Row("graph", "graph", ranks=(2,)),
    Row("rnn", "rnn", ranks=(2,), steps=3),
    Row("join", "join", ranks=(2,)),
    Row("checkpoint", "checkpoint", ranks=(2,)),
    Row("checkpoint.save", "checkpoint", ranks=(4,), mistake="save", culprit=2,
        says=(Said(("call-skipped",), (2,), UNSURE, "AllGather"),)),
    Row("pynccl", "pynccl"),
    Row("pynccl.skip", "pynccl", ranks=(4,), mistake="skip", culprit=2,
        says=(Said(("call-skipped",), (2,), UNSURE, "AllReduce"),)),
    *SICK,
    Row("ddp.stopped_of_two", "ddp", ranks=(2,), mistake="stopped", says=(Said(("rank-stopped",), (1,)),)),
    Row("ddp.skip_of_two", "ddp", ranks=(2,), mistake="skip",
        says=(Said(("call-skipped", "sequence-tie"), (), UNSURE),)),
    Row("compiled", "compiled", ranks=(2,), needs="triton"),
    Row("compiled.skip", "compiled", ranks=(4,), needs="triton", mistake="skip", culprit=1,
        says=(Said(("call-skipped",), (1,), UNSURE, "AllReduce"),)),
]


def megatron(name, layout="", ranks=(4,), mistake="", says=(), culprit=1, computed=False, **more):
    # The mistakes are seen without the values of a rehearsal: what the ranks exchange is empty then.
    env = {"MEGATRON": layout, **({"ROLLCALL_REHEARSE": "0"} if mistake and not computed else {})}
    return Row("megatron_moe" + name, "megatron_moe", ranks=ranks, needs="megatron.core", env=env, mistake=mistake,
               culprit=culprit, says=says, **more)


# The exchange that a rank leaves out is empty on all ranks: it shows as a circle where the rank goes on to its next
# forward, and as a missing exchange where the rank ends.
LEFT_OUT = (Said(("circular-wait",), (1,), ("suspected", "proven"), "AllGather"),)
MEGATRON = [
    megatron("", ranks=(2, 4), alone=False),
    megatron(".allgather", "dispatcher=allgather", ranks=(2, 4), alone=False),
    megatron(".grouped", "experts=grouped", alone=False),
    megatron(".capacity", "capacity=1", alone=False),
    megatron(".pp", "pp=2 ep=2", alone=False),
    megatron(".tp", "tp=2 ep=2 reduced=1"),
    megatron(".etp", "tp=2 ep=2 etp=2 reduced=1"),
    megatron(".experts", mistake="experts", says=LEFT_OUT),
    megatron(".experts_end", "steps=3", mistake="experts", says=(Said(("alltoallv-mismatch",), (1,)),)),
    megatron(".unequal", "capacity=1", mistake="capacity",
             says=(Said(("count-mismatch",), (1,), ("suspected", "proven"), "AlltoAll"),)),
    megatron(".item", mistake="item",
             says=(Said(("call-added",), (1,), ("suspected", "proven"), "AllReduce"),)),
    megatron(".norms", "tp=4 reduced=1", mistake="norms",
             says=(Said(("call-skipped",), (1,), UNSURE, "AllReduce"),)),
    # In a tensor parallel group of two ranks nobody can say who is right.
    megatron(".norms_of_two", "tp=2 ep=2 reduced=1", mistake="norms",
             says=(Said(("call-skipped",), (), UNSURE, "AllReduce"),)),
    megatron(".etp_unequal", "tp=4 ep=1 etp=4 reduced=1 capacity=1", mistake="capacity",
             says=(Said(("count-mismatch",), (1,), UNSURE),)),
    megatron(".etp_counts", "tp=2 ep=2 etp=2 reduced=1", mistake="counts", culprit=3,
             says=(Said(("p2p-bytes",), (), UNSURE, "Send"),)),
]

# Releases before and after the pull requests about ranks without tokens (#3626 of February 2026, #4851 of May 2026).
RELEASES = ("0.12.3", "0.13.1", "0.14.0", "0.15.3", "0.19.2")
for release in RELEASES:
    one = {"release": f"megatron-core-{release}", "alone": False}
    # The newest wants real counts. Then rows are exchanged, and other rows than they expect come to the ranks.
    more = {"computed": True, "says": (Said(("alltoallv-mismatch",), (1,)),)} if release == "0.19.2" else {
        "says": LEFT_OUT}
    name = ".of_" + release.replace(".", "_")
    MEGATRON += [megatron(name, **one), megatron(name + ".experts", mistake="experts", **more, **one)]

# An inference server, which starts its ranks itself: sums by NCCL that it loads itself, by its own kernel, and with
# parallel experts.
VLLM = "vllm-0.32.0"
SERVERS = [
    Row("vllm", "vllm", ranks=(2,), steps=2, needs="vllm", release=VLLM, launches=True),
    Row("vllm_custom", "vllm", ranks=(2,), steps=2, needs="vllm", release=VLLM, launches=True, alone=False,
        env={"VLLM_SUMS": "custom"}),
    Row("vllm_moe", "vllm", ranks=(2,), steps=2, needs="vllm", release=VLLM, launches=True, alone=False,
        env={"VLLM_MODEL": "mixtral"}),
]

# Of the week in which the pull request about its router was made; release 0.3.0 has other modules.
TITAN = "torchtitan-0.2.2"

# Of 16 ranks four run, and the others are stood in for: the first ones, or others. Where experts are parallel, the
# ranks that run are those of one such group, or of one and a half.
FIRST, APART = ((0, 1, 2, 3), 16), ((5, 9, 10, 11), 16)
REPRESENTED = [
    Row("represent.ddp", "ddp", ranks=(4,), steps=6, represent=FIRST),
    Row("represent.ddp_apart", "ddp", ranks=(4,), steps=6, represent=APART),
    Row("represent.fsdp2", "fsdp2", ranks=(4,), env=PLAIN, represent=FIRST),
    Row("represent.groups", "represent", ranks=(4,), steps=3, represent=FIRST),
    Row("represent.groups_apart", "represent", ranks=(4,), steps=3, represent=APART),
    Row("represent.ddp.skip", "ddp", ranks=(4,), mistake="skip", culprit=2, represent=FIRST,
        says=(Said(("call-skipped",), (2,), UNSURE, "AllReduce"),)),
    Row("represent.ddp_apart.skip", "ddp", ranks=(4,), mistake="skip", culprit=10, represent=APART,
        says=(Said(("call-skipped",), (10,), UNSURE, "AllReduce"),)),
    Row("represent.fsdp2.skip", "fsdp2", ranks=(4,), mistake="skip", culprit=2, env=PLAIN, represent=FIRST,
        says=(Said(("call-skipped",), (2,), UNSURE, "AllReduce"),)),
    megatron(".represent", "ep=4", alone=False, represent=FIRST),
    megatron(".represent_apart", "ep=4", alone=False, represent=((4, 5, 6, 7), 16)),
    megatron(".represent.item", "ep=4", mistake="item", represent=FIRST,
             says=(Said(("call-added",), (1,), ("suspected", "proven"), "AllReduce"),)),
]

# Frameworks above PyTorch, where the interpreter has them.
ABOVE = [
    Row("accelerate", "accelerate", ranks=(2,), needs="accelerate"),
    sick("accelerate", "skip", ("call-skipped",), "", certainty=UNSURE, needs="accelerate"),
    Row("trainer", "trainer", ranks=(2,), needs="transformers", alone=False),
    sick("trainer", "skip", ("call-skipped",), "", certainty=UNSURE, op="AllReduce", needs="transformers"),
    Row("deepspeed_zero1", "deepspeed", ranks=(2,), needs="deepspeed", env={"STAGE": "1"}, alone=False),
    sick("deepspeed", "skip", ("call-skipped",), "", certainty=UNSURE, needs="deepspeed"),
    Row("deepspeed_zero3", "deepspeed", ranks=(2,), needs="deepspeed", env={"STAGE": "3"}, alone=False),
    Row("deepspeed_moe", "deepspeed_moe", ranks=(4,), needs="deepspeed", alone=False),
    # Of two ranks that share experts nobody can say who is right.
    sick("deepspeed_moe", "item", ("call-added",), "", culprits=(), certainty=UNSURE, needs="deepspeed"),
    sick("deepspeed_moe", "skip", ("call-skipped",), "", culprits=(), certainty=UNSURE, op="AlltoAll",
         needs="deepspeed"),
    Row("torchtitan", "torchtitan", ranks=(4,), needs="torchtitan", release=TITAN, alone=False),
    sick("torchtitan", "router", ("call-skipped",), "", certainty=UNSURE, op="AllReduce", needs="torchtitan",
         release=TITAN),
]

ROWS = TORCH + MEGATRON + REPRESENTED + ABOVE + SERVERS


def tests():
    """The tests as (name, row, ranks)."""
    return [(f"{row.name}.{n}", row, n) for row in ROWS for n in row.ranks]


def releases():
    """The names of the environments that rows have of their own."""
    return sorted({row.release for row in ROWS if row.release})


def compared():
    """The names of the rows of docs/COMPARED.md."""
    return [row.name for row in ROWS if row.compared]
