"""A training step that is captured into a CUDA graph, backward pass and reduction of the gradients included, and
launched again for each step. Memory from before the capture is given back inside it."""
import plan
import torch
import torch.distributed as dist

STEPS = 4
device = plan.start()
torch.manual_seed(0)
model = torch.nn.Linear(64, 64, device=device)
rows = torch.ones(32, 64, device=device)


def train():
    for parameter in model.parameters():
        parameter.grad = None
    loss = model(rows).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    loss = train()
torch.cuda.current_stream().wait_stream(side)
graph = None
if hasattr(torch._C, "_cuda_cudaCachingAllocator_enable"):  # older releases have no cache to capture with
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = train()
for step in range(STEPS):
    if graph is not None:
        graph.replay()
    else:
        loss = train()
    dist.all_reduce(torch.ones(16, device=device))
    torch.cuda.synchronize()
    plan.done(step)
del graph
plan.end()
