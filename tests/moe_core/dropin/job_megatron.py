#!/usr/bin/env python3
"""rollcall.moe.megatron beside megatron-core's own classes, on the CPU: SequentialMLP, GroupedMLP (where the release
has it), TEGroupedMLP over our grouped linears, and their distributed data parallel around our experts. Needs
megatron-core.

Megatron-LM asks for a GPU in a few places where it needs only a device: there it is told "cpu". Its package
grouped_gemm wants a CUDA compiler, so what that computes is computed here by PyTorch; its activations are compiled for
the device, which is left out.
"""
import itertools
import os
import sys
import types
import warnings

os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch  # noqa: E402

import support  # noqa: E402
from rollcall.moe import layout, megatron  # noqa: E402
from support import COUNTS, close, same, want  # noqa: E402

warnings.filterwarnings("ignore")
H, F, L = 16, 24, 4
TOLERANCE = {torch.float32: 2.0**-18, torch.bfloat16: 2.0**-5}


def grouped_product(tokens, weights, counts, trans_b=False):
    parts = torch.split(tokens, counts.tolist())
    return torch.cat([part @ (w.t() if trans_b else w) for part, w in zip(parts, weights)])


module = types.ModuleType("grouped_gemm")
module.ops = types.SimpleNamespace(gmm=grouped_product)
sys.modules["grouped_gemm"] = module
STREAM = torch.cuda.current_stream
torch.cuda.current_device, torch.cuda.current_stream = lambda: "cpu", lambda device=None: STREAM(0)

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
import megatron.core as megatron_core  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402
from megatron.core.transformer.mlp import MLPSubmodules  # noqa: E402
from megatron.core.transformer.moe import experts as theirs  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.spec_utils import build_module  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

vars(moe_utils).setdefault("te_general_gemm", None)  # 0.16.1 looks for it without Transformer Engine, too
parallel_state.initialize_model_parallel()
GROUPS = ProcessGroupCollection.use_mpu_process_groups()


def config(dtype=torch.float32, **more):
    return TransformerConfig(**{**dict(
        num_layers=1, hidden_size=H, num_attention_heads=1, ffn_hidden_size=F, moe_ffn_hidden_size=F,
        num_moe_experts=L, moe_router_topk=2, gated_linear_unit=True, add_bias_linear=False,
        use_cpu_initialization=True, activation_func=torch.nn.functional.silu, params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        bias_activation_fusion=False, gradient_accumulation_fusion=False, init_method_std=0.3), **more})


def sequential(c, groups=GROUPS):
    return theirs.SequentialMLP(L, c, MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
                                pg_collection=groups)


def legacy(c):
    return theirs.GroupedMLP(L, c, pg_collection=GROUPS)


def over_ours(c, groups=GROUPS):
    """Megatron's own TEGroupedMLP, whose linears are ours."""
    return theirs.TEGroupedMLP(L, c, megatron.grouped_mlp_submodules(), pg_collection=groups)


def ours(c, groups=GROUPS):
    return megatron.TEGroupedMLP(L, c, pg_collection=groups)


def inputs(counts, dtype, seed=1):
    torch.manual_seed(seed)
    x = torch.randn(sum(counts), H).to(dtype).requires_grad_()
    return x, (0.1 + torch.rand(sum(counts))).requires_grad_(), torch.randn(sum(counts), H).to(dtype)


def run(mlp, counts, dtype):
    """(y, dx, dprobs) and, by (name, expert), the gradients of what the experts are made of."""
    x, probs, dy = inputs(counts, dtype)
    y, bias = mlp(x, torch.tensor(counts), probs)
    want("the second result", bias, None)
    y.backward(dy)
    return y, x.grad, probs.grad


def experts_of(tensors, form, sizes):
    """{(name, expert): tensor} of tensors in a form."""
    flat = {key: value.detach().contiguous() for key, value in tensors.items()}
    return {what: flat[part.key].as_strided(part.shape, part.stride, flat[part.key].storage_offset() + part.offset)
            for what, part in layout.parts(form, sizes).items()}


def check_beside(make, form, models, types_of):
    count = 0
    for (model, more), (name, counts), dtype in itertools.product(models.items(), COUNTS.items(), types_of):
        c = config(dtype, **more)
        sizes = layout.Sizes(L, H, F, c.gated_linear_unit, c.add_bias_linear)
        torch.manual_seed(4)
        one, other = make(c), ours(c)
        if c.add_bias_linear:
            with torch.no_grad():
                for key, value in one.named_parameters():
                    value.normal_() if "bias" in key else None
        other.load_state_dict(layout.convert(one.state_dict(), form, "grouped", sizes))
        back = layout.convert(other.state_dict(), "grouped", form)
        for key, value in one.named_parameters():
            same(f"{form}, {key} and back", back[key], value.detach())
        what = f"{form}, {model}, {name}, {dtype}"
        for part, got, wanted in zip(("y", "dx", "dprobs"), run(other, counts, dtype), run(one, counts, dtype)):
            close(f"{what}: {part}", got, wanted, TOLERANCE[dtype])
        # An expert without rows has no gradient in SequentialMLP of one expert's linear: zeros here.
        grads = {key: torch.zeros_like(value) if value.grad is None else value.grad
                 for key, value in one.named_parameters()}
        wanted = experts_of(grads, form, sizes)
        for part, got in experts_of({key: value.grad for key, value in other.named_parameters()}, "grouped",
                                    sizes).items():
            close(f"{what}: {part}", got, wanted[part], TOLERANCE[dtype])
        count += 1
    return count


def described(sharded):
    """What a distributed checkpoint is told of each tensor and object."""
    def one(shard):
        if hasattr(shard, "build"):
            return [one(part) for part in flat(shard.build())]
        more = {name: tuple(getattr(shard, name)) for name in ("global_shape", "global_offset", "local_shape")
                if getattr(shard, name, None) is not None}
        return type(shard).__name__, shard.key, tuple(shard.replica_id), tuple(sorted(more.items()))

    def flat(tree):
        if isinstance(tree, dict):
            return [leaf for value in tree.values() for leaf in flat(value)]
        return [leaf for value in tree for leaf in flat(value)] if isinstance(tree, (list, tuple)) else [tree]

    found = [one(shard) for shard in sharded.values()]
    return sorted(str(leaf) for entry in found for leaf in (entry if isinstance(entry, list) else [entry]))


def check_sharded():
    count = 0
    spread = support.Groups(ep=(4, 2), expt_dp=(2, 1))  # the third of four expert parallel ranks, a second replica
    sliced = support.Groups(ep=(2, 1), expt_tp=(2, 1), expt_dp=(2, 0))  # the second slice of each expert
    ways = itertools.product((True, False), (True, False), (False, True), (GROUPS, spread, sliced), ((), ((0, 1, 3),)))
    for gated, bias, each, groups, offsets in ways:
        if bias and groups is sliced:
            continue
        c = config(gated_linear_unit=gated, add_bias_linear=bias, activation_func=torch.nn.functional.silu)
        metadata = {"singleton_local_shards": each, "dp_cp_group": GROUPS.dp_cp}
        shards = {name: make(c, groups).sharded_state_dict("mlp.experts.", offsets, dict(metadata))
                  for name, make in (("ours", ours), ("sequential", sequential), ("over ours", over_ours))}
        keep = lambda entries: [e for e in entries if "_extra_state" not in e]  # noqa: E731
        told = {name: described(shard) for name, shard in shards.items()}
        want(f"sharded state dict, gated {gated}, bias {bias}, singleton {each}", keep(told["ours"]),
             keep(told["sequential"]))
        want("sharded state dict beside Megatron's TEGroupedMLP", told["ours"], told["over ours"])
        want("its keys", sorted(shards["ours"]), sorted(shards["over ours"]))
        count += 1
    return count


def check_data_parallel():
    """Megatron's distributed data parallel with our experts: its hooks, two microbatches, gradients fused or not."""
    for fused, overlap, (name, counts) in itertools.product((True, False), (True, False), COUNTS.items()):
        grads = []
        for make in (ours, sequential):
            torch.manual_seed(9)
            c = config()
            mlp = make(c)
            if make is ours:
                mlp.load_state_dict(layout.convert(first.state_dict(), "sequential", "grouped"))
                for linear in (mlp.linear_fc1, mlp.linear_fc2):
                    linear.fuse_wgrad_accumulation = fused
            ddp = DistributedDataParallel(c, DistributedDataParallelConfig(
                grad_reduce_in_fp32=True, overlap_grad_reduce=overlap, use_distributed_optimizer=False), mlp)
            for step in range(2):  # the first batch counts gradients, the second launches by the count
                ddp.zero_grad_buffer()
                with ddp.no_sync():
                    run(ddp, counts, torch.float32)
                run(ddp, counts, torch.float32)
                ddp.finish_grad_sync()
            form = "grouped" if make is ours else "sequential"
            main = {key: value.main_grad for key, value in mlp.named_parameters()}
            grads.append(experts_of(main, form, layout.Sizes(L, H, F)))
            want(f"{form}: .grad is left to nobody", [v.grad for v in mlp.parameters() if v.grad is not None], [])
        for part, got in grads[0].items():
            close(f"data parallel, fused {fused}, overlap {overlap}, {name}: main_grad of {part}", got, grads[1][part],
                  TOLERANCE[torch.float32])


def check_layer():
    """A whole MoE layer of Megatron's spec, router and dispatcher included, before put_into() and after."""
    results, states = [], []
    for change in (False, True):
        c = config(moe_token_dispatcher_type="allgather", moe_router_load_balancing_type="none")
        spec = get_gpt_layer_local_spec(num_experts=L, moe_grouped_gemm=False)
        if change:
            want("places in the spec", megatron.put_into(spec), 1)
        mlp = spec.submodules.mlp
        layer = mlp(config=c) if callable(mlp) else build_module(mlp, config=c)
        layer.set_layer_number(1)
        want("the experts", isinstance(layer.experts, megatron.TEGroupedMLP), change)
        states.append(layer.state_dict())
        if change:
            sure = layout.convert(states[0], "sequential", "grouped", prefix="experts.")
            layer.load_state_dict({**{k: v for k, v in states[0].items() if not k.startswith("experts.")}, **sure})
        torch.manual_seed(8)
        x = torch.randn(3, 1, H, requires_grad=True)
        y = layer(x)[0]
        y.square().sum().backward()
        results.append((y.detach(), x.grad, layer.router.weight.grad))
    for what, got, wanted in zip(("y", "dx", "the router's gradient"), results[1], results[0]):
        close(f"a layer: {what}", got, wanted, TOLERANCE[torch.float32])


MODELS = {"swiglu": {}, "geglu": dict(activation_func=torch.nn.functional.gelu),
          "swiglu, biases": dict(add_bias_linear=True),
          "plain gelu": dict(gated_linear_unit=False, activation_func=torch.nn.functional.gelu)}
torch.manual_seed(9)
first = sequential(config())
# SequentialMLP with biases fails in autograd where tensor parallel groups have one rank; GroupedMLP has none.
without = {model: more for model, more in MODELS.items() if "biases" not in model}
count = check_beside(sequential, "sequential", without, TOLERANCE)
count += check_beside(over_ours, "grouped", MODELS, TOLERANCE)
if hasattr(theirs, "GroupedMLP"):
    count += check_beside(legacy, "legacy", without, (torch.bfloat16,))
count += check_sharded()
check_data_parallel()
check_layer()
print(f"job_megatron: {count} cases beside megatron-core {megatron_core.__version__}")
torch.distributed.destroy_process_group()
