"""DeepSpeed's mixture of experts, two ranks to a group of experts. MISTAKE: item (a gate that branches on a number that
one rank alone has, and reduces it), skip (a rank leaves its experts out)."""
import os

import plan
import torch
import torch.distributed as dist

device = plan.start()
os.environ.setdefault("LOCAL_RANK", str(plan.rank))
import deepspeed  # noqa: E402
from deepspeed.moe.layer import MoE  # noqa: E402

STEPS, WIDTH = 4, 32
deepspeed.init_distributed()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 4)
        self.experts = MoE(WIDTH, torch.nn.Linear(WIDTH, WIDTH), num_experts=4, ep_size=2, k=1, use_residual=False,
                           min_capacity=4, drop_tokens=True)
        self.step = 0

    def forward(self, x):
        x = self.before(x)
        overflowed = torch.zeros(1, device=x.device)
        if overflowed.item() > 0 or plan.sick(self.step, "item"):
            dist.all_reduce(overflowed, group=self.experts.deepspeed_moe.ep_group)
        if plan.sick(self.step, "skip"):
            return self.after(x)
        return self.after(self.experts(x)[0])


torch.manual_seed(1)
model = Model()
# The gradients of experts are reduced among the ranks that have the same ones.
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), optimizer=torch.optim.SGD(
    model.parameters(), lr=0.1), config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1, "zero_allow_untested_optimizer": True})
for step in range(STEPS):
    model.step = step
    loss = engine(torch.ones(4, WIDTH, device=device)).sum()
    engine.backward(loss)
    engine.step()
    loss.item()
    plan.done(step)
dist.destroy_process_group()
