"""Hugging Face's accelerate around a model, its optimizer and its data. Kernels are skipped."""
import os

import plan
import torch
import torch.distributed as dist

device = plan.start()
os.environ.setdefault("LOCAL_RANK", str(plan.rank))
from accelerate import Accelerator  # noqa: E402

accelerator = Accelerator()
layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
rows = torch.utils.data.TensorDataset(torch.zeros(16 * plan.size, 64))
model, optimizer, batches = accelerator.prepare(layers, torch.optim.AdamW(layers.parameters()),
                                                torch.utils.data.DataLoader(rows, batch_size=4))
for step, (batch,) in enumerate(batches):
    loss = model(batch).sum()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if not plan.sick(step, "skip"):
        accelerator.gather(loss.detach())
    loss.item()
    plan.done(step)
accelerator.wait_for_everyone()
dist.destroy_process_group()
