"""A GPT of megatron-core with mixture-of-experts layers, expert parallel over all ranks, with the all-to-all
dispatcher. Kernels are skipped."""
import datetime
import os

import torch
import torch.distributed as dist

STEPS, LAYERS, EXPERTS, BATCH, LENGTH, WORDS = 2, 2, 8, 2, 32, 256
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank % torch.cuda.device_count())
dist.init_process_group("nccl", rank=rank, world_size=size, timeout=datetime.timedelta(seconds=300))

import megatron.core.transformer.moe.moe_utils as moe_utils  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

moe_utils.te_general_gemm = None  # release 0.16.1 does not define it where Transformer Engine is not installed
parallel_state.initialize_model_parallel(tensor_model_parallel_size=1, expert_model_parallel_size=size)
model_parallel_cuda_manual_seed(1)
config = TransformerConfig(num_layers=LAYERS, hidden_size=64, num_attention_heads=4, ffn_hidden_size=128,
                           num_moe_experts=EXPERTS, moe_router_topk=2, moe_token_dispatcher_type="alltoall",
                           expert_model_parallel_size=size, use_cpu_initialization=True, pipeline_dtype=torch.float32,
                           moe_aux_loss_coeff=0.01, bias_dropout_fusion=False, bias_activation_fusion=False,
                           masked_softmax_fusion=False, add_bias_linear=False)
spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
model = GPTModel(config=config, transformer_layer_spec=spec, vocab_size=WORDS, max_sequence_length=LENGTH).cuda()
for step in range(STEPS):
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="cuda")
    position = torch.arange(LENGTH).expand(BATCH, LENGTH).contiguous().cuda()
    mask = torch.zeros(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool).cuda()
    model(ids, position, mask, labels=ids).sum().backward()
    print(f"rank {rank} step {step}", flush=True)
dist.destroy_process_group()
