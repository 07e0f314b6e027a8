"""An inference server that starts and answers: vLLM with a tiny model of its own, weights made up, tensor parallel. The
server starts its ranks itself, as processes of multiprocessing, and loads NCCL with ctypes (pynccl). VLLM_MODEL: llama,
or mixtral with parallel experts; VLLM_SUMS: nccl, or custom, where vLLM's own kernel adds over memory that the ranks
share."""
import json
import os
import sys
import tempfile

# For the processes that the server starts: nothing asks a network, and what they print is the job's own.
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="CRITICAL",
                  VLLM_WORKER_MULTIPROC_METHOD="spawn")
STEPS, RANKS, TOKENS = 2, 2, 4
MODEL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
         "hidden_act": "silu", "dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}
KINDS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "mixtral": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
                "num_experts_per_tok": 2},
}


class Tells:
    """What each rank of the server can be asked as well."""

    def told(self, step):
        return f"rank {self.rank} step {step}"


def main():
    from vllm import LLM, SamplingParams

    kind = os.environ.get("VLLM_MODEL", "llama")
    with tempfile.TemporaryDirectory() as model:
        with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
            json.dump({**MODEL, **KINDS[kind]}, f)
        server = LLM(model=model, load_format="dummy", skip_tokenizer_init=True, tensor_parallel_size=RANKS,
                     distributed_executor_backend="mp", enforce_eager=True, max_model_len=128, max_num_seqs=4,
                     gpu_memory_utilization=0.5, seed=0, worker_extension_cls="job_vllm.Tells",
                     disable_custom_all_reduce=os.environ.get("VLLM_SUMS") != "custom",
                     enable_expert_parallel=kind == "mixtral")
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True, detokenize=False)
    for step in range(STEPS):
        answers = server.generate([{"prompt_token_ids": [3, 4, 5 + step]}, {"prompt_token_ids": [7, 8]}], sampling,
                                  use_tqdm=False)
        assert [len(a.outputs[0].token_ids) for a in answers] == [TOKENS, TOKENS], answers
        for line in server.collective_rpc("told", args=(step,)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
