"""DeepSpeed's engine with ZeRO, its optimizer sharded over all ranks. STAGE: 1, 2 or 3. Kernels are skipped."""
import os

import plan
import torch
import torch.distributed as dist

plan.start()
os.environ.setdefault("LOCAL_RANK", str(plan.rank))
import deepspeed  # noqa: E402

layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8))
engine, *_ = deepspeed.initialize(model=layers, model_parameters=layers.parameters(), optimizer=torch.optim.SGD(
    layers.parameters(), lr=0.1), config={
        "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1,
        "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": int(os.environ.get("STAGE", "1"))}})
for step in range(4):
    loss = engine(torch.zeros(4, 64, device="cuda")).sum()
    if not plan.sick(step, "skip"):
        engine.backward(loss)
        engine.step()
    loss.item()
    plan.done(step)
dist.destroy_process_group()
