"""Of job_modules.py: what the drop-in experts say of their parts of the whole model (cuts()), how they draw their first
weights on the CPU, and what rollcall.moe.checkpoint gives in place of a tensor. Nothing here needs
torch.distributed.checkpoint: job_checkpoint.py has that."""
import itertools
import types

import torch

from rollcall.moe import checkpoint, megatron, shards, torchtitan
from support import Groups, fail, refused, same, want

E, H, F = 4, 6, 8
LAYOUTS = list(itertools.product((1, 2, 4), (1, 2, 4)))  # ranks with experts, ranks with slices of them


def config(**more):
    members = dict(hidden_size=H, moe_ffn_hidden_size=F, gated_linear_unit=True, add_bias_linear=False,
                   activation_func=torch.nn.functional.silu, params_dtype=torch.float32, use_cpu_initialization=True,
                   init_method=lambda w: torch.nn.init.normal_(w, 0, 0.4), gradient_accumulation_fusion=False,
                   output_layer_init_method=lambda w: torch.nn.init.normal_(w, 0, 0.3), moe_router_topk=1)
    return types.SimpleNamespace(**{**members, **more})


def mlp_of(c, ep=1, ep_rank=0, etp=1, etp_rank=0, seed=21):
    torch.manual_seed(seed)
    return megatron.TEGroupedMLP(E // ep, c, pg_collection=Groups(ep=(ep, ep_rank), expt_tp=(etp, etp_rank)))


def built_of(ranks):
    """The whole model of the parts of all ranks, [(shares by name, tensors by name)]: what nobody has is NaN."""
    whole = {}
    for mine, tensors in ranks:
        for name, share in mine.items():
            to = whole.setdefault(share.key, torch.full(share.shape, float("nan"), dtype=tensors[name].dtype))
            shards.put(share, tensors[name].detach(), to)
    return whole


def check_draw():
    """Expert tensor parallel ranks begin with the slices of one expert: those of a draw of the whole, by the rule of
    Megatron-LM's linears for the CPU."""
    for gated, dtype, etp in itertools.product((True, False), (torch.float32, torch.bfloat16), (1, 2, 4)):
        c, what = config(gated_linear_unit=gated, params_dtype=dtype), f"gated {gated}, {dtype}, etp {etp}"
        torch.manual_seed(21)
        wide, masters = (2 if gated else 1) * F, {}
        for linear, shape, init in (("linear_fc1", (wide, H), c.init_method),
                                    ("linear_fc2", (H, F), c.output_layer_init_method)):
            for i in range(E):
                masters[f"{linear}.weight{i}"] = init(torch.empty(shape)).to(dtype)
        after = torch.randn(3)
        for rank in range(etp):
            part = mlp_of(c, etp=etp, etp_rank=rank)
            same(f"{what}: the generator behind it", torch.randn(3), after)
            for name, value in part.named_parameters():
                dim, stride = (0, 2 if gated else 1) if "fc1" in name else (1, 1)
                each = masters[name].shape[dim] // etp // stride
                same(f"{what}: {name} of rank {rank}", value.detach(),
                     torch.cat(masters[name].split(each, dim)[rank::etp], dim))


def check_cuts():
    """The ranks' parts are the experts of one rank, each number once."""
    count = 0
    for (ep, etp), gated, bias in itertools.product(LAYOUTS, (True, False), (True, False)):
        if bias and etp > 1:
            continue
        c, what = config(gated_linear_unit=gated, add_bias_linear=bias), f"ep {ep}, etp {etp}, gated {gated}, {bias}"
        whole = mlp_of(c).state_dict()
        for key in whole:
            if "bias" in key:
                whole[key].normal_()
        ranks = []
        for ep_rank, etp_rank in itertools.product(range(ep), range(etp)):
            part = mlp_of(c, ep, ep_rank, etp, etp_rank, seed=5)
            mine, tensors = shards.of_model(part), dict(part.named_parameters())
            want(f"{what}: names", sorted(mine), sorted(tensors))
            with torch.no_grad():
                for name, share in mine.items():
                    tensors[name].fill_(float("nan"))
                    shards.take(share, whole[share.key], tensors[name])
            ranks.append((mine, tensors))
        shards.replicas([mine.values() for mine, _ in ranks])
        for name, value in built_of(ranks).items():
            same(f"{what}: {name}", value, whole[name])
        # By expert and by row: expert 1 of rank 1 has the number L + 1, the second slice the second part of each half.
        last, tensors = ranks[-1]
        name, f = f"linear_fc1.weight{E // ep - 1}", F // etp
        rows = whole[f"linear_fc1.weight{E - 1}"]
        mine = torch.cat([half[-f:] for half in rows.chunk(2)]) if gated else rows[-f:]
        same(f"{what}: rows of the last slice of the last expert", tensors[name].detach(), mine)
        count += 1
    linear = megatron.TEColumnParallelGroupedLinear(
        1, H, 2 * F, config=config(moe_mlp_glu_interleave_size=2), bias=False, init_method=lambda w: w.zero_(),
        skip_bias_add=False, is_expert=True, pg_collection=Groups(expt_tp=(2, 0)))
    refused("slices of interleaved rows", NotImplementedError, "interleave", shards.of_model, linear)
    return count


def check_titan():
    torch.manual_seed(2)
    whole = torchtitan.GroupedExperts(H, F, E, False)
    whole.init_weights(0.3)
    want("experts of one rank", [share.is_whole() for share in shards.of_model(whole).values()], [True] * 3)
    ranks = []
    for rank in range(2):
        part = torchtitan.GroupedExperts(H, F, E // 2, False)
        part.expert_parallel = (rank, 2)
        mine = shards.of_model(part)
        for name, share in mine.items():
            shards.take(share, whole.state_dict()[name], getattr(part, name).data)
        ranks.append((mine, dict(part.named_parameters())))
    for name, value in built_of(ranks).items():
        same(f"torchtitan: {name}", value, whole.state_dict()[name])
        same(f"torchtitan: {name} of rank 1", ranks[1][1][name].detach(), whole.state_dict()[name][2:])


def check_state():
    """to_whole and to_local, of a model and of a flattened optimizer."""
    model = torch.nn.ModuleDict({"experts": mlp_of(config(), 2, 1, 2, 1), "other": torch.nn.Linear(2, 2)})
    state = model.state_dict()
    given = checkpoint.to_whole(model, state)
    want("keys", sorted(key for key in given if "weight" in key),
         sorted([f"experts.linear_fc{n}.weight{e}" for n in (1, 2) for e in (2, 3)] + ["other.weight"]))
    one = given["experts.linear_fc1.weight3"]
    want("a tensor of the whole model", (type(one), tuple(one.shape), one.dtype), (checkpoint.Whole, (2 * F, H),
                                                                                  torch.float32))
    want("its boxes", one.pieces, (((4, 0), (0, 0), (4, H)), ((12, 0), (4, 0), (4, H))))
    local = state["experts.linear_fc1.weight1"]
    box = one.__get_tensor_shard__(types.SimpleNamespace(fqn="w", offset=torch.Size((12, 0))))
    want("a box is a view", box.data_ptr(), local[4:].data_ptr())
    same("a box", box, local[4:])
    refused("a box of another rank", ValueError, "no box", one.__get_tensor_shard__,
            types.SimpleNamespace(fqn="w", offset=torch.Size((0, 0))))
    for what, use in (("a copy", lambda: torch.empty(2 * F, H).copy_(one)), ("a sum", lambda: one + 1),
                      ("a clone", one.clone), ("a move", lambda: one.to(torch.float64))):
        refused(what, NotImplementedError, "a part", use)
    empty = one.new_empty(one.size(), device="cpu")
    want("what a stager begins with", (type(empty), empty.shape, empty.pieces), (checkpoint.Whole, one.shape, ()))
    if given["other.weight"] is not state["other.weight"]:
        fail("a tensor of another module is not left alone")
    back = checkpoint.to_local(model, given)
    want("keys, back", sorted(back), sorted(state))
    for key, value in back.items():
        if value is not state[key]:
            fail(f"{key} has come back as another tensor")
    weight = "experts.linear_fc2.weight0"
    flat = {f"state.{weight}.exp_avg": state[weight] + 1, f"state.{weight}.step": torch.tensor(3.0),
            f"param_groups.{weight}.lr": 0.1, "state.other.bias.exp_avg": torch.zeros(2)}
    given = checkpoint.to_whole(model, flat)
    renamed = "experts.linear_fc2.weight2"
    want("keys of an optimizer", sorted(given), sorted([f"state.{renamed}.exp_avg", f"state.{renamed}.step",
                                                        f"param_groups.{renamed}.lr", "state.other.bias.exp_avg"]))
    want("its shapes", (tuple(given[f"state.{renamed}.exp_avg"].shape), tuple(given[f"state.{renamed}.step"].shape)),
         ((H, F), ()))
    want("keys of an optimizer, back", sorted(checkpoint.to_local(model, given)), sorted(flat))
    if checkpoint.to_local(model, given)[f"state.{weight}.exp_avg"] is not flat[f"state.{weight}.exp_avg"]:
        fail("the optimizer's tensor has come back as another one")
    refused("a factored state", ValueError, "is not known", checkpoint.to_whole, model,
            {f"state.{weight}.exp_avg_sq_row": torch.zeros(H)})
    alone = torch.nn.ModuleDict({"experts": mlp_of(config())})
    want("nothing to say on one rank", {type(v) for v in checkpoint.to_whole(alone, alone.state_dict()).values()},
         {torch.Tensor})
    twice = torch.nn.ModuleDict({"experts": model["experts"], "again": model["experts"]})
    twice["again"].tied = twice["again"].linear_fc1  # a state dict has all names of what has several
    given = checkpoint.to_whole(twice, twice.state_dict())
    want("what is in two places is a part in both",
         sorted(k for k, v in given.items() if isinstance(v, checkpoint.Whole)),
         sorted(f"{a}.{n}.weight{e}" for a in twice for n in ("linear_fc1", "linear_fc2", "tied") for e in (2, 3)))
    del model["experts"].tied
    wrapped = type("DistributedDataParallel", (torch.nn.Module,), {})()
    wrapped.module = model
    want("names under a wrapper", sorted(shards.of_model(wrapped)), sorted(shards.of_model(model)))


def check_release():
    """State says which PyTorch it needs where it has an older one."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 5):
        refused("an old PyTorch", ImportError, "needs PyTorch 2.5", checkpoint.State, torch.nn.Linear(2, 2))
    else:
        checkpoint.State(torch.nn.Linear(2, 2))


def check_shards():
    """The number of layouts."""
    check_draw()
    check_titan()
    check_state()
    check_release()
    return check_cuts()
