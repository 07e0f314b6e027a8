#!/usr/bin/env python3
"""rollcall.moe.megatron and rollcall.moe.torchtitan against float64, without Megatron-LM and torchtitan: values,
gradients, parameters and their attributes, state dicts, what is refused. Needs PyTorch."""
import itertools
import types

import torch

import shard_cases
import support
from rollcall.moe import layout, linear, megatron, torchtitan
from rollcall.moe.linear import MoeError
from support import COUNTS, Groups, close, fail, refused, same, want

H, F, L = 6, 8, 4
TOLERANCE = {torch.float32: 2.0**-19, torch.bfloat16: 2.0**-5}


def quick_gelu(x):
    return x * torch.sigmoid(1.702 * x)


def squared_relu(x):
    return torch.relu(x) ** 2


def config(**more):
    """As much of Megatron's TransformerConfig as the experts read."""
    members = dict(hidden_size=H, moe_ffn_hidden_size=F, gated_linear_unit=True, add_bias_linear=False,
                   activation_func=torch.nn.functional.silu, params_dtype=torch.float32, use_cpu_initialization=True,
                   init_method=lambda w: torch.nn.init.normal_(w, 0, 0.4), gradient_accumulation_fusion=False,
                   output_layer_init_method=lambda w: torch.nn.init.normal_(w, 0, 0.3), moe_router_topk=1)
    return types.SimpleNamespace(**{**members, **more})


def experts_of(c, counts, seed=5):
    """A TEGroupedMLP, rows, weights of the router, and a gradient."""
    torch.manual_seed(seed)
    mlp = megatron.TEGroupedMLP(len(counts), c, pg_collection=Groups())
    with torch.no_grad():
        for name, value in mlp.named_parameters():
            if "bias" in name:
                value.normal_()
    x = torch.randn(sum(counts), H).to(c.params_dtype).requires_grad_()
    probs = (0.1 + torch.rand(sum(counts))).requires_grad_()
    return mlp, x, probs, torch.randn(sum(counts), H).to(c.params_dtype)


def exact_mlp(mlp, c, counts, x, probs, dy):
    """y and all gradients by PyTorch in float64, expert by expert."""
    wide = {name: value.detach().double().requires_grad_() for name, value in mlp.named_parameters()}
    x, probs = x.detach().double().requires_grad_(), probs.detach().double().requires_grad_()
    parts = []
    for i, (rows, p) in enumerate(zip(x.split(counts), probs.split(counts))):
        of = lambda what: wide.get(f"{what}{i}")  # noqa: E731
        p, scale = p[:, None], p[:, None]
        if getattr(c, "moe_apply_probs_on_input", False):
            rows, scale = rows * p, torch.ones_like(p)
        h = rows @ of("linear_fc1.weight").T
        h = h + of("linear_fc1.bias") if c.add_bias_linear else h
        if c.gated_linear_unit:
            gate, up = h.chunk(2, -1)
            limit = getattr(c, "activation_func_clamp_value", None)
            gate, up = (gate.clamp(max=limit), up.clamp(-limit, limit)) if limit else (gate, up)
            a = c.activation_func(gate) * (up + getattr(c, "glu_linear_offset", 0))
        else:
            a = c.activation_func(h)
        y = (a * scale) @ of("linear_fc2.weight").T
        parts.append(y + scale * of("linear_fc2.bias") if c.add_bias_linear else y)
    y = torch.cat(parts)
    (y * dy.double()).sum().backward()
    zero = lambda t: torch.zeros_like(t) if t.grad is None else t.grad  # noqa: E731
    return y, x.grad, probs.grad, {name: zero(value) for name, value in wide.items()}


MODELS = {
    "swiglu": dict(),
    "swiglu, biases": dict(add_bias_linear=True),
    "geglu": dict(activation_func=torch.nn.functional.gelu),
    "gpt-oss": dict(activation_func=quick_gelu, activation_func_clamp_value=0.5, glu_linear_offset=1.0,
                    add_bias_linear=True),
    "squared relu": dict(activation_func=squared_relu, gated_linear_unit=False),
    "probabilities on the input": dict(moe_apply_probs_on_input=True, add_bias_linear=True),
    "recomputed activation": dict(recompute_granularity="selective", recompute_modules=["moe_act"]),
}


def check_mlp():
    count = 0
    for (model, more), (name, counts), dtype in itertools.product(MODELS.items(), COUNTS.items(), TOLERANCE):
        if "activation_func_clamp_value" in more and dtype != torch.float32:
            continue  # a number that is rounded across the limit has another derivative
        c, what = config(params_dtype=dtype, **more), f"{model}, {name}, {dtype}"
        mlp, x, probs, dy = experts_of(c, counts)
        y, none = mlp(x, torch.tensor(counts), probs)
        want(f"{what}: the second result", none, None)
        y.backward(dy)
        exact_y, dx, dp, grads = exact_mlp(mlp, c, counts, x, probs, dy)
        for name_of, got, exact in [("y", y, exact_y), ("dx", x.grad, dx), ("dp", probs.grad, dp)] + [
                (key, value.grad, grads[key]) for key, value in mlp.named_parameters()]:
            close(f"{what}: {name_of}", got, exact, TOLERANCE[dtype])
        for key, value in mlp.named_parameters():
            want(f"{what}: type of {key}'s gradient", value.grad.dtype, dtype)
            if counts[int(key[-1])] == 0 and bool((value.grad != 0).any()):
                fail(f"{what}: {key} has no rows and a gradient")
        count += 1
    return count


def check_mlp_rest():
    c = config(gradient_accumulation_fusion=True, add_bias_linear=True)
    mlp, x, probs, dy = experts_of(c, COUNTS["middle"])
    mlp.linear_fc1.weight2.requires_grad_(False)
    for name, value in mlp.named_parameters():
        value.main_grad, value.grad_added_to_main_grad = torch.zeros(value.shape), False
    for _ in range(2):  # two microbatches of a step
        mlp(x, COUNTS["middle"], probs)[0].backward(dy)
    grads = exact_mlp(mlp, c, COUNTS["middle"], x, probs, dy)[3]
    for name, value in mlp.named_parameters():
        if name == "linear_fc1.weight2":
            same("a frozen expert", value.main_grad, torch.zeros_like(value))
            want("its gradient", value.grad, None)
        elif "bias" in name:
            close(name, value.grad, 2 * grads[name], 2.0**-19)
        else:
            close(name, value.main_grad, 2 * grads[name], 2.0**-19)
            want(f"flag of {name}", value.grad_added_to_main_grad, True)
    # Hooks of the linears: Megatron gathers their parameters in them.
    called = []
    for linear_name in ("linear_fc1", "linear_fc2"):
        getattr(mlp, linear_name).register_forward_pre_hook(lambda *_, name=linear_name: called.append(name))
    mlp(x, COUNTS["middle"], probs)
    want("hooks", called, ["linear_fc1", "linear_fc2"])


def check_delay():
    c = config(delay_wgrad_compute=True)
    mlp, x, probs, dy = experts_of(c, COUNTS["last"])
    hooked = []
    for linear_of in (mlp.linear_fc1, mlp.linear_fc2):
        linear_of.register_wgrad_accumulation_and_reduce_hooks(
            lambda which=linear_of: hooked.append((which, which.weight0.grad is not None)))
        want("skip_backward_post_hook", linear_of.weight1.skip_backward_post_hook, True)
    mlp(x, COUNTS["last"], probs)[0].backward(dy)
    want("gradients before backward_dw", [v.grad for v in mlp.parameters()], [None] * 8)
    mlp.backward_dw()
    want("hooks", hooked, [(mlp.linear_fc2, True), (mlp.linear_fc1, True)])
    for name, grad in exact_mlp(mlp, c, COUNTS["last"], x, probs, dy)[3].items():
        close(name, dict(mlp.named_parameters())[name].grad, grad, 2.0**-19)
    mlp.backward_dw()  # nothing waits: as in Megatron, no error


def check_parameters():
    mlp = megatron.TEGroupedMLP(2, config(add_bias_linear=True, expert_model_parallel_size=4), None, Groups(ep=(4, 1)))
    want("parameters", [(name, tuple(v.shape)) for name, v in mlp.named_parameters()],
         list(layout.shapes("grouped", layout.Sizes(2, H, F, bias=True)).items()))
    attributes = {name: (v.allreduce, v.tensor_model_parallel, v.partition_dim) for name, v in mlp.named_parameters()}
    want("attributes", [attributes[f"linear_{name}0"] for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")],
         [(False, True, 0), (False, True, 0), (False, True, 1), (False, False, 0)])
    alone = megatron.TEGroupedMLP(2, config(), pg_collection=Groups())
    want("allreduce of one rank", alone.linear_fc1.weight0.allreduce, True)
    want("keys", list(alone.state_dict()), [
        "linear_fc1.weight0", "linear_fc1.weight1", "linear_fc1._extra_state", "linear_fc2.weight0",
        "linear_fc2.weight1", "linear_fc2._extra_state"])
    refused("experts without a group", ValueError, "not divisible by 3",
            megatron.TEGroupedMLP, 2, config(), pg_collection=Groups(expt_tp=(3, 0)))
    # A slice of each expert on each of two ranks: the sum of their outputs is the whole, and so are the gradients.
    whole, x, probs, dy = experts_of(config(), COUNTS["first"])
    y = whole(x, COUNTS["first"], probs)[0]
    y.backward(dy)
    sums = [torch.zeros_like(y), torch.zeros_like(x)]
    for rank in range(2):
        part = megatron.TEGroupedMLP(L, config(), pg_collection=Groups(expt_tp=(2, rank)))
        with torch.no_grad():
            for i in range(L):
                gate, up = getattr(whole.linear_fc1, f"weight{i}").chunk(2)
                getattr(part.linear_fc1, f"weight{i}").copy_(torch.cat([gate.chunk(2)[rank], up.chunk(2)[rank]]))
                getattr(part.linear_fc2, f"weight{i}").copy_(
                    getattr(whole.linear_fc2, f"weight{i}").chunk(2, 1)[rank])
        rows = x.detach().clone().requires_grad_()
        out = part(rows, COUNTS["first"], probs.detach())[0]
        out.backward(dy)
        sums = [sums[0] + out, sums[1] + rows.grad]
        grad = whole.linear_fc2.weight1.grad.chunk(2, 1)[rank]
        close("a slice's gradient", part.linear_fc2.weight1.grad, grad, 2.0**-20)
    close("y of two slices", sums[0], y, 2.0**-20)
    close("dx of two slices", sums[1], x.grad, 2.0**-20)


def check_states():
    source = megatron.TEGroupedMLP(L, config(add_bias_linear=True), pg_collection=Groups())
    other = megatron.TEGroupedMLP(L, config(add_bias_linear=True), pg_collection=Groups())
    state = source.state_dict()
    other.load_state_dict(state)
    for key, value in other.state_dict().items():
        same(f"loaded {key}", value, state[key])
    other.load_state_dict({k: v for k, v in state.items() if "_extra_state" not in k})  # strict, and none is missed
    refused("a state of FP8", NotImplementedError, "FP8", other.load_state_dict,
            {**state, "linear_fc1._extra_state": torch.ones(3, dtype=torch.uint8)})
    refused("a state without a weight", RuntimeError, "linear_fc2.weight1", other.load_state_dict,
            {k: v for k, v in state.items() if k != "linear_fc2.weight1"})
    # Through every form and into modules: the same outputs.
    plain, x, probs, dy = experts_of(config(), COUNTS["third"])
    y = plain(x, COUNTS["third"], probs)[0]
    sizes = layout.Sizes(L, H, F)
    for form in layout.FORMS:
        there = layout.convert(plain.state_dict(), "grouped", form)
        back = megatron.TEGroupedMLP(L, config(), pg_collection=Groups())
        back.load_state_dict(layout.convert(there, form, "grouped", sizes))
        same(f"through {form}", back(x, COUNTS["third"], probs)[0], y)
    titan = torchtitan.GroupedExperts(H, F, L, False)
    titan.load_state_dict(layout.convert(plain.state_dict(), "grouped", "titan"))
    y = plain(x, COUNTS["third"], torch.ones_like(probs))[0]
    close("the same experts as torchtitan's", titan(x, torch.tensor(COUNTS["third"])), y, 2.0**-20)


def check_refused():
    for option in ("fp8", "fp4", "moe_single_grouped_weight", "use_te_activation_func", "moe_mlp_glu_interleave_size"):
        refused(option, NotImplementedError, option, megatron.TEGroupedMLP, L, config(**{option: "on"}),
                pg_collection=Groups())
    refused("biases of slices", NotImplementedError, "biases", megatron.TEGroupedMLP, L, config(add_bias_linear=True),
            pg_collection=Groups(expt_tp=(2, 0)))
    mlp, x, probs, _ = experts_of(config(), COUNTS["none"])
    refused("counts that do not add up", MoeError, "split", mlp, x, [3, 1, 4, 1], probs)
    refused("a dispatcher's buffer", NotImplementedError, "buffers", mlp, x, COUNTS["none"], probs, x)
    refused("no Megatron", ValueError, "MoESubmodules", megatron.put_into, types.SimpleNamespace(mlp=None))


def exact_titan(module, counts, x, dy, dtype):
    """y and gradients of torchtitan's formula, with its casts, in float64 between them."""
    cast = lambda t: t.detach().to(dtype).double().requires_grad_()  # noqa: E731
    w1, w2, w3 = (cast(value) for value in (module.parameters()))
    rows = cast(x)
    parts = [torch.nn.functional.silu(r @ w1[i].T) * (r @ w3[i].T) @ w2[i].T
             for i, r in enumerate(rows[:sum(counts)].split(counts))]
    y = torch.cat([*parts, torch.zeros(len(x) - sum(counts), H, dtype=torch.float64)])
    (y * dy.double()).sum().backward()
    return y, rows.grad, [w.grad for w in (w1, w2, w3)]


def check_titan():
    one = types.SimpleNamespace(dim=H, hidden_dim=F, num_experts=L)
    count = 0
    for (name, counts), dtype, grouped, slack in itertools.product(COUNTS.items(), TOLERANCE, (False, True), (0, 2)):
        for form in (("titan", (H, F, L, grouped)), ("titan_efd", (one,)))[:1 + grouped]:
            what = f"{form[0]}, {name}, {dtype}, use_grouped_mm {grouped}, slack {slack}"
            torch.manual_seed(11)
            module = torchtitan.GroupedExperts(*form[1])
            module.init_weights(0.3)
            with torch.no_grad():
                next(module.parameters()).mul_(15)  # 0.02 would be lost in the tolerance
            module.to(dtype)
            want(f"{what}: parameters", [(n, tuple(v.shape)) for n, v in module.named_parameters()],
                 list(layout.shapes(form[0], layout.Sizes(L, H, F)).items()))
            x = torch.randn(sum(counts) + slack, H).to(dtype).requires_grad_()
            dy = torch.randn(x.shape).to(dtype)
            y = module(x, torch.tensor(counts, dtype=torch.float32))  # torch.histc counts in floats
            y.backward(dy)
            compute = torch.bfloat16 if grouped else dtype
            exact_y, dx, grads = exact_titan(module, counts, x, dy, compute)
            close(f"{what}: y", y, exact_y, TOLERANCE[compute])
            close(f"{what}: dx", x.grad, dx, TOLERANCE[compute])
            if grouped:  # computed in bfloat16, whatever x is
                same(f"{what}: y in bfloat16", y, y.bfloat16().to(dtype))
            for (key, value), grad in zip(module.named_parameters(), grads):
                close(f"{what}: {key}", value.grad, grad, TOLERANCE[compute])
                for e, m in enumerate(counts):
                    if m == 0 and bool((value.grad[e] != 0).any()):
                        fail(f"{what}: {key} of expert {e} has no rows and a gradient")
            if slack and (bool((y[sum(counts):] != 0).any()) or bool((x.grad[sum(counts):] != 0).any())):
                fail(f"{what}: padding has numbers")
            count += 1
    return count


class GroupedExperts(torch.nn.Module):
    """As torchtitan's of 0.3: it computes through a method of its own."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(L, F, H))

    def forward(self, x, counts):
        offs = torch.cumsum(counts, 0, dtype=torch.int32)
        return self._grouped_mm(A=x, B_t=self.w.transpose(-2, -1), offs=offs)

    def _grouped_mm(self, *, A, B_t, offs):
        raise AssertionError("not converted")


def check_convert():
    model = torch.nn.ModuleDict({"a": GroupedExperts(), "b": torch.nn.Linear(2, 2)})
    key, hooked = list(model.state_dict()), []
    model["a"].register_forward_hook(lambda *_: hooked.append(1))
    want("converted", (torchtitan.convert(model), torchtitan.convert(model)), (1, 1))
    want("keys", list(model.state_dict()), key)
    want("is a GroupedExperts", isinstance(model["a"], GroupedExperts), True)
    x = torch.randn(8, H, requires_grad=True)
    y = model["a"](x, torch.tensor(COUNTS["first"]))
    close("y", y, torch.cat([r @ w.T for r, w in zip(x.split(COUNTS["first"]), model["a"].w)]), 2.0**-20)
    want("hooks", hooked, [1])
    y.sum().backward()
    want("gradient of an expert without rows", float(model["a"].w.grad[0].abs().max()), 0.0)
    old = type("GroupedExperts", (torch.nn.Module,), {})()  # as torchtitan's until 0.2.2
    for name, shape in layout.shapes("titan", layout.Sizes(L, H, F)).items():
        old.register_parameter(name, torch.nn.Parameter(torch.randn(shape)))
    old.use_grouped_mm = False
    mine = torchtitan.GroupedExperts(H, F, L, False)
    mine.load_state_dict(old.state_dict())
    want("converted", torchtitan.convert(old), 1)
    same("of 0.2.2", old(x, torch.tensor(COUNTS["first"])), mine(x, torch.tensor(COUNTS["first"])))
    empty = type("GroupedExperts", (torch.nn.Module,), {})()
    refused("experts of another kind", ValueError, "no GroupedExperts", torchtitan.convert, empty)
    refused("a model without experts", ValueError, "no GroupedExperts", torchtitan.convert, torch.nn.Linear(2, 2))


counts = check_mlp(), check_titan(), shard_cases.check_shards()
for check in (check_mlp_rest, check_delay, check_parameters, check_states, check_refused, check_convert):
    check()
print(f"job_modules: {counts[0]} cases of TEGroupedMLP and {counts[1]} of GroupedExperts as float64, {counts[2]} "
      "layouts of parts")
