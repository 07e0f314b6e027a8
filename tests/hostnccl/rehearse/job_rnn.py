"""DDP with a recurrent network: an LSTM of two layers in both directions and with a projection, then a GRU. Their
weights lie in one piece, whose layout cuDNN tells."""
import plan
import torch
from torch.nn.parallel import DistributedDataParallel

STEPS = 3
device = plan.start()
torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.LSTM(16, 32, num_layers=2, bidirectional=True, proj_size=8, dropout=0.1)
        self.second = torch.nn.GRU(16, 24, bias=False)

    def forward(self, x):
        y, _ = self.first(x)
        y, _ = self.second(y)
        return y


model = DistributedDataParallel(Model().to(device), device_ids=[device.index])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(STEPS):
    optimizer.zero_grad()
    out = model(torch.randn(7, 4, 16, device=device))
    assert out.shape == (7, 4, 24), out.shape
    out.square().mean().backward()
    assert all(p.grad is not None and p.grad.shape == p.shape for p in model.parameters())
    optimizer.step()
    plan.done(step)
plan.end()
