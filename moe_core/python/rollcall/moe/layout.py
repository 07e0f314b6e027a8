"""rollcall.moe.layout: where each framework keeps which number of an expert, and how one form becomes another.

An expert is three matrices, `gate` [F,H], `up` [F,H] and `down` [H,F] (without a gate: up and down), and with biases
`gate_bias` [F], `up_bias` [F], `down_bias` [H]. y = (act(x gate^T) * (x up^T)) down^T. A form says of each of them
which tensor it is a strided part of. So a conversion is a copy of parts, whatever the two forms are, and the whole of
what is known about the frameworks' layouts is the table `FORMS`. A function for each pair of forms was rejected: there
would be twenty, and a transposition forgotten in one of them would pass every test of the others.

    grouped      Megatron-LM TEGroupedMLP: linear_fc1.weight{i} [2F,H] (gate rows, then up rows), linear_fc2.weight{i}
                 [H,F], and bias{i}
    sequential   Megatron-LM SequentialMLP: the same, as local_experts.{i}.linear_fc1.weight
    legacy       Megatron-LM GroupedMLP (until 0.16): weight1 [H, L 2F] and weight2 [L F, H], whose memory is read as
                 [L,H,2F] and [L,F,H]; no biases
    titan        torchtitan GroupedExperts until 0.2.2: w1 [L,F,H] (gate), w2 [L,H,F] (down), w3 [L,F,H] (up)
    titan_efd    the same in 0.3: w1_EFD, w2_EDF, w3_EFD

L are the experts and F the part of the feed-forward width that this rank has. Nothing here needs PyTorch: convert()
asks of a tensor only what its methods new_empty, as_strided and copy_ do.
"""
from typing import NamedTuple, Tuple

GATED = ("gate", "up", "down")
PLAIN = ("up", "down")


class Sizes(NamedTuple):
    """Of one rank: experts, hidden size, width of the feed-forward; whether it has a gate, and biases."""
    experts: int
    hidden: int
    ffn: int
    gated: bool = True
    bias: bool = False

    def matrices(self):
        return GATED if self.gated else PLAIN

    def names(self):
        """All that an expert is made of."""
        return self.matrices() + tuple(f"{name}_bias" for name in self.matrices() if self.bias)

    def shape(self, name):
        width = self.hidden if name.startswith("down") else self.ffn
        return (width,) if name.endswith("_bias") else (width, self.ffn if name == "down" else self.hidden)


class Part(NamedTuple):
    """A strided part of the tensor `key`, counted in elements of its contiguous memory."""
    key: str
    offset: int
    shape: Tuple[int, ...]
    stride: Tuple[int, ...]


def _rows_of(sizes, name):
    """The first row of gate or up within fc1."""
    return sizes.ffn if sizes.gated and name.startswith("up") else 0


def _linears(fc1, fc2):
    """A form with two linears for each expert."""
    def part(sizes, name, expert):
        linear = fc2 if name.startswith("down") else fc1
        shape, row = sizes.shape(name), 0 if name.startswith("down") else _rows_of(sizes, name)
        if name.endswith("_bias"):
            return Part(linear.format(what="bias", i=expert), row, shape, (1,))
        return Part(linear.format(what="weight", i=expert), row * shape[1], shape, (shape[1], 1))
    return part


def _legacy(sizes, name, expert):
    h, f, wide = sizes.hidden, sizes.ffn, (2 if sizes.gated else 1) * sizes.ffn
    if name == "down":
        return Part("weight2", expert * f * h, (h, f), (1, h))
    return Part("weight1", expert * h * wide + _rows_of(sizes, name), (f, h), (1, wide))


def _titan(gate, down, up):
    def part(sizes, name, expert):
        key = {"gate": gate, "down": down, "up": up}[name]
        rows, columns = sizes.shape(name)
        return Part(key, expert * rows * columns, (rows, columns), (columns, 1))
    return part


FORMS = {
    "grouped": _linears("linear_fc1.{what}{i}", "linear_fc2.{what}{i}"),
    "sequential": _linears("local_experts.{i}.linear_fc1.{what}", "local_experts.{i}.linear_fc2.{what}"),
    "legacy": _legacy,
    "titan": _titan("w1", "w2", "w3"),
    "titan_efd": _titan("w1_EFD", "w2_EDF", "w3_EFD"),
}
NO_BIAS = ("legacy", "titan", "titan_efd")
ONLY_GATED = ("titan", "titan_efd")


def _check(form, sizes):
    if form not in FORMS:
        raise ValueError(f"no form {form!r}: there are {', '.join(FORMS)}")
    if min(sizes.experts, sizes.hidden, sizes.ffn) < 1:
        raise ValueError(f"{sizes.experts} experts, hidden {sizes.hidden}, ffn {sizes.ffn}")
    if sizes.bias and form in NO_BIAS:
        raise ValueError(f"the form {form!r} has no biases")
    if not sizes.gated and form in ONLY_GATED:
        raise ValueError(f"the form {form!r} has a gate")


def parts(form, sizes):
    """{(name, expert): Part} of all that the experts are made of."""
    _check(form, sizes)
    return {(name, i): FORMS[form](sizes, name, i) for i in range(sizes.experts) for name in sizes.names()}


def shapes(form, sizes):
    """{key: shape} of the tensors of a form, in the order of the framework's state dict."""
    _check(form, sizes)
    count, h, f, wide = sizes.experts, sizes.hidden, sizes.ffn, (2 if sizes.gated else 1) * sizes.ffn
    if form == "legacy":
        return {"weight1": (h, count * wide), "weight2": (count * f, h)}
    if form in ONLY_GATED:
        gate, down, up = (FORMS[form](sizes, name, 0).key for name in GATED[::2] + GATED[1:2])
        return {gate: (count, f, h), down: (count, h, f), up: (count, f, h)}
    linears = {"up": (wide, h), "down": (h, f), "up_bias": (wide,), "down_bias": (h,)}
    by_linear = [("up", "up_bias"), ("down", "down_bias")]
    if form == "grouped":  # all weights of a linear, with their biases between them
        order = [(name, i) for linear in by_linear for i in range(count) for name in linear]
    else:
        order = [(name, i) for i in range(count) for linear in by_linear for name in linear]
    return {FORMS[form](sizes, name, i).key: linears[name] for name, i in order if name in sizes.names()}


def sizes_of(state, form, prefix=""):
    """The Sizes of tensors that are in a form. What else there is under the prefix does not matter."""
    shape = {key[len(prefix):]: tuple(value.shape) for key, value in state.items()
             if key.startswith(prefix) and hasattr(value, "shape")}
    if form in ONLY_GATED:
        experts, ffn, hidden = shape[FORMS[form](Sizes(1, 1, 1), "gate", 0).key]
        return Sizes(experts, hidden, ffn)
    if form == "legacy":
        raise ValueError("the form 'legacy' does not show how many experts it holds: say Sizes(experts, hidden, ffn)")
    one = Sizes(1, 1, 1)
    experts = 0
    while FORMS[form](one, "down", experts).key in shape:
        experts += 1
    if experts == 0:
        raise ValueError(f"no {prefix}{FORMS[form](one, 'down', 0).key}: the tensors are not in the form {form!r}")
    hidden, ffn = shape[FORMS[form](one, "down", 0).key]
    wide = shape[FORMS[form](one, "up", 0).key][0]
    return Sizes(experts, hidden, ffn, wide == 2 * ffn, FORMS[form](one, "down_bias", 0).key in shape)


def convert(state, source, target, sizes=None, prefix=""):
    """The tensors of form `source` in `state` (keys with `prefix`) as those of form `target`: a new dict with the same
    prefix, of new tensors. sizes: those of the rank; None: read off, which the form "legacy" does not allow. Raises
    ValueError where a tensor is missing or has another shape."""
    sizes = sizes or sizes_of(state, source, prefix)
    have = {}
    for key, shape in shapes(source, sizes).items():
        if prefix + key not in state:
            raise ValueError(f"no {prefix + key}: the tensors are not in the form {source!r} with {sizes}")
        have[key] = state[prefix + key]
        if tuple(have[key].shape) != shape:
            raise ValueError(f"{prefix + key} is {tuple(have[key].shape)}, wanted {shape}: {source!r} with {sizes}")
        have[key] = have[key].detach().contiguous()
    like = next(iter(have.values()))
    made = {key: like.new_empty(shape) for key, shape in shapes(target, sizes).items()}
    where = parts(target, sizes)
    for what, part in parts(source, sizes).items():
        to = where[what]
        made[to.key].as_strided(to.shape, to.stride, to.offset).copy_(
            have[part.key].as_strided(part.shape, part.stride, have[part.key].storage_offset() + part.offset))
    return {prefix + key: value for key, value in made.items()}
