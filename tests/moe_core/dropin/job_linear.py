#!/usr/bin/env python3
"""rollcall.moe.linear against float64: values, gradients, the contract of main_grad, microbatches in flight, what is
refused. Needs PyTorch, and no framework."""
import itertools
import threading

import torch
import torch.utils.checkpoint

import support
from rollcall.moe import linear
from rollcall.moe.linear import MoeError, grouped_linear
from support import COUNTS, close, fail, near, refused, same, want

N, K = 5, 7
TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Case:
    """One call with its inputs."""

    def __init__(self, counts, dtype=torch.float32, bias=False, packed=False, slack=0, probs=False, n=N, k=K, seed=7,
                 weight=None):
        torch.manual_seed(seed)
        self.counts, self.dtype, self.rows = counts, dtype, sum(counts) + slack
        draw = lambda *shape: torch.randn(shape).to(weight or dtype)  # noqa: E731
        self.x = torch.randn(self.rows, k).to(dtype).requires_grad_()
        weights = draw(len(counts), n, k)
        self.weights = [torch.nn.Parameter(weights)] if packed else [torch.nn.Parameter(w.clone()) for w in weights]
        self.biases = [torch.nn.Parameter(draw(n).to(dtype)) for _ in counts] if bias else []
        self.probs = torch.rand(self.rows).requires_grad_() if probs else None
        self.dy = torch.randn(self.rows, n).to(dtype)

    def run(self, **more):
        return grouped_linear(self.x, self.counts, self.weights, self.biases, self.probs, **more)

    def each_weight(self):
        return list(self.weights[0]) if len(self.weights) == 1 and self.weights[0].dim() == 3 else self.weights

    def grads(self, of):
        """Of each expert: those of the weights or of the biases."""
        tensors = self.weights if of == "weights" else self.biases
        if of == "weights" and tensors[0].dim() == 3:
            return list(tensors[0].grad)
        return [t.grad for t in tensors]

    def check(self, what, y):
        """y and the gradients against float64, element by element."""
        widths = (self.dy.shape[1], self.x.shape[1], 1)
        exact, size = ([torch.zeros(self.rows, width, dtype=torch.float64) for width in widths] for _ in range(2))
        row = 0
        for i, (m, weight) in enumerate(zip(self.counts, self.each_weight())):
            part, w = slice(row, row + m), weight.detach().double()
            x, dy = self.x.detach()[part].double(), self.dy[part].double()
            b = self.biases[i].detach().double() if self.biases else torch.zeros(w.shape[0], dtype=torch.float64)
            p = (torch.ones(m) if self.probs is None else self.probs.detach()[part]).double()[:, None]
            for to, change in ((exact, lambda t: t), (size, torch.abs)):
                to[0][part] = change(x) @ change(w).T + p * change(b)
                to[1][part] = change(dy) @ change(w)
                to[2][part] = change(dy) @ change(b)[:, None]
            near(f"{what}: dw{i}", self.grads("weights")[i], dy.T @ x, dy.T.abs() @ x.abs(), m, weight.dtype)
            if m == 0 and bool((self.grads("weights")[i] != 0).any()):
                fail(f"{what}: the gradient of expert {i}, which has no rows, is not zero")
            if self.biases:
                near(f"{what}: db{i}", self.grads("biases")[i], (p * dy).sum(0), (p * dy).abs().sum(0), m + 1,
                     self.biases[i].dtype)
            row += m
        near(f"{what}: y", y, exact[0], size[0], self.x.shape[1] + 2, self.dtype)
        near(f"{what}: dx", self.x.grad, exact[1], size[1], self.dy.shape[1], self.dtype)
        if self.probs is not None:
            near(f"{what}: dp", self.probs.grad, exact[2][:, 0], size[2][:, 0], self.dy.shape[1], torch.float32)


def te_splits():
    """The splits of Transformer Engine's published tests. test_sanity_grouped_linear: four linears, the first, the last
    or one in the middle empty, the others equal, 0, 1 and 2 batches. test_grouped_linear_accuracy: three and six
    linears, random cuts, and the last but one empty. The all-empty case is that of its pull request 3019."""
    for batches in (0, 1, 2):
        for empty in (0, 1, 3):
            yield f"sanity, {batches} batches, {empty} empty", [0 if i == empty else 16 * batches for i in range(4)]
    for linears, seed in ((3, 0), (6, 1)):
        torch.manual_seed(seed)
        cuts = torch.sort(torch.randint(0, 48, (linears - 2,))).values.tolist()
        ends = [0, *cuts, cuts[-1], 48]
        yield f"accuracy, {linears} linears", [b - a for a, b in zip(ends, ends[1:])]
    yield "all empty", [0] * 4


def check_values():
    count = 0
    cases = [*COUNTS.items(), *te_splits()]
    ways = list(itertools.product((False, True), (False, True), (0, 3), (False, True)))
    for (name, counts), dtype in itertools.product(cases, TYPES):
        for bias, packed, slack, probs in ways if name in COUNTS else ways[::5]:
            case = Case(counts, dtype, bias, packed, slack, probs and bias)
            support.poison((case.rows, N), (case.rows, K), (N, K), (len(counts), N, K), (N,))
            y = case.run()
            support.poison((case.rows, N), (case.rows, K), (N, K), (len(counts), N, K), (N,))
            y.backward(case.dy)
            case.check(f"{name}, {dtype}, bias {bias}, packed {packed}, slack {slack}, probs {probs}", y)
            count += 1
    case = Case(COUNTS["first"], torch.bfloat16, weight=torch.float32)  # each its own type
    y = case.run()
    y.backward(case.dy)
    case.check("float32 weights, bfloat16 rows", y)
    case = Case(COUNTS["first"])
    flat = case.run()
    deep = grouped_linear(case.x.reshape(2, 4, K), torch.tensor(case.counts, dtype=torch.float32), case.weights)
    same("more dimensions, counts that are a float tensor", deep, flat.reshape(2, 4, N))
    want("y is a view", (flat._is_view(), deep._is_view()), (False, False))
    deep.square().sum().backward()
    deep_grad, case.x.grad = case.x.grad, None
    flat.square().sum().backward()
    same("more dimensions: dx", deep_grad, case.x.grad)
    return count


def check_same_work():
    """Backward makes the same calls, whichever experts have rows."""
    seen = {}
    for name, counts in COUNTS.items():
        case = Case(counts, bias=True)
        with support.Counted() as counted:
            case.run().sum().backward()
        seen[name] = counted.calls
    want("calls", [name for name, calls in seen.items() if calls != [
        "moe_linear_forward_call", "moe_linear_resume", "moe_linear_backward_call"]], [])


def check_frozen():
    for name, counts in COUNTS.items():
        whole = Case(counts, bias=True)
        whole.run().backward(whole.dy)
        for frozen in (["x"], ["weights"], ["biases"], ["one weight"], ["x", "weights"], ["weights", "biases"]):
            case = Case(counts, bias=True)
            still = {"x": [case.x], "weights": case.weights, "biases": case.biases, "one weight": case.weights[1:2]}
            still = [tensor for what in frozen for tensor in still[what]]
            for tensor in still:
                tensor.requires_grad_(False)
            case.run().backward(case.dy)
            pairs = [(case.x, whole.x), *zip(case.weights, whole.weights), *zip(case.biases, whole.biases)]
            for mine, theirs in pairs:
                if any(mine is tensor for tensor in still):
                    want(f"{name}, frozen {frozen}: a gradient", mine.grad, None)
                else:
                    same(f"{name}, frozen {frozen}", mine.grad, theirs.grad)


def with_main_grads(case, dtype=torch.float32, flag=True, seed=3):
    torch.manual_seed(seed)
    for weight in case.weights:
        weight.main_grad = torch.randn(weight.shape).to(dtype)
        if flag:
            weight.grad_added_to_main_grad = False
    return [weight.main_grad.clone() for weight in case.weights]


def check_main_grad():
    ways = itertools.product(COUNTS.items(), (torch.float32, torch.bfloat16), (False, True))
    for (name, counts), dtype, packed in ways:
        what = f"{name}, main_grad of {dtype}, packed {packed}"
        plain = Case(counts, torch.bfloat16, bias=True, packed=packed, weight=torch.float32)
        plain.run().backward(plain.dy)
        case = Case(counts, torch.bfloat16, bias=True, packed=packed, weight=torch.float32)
        before = with_main_grads(case, dtype)
        case.run(fused=True).backward(case.dy)
        for i, (weight, was, grad) in enumerate(zip(case.weights, before, [w.grad for w in plain.weights])):
            close(f"{what}: weight{i}", weight.main_grad, was.double() + grad.double(),
                  2.0**-22 if dtype == torch.float32 else 2.0**-7)
            want(f"{what}: the flag", weight.grad_added_to_main_grad, True)
            same(f"{what}: the placeholder", weight.grad, torch.zeros_like(weight))
            for e, m in enumerate(counts if packed else counts[i:i + 1]):
                if m == 0:
                    same(f"{what}: main_grad without rows", weight.main_grad[e] if packed else weight.main_grad,
                         was[e] if packed else was)
        for mine, theirs in zip(case.biases, plain.biases):  # biases go through autograd, as Transformer Engine's do
            close(f"{what}: bias", mine.grad, theirs.grad, 2.0**-7)
        same(f"{what}: dx", case.x.grad, plain.x.grad)


def check_main_grad_rest():
    plain = Case(COUNTS["middle"])
    plain.run().backward(plain.dy)
    case = Case(COUNTS["middle"])
    before = with_main_grads(case, flag=False)
    case.run(fused=False).backward(case.dy)  # Megatron without gradient_accumulation_fusion: its hook adds .grad
    for weight, was, theirs in zip(case.weights, before, plain.weights):
        same("main_grad that nobody asked for", weight.main_grad, was)
        same("its gradient", weight.grad, theirs.grad)
    case = Case(COUNTS["middle"])
    before = with_main_grads(case, flag=False)
    for _ in range(2):  # two microbatches
        case.run(fused=True).backward(case.dy)
    for weight, was, theirs in zip(case.weights, before, plain.weights):
        want("no flag, no placeholder", weight.grad, None)
        close("two microbatches", weight.main_grad, was.double() + 2 * theirs.grad.double(), 2.0**-22)
    case = Case(COUNTS["middle"])
    with_main_grads(case)
    for weight in case.weights:
        weight.overwrite_main_grad = True
    case.run(fused=True).backward(case.dy)
    for weight, theirs in zip(case.weights, plain.weights):
        same("overwrite_main_grad", weight.main_grad, theirs.grad)
    case = Case(COUNTS["middle"])  # one has none yet, one makes its own when asked, one is frozen
    before = with_main_grads(case)
    del case.weights[0].main_grad
    made = case.weights[2].main_grad
    case.weights[2].main_grad, case.weights[2].get_main_grad = None, lambda: made
    case.weights[3].requires_grad_(False)
    case.run(fused=True).backward(case.dy)
    same("without main_grad", case.weights[0].grad, plain.weights[0].grad)
    close("get_main_grad", made, before[2].double() + plain.weights[2].grad.double(), 2.0**-22)
    want("get_main_grad: the flag", case.weights[2].grad_added_to_main_grad, True)
    same("a frozen weight's main_grad", case.weights[3].main_grad, before[3])
    want("a frozen weight's gradient", case.weights[3].grad, None)
    for bad, text in ((torch.zeros(N, K + 1), "main_grad of weight1"), (torch.zeros(K, N).t(), "contiguous"),
                      (torch.zeros(N, K).double(), "main_grad of weight1")):
        case = Case(COUNTS["none"])
        with_main_grads(case)
        case.weights[1].main_grad = bad
        refused("a main_grad", MoeError, text, case.run(fused=True).backward, case.dy)


def check_in_flight():
    """Microbatches in any order, recomputed, twice: what one after the other gives, in every bit."""
    cases = [Case(counts, bias=True, seed=i) for i, counts in enumerate(COUNTS.values())]
    alone = []
    for case in cases:
        case.run().backward(case.dy)
        alone.append([t.grad for t in (case.x, *case.weights, *case.biases)])
    for order in (list(range(len(cases))), list(range(len(cases)))[::-1], [4, 0, 8, 3, 1, 7, 2, 6, 5]):
        for case in cases:
            for t in (case.x, *case.weights, *case.biases):
                t.grad = None
        outputs = [case.run() for case in cases]
        with torch.no_grad():
            cases[0].run()  # an evaluation in between
        for i in order:
            outputs[i].backward(cases[i].dy)
        for case, grads in zip(cases, alone):
            for t, grad in zip((case.x, *case.weights, *case.biases), grads):
                same(f"in flight, {order}", t.grad, grad)
    case, grads = cases[1], alone[1]
    for reentrant in (True, False):
        for t in (case.x, *case.weights, *case.biases):
            t.grad = None
        y = torch.utils.checkpoint.checkpoint(
            lambda x: grouped_linear(x, case.counts, case.weights, case.biases), case.x, use_reentrant=reentrant)
        y.backward(case.dy)
        for t, grad in zip((case.x, *case.weights, *case.biases), grads):
            same(f"checkpointed, use_reentrant={reentrant}", t.grad, grad)
    case.x.grad = None
    y = case.run()
    y.backward(case.dy, retain_graph=True)
    y.backward(case.dy)
    same("backward twice", case.x.grad, 2 * grads[0])
    y = case.run()
    with torch.no_grad():
        case.weights[1].mul_(2)
    refused("a weight that changed in between", RuntimeError, "modified by an inplace operation", y.backward, case.dy)


def check_moved():
    """What is saved may be elsewhere in backward: FSDP's weights, offloaded or recomputed activations."""
    plain = Case(COUNTS["second"], bias=True)
    plain.run().backward(plain.dy)
    case, packed = Case(COUNTS["second"], bias=True), []

    def away(tensor):
        packed.append(tensor.detach().clone())
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(away, lambda at: packed[at].clone()):
        y = case.run()
    y.backward(case.dy)
    for mine, theirs in zip((case.x, *case.weights, *case.biases), (plain.x, *plain.weights, *plain.biases)):
        same("saved elsewhere", mine.grad, theirs.grad)
    if len(packed) < 1 + 4 + 4:
        fail(f"only {len(packed)} tensors were saved")


def check_later():
    for fused in (False, True):
        plain = Case(COUNTS["third"], bias=True)
        plain.run().backward(plain.dy)
        case, later = Case(COUNTS["third"], bias=True), []
        before = with_main_grads(case) if fused else None
        for _ in range(2):
            case.run(fused=fused, later=later).backward(case.dy)
        want("weights before", [weight.grad for weight in case.weights], [None] * 4)
        close("dx", case.x.grad, 2 * plain.x.grad, 2.0**-22)
        close("biases are not delayed", case.biases[0].grad, 2 * plain.biases[0].grad, 2.0**-22)
        linear.backward_later(later)
        want("nothing waits", later, [])
        for i, (weight, theirs) in enumerate(zip(case.weights, plain.weights)):
            if fused:
                close("main_grad", weight.main_grad, before[i].double() + 2 * theirs.grad.double(), 2.0**-22)
                want("the flag", weight.grad_added_to_main_grad, True)
            else:
                close("grad", weight.grad, 2 * theirs.grad, 2.0**-22)
    sums = []
    for later in (None, []):  # two microbatches that differ: added in the order of their backwards
        case = Case(COUNTS["third"])
        with_main_grads(case)
        for scale in (1.0, 0.37):
            y = grouped_linear(case.x.detach() * scale, case.counts, case.weights, fused=True, later=later)
            y.backward(case.dy)
        if later:
            linear.backward_later(later)
        sums.append([weight.main_grad for weight in case.weights])
    for at_once, later in zip(*sums):
        same("the oldest first", later, at_once)
    refused("no weight gradients", MoeError, "state", linear.backward_later, [])
    # Of a GPU: behind backward's stream, and its allocator is told. Streams and tensors are stand-ins here.
    told = []

    class Stream:
        def wait_stream(self, other):
            told.append((self, "waits for", other))

    class OnGpu:
        is_cuda, device = True, None

        def record_stream(self, stream):
            told.append((self, "is read on", stream))

    here, there, left = Stream(), Stream(), (OnGpu(), OnGpu())
    real, torch.cuda.current_stream = torch.cuda.current_stream, lambda device: here
    try:
        linear._come_from(here, left)
        want("the same stream", told, [])
        linear._come_from(there, left)
    finally:
        torch.cuda.current_stream = real
    want("another stream", told, [(here, "waits for", there), *((tensor, "is read on", here) for tensor in left)])


def check_threads():
    """Several threads compute at once, forward and backward: in every bit what one gives."""
    cases = [Case(counts, bias=True, seed=20 + i) for i, counts in enumerate([*COUNTS.values()][:4])]
    alone = []
    for case in cases:
        case.run().backward(case.dy)
        alone.append([t.grad.clone() for t in (case.x, *case.weights, *case.biases)])
    wrong, ended = [], []

    def work(case, grads):
        for _ in range(25):
            for t in (case.x, *case.weights, *case.biases):
                t.grad = None
            case.run().backward(case.dy)
            wrong.extend(1 for t, grad in zip((case.x, *case.weights, *case.biases), grads)
                         if not torch.equal(t.grad, grad))
        ended.append(1)

    threads = [threading.Thread(target=work, args=pair) for pair in zip(cases, alone)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    want("gradients that differ among threads, and threads that ended", (len(wrong), len(ended)), (0, len(cases)))


def check_refused():
    good = Case(COUNTS["none"], bias=True)
    for text, change in (
            ("split", dict(counts=[3, 1, 4, 3])), ("count", dict(counts=[3, -1, 4, 4])),
            ("3 counts for 4", dict(counts=[3, 3, 4])), ("not whole", dict(counts=[2.5, 2.5, 3, 2])),
            ("last dimension must be 7", dict(x=torch.zeros(10, 8))),
            ("weight2 is torch.float64", dict(weights=[*good.weights[:2], good.weights[2].double(), good.weights[3]])),
            ("weight1 is (7, 5)", dict(weights=[good.weights[0], good.weights[1].t(), *good.weights[2:]])),
            ("x of torch.float64", dict(x=torch.zeros(10, 7).double())),
            ("3 biases for 4", dict(biases=good.biases[:3])),
            ("bias_probs is (9,)", dict(bias_probs=torch.zeros(9)))):
        given = dict(x=good.x, counts=good.counts, weights=good.weights, biases=good.biases)
        given.update(change)
        refused(text, MoeError, text, grouped_linear, **given)
    refused("slack that is none", MoeError, "split", grouped_linear, torch.zeros(11, 7), good.counts, good.weights,
            slack=False)
    y = good.run()  # and the device is as good as before
    y.backward(good.dy)
    good.check("after what was refused", y)


count = check_values()
for check in (check_same_work, check_frozen, check_main_grad, check_main_grad_rest, check_in_flight, check_moved,
              check_later, check_threads, check_refused):
    check()
print(f"job_linear: {count} cases as float64, {len(COUNTS)} places of empty experts")
