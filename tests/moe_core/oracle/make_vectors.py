#!/usr/bin/env python3
"""Makes tests/moe_core/oracle/vectors.json: small MoE layers, computed by PyTorch in float64, gradients by its
autograd.

usage: make_vectors.py FILE          write the vectors
       make_vectors.py --check FILE  make them again and compare with FILE: inputs equal, results to 1e-12 (exit 1:
                                     different)

The layer is written here from the definitions in moe_core/include/moe/router.h and moe_core/reference/ref_layer.h with
PyTorch's own functions, densely: every expert on every token, then masked. Nothing of moe_core is called. A case is a
line of CASES: what differs from DEFAULT. Inputs are multiples of 1/32, so they are exact in short decimals and in
float32; they are drawn from Python's generator seeded by the case's name. Coefficients and factors are rounded to
float32 first, as the library holds them. `sets` are the token sets of several ranks: the parameters' gradients are
summed over them, the counts of the auxiliary losses over the sets of a group (numbers in `balance` and `global`; 0:
alone). unit.moe_oracle reads the file and holds the reference in C against it; it needs no PyTorch.
"""
import json
import math
import random
import struct
import sys

import torch

DEFAULT = dict(hidden=4, ffn=2, experts=4, topk=2, renormalise=False, score="softmax", after=False, gate_bias=False,
               expert_bias=False, groups=0, group_topk=0, scale=0.0, capacity_factor=0.0, by_position=False,
               coeff=[0.0, 0.0, 0.0, 0.0], sequences=0, activation="swiglu", alpha=0.0, limit=0.0, offset=0.0,
               place="source", biases=False, shared_ffn=0, shared_gate=False, shared_biases=False, loss_scale=0.0,
               global_earlier=None, microbatches=0, tokens=[5], balance=[0], global_groups=[0], masked=0, ties=False,
               reach=1)

# What says how the inputs are drawn; a bias is there when the weights have it.
NOT_OPTIONS = ("tokens", "balance", "global_groups", "masked", "ties", "reach", "gate_bias", "expert_bias", "biases",
               "shared_gate", "shared_biases")

LOSS = {name: [value if i == j else 0.0 for j in range(4)] for i, (name, value) in
        enumerate([("switch", 0.02), ("sequence", 0.05), ("global", 0.01), ("z", 0.001)])}
ALL_LOSSES = [0.02, 0.05, 0.01, 0.001]


def cases():
    yield "softmax-top1", dict(topk=1)
    yield "softmax-top1-renormalised", dict(topk=1, renormalise=True)
    yield "softmax-top2", dict()
    yield "softmax-renormalised", dict(renormalise=True, topk=3)
    yield "softmax-after", dict(after=True)
    yield "softmax-after-all", dict(after=True, topk=4)
    yield "softmax-gate-bias", dict(gate_bias=True)
    yield "softmax-expert-bias", dict(expert_bias=True, renormalise=True)
    yield "sigmoid", dict(score="sigmoid")
    yield "sigmoid-top1-renormalised", dict(score="sigmoid", topk=1, renormalise=True)
    yield "sigmoid-renormalised-bias", dict(score="sigmoid", renormalise=True, expert_bias=True, scale=2.5)
    yield "sqrtsoftplus", dict(score="sqrtsoftplus")
    yield "sqrtsoftplus-renormalised", dict(score="sqrtsoftplus", renormalise=True, expert_bias=True, gate_bias=True)
    yield "groups", dict(experts=6, groups=3, group_topk=2, topk=2)
    yield "groups-after", dict(experts=6, groups=3, group_topk=1, topk=2, after=True)
    yield "ties", dict(ties=True, renormalise=True)
    yield "ties-sigmoid-groups", dict(ties=True, score="sigmoid", experts=6, groups=2, group_topk=1)
    yield "capacity-by-weight", dict(capacity_factor=0.75, tokens=[7])
    yield "capacity-by-weight-renormalised", dict(capacity_factor=0.5, renormalise=True, tokens=[7])
    yield "capacity-by-position", dict(capacity_factor=0.75, by_position=True, after=True, tokens=[7])
    yield "capacity-sigmoid-losses", dict(capacity_factor=0.6, score="sigmoid", renormalise=True, tokens=[7],
                                          coeff=ALL_LOSSES, sequences=7)
    yield "capacity-source-biases", dict(capacity_factor=0.5, biases=True)
    yield "capacity-input-biases", dict(capacity_factor=0.5, biases=True, place="input")
    for name, coeff in LOSS.items():
        yield f"loss-{name}-softmax", dict(coeff=coeff, sequences=2, tokens=[6], ffn=1)
        yield f"loss-{name}-sigmoid", dict(coeff=coeff, sequences=3, tokens=[6], score="sigmoid", ffn=1)
    yield "losses-after-scaled", dict(coeff=ALL_LOSSES, after=True, loss_scale=128.0, sequences=2, tokens=[4], ffn=1)
    yield "losses-sqrtsoftplus", dict(coeff=ALL_LOSSES, score="sqrtsoftplus", ffn=1)
    yield "losses-two-ranks", dict(coeff=ALL_LOSSES, tokens=[4, 6], balance=[1, 1], global_groups=[1, 1], sequences=2,
                                   ffn=1)
    yield "losses-four-ranks-groups", dict(coeff=ALL_LOSSES, tokens=[4, 2, 3, 1], balance=[1, 2, 1, 2],
                                           global_groups=[1, 1, 1, 1], ffn=1, score="sigmoid")
    yield "losses-empty-rank", dict(coeff=ALL_LOSSES, tokens=[3, 0], balance=[1, 1], global_groups=[1, 1], ffn=1)
    yield "loss-global-microbatches", dict(coeff=LOSS["global"], global_earlier=[3, 0, 9, 4], microbatches=3, ffn=1)
    for place in ("source", "activation", "input"):
        for activation in ("swiglu", "geglu", "geglu_tanh", "swiglu_clamped"):
            yield f"{place}-{activation}-biases", dict(place=place, activation=activation, biases=True,
                                                       renormalise=True, tokens=[4],
                                                       reach=6 if activation == "swiglu_clamped" else 1)
    yield "clamped-other-limit", dict(activation="swiglu_clamped", alpha=1.25, limit=0.5, offset=0.75, tokens=[4])
    yield "input-sigmoid-top1", dict(place="input", score="sigmoid", topk=1)
    yield "input-losses", dict(place="input", coeff=ALL_LOSSES, renormalise=True, tokens=[4])
    yield "shared", dict(shared_ffn=4, tokens=[4])
    yield "shared-gate", dict(shared_ffn=2, shared_gate=True, tokens=[4])
    yield "shared-gate-biases", dict(shared_ffn=4, shared_gate=True, shared_biases=True, biases=True,
                                     place="activation", tokens=[4], activation="geglu")
    yield "masked", dict(masked=3, renormalise=True, tokens=[6])
    yield "masked-sigmoid-losses", dict(masked=4, score="sigmoid", renormalise=True, coeff=ALL_LOSSES, tokens=[6])
    yield "no-tokens", dict(tokens=[0], biases=True, shared_ffn=2)
    yield "uneven-ranks", dict(tokens=[3, 0, 1], balance=[0, 0, 0], global_groups=[0, 0, 0], capacity_factor=1.0,
                               biases=True)
    yield "preset-mixtral", dict(experts=8, topk=2, after=True, coeff=LOSS["switch"], tokens=[6])
    yield "preset-deepseek-v3", dict(experts=8, topk=4, groups=4, group_topk=2, score="sigmoid", expert_bias=True,
                                     renormalise=True, scale=2.5, coeff=[0.0, 0.0001, 0.0, 0.0], sequences=2,
                                     shared_ffn=2, tokens=[6])
    yield "preset-qwen3-moe", dict(experts=8, topk=4, renormalise=True, coeff=[0.0, 0.0, 0.001, 0.0], tokens=[3, 3],
                                   balance=[0, 0], global_groups=[1, 1])
    yield "preset-gpt-oss", dict(experts=8, topk=4, after=True, gate_bias=True, biases=True,
                                 activation="swiglu_clamped", place="activation", tokens=[6], reach=4)


def float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def draw(generator, shape, reach):
    count = math.prod(shape)
    return torch.tensor([generator.randrange(-32, 33) * reach / 32 for _ in range(count)],
                        dtype=torch.float64).reshape(shape)


def weights_of(c, generator):
    """The weights that the case has, in the order of struct moe_ref_weights; requires_grad where there is a
    gradient."""
    e, h, f, s = c["experts"], c["hidden"], c["ffn"], c["shared_ffn"]
    shapes = [("gate", (e, h), True), ("gate_bias", (e,), c["gate_bias"]), ("expert_bias", (e,), c["expert_bias"]),
              ("w1", (e, 2 * f, h), True), ("b1", (e, 2 * f), c["biases"]), ("w2", (e, h, f), True),
              ("b2", (e, h), c["biases"]), ("shared_w1", (2 * s, h), s > 0),
              ("shared_b1", (2 * s,), c["shared_biases"]), ("shared_w2", (h, s), s > 0),
              ("shared_b2", (h,), c["shared_biases"]), ("shared_gate", (h,), c["shared_gate"])]
    w = {name: draw(generator, shape, c["reach"] if name in ("w1", "b1") else 1) for name, shape, wanted in shapes
         if wanted}
    if c["ties"]:  # pairs of experts that every token scores alike
        w["gate"][1::2] = w["gate"][0::2]
    for name, value in w.items():
        value.requires_grad_(name != "expert_bias")
    return w


def sets_of(c, generator):
    sets = []
    for i, tokens in enumerate(c["tokens"]):
        s = dict(tokens=tokens, balance=c["balance"][i], global_group=c["global_groups"][i], choice=None,
                 x=draw(generator, (tokens, c["hidden"]), 1).requires_grad_(),
                 dy=draw(generator, (tokens, c["hidden"]), 1))
        if c["masked"]:
            choice = [generator.sample(range(c["experts"]), c["topk"]) for _ in range(tokens)]
            for _ in range(c["masked"]):
                choice[generator.randrange(tokens)][generator.randrange(c["topk"])] = -1
            choice[0] = [-1] * c["topk"]  # a token that nobody takes
            s["choice"] = choice
        sets.append(s)
    return sets


def best(values, k):
    """Indices of the k largest of the last dimension, best first, ties to the lowest index."""
    return torch.sort(values, dim=-1, descending=True, stable=True).indices[..., :k]


def choose(c, value):
    groups = c["groups"]
    if groups > 1:
        each = c["experts"] // groups
        parts = value.reshape(-1, groups, each)
        strength = torch.sort(parts, dim=-1, descending=True).values[..., : c["topk"] // c["group_topk"]].sum(-1)
        keep = torch.zeros_like(strength, dtype=torch.bool).scatter(1, best(strength, c["group_topk"]), True)
        value = parts.masked_fill(~keep[..., None], -math.inf).reshape(-1, c["experts"])
    return best(value, c["topk"])


def keep_of(c, weights, index):
    """Which choices [T,k] fit into the capacity of their experts."""
    keep = index >= 0
    if c["capacity_factor"] > 0:
        capacity = math.ceil(index.numel() / c["experts"] * float32(c["capacity_factor"]))
        for e in range(c["experts"]):
            places = torch.nonzero(index.flatten() == e).flatten()
            if not c["by_position"]:
                places = places[torch.sort(weights.detach().flatten()[places], descending=True, stable=True).indices]
            keep.view(-1)[places[capacity:]] = False
    return keep


def route(c, w, s):
    """Weights [T,E] (0 where not routed), and what the losses need."""
    logits = s["x"] @ w["gate"].T + w.get("gate_bias", 0)
    if c["score"] == "softmax":
        scores = torch.softmax(logits, -1)
    elif c["score"] == "sigmoid":
        scores = torch.sigmoid(logits)
    else:
        scores = torch.sqrt(torch.nn.functional.softplus(logits))
    if s["choice"] is not None:
        index = torch.tensor(s["choice"])
    else:
        index = choose(c, ((logits if c["after"] else scores) + w.get("expert_bias", 0)).detach())
    there = index >= 0
    at = index.clamp(min=0)
    if c["after"]:
        weights = torch.softmax(logits.gather(1, at), -1)
    else:
        weights = scores.gather(1, at) * there
        if c["renormalise"] and (c["score"] == "softmax" or c["topk"] > 1):
            weights = weights / (weights.sum(-1, keepdim=True) + (~there).all(-1, keepdim=True))
    weights = weights * (float32(c["scale"]) or 1)
    keep = keep_of(c, weights, index)
    probs = torch.zeros_like(logits).scatter_add(1, at, weights * keep)
    mask = torch.zeros_like(logits).scatter_add(1, at, keep.to(logits.dtype))
    chosen = torch.zeros_like(logits).scatter_add(1, at, there.to(logits.dtype))
    s["index"] = torch.where(keep, index, -1)
    return dict(probs=probs, mask=mask, chosen=chosen, logits=logits, p=scores if c["score"] == "softmax"
                else scores / scores.sum(-1, True))


def balance(c, coeff, p_sum, counts):
    n = max(float(counts.sum()) / c["topk"], 1)
    return float32(coeff) * c["experts"] / (c["topk"] * n * n) * (p_sum * counts).sum()


def losses(c, sets, routed, i):
    """The four losses of set i: its own p, the counts of its group."""

    def group(key):
        mine = sets[i][key]
        return [r for j, r in enumerate(routed) if j == i or (mine != 0 and sets[j][key] == mine)]

    own, parts = routed[i], c["sequences"] or 1
    switch = balance(c, c["coeff"][0], own["p"].sum(0), sum(r["chosen"].sum(0) for r in group("balance")))
    sequence = sum(balance(c, c["coeff"][1], own["p"][b::parts].sum(0),
                           sum(r["chosen"][b::parts].sum(0) for r in group("balance"))) / parts for b in range(parts))
    counts = sum(r["chosen"].sum(0) for r in group("global_group"))
    if c["global_earlier"]:
        counts = (counts + torch.tensor(c["global_earlier"])) / c["microbatches"]
    everywhere = balance(c, c["coeff"][2], own["p"].sum(0), counts)
    z = torch.zeros((), dtype=torch.float64)
    if sets[i]["tokens"]:
        z = float32(c["coeff"][3]) / len(group("balance")) * (torch.logsumexp(own["logits"], -1) ** 2).mean()
    return torch.stack([switch, sequence, everywhere, z])


def activate(c, h):
    gate, up = h.chunk(2, -1)
    if c["activation"] == "swiglu":
        return torch.nn.functional.silu(gate) * up
    if c["activation"] == "geglu":
        return torch.nn.functional.gelu(gate) * up
    if c["activation"] == "geglu_tanh":
        return torch.nn.functional.gelu(gate, approximate="tanh") * up
    alpha, limit, offset = (c["alpha"], c["limit"], c["offset"]) if c["alpha"] or c["limit"] else (1.702, 7.0, 1.0)
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return gate * torch.sigmoid(alpha * gate) * (up + offset)


def layer(c, w, s, r):
    probs, mask = r["probs"][..., None], r["mask"][..., None]
    x = s["x"][:, None, :] * (probs if c["place"] == "input" else mask)
    a = activate(c, torch.einsum("teh,efh->tef", x, w["w1"]) + w.get("b1", 0))
    inside = probs if c["place"] == "activation" else mask
    out = torch.einsum("tef,ehf->teh", a * inside, w["w2"]) + inside * w.get("b2", 0)
    y = (out * (probs if c["place"] == "source" else mask)).sum(1)
    if c["shared_ffn"]:
        a = activate(c, s["x"] @ w["shared_w1"].T + w.get("shared_b1", 0))
        shared = a @ w["shared_w2"].T + w.get("shared_b2", 0)
        y = y + (torch.sigmoid(s["x"] @ w["shared_gate"])[:, None] if c["shared_gate"] else 1) * shared
    return y


def numbers(tensor):
    return [float(f"{v:.15g}") + 0.0 for v in tensor.detach().flatten().tolist()]


def make(name, changes):
    c = dict(DEFAULT, **changes)
    generator = random.Random(name)
    w, sets = weights_of(c, generator), sets_of(c, generator)
    routed = [route(c, w, s) for s in sets]
    objective = torch.zeros((), dtype=torch.float64)
    for i, (s, r) in enumerate(zip(sets, routed)):
        s["y"], s["losses"] = layer(c, w, s, r), losses(c, sets, routed, i)
        objective = objective + (s["dy"] * s["y"]).sum() + (c["loss_scale"] or 1) * s["losses"].sum()
    by = {key: value for key, value in w.items() if value.requires_grad}
    wanted = list(by.values()) + [s["x"] for s in sets]
    grads = torch.autograd.grad(objective, wanted, allow_unused=True)
    grads = [torch.zeros_like(v) if g is None else g for v, g in zip(wanted, grads)]
    for s, r, dx in zip(sets, routed, grads[len(by):]):
        s.update(dx=dx, probs=r["probs"])
    options = {k: v for k, v in c.items() if (v or k in ("hidden", "ffn")) and k not in NOT_OPTIONS}
    tensors = lambda d: {k: numbers(v) if torch.is_tensor(v) and v.is_floating_point() else v.flatten().tolist()
                         if torch.is_tensor(v) else v for k, v in d.items()}
    for s in sets:
        s["choice"] = [e for row in s["choice"] for e in row] if s["choice"] is not None else None
    return dict(name=name, options=options, weights=tensors(w), sets=[tensors(s) for s in sets],
                grads=tensors(dict(zip(by, grads))))


def compact(case):
    """One line per array: readable differences, and no space wasted."""
    def line(d):
        return "{" + ",\n  ".join(f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in d.items()) + "}"
    return (f'{{"name":{json.dumps(case["name"])},\n "options":{json.dumps(case["options"], separators=(",", ":"))},\n '
            f'"weights":{line(case["weights"])},\n "sets":[{",".join(map(line, case["sets"]))}],\n '
            f'"grads":{line(case["grads"])}}}')


INPUTS = ("options", "weights", "x", "dy", "choice", "index", "tokens", "balance", "global_group", "name")
differences = []


def compare(path, ours, theirs, exact):
    """Results to 1e-12 of the largest of their array; inputs and choices exactly."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in ours.keys() | theirs.keys():
            compare(f"{path}.{key}", ours.get(key), theirs.get(key), exact or key in INPUTS)
    elif isinstance(ours, list) and isinstance(theirs,
                                               list) and len(ours) == len(theirs) and (exact
                                                                                       or not all(isinstance(v, float)
                                                                                                  for v in ours)):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            compare(f"{path}[{i}]", a, b, exact)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        size = max(map(abs, theirs + [1e-4]))  # what cancels to 0 does so to 1e-16
        differences.extend(f"{path}[{i}]: {a!r}, the file has {b!r}" for i, (a, b) in enumerate(zip(ours, theirs))
                           if not abs(a - b) <= 1e-12 * size)
    elif ours != theirs:
        differences.append(f"{path}: {ours!r}, the file has {theirs!r}")


def main():
    torch.set_num_threads(1)
    made = [make(name, changes) for name, changes in cases()]
    if sys.argv[1:2] == ["--check"] and len(sys.argv) == 3:
        with open(sys.argv[2]) as f:
            kept = json.load(f)
        compare("", {c["name"]: c for c in json.loads(json.dumps(made))}, {c["name"]: c for c in kept}, False)
        print("\n".join(differences[:20]) or f"{len(made)} cases as in {sys.argv[2]} (torch {torch.__version__})")
        sys.exit(1 if differences else 0)
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    with open(sys.argv[1], "w") as f:
        f.write("[\n" + ",\n".join(map(compact, made)) + "\n]\n")


if __name__ == "__main__":
    main()
