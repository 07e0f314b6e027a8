"""A GPT of megatron-core with mixture-of-experts layers. Kernels are skipped: the numbers mean nothing, the calls are
real. MEGATRON names the layout, as words NAME=VALUE:

    dispatcher=alltoall|allgather|flex  ep=N  etp=N  tp=N  pp=N  experts=sequential|grouped  capacity=FACTOR  steps=N
    reduced=1 (Megatron's own data parallelism reduces the gradients)

MISTAKE: experts (a rank leaves its experts out, so that backward lacks the exchange), counts (it sends a row more than
it has told), capacity (it has another capacity than its peers), item (a branch on a number of its own), norms (it does
not reduce the gradients of the norms, of which each rank of a tensor parallel group has seen its part of the sequence).
"""
import inspect
import os
import sys
import types

import plan
import torch
import torch.distributed as dist
import torch.utils.cpp_extension

given = {"dispatcher": "alltoall", "ep": plan.size, "etp": 1, "tp": 1, "pp": 1, "experts": "sequential",
         "capacity": "", "steps": 4, "reduced": 0}
given.update(word.split("=", 1) for word in os.environ.get("MEGATRON", "").split())
EP, ETP, TP, PP = (int(given[name]) for name in ("ep", "etp", "tp", "pp"))
LAYERS, EXPERTS, BATCH, LENGTH, WORDS, MICROBATCHES = 2, 8, 2, 32, 256, 4 if PP > 1 else 1
GROUPED = given["experts"] == "grouped"


def grouped_product(tokens, weights, counts, trans_b=False):
    """What the package grouped_gemm computes, which wants a CUDA compiler to be installed."""
    parts = torch.split(tokens, counts.tolist())
    return torch.cat([part @ (w.t() if trans_b else w) for part, w in zip(parts, weights)])


def no_compiler(*_, **__):
    """For release 0.15, which compiles CUDA in each rank when it is imported, and does without where that fails."""
    raise RuntimeError("a rehearsal has no CUDA compiler")


torch.utils.cpp_extension.load_inline = no_compiler
if GROUPED:
    module = types.ModuleType("grouped_gemm")
    module.ops = types.SimpleNamespace(gmm=grouped_product)
    sys.modules["grouped_gemm"] = module

device = plan.start()

import megatron.core.transformer.moe.moe_utils as moe_utils  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads)
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.moe import token_dispatcher  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

if not hasattr(moe_utils, "te_general_gemm"):
    moe_utils.te_general_gemm = None  # release 0.16.1 does not define it where Transformer Engine is not installed


def known(function, **options):
    """Those of the options that this release of the function knows."""
    return {name: value for name, value in options.items() if name in inspect.signature(function).parameters}


class Norm(torch.nn.LayerNorm):
    """Megatron's own norm for a sequence that is cut wants Apex or Transformer Engine."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__(hidden_size, eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel


parallel_state.initialize_model_parallel(
    tensor_model_parallel_size=TP, pipeline_model_parallel_size=PP, expert_model_parallel_size=EP,
    **known(parallel_state.initialize_model_parallel, expert_tensor_parallel_size=ETP))
model_parallel_cuda_manual_seed(1)
kind = torch.bfloat16 if GROUPED else torch.float32
capacity = {}
if given["capacity"]:
    wrong = plan.mistake == "capacity" and plan.rank == plan.culprit
    capacity = {"moe_expert_capacity_factor": float(given["capacity"]) * (2 if wrong else 1),
                "moe_pad_expert_input_to_capacity": True}
config = TransformerConfig(
    num_layers=LAYERS, hidden_size=64, num_attention_heads=4, ffn_hidden_size=128, num_moe_experts=EXPERTS,
    moe_router_topk=2, moe_token_dispatcher_type=given["dispatcher"], tensor_model_parallel_size=TP,
    pipeline_model_parallel_size=PP, sequence_parallel=TP > 1, expert_model_parallel_size=EP,
    moe_grouped_gemm=GROUPED, bf16=GROUPED, params_dtype=kind, use_cpu_initialization=True, pipeline_dtype=kind,
    moe_aux_loss_coeff=0.01, bias_dropout_fusion=False, bias_activation_fusion=False, masked_softmax_fusion=False,
    add_bias_linear=False, gradient_accumulation_fusion=False,
    **known(TransformerConfig.__init__, expert_tensor_parallel_size=ETP), **capacity)
spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=GROUPED)
if TP > 1:
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    spec = TransformerBlockSubmodules(layer_specs=[spec] * (LAYERS // PP), layer_norm=Norm)
model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=WORDS, max_sequence_length=LENGTH,
                 pre_process=parallel_state.is_pipeline_first_stage(),
                 post_process=parallel_state.is_pipeline_last_stage()).to(device).to(kind)
if int(given["reduced"]):
    model = DistributedDataParallel(config, DistributedDataParallelConfig(), model)
wrongs = set()  # what this rank does wrong in this step
experts = [layer for layer in model.modules() if isinstance(layer, MoELayer)][-1].experts
computed = experts.forward
exchanged = getattr(token_dispatcher, "all_to_all", None)


def left_out(hidden, *rest):
    """The output of a rank without tokens is made of nothing that autograd knows, so backward never gets to the
    exchange that dispatched the tokens."""
    return (hidden.detach(), None) if "experts" in wrongs else computed(hidden, *rest)


def miscounted(group, rows, output_splits=None, input_splits=None, **options):
    """One row more for member 0 than this rank has told the others."""
    if "counts" not in wrongs or input_splits is None:
        return exchanged(group, rows, output_splits, input_splits, **options)
    wrongs.clear()
    splits = [int(count) + (member == 0) for member, count in enumerate(input_splits)]
    return exchanged(group, torch.cat([rows.new_zeros(1, *rows.shape[1:]), rows]), output_splits, splits, **options)


def forward_step(batches, model):
    """One microbatch, as Megatron's schedules want it."""
    ids, position, mask = next(batches)
    return model(ids, position, mask, labels=ids), lambda out: (out.sum(), {})


def finalized(*models, **options):
    """The end of a step, in which the gradients are reduced."""
    config.sequence_parallel = TP > 1 and "norms" not in wrongs
    finalize_model_grads(*models, **options)
    config.sequence_parallel = TP > 1


def batches():
    """Batches without end."""
    while True:
        yield (torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device),
               torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous().to(device),
               torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).to(device))


if int(given["reduced"]):
    config.finalize_model_grads_func = finalized
experts.forward = left_out
token_dispatcher.all_to_all = miscounted
run = get_forward_backward_func()
for step in range(int(given["steps"])):
    if int(given["reduced"]):
        model.zero_grad_buffer()
    wrongs = {kind for kind in ("experts", "counts", "norms") if plan.sick(step, kind)}
    run(forward_step_func=forward_step, data_iterator=batches(), model=model, num_microbatches=MICROBATCHES,
        seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False)
    found = torch.zeros(1, device=device)
    if found.item() > 0 or plan.sick(step, "item"):
        dist.all_reduce(found)
    plan.done(step)
dist.destroy_process_group()
