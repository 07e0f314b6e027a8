"""Hugging Face's Trainer over a small model. A reduction of our own ends each step. Kernels are skipped."""
import os
import tempfile

import plan
import torch
import torch.distributed as dist

device = plan.start()
os.environ.setdefault("LOCAL_RANK", str(plan.rank))
from transformers import Trainer, TrainerCallback, TrainingArguments  # noqa: E402

STEPS = 4


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))

    def forward(self, x):
        return {"loss": self.layers(x).sum()}


class EachStep(TrainerCallback):
    step = 0

    def on_step_end(self, args, state, control, **kwargs):
        if not plan.sick(self.step, "skip"):
            dist.all_reduce(torch.zeros(1, device=device))
        plan.done(self.step)
        self.step += 1


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(output_dir=folder, max_steps=STEPS, per_device_train_batch_size=4, report_to=[],
                                  save_strategy="no", logging_strategy="no", disable_tqdm=True)
    rows = [{"x": torch.zeros(64)} for _ in range(64 * plan.size)]
    Trainer(model=Model(), args=arguments, train_dataset=rows, callbacks=[EachStep()]).train()
dist.destroy_process_group()
