#!/usr/bin/env python3
"""rollcall.moe.torchtitan beside torchtitan's own GroupedExperts, on the CPU: values, gradients, state dicts, and a
whole MoE layer of theirs whose experts are ours. Needs torchtitan (0.2 or 0.3)."""
import copy
import itertools
from importlib.metadata import version

import torch
from torch.distributed.fsdp import fully_shard

from rollcall.moe import torchtitan
from support import COUNTS, close, fail, same, want

try:
    from torchtitan.models.moe import moe as theirs
    OLD = True
except ImportError:
    from torchtitan.models.common import moe as theirs
    OLD = False
H, F, L = 16, 24, 4
TOLERANCE = {torch.float32: 2.0**-18, torch.bfloat16: 2.0**-5}


def make(grouped, dtype):
    torch.manual_seed(2)
    if OLD:
        module = theirs.GroupedExperts(H, F, L, use_grouped_mm=grouped)
    else:
        module = theirs.GroupedExperts(theirs.GroupedExperts.Config(dim=H, hidden_dim=F, num_experts=L))
    with torch.no_grad():
        for value in module.parameters():
            value.normal_(0, 0.3)
    return module.to(dtype)


def run_theirs(module, x, counts, grouped):
    """Their forward. 0.2 pads the rows with a Triton kernel before its grouped product: that is left out. Its loop
    wants whole numbers, its grouped product is given floats."""
    if OLD and grouped:
        weights = module.w1, module.w2, module.w3
        return theirs._run_experts_grouped_mm(*weights, x, counts)
    return module(x, counts.long())


def check_experts():
    count = 0
    for (name, counts), dtype, grouped, slack in itertools.product(COUNTS.items(), TOLERANCE, (False, True), (0, 3)):
        if not OLD and not grouped:
            continue
        what = f"{name}, {dtype}, use_grouped_mm {grouped}, slack {slack}"
        module = make(grouped, dtype)
        mine = torchtitan.GroupedExperts(H, F, L, grouped) if OLD else torchtitan.GroupedExperts(
            theirs.GroupedExperts.Config(dim=H, hidden_dim=F, num_experts=L))
        mine.to(dtype).load_state_dict(module.state_dict())
        want(f"{what}: keys", list(mine.state_dict()), list(module.state_dict()))
        module.load_state_dict(mine.state_dict())
        converted = copy.deepcopy(module)
        want(f"{what}: converted", torchtitan.convert(converted), 1)
        tokens = torch.tensor(counts, dtype=torch.float32 if OLD else torch.int64)
        torch.manual_seed(3)
        rows, dy = (torch.randn(sum(counts) + slack, H).to(dtype) for _ in range(2))
        real = slice(0, sum(counts))
        results = []
        for one in (module, mine, converted):
            x = rows.clone().requires_grad_()
            y = run_theirs(one, x, tokens, grouped) if one is module else one(x, tokens)
            y[real].backward(dy[real])  # what their grouped product leaves in padding is no number
            results.append((y.detach()[real], x.grad[real], *(v.grad for v in one.parameters())))
            if one is not module and slack and (bool((y[sum(counts):] != 0).any()) or
                                                bool((x.grad[sum(counts):] != 0).any())):
                fail(f"{what}: padding has numbers")
        for ours in results[1:]:
            for part, got, wanted in zip(("y", "dx", "dw1", "dw2", "dw3"), ours, results[0]):
                close(f"{what}: {part}", got, wanted, TOLERANCE[torch.bfloat16 if grouped else dtype])
        for got, wanted in zip(results[2], results[1]):
            same(f"{what}: converted as by hand", got, wanted)
        count += 1
    return count


def check_layer():
    """A layer of theirs, router and reordering included, with its experts and with ours."""
    if not OLD:
        return 0
    histc = torch.histc  # which has no whole numbers on the CPU
    torch.histc = lambda tensor, **more: histc(tensor.float(), **more)
    loop = theirs._run_experts_for_loop
    theirs._run_experts_for_loop = lambda *given: loop(*given[:-1], given[-1].long())  # as in run_theirs()
    count = 0
    for before, top_k in itertools.product((True, False), (1, 2)):
        torch.manual_seed(5)
        args = theirs.MoEArgs(num_experts=8, top_k=top_k, use_grouped_mm=False, score_before_experts=before)
        layer = theirs.MoE(args, H, F)
        with torch.no_grad():
            layer.init_weights(0.2, torch.device("cpu"))
        other = copy.deepcopy(layer)
        want("converted", torchtitan.convert(other), 1)
        grads = []
        for one in (layer, other):
            torch.manual_seed(6)
            x = torch.randn(1, 3, H, requires_grad=True)  # three tokens: most of eight experts have none
            y = one(x)
            y.square().sum().backward()
            grads.append((y.detach(), x.grad, *(v.grad for v in one.parameters())))
        for i, (wanted, got) in enumerate(zip(*grads)):
            close(f"a layer, score before experts {before}, top {top_k}: {i}", got, wanted, TOLERANCE[torch.float32])
        count += 1
    return count


def check_gpt_oss():
    """The experts of gpt-oss in 0.3, which compute through the same method."""
    if OLD:
        return 0
    from torchtitan.models.gpt_oss.moe import GptOssGroupedExperts as Experts
    for name, counts in COUNTS.items():
        torch.manual_seed(12)
        module = Experts(Experts.Config(dim=H, hidden_dim=F, num_experts=L))
        with torch.no_grad():
            for value in module.parameters():
                value.normal_(0, 0.3)
        other = copy.deepcopy(module)
        want("converted", torchtitan.convert(other), 1)
        rows, results = torch.randn(sum(counts), H, dtype=torch.bfloat16), []
        for one in (module, other):
            x = rows.clone().requires_grad_()
            y = one(x, torch.tensor(counts))
            y.square().sum().backward()
            results.append((y.detach(), x.grad, *(v.grad for v in one.parameters())))
        for i, (wanted, got) in enumerate(zip(*results)):
            close(f"gpt-oss, {name}: {i}", got, wanted, TOLERANCE[torch.bfloat16])
    return len(COUNTS)


def check_fsdp():
    """FSDP frees the gathered weights after forward and gathers them again for backward, into other memory."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    for name, counts in COUNTS.items():
        plain, results = make(False, torch.float32), []
        torchtitan.convert(plain)
        sharded = make(False, torch.float32)
        torchtitan.convert(sharded)
        fully_shard(sharded, mesh=mesh, reshard_after_forward=True)
        for one in (plain, sharded):
            torch.manual_seed(13)
            x = torch.randn(sum(counts), H, requires_grad=True)
            y = one(x, torch.tensor(counts))
            y.square().sum().backward()
            results.append((y.detach(), x.grad, *(getattr(v.grad, "_local_tensor", v.grad) for v in one.parameters())))
        for i, (wanted, got) in enumerate(zip(*results)):
            same(f"FSDP, {name}: {i}", got, wanted)
    torch.distributed.destroy_process_group()
    return len(COUNTS)


count = check_experts() + check_layer() + check_gpt_oss() + check_fsdp()
print(f"job_torchtitan: {count} cases beside torchtitan {version('torchtitan')}")
