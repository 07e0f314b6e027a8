"""rollcall.moe.megatron: the experts of Megatron-LM on libmoe_core.so.

    from rollcall.moe.megatron import TEGroupedMLP, put_into
    put_into(layer_spec)      # a model's spec, as get_gpt_layer_local_spec(...) gives it: its experts are ours now

TEGroupedMLP has the constructor, the forward, the parameters (linear_fc1.weight{i} [2F,H], linear_fc2.weight{i} [H,F],
bias{i}) and the sharded state dict of Megatron-LM's class of that name (megatron/core/transformer/moe/experts.py,
0.16.1 to 0.19.2), without Transformer Engine and without a GPU. TEColumnParallelGroupedLinear and
TERowParallelGroupedLinear are those that it is built of; Megatron-LM's own TEGroupedMLP can be built of them, too
(grouped_mlp_submodules()), and then has all options that are Megatron's. Dispatchers, router and shared experts stay
Megatron-LM's.

Megatron-LM is imported only where its objects are made: sharded_state_dict(), grouped_mlp_submodules(), put_into(), and
the process groups where none are given. config is read, never imported: any object with the members will do.
"""
import inspect

from . import layout, need_torch, shards

torch = need_torch(__name__)
import torch.utils.checkpoint  # noqa: E402

from . import linear  # noqa: E402

__all__ = ["TEColumnParallelGroupedLinear", "TEGroupedLinear", "TEGroupedMLP", "TERowParallelGroupedLinear",
           "grouped_mlp_submodules", "layout", "put_into"]


class NotHere(NotImplementedError):
    """An option of Megatron-LM that these modules do not have."""


def _refuse(config, *options):
    for name in ("fp8", "fp4", "moe_single_grouped_weight", "moe_single_grouped_bias", *options):
        if getattr(config, name, None):
            raise NotHere(f"rollcall.moe.megatron: the experts have no {name}")


def _process_groups(given):
    """pg_collection, else those of Megatron's parallel state, else None: one rank."""
    if given is not None:
        return given
    try:
        from megatron.core import parallel_state
        from megatron.core.process_groups_config import ProcessGroupCollection
    except ImportError:
        return None
    return ProcessGroupCollection.use_mpu_process_groups() if parallel_state.model_parallel_is_initialized() else None


def _size(groups, name):
    group = getattr(groups, name, None)
    return group.size() if group is not None else 1


def _rank(groups, name):
    group = getattr(groups, name, None)
    return group.rank() if group is not None else 0


def _part(whole, size, what):
    if whole % size:
        raise ValueError(f"{what} {whole} is not divisible by {size} expert tensor parallel ranks")
    return whole // size


def _device(config):
    if getattr(config, "init_model_with_meta_device", False):
        return torch.device("meta")
    if getattr(config, "use_cpu_initialization", False) or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def _accepted(function, **arguments):
    """Those of the arguments that this release's function has."""
    have = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in have}


class _ExpertRandom:
    """A context: weights are drawn from Megatron's generator of the expert parallel ranks, where it has one."""

    def __init__(self, device):
        self.fork = None
        if device.type == "cuda":
            try:
                from megatron.core.tensor_parallel import random
            except ImportError:
                return
            tracker = random.get_cuda_rng_tracker()
            if tracker.is_initialized():
                self.fork = tracker.fork(random.get_expert_parallel_rng_tracker_name())

    def __enter__(self):
        return self.fork.__enter__() if self.fork is not None else None

    def __exit__(self, *error):
        return self.fork.__exit__(*error) if self.fork is not None else None


class TEGroupedLinear(torch.nn.Module):
    """One linear for each local expert: weight{i} [out,in], bias{i} [out]. input_size and output_size are the whole
    model's; with expert tensor parallel ranks parallel_mode "column" cuts the output and "row" the input, and nothing
    is communicated here. forward returns (y, None), or with skip_bias_add (y without biases, list of the biases)."""

    def __init__(self, num_gemms, input_size, output_size, *, parallel_mode, config, init_method, bias, skip_bias_add,
                 is_expert=False, tp_comm_buffer_name=None, pg_collection=None, name=None):
        super().__init__()
        if parallel_mode not in ("column", "row", None):
            raise ValueError(f"parallel_mode {parallel_mode!r}")
        if not is_expert:
            raise NotHere("rollcall.moe.megatron: grouped linears are for experts (is_expert=True)")
        _refuse(config)
        groups = _process_groups(pg_collection)
        ranks = _size(groups, "expt_tp")
        if parallel_mode == "column":
            output_size = _part(output_size, ranks, "output_size")
        elif parallel_mode == "row":
            input_size = _part(input_size, ranks, "input_size")
        self.config, self.pg_collection, self.parallel_mode = config, groups, parallel_mode
        self.num_gemms, self.in_features, self.out_features = num_gemms, input_size, output_size
        self.use_bias, self.te_return_bias = bias, bias and skip_bias_add
        self.fuse_wgrad_accumulation = bool(getattr(config, "gradient_accumulation_fusion", False))
        self.delay_wgrad_compute = bool(getattr(config, "delay_wgrad_compute", False) or
                                        getattr(config, "overlap_dispatch_backward_with_experts_wgrad", False))
        self._later, self._wgrad_hooks = [], []
        self._make_parameters(init_method)

    def _make_parameters(self, init_method):
        config, device = self.config, _device(self.config)
        dtype = getattr(config, "params_dtype", torch.float32)
        spread = (getattr(config, "expert_model_parallel_size", None) or _size(self.pg_collection, "ep")) > 1
        for i in range(self.num_gemms):
            weight = torch.empty(self.out_features, self.in_features, dtype=dtype, device=device)
            self.register_parameter(f"weight{i}", torch.nn.Parameter(weight))
            if self.use_bias:
                bias = torch.zeros(self.out_features, dtype=dtype, device=device)
                self.register_parameter(f"bias{i}", torch.nn.Parameter(bias))
        if getattr(config, "perform_initialization", True) and device.type != "meta":
            with torch.no_grad(), _ExpertRandom(device):
                for i in range(self.num_gemms):
                    self._draw(i, init_method)
        # What Megatron's optimizers, gradient norms and data parallelism look for on a parameter. Without
        # tensor_model_parallel the norm would leave out the experts of all tensor parallel ranks but the first.
        for name, value in self.named_parameters():
            value.allreduce = not spread
            value.tensor_model_parallel = name.startswith("weight") or self.parallel_mode == "column"
            value.partition_dim = 1 if self.parallel_mode == "row" and name.startswith("weight") else 0
            value.partition_stride = 1
            if self.delay_wgrad_compute and name.startswith("weight"):
                value.skip_backward_post_hook = True

    def _draw(self, i, init_method):
        """On a GPU each rank draws what it has. On the CPU all expert tensor parallel ranks draw the same whole weight,
        in float32, and take their slices, as Megatron-LM's ColumnParallelLinear and RowParallelLinear do there: so an
        expert begins alike in every number of slices."""
        weight = getattr(self, f"weight{i}")
        if weight.device.type != "cpu":
            init_method(weight)
            return
        share = shards.share(f"weight{i}", weight.shape, self._cut("weight"))
        whole = torch.empty(share.shape, dtype=torch.float32)
        init_method(whole)
        shards.take(share, whole, weight)

    def _cut(self, what):
        """Along which dimension of a weight or a bias the expert tensor parallel ranks have parts: rollcall.moe.shards.
        Of a gated fc1 each has a part of the gate's rows, then one of the linear rows."""
        index, ranks = _rank(self.pg_collection, "expt_tp"), _size(self.pg_collection, "expt_tp")
        if ranks == 1 or self.parallel_mode is None or self.parallel_mode == "row" and what == "bias":
            return {}
        if self.parallel_mode == "row":
            return {1: (index, ranks, 1)}
        return {0: (index, ranks, 2 if getattr(self.config, "gated_linear_unit", False) else 1)}

    def cuts(self):
        """For checkpoints of torch.distributed.checkpoint (rollcall.moe.checkpoint): an expert has the number that it
        has on one rank. Not with interleaved gate and linear rows in several slices."""
        if getattr(self.config, "moe_mlp_glu_interleave_size", None) and _size(self.pg_collection, "expt_tp") > 1:
            raise NotHere("rollcall.moe.megatron: slices of interleaved rows (moe_mlp_glu_interleave_size) have no "
                          "form in a checkpoint")
        first = _rank(self.pg_collection, "ep") * self.num_gemms
        return {f"{what}{i}": (f"{what}{first + i}", self._cut(what)) for what in ("weight", "bias")
                for i in range(self.num_gemms)}

    def _weights(self):
        return [getattr(self, f"weight{i}") for i in range(self.num_gemms)]

    def _biases(self):
        return [getattr(self, f"bias{i}") for i in range(self.num_gemms)] if self.use_bias else []

    def forward(self, x, m_splits, bias_probs=None):
        """x [R,in], all of whose rows are some expert's; m_splits: L counts, a list or a tensor. bias_probs [R]: the
        biases are added in any case, each row's times its number."""
        returned = self.te_return_bias and bias_probs is None
        y = linear.grouped_linear(x, m_splits, self._weights(), () if returned else self._biases(), bias_probs,
                                  fused=self.fuse_wgrad_accumulation,
                                  later=self._later if self.delay_wgrad_compute else None, slack=False)
        return y, ([b.to(y.dtype) for b in self._biases()] if returned else None)

    def backward_dw(self):
        """With delay_wgrad_compute: the weight gradients of all backwards so far, then the hooks. Else nothing."""
        if self.delay_wgrad_compute and self._later:
            linear.backward_later(self._later)
            for hook in self._wgrad_hooks:
                hook()

    def register_wgrad_accumulation_and_reduce_hooks(self, hook):
        """What Megatron's data parallelism calls for each weight of a module that delays its weight gradients."""
        self._wgrad_hooks.append(hook)

    # Transformer Engine keeps FP8 scales in an extra state, and an empty one where there are none.

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        if isinstance(state, torch.Tensor) and state.numel() > 0:
            raise NotHere("rollcall.moe.megatron: the checkpoint has FP8 scales (_extra_state), and the experts no FP8")

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors):
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, errors)
        if prefix + "_extra_state" in missing_keys:  # not every form of the experts has one
            missing_keys.remove(prefix + "_extra_state")

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """The shards of Megatron's distributed checkpoints: expert by expert, with the keys of a linear of one
        expert."""
        from megatron.core.transformer import utils
        metadata = utils.ensure_metadata_has_dp_cp_group(metadata)
        each = metadata.get("singleton_local_shards", False)
        first, whole = (of(self.pg_collection, "ep") * self.num_gemms for of in (_rank, _size))
        axes = {"weight": 1} if self.parallel_mode == "row" else {"weight": 0, "bias": 0}
        make = utils.make_sharded_tensors_for_checkpoint
        more = _accepted(make, tp_group=getattr(self.pg_collection, "expt_tp", None),
                         dp_cp_group=metadata["dp_cp_group"])
        found = {}
        for i in range(self.num_gemms):
            tensors = {"weight": getattr(self, f"weight{i}"), "_extra_state": self.get_extra_state()}
            if self.use_bias:
                tensors["bias"] = getattr(self, f"bias{i}")
            key = f"{first + i}.{prefix}" if each else prefix
            offsets = tuple(sharded_offsets) + (() if each else ((len(sharded_offsets), first + i, whole),))
            shards = make(tensors, key, axes, offsets, **more)
            found[f"{prefix}weight{i}"] = shards[f"{key}weight"]
            found[f"{prefix}_extra_state{i or ''}"] = shards[f"{key}_extra_state"]
            if self.use_bias:
                found[f"{prefix}bias{i}"] = shards[f"{key}bias"]
        for shard in found.values():  # replicas of an expert are the ranks of expert data parallelism
            whole_shard = getattr(shard, "is_data_parallel_fully_shard", False)
            shard.replica_id = (*shard.replica_id[:2], 0 if whole_shard else _rank(self.pg_collection, "expt_dp"))
        return found

    def extra_repr(self):
        return f"{self.num_gemms} experts, in={self.in_features}, out={self.out_features}, bias={self.use_bias}"


class TEColumnParallelGroupedLinear(TEGroupedLinear):
    """TEGroupedLinear whose output is cut over the expert tensor parallel ranks: fc1."""

    def __init__(self, num_gemms, input_size, output_size, **more):
        super().__init__(num_gemms, input_size, output_size, parallel_mode="column", **more)


class TERowParallelGroupedLinear(TEGroupedLinear):
    """TEGroupedLinear whose input is cut over the expert tensor parallel ranks: fc2."""

    def __init__(self, num_gemms, input_size, output_size, **more):
        super().__init__(num_gemms, input_size, output_size, parallel_mode="row", **more)


class TEGroupedMLP(torch.nn.Module):
    """The experts of one rank: fc1, a gated activation or a plain one, times the router's weight, fc2.

    forward(x [R,H], tokens_per_expert [L], probs [R]) returns (y [R,H], None). Any R, 0 included, is computed the same
    way: each of the experts' parameters has its gradient, and backward makes the same calls. submodules is accepted for
    Megatron's sake; the linears are ours in any case."""

    def __init__(self, num_local_experts, config, submodules=None, pg_collection=None, name=None):
        super().__init__()
        _refuse(config, "use_te_activation_func", "use_transformer_engine_op_fuser", "moe_mlp_glu_interleave_size",
                "fine_grained_activation_offloading")
        groups = _process_groups(pg_collection)
        bias = config.add_bias_linear
        if bias and _size(groups, "expt_tp") > 1:
            raise NotHere("rollcall.moe.megatron: biases with expert tensor parallelism: each rank would add fc2's")
        hidden = getattr(config, "moe_latent_size", None) or config.hidden_size
        self.num_local_experts, self.input_size, self.config = num_local_experts, config.hidden_size, config
        self.ep_group, self.tp_group = getattr(groups, "ep", None), getattr(groups, "expt_tp", None)
        shared = dict(config=config, bias=bias, is_expert=True, pg_collection=groups)
        self.linear_fc1 = TEColumnParallelGroupedLinear(
            num_local_experts, hidden, config.moe_ffn_hidden_size * (2 if config.gated_linear_unit else 1),
            init_method=config.init_method, skip_bias_add=False, tp_comm_buffer_name="fc1", **shared)
        self.activation_func = config.activation_func
        self.linear_fc2 = TERowParallelGroupedLinear(
            num_local_experts, config.moe_ffn_hidden_size, hidden, init_method=config.output_layer_init_method,
            skip_bias_add=True, tp_comm_buffer_name="fc2", **shared)
        self.activation_recompute = (getattr(config, "recompute_granularity", None) == "selective" and
                                     "moe_act" in (getattr(config, "recompute_modules", None) or ()))

    def _activation(self, h, probs):
        config = self.config
        if config.gated_linear_unit:
            gate, up = h.chunk(2, dim=-1)
            limit = getattr(config, "activation_func_clamp_value", None)
            if limit is not None:
                gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
            a = self.activation_func(gate) * (up + getattr(config, "glu_linear_offset", 0.0))
        else:
            a = self.activation_func(h)
        return (a * probs.unsqueeze(-1)).to(h.dtype)

    def forward(self, permuted_local_hidden_states, tokens_per_expert, permuted_probs, output_buffer=None,
                grad_input_buffer=None):
        if output_buffer is not None or grad_input_buffer is not None:
            raise NotHere("rollcall.moe.megatron: the experts write into no buffers of a dispatcher")
        x, probs = permuted_local_hidden_states, permuted_probs
        if getattr(self.config, "moe_apply_probs_on_input", False):
            if self.config.moe_router_topk != 1:
                raise ValueError("moe_apply_probs_on_input needs moe_router_topk=1")
            x, probs = (probs.unsqueeze(-1) * x).to(x.dtype), torch.ones_like(probs)
        h, _ = self.linear_fc1(x, tokens_per_expert)
        if self.activation_recompute and torch.is_grad_enabled():
            a = torch.utils.checkpoint.checkpoint(self._activation, h, probs, use_reentrant=False)
        else:
            a = self._activation(h, probs)
        if self.linear_fc2.use_bias:  # which is multiplied by the router's weights, too
            return self.linear_fc2(a, tokens_per_expert, bias_probs=probs.float().contiguous())
        return self.linear_fc2(a, tokens_per_expert)

    def backward_dw(self):
        """With delay_wgrad_compute: the weight gradients that backward has left."""
        self.linear_fc2.backward_dw()
        self.linear_fc1.backward_dw()

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """The shards of Megatron's distributed checkpoints, the same as of TEGroupedMLP and SequentialMLP."""
        from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
        from megatron.core.transformer import utils
        from megatron.core.transformer.mlp import apply_swiglu_sharded_factory as halves
        metadata = utils.ensure_metadata_has_dp_cp_group(metadata)
        each, groups = metadata.get("singleton_local_shards", False), self.linear_fc1.pg_collection
        first, whole = _rank(groups, "ep") * self.num_local_experts, _size(groups, "ep") * self.num_local_experts
        more = _accepted(halves, tp_group=self.tp_group, dp_group=metadata["dp_cp_group"])
        found = {}
        for name in ("linear_fc1", "linear_fc2"):
            shards = getattr(self, name).sharded_state_dict(f"{name}.", sharded_offsets, metadata)
            for i in range(self.num_local_experts if name == "linear_fc1" and self.config.gated_linear_unit else 0):
                offsets = tuple(sharded_offsets) + (() if each else ((len(sharded_offsets), first + i, whole),))
                for key in (f"{name}.weight{i}", f"{name}.bias{i}"):
                    if key in shards:  # gate rows and up rows are shards of their own
                        shards[key] = halves(shards[key], offsets, each, **more)
            replace_prefix_for_sharding(shards, "", f"{prefix}experts.")
            found.update((prefix + key, shard) for key, shard in shards.items())
        return found


def grouped_mlp_submodules(activation_func=None):
    """The submodules for Megatron-LM's own TEGroupedMLP, with our linears: as GroupedMLPSubmodules, or MLPSubmodules in
    releases that have no such class."""
    from megatron.core.transformer.moe import experts
    kind = getattr(experts, "GroupedMLPSubmodules", None) or experts.MLPSubmodules
    return kind(linear_fc1=TEColumnParallelGroupedLinear, linear_fc2=TERowParallelGroupedLinear,
                activation_func=activation_func)


def put_into(spec, experts=TEGroupedMLP):
    """Puts `experts` where a spec of layers has its experts (MoESubmodules.experts), in place; the number of places.
    spec: of a layer, of a block, or a list of them. Raises ValueError where it has none."""
    found, seen, todo = 0, set(), [spec]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen or isinstance(one, (str, type)):
            continue
        seen.add(id(one))
        if type(one).__name__ == "MoESubmodules":
            one.experts = experts
            found += 1
        elif isinstance(one, (list, tuple)):
            todo += one
        elif isinstance(one, dict):
            todo += one.values()
        else:  # a ModuleSpec, a dataclass of submodules, a functools.partial
            todo += [getattr(one, name) for name in ("submodules", "layer_specs", "mlp", "keywords", "params", "args")
                     if hasattr(one, name)]
    if not found:
        raise ValueError("the spec has no MoESubmodules: is it one of layers with experts?")
    return found
