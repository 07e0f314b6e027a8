"""The job of megatron-core beside this folder; each exchange of tokens prints how many rows go to each rank."""
import os
import runpy

from megatron.core.transformer.moe import token_dispatcher

plain = token_dispatcher.MoEAlltoAllTokenDispatcher.preprocess


def preprocess(self, routing_map):
    out = plain(self, routing_map)
    print(f"rank {os.environ['RANK']} splits {[int(n) for n in self.input_splits]}\n", end="", flush=True)
    return out


token_dispatcher.MoEAlltoAllTokenDispatcher.preprocess = preprocess
runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "job_megatron_moe.py"))
