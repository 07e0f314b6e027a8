"""Operations on CUDA tensors, with the mode and without a GPU, compared with the same on the host. One rank."""
import _thread
import threading

import torch

torch.manual_seed(11)
failures = []


def same(what, got, want, within=0.0):
    got, want = got.detach().cpu(), want.detach().cpu()
    if got.shape != want.shape or got.dtype != want.dtype or \
            (got.numel() and (got.double() - want.double()).abs().max().item() > within):
        failures.append(f"{what}: {got} instead of {want}")


def both(what, function, *tensors, within=0.0):
    """The function over CUDA tensors and over the host's."""
    got = function(*(t.cuda() if isinstance(t, torch.Tensor) else t for t in tensors))
    want = function(*tensors)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
        same(what, g, w, within)


x, y = torch.randn(6, 8), torch.randn(6, 8)
mask = x > 0

# views and operations in place share memory


def through_views(a):
    a = a.clone()
    a.t()[2:4].mul_(3)
    a[1].copy_(a[0])
    a.view(-1)[5:9] = 7
    torch.diagonal(a).zero_()
    b = a[::2, 1::3]
    b += 1
    return a, b, a.unbind(1)[2]


both("views", through_views, x)
both("in place with two results", lambda a, b: (a.clone().clamp_(-1, 1).add_(b, alpha=2), a), x, y)
both("out=", lambda a, b: torch.add(a, b, out=torch.zeros_like(a)), x, y)

# shapes that depend on values
both("mask", lambda a, m: (a[m], m.nonzero(), torch.masked_select(a, m)), x, mask)
both("unique", lambda a: torch.unique(a, return_counts=True), torch.tensor([3, 1, 3, 2, 1, 3]))
both("repeats", lambda a, n: a.repeat_interleave(n, 0), x, torch.arange(6))
both("put by mask", lambda a, m: a.clone().masked_fill_(m, 2).index_put((m,), a[m] * 2), x, mask)


def assign(a, m):
    a = a.clone()
    a[m] = a[m] + 1
    return a


both("assignment by mask", assign, x, mask)

# a long tensor whose rows a short mask chooses has as many rows as it would have
long = torch.zeros(6, 65536, device="cuda")
rows = torch.tensor([True, False, True, True, False, False])
same("rows", torch.tensor(long[rows.cuda()].shape), torch.tensor((3, 65536)))
long[rows.cuda()] = torch.ones(3, 65536, device="cuda")
same("selected", torch.tensor(torch.masked_select(long, rows.cuda()[:, None]).shape), torch.tensor((3 * 65536,)))

# counts, routers, losses
both("router", lambda a: torch.topk(torch.softmax(a, -1), 2), x, within=1e-6)
both("sorted", lambda a: torch.sort(a, stable=True), x)
both("counts", lambda a: torch.bincount(a, minlength=9), torch.tensor([1, 5, 5, 7]))
both("scatter", lambda a, i: torch.zeros_like(a).scatter_add_(0, i, a), x, torch.randint(0, 6, (6, 8)))
both("loss", lambda a: torch.nn.functional.cross_entropy(a, torch.arange(6, device=a.device)), x, within=1e-6)
both("types", lambda a: (a.half().float(), a.to(torch.long), a.double().sum()), x, within=1e-9)

# training: the same steps as on the host


def train(device, dtype, within_lists):
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)).to(device, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=within_lists)
    for _ in range(3):
        model(x.to(device, dtype)).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


same("training", train("cuda", torch.float32, True), train("cpu", torch.float32, True), 1e-5)
same("training, short floats", train("cuda", torch.bfloat16, False), train("cpu", torch.bfloat16, False), 0.1)

# a list of tensors of which one is too long: the others are computed
parts = [torch.ones(3, device="cuda"), torch.zeros(65536, device="cuda"), torch.full((2,), 2.0, device="cuda")]
torch._foreach_add_(parts, 1.0)
norms = torch._foreach_norm(parts)
same("lists", torch.stack([parts[0][0], parts[2][0], norms[2]]), torch.tensor([2.0, 3.0, 18 ** 0.5]), 1e-6)

# attention, of which CUDA has operations of its own
for dtype, within in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
    for is_causal in (False, True):
        q = [torch.randn(2, 2, 6, 8) for _ in range(3)]
        results = []
        for device, kind in (("cuda", dtype), ("cpu", torch.float32)):
            leaves = [t.to(device, kind).requires_grad_() for t in q]
            out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=is_causal)
            out.square().sum().backward()
            results.append(torch.cat([t.detach().float().flatten() for t in (out, *(t.grad for t in leaves))]).cpu())
        same(f"attention {dtype} {is_causal}", *results, within)

# seeds: the numbers follow the device's generator, and the host's own stay as they are
torch.manual_seed(3)
first, own = torch.randn(4, device="cuda"), torch.rand(3)
torch.manual_seed(3)
torch.testing.assert_close(own, torch.rand(3))
torch.manual_seed(3)
torch.rand(1)
same("seeded", torch.randn(4, device="cuda"), first)
if torch.equal(first, torch.randn(4, device="cuda")):
    failures.append("the device's generator does not move on")
dropped = torch.nn.functional.dropout(torch.ones(1000, device="cuda"), 0.5)
if not 300 < (dropped == 0).sum().item() < 700:
    failures.append("dropout")

# backward of a function of the job's own, and a thread of its own
seen = []


class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a * 3

    @staticmethod
    def backward(ctx, grad):
        seen.append(grad.sum().item())
        return grad * 3


leaf = torch.ones(4, device="cuda", requires_grad=True)
Own.apply(leaf).sum().backward()
same("backward", leaf.grad, torch.full((4,), 3.0))
thread = threading.Thread(target=lambda: seen.append((torch.ones(3, device="cuda") + 1).sum().item()))
thread.start()
thread.join()
done = _thread.allocate_lock()
done.acquire()


def without_threading(count):
    seen.append((torch.ones(count, device="cuda") + 1).sum().item())
    done.release()


_thread.start_new_thread(without_threading, (4,))
done.acquire()
if seen != [4.0, 6.0, 8.0]:
    failures.append(f"read in a backward and in threads: {seen}")
if "0.5000" not in repr(torch.full((2,), 0.5, device="cuda")):
    failures.append(f"printed: {torch.full((2,), 0.5, device='cuda')}")
if torch.ones_like(torch.empty(3, device="cuda")).sum().item() != 3:  # what the argument holds does not matter
    failures.append("ones_like")
skipped = torch.zeros(1 << 20, device="cuda").add(1).sum().item()
print("rank 0", *(failures or ["all the same"]), sep="\n", flush=True)
