"""rollcall.moe.torchtitan: the experts of torchtitan on libmoe_core.so.

    from rollcall.moe.torchtitan import convert
    convert(model)            # before it is parallelized: every GroupedExperts computes with moe_core from now on

convert() keeps each module, its parameters, hooks and state dict keys, and replaces what it computes. It knows the
GroupedExperts of torchtitan until 0.2.2 (w1, w2, w3, use_grouped_mm) and modules that compute through a method
_grouped_mm(A=, B_t=, offs=), as GroupedExperts of 0.3 does. GroupedExperts below is a module of its own with the
constructor, forward and parameters of either, for models that are built by hand; it needs no torchtitan.

With use_grouped_mm (0.3: always) the products are in bfloat16 whatever x is, as torchtitan's are; else in x's type.
Rows behind the last expert's are padding: their output and gradient are zero. Counts may be a float tensor, as
torch.histc gives it, and are never read by the host on a GPU.
"""
from . import layout, need_torch

torch = need_torch(__name__)
from . import linear  # noqa: E402

__all__ = ["GroupedExperts", "convert", "layout"]

NAMES = {"titan": ("w1", "w2", "w3"), "titan_efd": ("w1_EFD", "w2_EDF", "w3_EFD")}


def _local(weight):
    """This rank's part of a DTensor, or the tensor."""
    return weight.to_local() if hasattr(weight, "to_local") else weight


def run_experts(w1, w2, w3, x, counts, dtype):
    """(silu(x w1^T) * (x w3^T)) w2^T over each expert's rows, in `dtype`; the result has the type of x."""
    def product(rows, weight):  # rows are cast for each product, so that their gradients are added in the type of x
        return linear.grouped_linear(rows.to(dtype), counts, [weight.to(dtype).contiguous()])

    h = torch.nn.functional.silu(product(x, w1)) * product(x, w3)
    return product(h, w2).to(x.dtype)


def _forward(module, x, counts):
    form = "titan" if hasattr(module, "w1") else "titan_efd"
    w1, w2, w3 = (_local(getattr(module, name)) for name in NAMES[form])
    dtype = torch.bfloat16 if getattr(module, "use_grouped_mm", True) else x.dtype
    return run_experts(w1, w2, w3, x, counts, dtype)


class GroupedExperts(torch.nn.Module):
    """The experts of one rank.

    GroupedExperts(dim, hidden_dim, num_experts, use_grouped_mm): parameters w1 [E,F,D], w2 [E,D,F], w3 [E,F,D].
    GroupedExperts(config), config.dim, .hidden_dim, .num_experts: parameters w1_EFD, w2_EDF, w3_EFD.
    forward(x [R,D], num_tokens_per_expert [E]) returns [R,D]. Parameters are not initialised until init_weights().
    expert_parallel: (rank, ranks) where num_experts are those of one rank and the parameters are plain tensors, for
    rollcall.moe.checkpoint; torchtitan's expert parallelism makes them DTensors, which say it themselves.
    """

    expert_parallel = (0, 1)

    def __init__(self, dim, hidden_dim=None, num_experts=None, use_grouped_mm=True):
        super().__init__()
        form = "titan"
        if hidden_dim is None and num_experts is None:
            form, config = "titan_efd", dim
            dim, hidden_dim, num_experts = config.dim, config.hidden_dim, config.num_experts
        self.num_experts = num_experts
        if form == "titan":
            self.use_grouped_mm = use_grouped_mm
        for name, shape in layout.shapes(form, layout.Sizes(num_experts, dim, hidden_dim)).items():
            self.register_parameter(name, torch.nn.Parameter(torch.empty(shape)))

    def forward(self, x, num_tokens_per_expert):
        return _forward(self, x, num_tokens_per_expert)

    def cuts(self):
        """For checkpoints of torch.distributed.checkpoint (rollcall.moe.checkpoint)."""
        rank, ranks = self.expert_parallel
        return {name: (name, {0: (rank, ranks, 1)} if ranks > 1 else {}) for name, _ in self.named_parameters()}

    def init_weights(self, init_std):
        """Normal, cut at two in absolute value: the gate's deviation is 0.02, the others' init_std."""
        for i, value in enumerate(self.parameters()):
            torch.nn.init.trunc_normal_(value, mean=0.0, std=0.02 if i == 0 else init_std)


def _product(self, *, A, B_t, offs):
    """torchtitan's seam: A [R,K], B_t [E,K,N], offs [E] the rows behind each expert's last."""
    counts = torch.diff(offs, prepend=offs.new_zeros(1))
    return linear.grouped_linear(A, counts, [B_t.transpose(-2, -1).contiguous()])


_ours = {}


def _class_of(module):
    """The class of a module of torchtitan, with our product; None where there is no product of experts in it."""
    theirs = type(module)
    known = any(all(hasattr(module, name) for name in names) for names in NAMES.values())
    if callable(getattr(theirs, "_grouped_mm", None)):
        ours = {"_grouped_mm": _product}
    elif theirs.__name__ == "GroupedExperts" and known and theirs is not GroupedExperts:
        ours = {"forward": GroupedExperts.forward}
    else:
        return None
    if theirs not in _ours:
        _ours[theirs] = type(theirs)(f"Rollcall{theirs.__name__}", (theirs,), ours)
    return _ours[theirs]


def convert(model):
    """Every GroupedExperts in the model, itself included, computes with moe_core from now on; their number. Raises
    ValueError where there is none. A second call finds what is converted already, and counts it."""
    count = 0
    for module in model.modules():
        if type(module) in _ours.values():
            count += 1
        elif _class_of(module) is not None:
            module.__class__ = _class_of(module)
            count += 1
    if count == 0:
        raise ValueError("the model has no GroupedExperts of torchtitan 0.2 or 0.3")
    return count
