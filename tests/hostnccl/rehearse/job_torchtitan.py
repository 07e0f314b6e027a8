"""torchtitan's mixture of experts: tensor parallel, and experts over the same ranks, put there by torchtitan's own
apply_moe_ep_tp. As torchtitan's pull request #2416 says, each rank has a part of the router's gradient then; the parts
are reduced here behind backward. MISTAKE: router (a rank's router has no gradient, so its reduction is missing)."""
import plan
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.models.llama4.infra.parallelize import apply_moe_ep_tp
from torchtitan.models.moe import MoE, MoEArgs

STEPS, LENGTH, WIDTH = 4, 32, 64
device = plan.start()
torch.manual_seed(1)


class Block(torch.nn.Module):
    moe_enabled = True

    def __init__(self):
        super().__init__()
        self.moe = MoE(MoEArgs(num_experts=8, top_k=2), WIDTH, 2 * WIDTH)

    def forward(self, x):
        return x + self.moe(x)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleDict({str(number): Block() for number in range(2)})
        self.step = 0

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


def routed(router, inputs, scores):
    """The scores of a rank whose router is left out of autograd."""
    return (scores[0].detach(), *scores[1:]) if plan.sick(model.step, "router") else None


model = Model()
for layer in model.layers.values():
    with torch.no_grad():
        layer.moe.init_weights(0.02, torch.device("cpu"))
model.to(device)
tensor, experts = (init_device_mesh("cuda", (plan.size,), mesh_dim_names=(name,)) for name in ("tp", "ep"))
apply_moe_ep_tp(model, tp_mesh=tensor, ep_mesh=experts, etp_mesh=None, ep_etp_mesh=None)
list(model.layers.values())[0].moe.router.register_forward_hook(routed)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for step in range(STEPS):
    model.step = step
    model(torch.ones(2, LENGTH // plan.size, WIDTH, device=device)).sum().backward()
    for layer in model.layers.values():
        gradient = layer.moe.router.gate.weight.grad
        if gradient is not None:
            dist.all_reduce(gradient.to_local(), group=tensor.get_group())
    optimizer.step()
    optimizer.zero_grad()
    plan.done(step)
plan.end()
