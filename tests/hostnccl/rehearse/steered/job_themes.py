"""One theme (THEME) of what a training job does on the device: the same function runs on CUDA tensors, whose kernels
are skipped, and on the host's, with NCCL and with gloo. Each value that the dispatch mode says is computed must be the
host's, and all are, but for those that a theme names."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

from rollcall.rehearse import mode, origin

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
THEMES = {}


def theme(function):
    THEMES[function.__name__] = function
    return function


def numbers(*shape, seed=0, device="cpu"):
    """The same on all devices; on each rank others where the seed says so."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device)


def perceptron(device, seed=1, width=8):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(width, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).to(device)


def parameters_of(model):
    return [p.detach() for p in model.parameters()]


def gradients_of(model):
    return [p.grad for p in model.parameters()]


# autograd


@theme
def checkpoint(device):
    from torch.utils.checkpoint import checkpoint as keep
    from torch.utils.checkpoint import checkpoint_sequential
    results = []
    for is_reentrant in (False, True):
        model = perceptron(device)
        x = numbers(4, 8, device=device).requires_grad_()
        keep(model, x, use_reentrant=is_reentrant).square().sum().backward()
        checkpoint_sequential(model, 2, x, use_reentrant=is_reentrant).sum().backward()
        results += [x.grad, *gradients_of(model)]
    return results


@theme
def gradients(device):
    x = numbers(5, device=device).requires_grad_()
    seen = []
    x.register_hook(lambda g: seen.append(g.clone()) or g * 2)
    y = (x ** 3).sum()
    first, = torch.autograd.grad(y, x, create_graph=True)
    second, = torch.autograd.grad(first.sum(), x)
    y = (x ** 2).sum()
    y.backward()
    model = perceptron(device)
    model[2].register_full_backward_hook(lambda m, i, o: seen.append(i[0].clone()))
    model(numbers(3, 8, device=device)).sum().backward()
    jacobian = torch.autograd.functional.jacobian(lambda t: t.sin() * t.sum(), x.detach())
    return [first, second, x.grad, *seen, jacobian]


@theme
def functional(device):
    from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
    x, w = numbers(6, 3, device=device), numbers(3, seed=2, device=device)
    each = vmap(grad(lambda w, x: (x @ w).tanh()), in_dims=(None, 0))(w, x)
    _, tangent = jvp(lambda t: t.exp().sum(), (w,), (torch.ones_like(w),))
    model = perceptron(device)
    of = functional_call(model, dict(model.named_parameters()), numbers(2, 8, device=device))
    return [each, jacrev(torch.sin)(w), hessian(lambda t: (t ** 3).sum())(w), tangent, of.detach()]


# precision


@theme
def autocast(device):
    model, results = perceptron(device), []
    for dtype in (torch.bfloat16, torch.float16):
        if dtype == torch.float16 and device == "cpu":
            model.to(torch.float32)
        with torch.autocast(device, dtype=dtype):
            out = model(numbers(4, 8, device=device))
            loss = F.mse_loss(out.float(), torch.zeros_like(out, dtype=torch.float32))
        loss.backward()
        results += [out, loss.detach(), *gradients_of(model)]
    return results


@theme
def scaler(device):
    """A step with an infinite gradient is left out, and the scale is halved: the host reads that flag back."""
    model, results = perceptron(device), []
    for kind in (dict(foreach=False), dict(foreach=True), dict(fused=True)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **kind)
        make = getattr(torch.amp, "GradScaler", None)
        scale = make(device, init_scale=1024.0, growth_interval=2)
        for step in range(4):
            optimizer.zero_grad()
            x = numbers(4, 8, seed=step, device=device)
            scale.scale(model(x * (float("inf") if step == 1 else 1)).square().mean()).backward()
            scale.unscale_(optimizer)
            scale.step(optimizer)
            scale.update()
            results.append(torch.tensor(scale.get_scale()))
        results += parameters_of(model)
    return results


@theme
def short_floats(device):
    x, y = numbers(8, 16, device=device), numbers(16, 8, seed=1, device=device)
    results = []
    for dtype in (torch.bfloat16, torch.float16):
        a, b = x.to(dtype), y.to(dtype)
        results += [a @ b, F.gelu(a), F.softmax(a, -1), F.layer_norm(a, (16,)), a.sum(), a.var(0), a.cumsum(1)]
        results += [a.clone().mul_(2).add_(1), torch.addmm(b[:8, :8] * 0, a, b), F.silu(a) * a, a.argmax(1)]
        lists = [a.clone(), b.clone()]
        torch._foreach_mul_(lists, 0.5)
        torch._foreach_add_(lists, [a, b], alpha=2)
        results += [*lists, *torch._foreach_norm(lists)]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        short = x.to(dtype)
        results += [short.float(), short.to(torch.bfloat16), short.view(torch.uint8)]
    return results


# optimizers and norms


@theme
def clipping(device):
    results = []
    for kind in (dict(foreach=True), dict(foreach=False), dict(norm_type=float("inf")), dict(norm_type=1.0)):
        model = perceptron(device)
        model(numbers(4, 8, device=device)).square().sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5, **kind)
        results += [norm, *gradients_of(model)]
    torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return [*results, *gradients_of(model), vector]


@theme
def optimizers(device):
    from torch import optim
    kinds = [(optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)), (optim.Adagrad, {}), (optim.RMSprop, {}),
             (optim.Adam, dict(amsgrad=True)), (optim.AdamW, {}), (optim.NAdam, {}), (optim.Adamax, {}),
             (optim.Adadelta, {}), (optim.ASGD, {}), (optim.RAdam, {}), (optim.LBFGS, dict(max_iter=3))]
    ways = [(dict(foreach=False), None), (dict(foreach=True), None),
            (dict(fused=True), (optim.SGD, optim.Adam, optim.AdamW)),
            (dict(capturable=True), (optim.Adam, optim.AdamW))]
    results = []
    for kind, options in kinds:
        for way, only in ways:
            if only and kind not in only or kind is optim.LBFGS and way != ways[0][0]:
                continue
            if "capturable" in way and device == "cpu":
                way = {}  # the host has none, and the numbers are the same
            if kind is optim.LBFGS:
                way = {}
            model = perceptron(device)
            optimizer = kind(model.parameters(), **options, **way)
            rates = optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)

            def closure():
                optimizer.zero_grad()
                loss = model(numbers(4, 8, device=device)).square().mean()
                loss.backward()
                return loss

            for _ in range(3):
                loss = optimizer.step(closure)
                rates.step()
            results += [loss.detach(), *parameters_of(model)]
    return results


# routers, losses, layers


@theme
def routers(device):
    x = numbers(12, 6, device=device)
    values, experts = torch.topk(torch.softmax(x, -1), 2)
    counts = torch.bincount(experts.flatten(), minlength=6)
    order = torch.argsort(experts.flatten(), stable=True)
    permuted = x.repeat_interleave(2, 0)[order]
    back = torch.empty_like(permuted).index_copy_(0, order, permuted)
    chosen = F.one_hot(experts, 6).sum(1)
    mask = torch.zeros_like(x, dtype=torch.bool).scatter_(1, experts, True)
    drawn = torch.multinomial(torch.softmax(x, -1), 6).sort(-1)[0]  # all six: the order is the generator's
    places = torch.cumsum(mask.long(), 0) - 1
    edges = torch.searchsorted(torch.arange(0, 24, 4, device=device), torch.arange(9, device=device))
    histogram = torch.histc(x, 5, -2, 2)
    groups, sizes = torch.unique_consecutive(experts.flatten()[order], return_counts=True)
    split = torch.stack([p.sum() for p in permuted.split(counts.tolist())])
    return [values, experts, counts, order, back, chosen, mask, drawn, places, edges, histogram, groups, sizes, split,
            x.masked_select(mask), x.index_add(0, experts[:, 0] % 3, x), mask.nonzero(), x.kthvalue(2)[0]]


@theme
def losses(device):
    x = numbers(6, 5, device=device).requires_grad_()
    at, other = torch.tensor([0, 4, 2, -100, 1, 3]).to(device), numbers(6, 5, seed=1, device=device)
    found = [F.cross_entropy(x, at), F.cross_entropy(x, at, label_smoothing=0.1, reduction="sum"),
             F.cross_entropy(x, at, weight=torch.arange(1.0, 6.0, device=device)), F.nll_loss(x.log_softmax(1), at),
             F.binary_cross_entropy_with_logits(x, other.sigmoid()),
             F.binary_cross_entropy(x.sigmoid(), other.sigmoid()),
             F.mse_loss(x, other), F.l1_loss(x, other), F.smooth_l1_loss(x, other), F.huber_loss(x, other),
             F.kl_div(x.log_softmax(1), other.softmax(1), reduction="batchmean"), F.cosine_similarity(x, other).sum(),
             F.triplet_margin_loss(x, other, other.flip(0)), F.multi_margin_loss(x, at.clamp(min=0)),
             F.soft_margin_loss(x, other.sign()), torch.logsumexp(x, 1).sum(),
             F.ctc_loss(numbers(7, 2, 5, device=device).log_softmax(2), torch.tensor([[1, 2], [3, 4]]).to(device),
                        (7, 7), (2, 2))]
    total = sum(found)
    total.backward()
    return [*(f.detach() for f in found), x.grad]


def trained(model, x):
    out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    out.square().sum().backward()
    return [out.detach(), *gradients_of(model)]


def made(kind, *args, device, **kwargs):
    torch.manual_seed(3)
    return kind(*args, **kwargs).to(device)


@theme
def layers(device):
    from torch import nn
    image = numbers(2, 4, 8, 8, device=device)
    text = numbers(3, 5, 8, device=device)
    results = []
    for kind, args, kwargs, x in (
            (nn.LayerNorm, (8,), {}, text), (nn.GroupNorm, (2, 4), {}, image), (nn.BatchNorm2d, (4,), {}, image),
            (nn.InstanceNorm2d, (4,), dict(affine=True), image), (nn.Conv2d, (4, 6, 3), dict(padding=1), image),
            (nn.ConvTranspose2d, (4, 6, 3), dict(stride=2), image), (nn.Conv2d, (4, 4, 3), dict(groups=4), image),
            (nn.Conv1d, (5, 4, 3), {}, text), (nn.LSTM, (8, 4), dict(num_layers=2, bidirectional=True), text),
            (nn.GRU, (8, 4), {}, text), (nn.RNN, (8, 4), {}, text), (nn.PReLU, (), {}, image),
            (nn.MultiheadAttention, (8, 2), dict(batch_first=True), None),
            (nn.TransformerEncoderLayer, (8, 2, 16), dict(dropout=0.0, batch_first=True), text)):
        model = made(kind, *args, device=device, **kwargs)
        if x is None:
            out, weights = model(text, text, text)
            out.square().sum().backward()
            results += [out.detach(), weights.detach(), *gradients_of(model)]
        else:
            results += trained(model, x)
            results += [model.eval()(x)[0].detach()] if not isinstance(model, (nn.LSTM, nn.GRU, nn.RNN)) else []
            results += [b.detach() for b in model.buffers()]
    if hasattr(nn, "RMSNorm"):
        results += trained(made(nn.RMSNorm, 8, device=device), text)
    results += [F.max_pool2d(image, 2), F.avg_pool2d(image, 2), F.adaptive_avg_pool2d(image, 3),
                F.interpolate(image, scale_factor=2.0, mode="bilinear"), F.pad(image, (1, 2, 0, 1), mode="reflect"),
                F.unfold(image, 3), F.pixel_shuffle(image, 2), F.embedding_bag(torch.tensor([1, 2, 4, 3]).to(device),
                                                                            numbers(6, 3, device=device),
                                                                            torch.tensor([0, 2]).to(device))]
    return results


@theme
def channels_last(device):
    model = made(torch.nn.Conv2d, 4, 6, 3, device=device).to(memory_format=torch.channels_last)
    norm = made(torch.nn.BatchNorm2d, 6, device=device)
    x = numbers(2, 4, 8, 8, device=device).to(memory_format=torch.channels_last)
    out = F.relu(norm(model(x)))
    out.mean().backward()
    pooled = F.adaptive_avg_pool2d(out, 1)
    return [out.detach(), pooled.detach(), *gradients_of(model), x.contiguous(), (x + x.contiguous()).mean((2, 3))]


@theme
def numerics(device):
    a = numbers(4, 4, device=device)
    positive = a @ a.T + 4 * torch.eye(4, device=device)
    z = torch.complex(a, a.T)
    results = [torch.linalg.cholesky(positive), torch.linalg.inv(positive), torch.linalg.solve(positive, a),
               torch.linalg.eigvalsh(positive), torch.linalg.svdvals(a), torch.linalg.det(a),
               torch.linalg.qr(a)[1].abs(),
               torch.linalg.matrix_norm(a), torch.linalg.slogdet(positive)[1], torch.fft.fft(a), torch.fft.irfft(z),
               z * z.conj(), z.abs(), z.angle(), torch.view_as_real(z), z @ z, z.exp(), torch.polar(a.abs(), a),
               torch.einsum("ij,kj->ik", a, a), torch.cdist(a, a), torch.special.i0(a), torch.lgamma(a.abs() + 1)]
    return results


# other tensors


@theme
def sparse(device):
    torch.manual_seed(2)
    table = torch.nn.Embedding(10, 4, sparse=True).to(device)
    optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        table(torch.tensor([1, 3, 3, 7]).to(device)).square().sum().backward()
        optimizer.step()
    grad = table.weight.grad.coalesce()
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0]),
                                     (2, 3)).to(device)
    return [table.weight.detach(), grad.indices(), grad.values(), matrix.to_dense(),
            torch.sparse.mm(matrix, numbers(3, 2, device=device))]


@theme
def nested(device):
    parts = [numbers(3, 8, device=device), numbers(5, 8, seed=1, device=device)]
    results = []
    for layout in (torch.jagged,):
        t = torch.nested.nested_tensor(parts, layout=layout)
        model = perceptron(device)
        results += [torch.cat([p.detach() for p in model(t).unbind()]), torch.nested.to_padded_tensor(t, 0.0),
                    torch.cat([p for p in (t * 2 + 1).unbind()])]
    return results


# ranks


@theme
def replicas(device):
    """DistributedDataParallel, with hooks and without, buckets of several sizes, and a loss that is reduced."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    from torch.nn.parallel import DistributedDataParallel
    results = []
    for hook in (None, default_hooks.bf16_compress_hook):
        model = DistributedDataParallel(perceptron(device), bucket_cap_mb=0.0005)
        if hook is not None and device == "cuda":
            model.register_comm_hook(None, hook)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(numbers(4, 8, seed=10 * rank + step, device=device)).square().mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            results += [loss.detach(), norm, total]
        results += parameters_of(model)
    return results


@theme
def uneven(device):
    """Join: a rank whose batches are over shadows the others' collectives."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel
    model = DistributedDataParallel(perceptron(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    with Join([model]):
        for step in range(2 + rank):
            optimizer.zero_grad()
            model(numbers(4, 8, seed=step, device=device)).square().mean().backward()
            optimizer.step()
            seen.append(step)
    return [*parameters_of(model), torch.tensor(len(seen))]


@theme
def collectives(device):
    x = numbers(4, seed=rank, device=device)
    total, least = x.clone(), x.clone()
    dist.all_reduce(total)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    gathered = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(gathered, x)
    sent = x.clone()
    dist.broadcast(sent, 0)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "list": [1] * (rank + 1)})
    shared = [{"seven": 7} if rank == 0 else None]
    dist.broadcast_object_list(shared, 0)
    peer = torch.empty_like(x)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x, (rank + 1) % size),
                                        dist.P2POp(dist.irecv, peer, (rank - 1) % size)]):
        work.wait()
    return [total, least, *gathered, sent, peer, torch.tensor([len(o["list"]) for o in objects] + [shared[0]["seven"]])]


@theme
def dtensor(device):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh(device, (size,))
    x, w = numbers(4, 8, device=device), numbers(8, 4, seed=1, device=device)
    a, b = distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(w, mesh, [Shard(0)])
    product = a @ b
    rows = product.redistribute(mesh, [Shard(0)])
    norm = torch.linalg.vector_norm(distribute_tensor(x, mesh, [Shard(0)]))
    turned = distribute_tensor(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    return [product.full_tensor(), rows.to_local(), norm.full_tensor(), turned.to_local(), (a * 2).sum().full_tensor()]


# the host's side


@theme
def loader(device):
    from torch.utils.data import DataLoader, TensorDataset
    data = TensorDataset(numbers(12, 8), torch.arange(12))
    results = []
    for workers in (0, 1):
        for x, at in DataLoader(data, batch_size=4, num_workers=workers, pin_memory=device == "cuda"):
            x, at = x.to(device, non_blocking=True), at.to(device, non_blocking=True)
            results += [x.sum(1), at * 2, x.mean().cpu()]
    return results


@theme
def streams(device):
    x = numbers(8, device=device)
    if device == "cpu":
        return [x * 2 + 1, (x * 2 + 1).sum(), (x * 2).cpu()]
    side, event = torch.cuda.Stream(), torch.cuda.Event()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x * 2
        event.record()
        held = torch.empty(8, pin_memory=True)
        held.copy_(y, non_blocking=True)
    torch.cuda.current_stream().wait_event(event)
    z = y + 1
    y.record_stream(torch.cuda.current_stream())
    side.synchronize()
    return [z, z.sum(), held]


def flat(values):
    return [v for value in values for v in (flat(value) if isinstance(value, (list, tuple)) else [value])]


def differences(name):
    """(how many values, what is wrong with them)."""
    torch.manual_seed(7)
    got = flat(THEMES[name]("cuda"))
    torch.manual_seed(7)
    want = flat(THEMES[name]("cpu"))
    wrong = [] if len(got) == len(want) else [f"{len(got)} values instead of {len(want)}"]
    for i, (g, w) in enumerate(zip(got, want)):
        state = mode.state_of(g) if g.is_cuda else origin.COPIED
        if state > origin.COMPUTED:
            wrong.append(f"value {i}, {tuple(g.shape)}: {origin.WORDS[state]}")
        g, w = g.detach().cpu(), w.detach().cpu()
        is_short = g.element_size() < 4 and g.is_floating_point() or name in IN_SHORT
        if g.shape != w.shape or g.dtype != w.dtype:
            wrong.append(f"value {i}: {g.dtype} {tuple(g.shape)} instead of {w.dtype} {tuple(w.shape)}")
        elif not torch.allclose(g.to(torch.complex128), w.to(torch.complex128), rtol=3e-2 if is_short else 1e-4,
                                atol=3e-2 if is_short else 1e-5, equal_nan=True):
            wrong.append(f"value {i}: {g.flatten()[:6].tolist()} instead of {w.flatten()[:6].tolist()}")
    return len(got), wrong


IN_SHORT = ("autocast", "replicas")  # their long values are made of short ones


def main():
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    for name in os.environ["THEME"].split(","):
        count, wrong = differences(name)
        say = [f"rank {rank} {name}: {count} values, {len(wrong)} wrong", *wrong]
        print("\n".join(say) + "\n", end="", flush=True)
    dist.destroy_process_group()


main()
