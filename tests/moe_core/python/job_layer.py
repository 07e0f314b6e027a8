#!/usr/bin/env python3
"""moe_core.py against plain PyTorch: every rank computes the whole layer densely in float64
(tests/moe_core/oracle/make_vectors.py), over all ranks' tokens, and holds its own outputs, gradients and losses of the
library (float32, bfloat16, float16) against it.

RANK and WORLD_SIZE as under torchrun; alone without them. JOB_CASES: only these, separated by ';'. JOB_DEVICE=cuda: the
CUDA back end.
"""
import copy
import ctypes
import gc
import io
import itertools
import os
import random
import sys

import torch

import make_vectors
import moe_core
from shares import check_shares

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
TOKENS = [7, 0, 5, 9]  # of rank 0, 1, ...; one has none
MOST = 10
ROUTER = ("score", "after", "renormalise", "gate_bias", "expert_bias", "groups", "group_topk", "scale",
          "capacity_factor", "by_position")
EXPERTS = ("activation", "place", "shared_ffn", "shared_gate")
CASES = [
    ("plain", dict()),
    ("top1", dict(topk=1)),
    ("mixtral", dict(after=True, coeff=[0.02, 0, 0, 0])),
    ("deepseek-v3", dict(topk=4, groups=4, group_topk=2, score="sigmoid", expert_bias=True, renormalise=True, scale=2.5,
                         coeff=[0, 0.01, 0, 0], shared_ffn=4)),
    ("qwen3-moe", dict(topk=4, renormalise=True, coeff=[0, 0, 0.01, 0])),
    ("gpt-oss", dict(topk=4, after=True, gate_bias=True, biases=True, activation="swiglu_clamped", place="activation",
                     reach=4)),
    ("sqrtsoftplus, all losses", dict(score="sqrtsoftplus", renormalise=True, coeff=[0.02, 0.05, 0.01, 0.001])),
    ("score before experts", dict(place="input", activation="geglu", biases=True)),
    ("gated shared expert", dict(shared_ffn=4, shared_gate=True, shared_biases=True, activation="geglu_tanh",
                                 biases=True)),
    ("capacity", dict(capacity_factor=0.75, renormalise=True)),
]
DISPATCH = [  # on several ranks
    ("allgather", dict(kind="allgather", uneven="max"), dict(place="activation", biases=True)),
    ("deepep", dict(kind="deepep"), dict(renormalise=True, shared_ffn=4)),
    ("hybridep", dict(kind="hybridep", uneven="max"), dict(score="sigmoid", place="input", topk=1)),
    ("hybridep, bound", dict(kind="hybridep", uneven="bound", token_bound=64), dict(place="activation", biases=True)),
]


def fail(text):
    sys.exit(f"job_layer: rank {RANK} of {SIZE}: {text}")


def close(what, got, want, tolerance):
    got = got.detach().cpu()
    size = max(float(want.abs().max()) if want.numel() else 0, 1e-3)
    worst = float((got.double() - want).abs().max()) if want.numel() else 0
    if got.shape != want.shape or not worst <= tolerance * size:
        fail(f"{what}: shape {tuple(got.shape)}, wanted {tuple(want.shape)}; off by {worst:.3g}, the largest is "
             f"{size:.3g}")


numbers = itertools.count()  # every layer here has one of its own, as in a model


class Whole:
    """The whole model and all ranks' tokens in float64, its outputs and gradients by plain PyTorch."""

    def __init__(self, name, changes):
        self.c = c = dict(make_vectors.DEFAULT, hidden=8, ffn=6, experts=8, tokens=TOKENS[:SIZE], balance=[1] * SIZE,
                          global_groups=[1] * SIZE)
        c.update(changes)
        generator = random.Random(name)
        self.weights = make_vectors.weights_of(c, generator)
        self.sets = sets = make_vectors.sets_of(c, generator)
        routed = [make_vectors.route(c, self.weights, s) for s in sets]
        objective = 0
        for i, (s, r) in enumerate(zip(sets, routed)):
            s["y"], s["losses"] = make_vectors.layer(c, self.weights, s, r), make_vectors.losses(c, sets, routed, i)
            objective = objective + (s["y"] * s["dy"]).sum() + s["losses"].sum()
        objective.backward()

    def layer(self, device, world, groups=None, gate_dtype=torch.float32, **more):
        c = self.c
        router = moe_core.Router(gate_dtype=gate_dtype, **{k: c[k] for k in ROUTER},
                                 **{f"{loss}_loss": c["coeff"][i] for i, loss in enumerate(moe_core.LOSSES)})
        experts = moe_core.Experts(**{k: c[k] for k in EXPERTS}, bias=c["biases"], shared_bias=c["shared_biases"])
        more.setdefault("expert", experts)
        layer = moe_core.MoELayer(c["hidden"], c["ffn"], c["experts"], c["topk"], MOST, device, router=router,
                                  groups=groups or moe_core.Groups(ep=world, balance=world, whole=world),
                                  world_rank=RANK, layer=next(numbers), **more)
        layer.load_full(self.weights)
        self.where = device.torch
        return layer

    def inputs(self, dtype=torch.float32):
        s = self.sets[RANK]
        return s["x"].detach().to(self.where, dtype).requires_grad_(), s["dy"].to(self.where, dtype)

    def grad(self, name):
        """The gradient of the whole parameter."""
        grad = self.weights[name].grad
        return torch.zeros_like(self.weights[name]) if grad is None else grad

    def part(self, layer, name):
        """The same, cut as this rank's parameter is: load_full is how a rank's part is defined."""
        keep = {key: value.detach().clone() for key, value in layer.state_dict().items()}
        layer.load_full({key: self.grad(key) for key in self.weights})
        part = getattr(layer, name).detach().cpu().double().clone()
        layer.load_state_dict(keep)
        return part


def check_gradients(what, whole, layer, device, world, grad_of, tolerance, times=1):
    """Replicated parameters are summed over `world` first: each rank has the gradient over its own tokens."""
    for name, value in list(layer.named_parameters()):
        got = grad_of(value)
        if got is None:
            fail(f"{what}: no gradient of {name}")
        got = got.float().clone()
        if name not in ("w1", "b1", "w2", "b2"):
            moe_core.reduce(device, got, world)
        close(f"{what}: gradient of {name}", got, times * whole.part(layer, name), tolerance)


def check_case(name, changes, device, world, **more):
    whole = Whole(name, changes)
    layer = whole.layer(device, world, **more)
    for times in (1, 2):  # the second backward adds to .grad
        x, dy = whole.inputs()
        y = layer(x)
        close(f"{name}: y", y, whole.sets[RANK]["y"], 2e-5)
        close(f"{name}: losses", torch.tensor(list(layer.losses().values())), whole.sets[RANK]["losses"], 2e-5)
        y.backward(dy)
        close(f"{name}: dx", x.grad, whole.sets[RANK]["x"].grad, 2e-5)
        check_gradients(name, whole, layer, device, world, lambda value: value.grad, 2e-5, times)


def check_expert_tensor_parallel(device, world):
    """Four ranks: two owners of experts, each of two ranks with a slice of them."""
    groups = moe_core.Groups(ep=world.split(RANK % 2), etp=world.split(RANK // 2), tp_ep=world, balance=world,
                             whole=world)
    check_case("ep 2, etp 2", dict(place="activation", biases=True), device, world, groups=groups)


def check_tensor_parallel(mode, changes, device, world):
    """All ranks have the same tokens; outputs and input gradients are summands; gradients of replicated parameters are
    whole."""
    whole = Whole(mode, dict(changes, tokens=[8], balance=[0], global_groups=[0]))
    groups = moe_core.Groups(tp=world, ep=world if mode == "split_tokens" else None)
    layer = whole.layer(device, world, groups=groups, dispatch=moe_core.Dispatch(tp_mode=mode))
    x, dy = (value.detach().to(device.torch, torch.float32) for value in (whole.sets[0]["x"], whole.sets[0]["dy"]))
    x.requires_grad_()
    y = layer(x)
    y.backward(dy)
    total = y.detach().clone()
    moe_core.reduce(device, total, world)
    moe_core.reduce(device, x.grad, world)
    close(f"{mode}: y, summed", total, whole.sets[0]["y"], 2e-5)
    close(f"{mode}: dx, summed", x.grad, whole.sets[0]["x"].grad, 2e-5)
    check_gradients(mode, whole, layer, device, None, lambda value: value.grad, 2e-5)


def check_main_grad(device, world):
    """The contract of main_grad: into it, what autograd is given, the flag, overwrite."""
    whole = Whole("main_grad", dict())
    layer = whole.layer(device, world)
    for value in layer.parameters():
        value.main_grad = torch.zeros(value.shape, device=value.device)
    layer.w1.grad_added_to_main_grad = layer.w2.grad_added_to_main_grad = False
    layer.w2.zero_out_wgrad = True
    for times in (1, 2):
        x, dy = whole.inputs()
        layer(x).backward(dy)
        check_gradients("main_grad", whole, layer, device, world, lambda value: value.main_grad, 2e-5, times)
    if layer.gate.grad is not None or layer.gate.grad is not None:
        fail("main_grad: autograd was given a gradient of a parameter without the flag")
    if not (layer.w1.grad_added_to_main_grad
            and layer.w2.grad_added_to_main_grad) or layer.w1.grad.shape != layer.w1.shape:
        fail("main_grad: no flag, or no placeholder")
    if float(layer.w2.grad.abs().max()) != 0:
        fail("main_grad: a placeholder that will be added is not zero")
    for value in layer.parameters():
        value.overwrite_main_grad = True
    x, dy = whole.inputs()
    layer(x).backward(dy)
    check_gradients("overwrite", whole, layer, device, world, lambda value: value.main_grad, 2e-5, 1)


def check_narrow(dtype, tolerance, device, world):
    whole = Whole(str(dtype), dict(topk=1, biases=True))
    layer = whole.layer(device, world, dtype=dtype)
    x, dy = whole.inputs(dtype)
    y = layer(x)
    if y.dtype != dtype or layer.w1.dtype != dtype or layer.gate.dtype != torch.float32:
        fail(f"{dtype}: wrong types")
    y.backward(dy)
    close(f"{dtype}: y", y, whole.sets[RANK]["y"], tolerance)
    close(f"{dtype}: dx", x.grad, whole.sets[RANK]["x"].grad, tolerance)
    check_gradients(str(dtype), whole, layer, device, world, lambda value: value.grad, tolerance)


def check_delayed(device, world):
    """Weight gradients of two microbatches that come later, with the forward done again in backward."""
    whole = Whole("delayed", dict(biases=True, place="activation"))
    layer = whole.layer(device, world, in_flight=2, delay_wgrad=True, recompute=True,
                        expert=moe_core.Experts(bias=True, place="activation", recompute="fc1"))
    expect("arg", "no main_grad", lambda: layer(whole.inputs()[0]))
    for name in moe_core.EXPERT_PARAMETERS:
        getattr(layer, name).main_grad = torch.zeros(getattr(layer, name).shape, device=device.torch)
    for _ in range(2):
        x, dy = whole.inputs()
        y = layer(x)
        y.backward(dy, retain_graph=True)
        expect("state", "second time", lambda: y.backward(dy))
        close("delayed: dx", x.grad, whole.sets[RANK]["x"].grad, 2e-5)
    if any(float(getattr(layer, name).main_grad.abs().max()) != 0 for name in moe_core.EXPERT_PARAMETERS):
        fail("delayed: a gradient came with backward")
    layer.backward_dw()
    check_gradients("delayed", whole, layer, device, world,
                    lambda value: getattr(value, "main_grad", value.grad), 2e-5, 2)
    expect("state", "no weight gradients wait", layer.backward_dw)
    # A failure ends them all: the next step is an ordinary one.
    lib, real = device.lib, device.lib.moe_layer_backward_dw
    for _ in range(2):
        x, dy = whole.inputs()
        layer(x).backward(dy)
    lib.moe_layer_backward_dw = lambda pointer: min(real(pointer), moe_core.ERROR["nomem"])
    expect("nomem", "", layer.backward_dw)
    lib.moe_layer_backward_dw = real
    device.synchronize()  # nobody has waited for the work of a call that failed
    expect("state", "no weight gradients wait", layer.backward_dw)
    for name in moe_core.EXPERT_PARAMETERS:
        getattr(layer, name).main_grad.zero_()
    for value in layer.parameters():
        value.grad = None
    for _ in range(2):
        x, dy = whole.inputs()
        layer(x).backward(dy)
    layer.backward_dw()
    check_gradients("delayed, behind a failure", whole, layer, device, world,
                    lambda value: getattr(value, "main_grad", value.grad), 2e-5, 2)


def check_in_flight(device, world):
    """Several microbatches between forward and backward, in any order; evaluation between them; a graph that is
    dropped."""
    whole = Whole("in flight", dict())
    layer = whole.layer(device, world, in_flight=2)
    outputs = []
    for _ in range(2):
        x, dy = whole.inputs()
        outputs.append((x, layer(x), dy))
    with torch.no_grad():
        close("in flight: evaluation", layer(whole.inputs()[0]), whole.sets[RANK]["y"], 2e-5)
    expect("state", "in_flight", lambda: layer(whole.inputs()[0]))
    for x, y, dy in outputs:  # all ranks in the same order
        y.backward(dy)
        close("in flight: dx", x.grad, whole.sets[RANK]["x"].grad, 2e-5)
    check_gradients("in flight", whole, layer, device, world, lambda value: value.grad, 2e-5, 2)
    del outputs, x, y
    held = device.memory()["in_use"]
    for _ in range(3):
        layer(whole.inputs()[0])  # dropped at once: its place is free again
    with torch.no_grad():
        layer(whole.inputs()[0])  # tells C of the last one
    if device.memory()["in_use"] != held:
        fail(f"in flight: graphs that were dropped hold {device.memory()['in_use'] - held} bytes")
    layer.set_step(7)  # microbatches that say the same place stay apart
    pair = []
    for scale in (1, -2):
        x, dy = whole.inputs()
        x = (scale * x.detach()).requires_grad_()
        pair.append((x, layer(x), dy))
    alone = []
    for x, y, dy in pair:
        y.backward(dy)
        twin = x.detach().clone().requires_grad_()
        layer(twin).backward(dy)
        alone.append(torch.equal(twin.grad, x.grad))
    if not all(alone):
        fail(f"in flight: microbatches of one place in training are mixed up: {alone}")
    layer._step = None
    x, dy = whole.inputs()
    y = layer(x)
    y.backward(dy, retain_graph=True)
    expect("state", "second time", lambda: y.backward(dy))


def check_dropped_apart(device, world):
    """Rank 0 keeps outputs whose backward never comes, its peers' are collected at once: the next forwards issue the
    same collectives on all ranks, those that make a place included, and agree for themselves at one place in
    training."""
    whole = Whole("dropped", dict())
    dispatch = moe_core.Dispatch(kind="allgather", uneven="max") if SIZE > 1 else None
    layer = whole.layer(device, world, in_flight=2, dispatch=dispatch)

    def step(times=1):  # the last one goes back first
        flying = []
        for _ in range(times):
            x, dy = whole.inputs()
            flying.append((x, layer(x), dy))
        for x, y, dy in reversed(flying):
            y.backward(dy)
            close("dropped: y", y, whole.sets[RANK]["y"], 2e-5)
            close("dropped: dx", x.grad, whole.sets[RANK]["x"].grad, 2e-5)

    layer.set_step(3)
    kept = [layer(whole.inputs()[0])]
    if RANK != 0:
        kept.clear()
    for _ in range(3):
        step()
    layer.set_step(4)
    kept.append(layer(whole.inputs()[0]))
    if RANK != 0:
        kept.clear()
    with torch.no_grad():
        close("dropped: evaluation", layer(whole.inputs()[0]), whole.sets[RANK]["y"], 2e-5)
    if RANK == 0:
        expect("state", "in_flight", lambda: layer(whole.inputs()[0]))
    kept.clear()
    step(2)
    step(2)
    # The oldest place is the next one, though another is free: all ranks take the same.
    keep = layer(whole.inputs()[0])
    for _ in range(2):
        layer(whole.inputs()[0])
    expect("state", "the oldest of 3 places among them", lambda: layer(whole.inputs()[0]))
    del keep
    step()


def expect(name, text, call):
    try:
        call()
    except moe_core.MoeError as error:
        if error.name != name or text not in str(error):
            fail(f"wanted an error {name!r} with {text!r}, got {error.name!r}: {error}")
        return
    fail(f"no error {name!r} ({text})")


def check_errors(device):
    make = lambda **more: moe_core.MoELayer(**dict(dict(hidden=8, ffn=6, experts=8, topk=2, max_tokens=4,
                                                        device=device), **more))
    expect("shape", "5 tokens", lambda: make()(torch.zeros(5, 8)))
    expect("shape", "last dimension", lambda: make()(torch.zeros(2, 7)))
    expect("arg", "torch.float64", lambda: make()(torch.zeros(2, 8, dtype=torch.float64)))
    expect("shape", "", lambda: make(topk=9))
    expect("arg", "relu", lambda: make(expert=moe_core.Experts(activation="relu")))
    expect("arg", "no router preset", lambda: moe_core.MoELayer.from_preset("gpt-5", 8, 6, 4, device))
    expect("arg", "legacy", lambda: make(dispatch=moe_core.Dispatch(legacy=("legacy_nothing",))))
    expect("nan", "", lambda: make()(torch.full((2, 8), float("nan"))))
    layer = make()
    expect("shape", "gate of the whole model is (4, 8), wanted (8, 8)",
           lambda: layer.load_full(make(experts=4).gather_full()))
    layer.w1.main_grad = torch.zeros(layer.w1.shape, dtype=torch.float64)
    expect("arg", "main_grad", lambda: layer(torch.zeros(2, 8)))
    layer = make()
    x = torch.randn(3, 8, requires_grad=True)
    y = layer(x)
    with torch.no_grad():
        layer.w1 += 1  # as an optimizer between forward and backward would
    try:
        y.sum().backward()
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
    else:
        fail("backward with weights that are no longer those of the forward")


def check_module(device):
    """What a torch.nn.Module promises: copies, in-place use of the output, autocast, inputs and parameters of any
    origin."""
    make = lambda **more: moe_core.MoELayer(**dict(dict(hidden=8, ffn=6, experts=8, topk=2, max_tokens=4,
                                                        device=device), **more))
    layer, x = make(in_flight=2, router=moe_core.Router(score="sigmoid", expert_bias=True,
                                                        switch_loss=1.0)), torch.randn(4, 8)
    twin, other = copy.deepcopy(layer), make(router=layer.router)
    other.load_state_dict(layer.state_dict())
    want = layer(x)
    for name, same in (("deepcopy", twin), ("load_state_dict", other)):
        close(name, same(x), want.detach().double(), 0)
    want.mul_(2).sum().backward()  # in place
    (2 * twin(x)).sum().backward()
    for name, value in twin.named_parameters():
        close(f"in place: {name}", getattr(layer, name).grad, value.grad.double(), 0)
    layer.set_loss_scale(3.0)  # of both microbatches, the second of which has no state yet
    gates = []
    outputs = [layer(x), layer(x)]
    for y in outputs:
        layer.zero_grad()
        (0 * y).sum().backward()
        gates.append(layer.gate.grad.clone())
    close("loss scale of a second microbatch", gates[1], gates[0].double(), 1e-6)
    wide = torch.randn(8, 4).t().requires_grad_()
    flat = wide.detach().contiguous().requires_grad_()
    twin(wide).sum().backward()
    twin(flat).sum().backward()
    close("strides of x", wide.grad, flat.grad.double(), 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if layer(torch.randn(2, 8, dtype=torch.bfloat16)).dtype != torch.float32:
            fail("autocast: another type than the layer's")
    expect("unsupported", "state_dict", lambda: torch.save(layer, io.BytesIO()))
    expect("arg", "gate is torch.bfloat16", lambda: make().to(torch.bfloat16)(x.bfloat16()))
    expect("arg", "a list", lambda: layer([1.0]))
    expect("shape", "last dimension", lambda: layer(torch.tensor(1.0)))
    for name, value in (("w1", torch.randn(8, 8, 12).transpose(1, 2)), ("w1", torch.randn(8, 2, 8)),
                        ("w2", torch.randn(4, 8, 6))):
        wrong = make()
        setattr(wrong, name, torch.nn.Parameter(value))
        expect("shape", name, lambda: wrong(x))
    layer.expert_bias = torch.zeros(2)
    expect("shape", "expert_bias", lambda: layer(x))


def check_order(device):
    """The CUDA half's order, with PyTorch's streams played by recorders: torch's work, the call, torch's work."""
    said = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            said.append(f"{self.name} waits for {other.name}")

    class Guard:
        def __init__(self, where):
            said.append(f"on {where}")

        def __enter__(self):
            pass

        __exit__ = lambda self, *error: said.append("back")

    keep = {name: getattr(torch.cuda, name) for name in ("ExternalStream", "current_stream", "device")}
    host, device.torch = device.torch, torch.device("cuda", 3)
    for theirs, want in ((device.stream + 1, ["ours waits for torch's", "call", "torch's waits for ours"]),
                         (device.stream, ["call"])):  # the caller gave its own: there is nothing to wait for
        current = Stream("torch's")
        current.cuda_stream = theirs
        torch.cuda.ExternalStream, torch.cuda.current_stream, torch.cuda.device = lambda handle, device: Stream(
            "ours"), lambda: current, Guard
        said.clear()
        try:
            with device.order():
                said.append("call")
        finally:
            for name, value in keep.items():
                setattr(torch.cuda, name, value)
        if said != ["on cuda:3", *want, "back"]:
            fail(f"order on CUDA: {said}")
    device.torch = host


def check_stream(device, world):
    """A device on the caller's stream: the same numbers, the stream is that one, and it stays the caller's. On the host
    back end the runtime is called as a framework calls it."""
    if device.backend == "cuda":
        stream = torch.cuda.Stream()
        handle = stream.cuda_stream
    else:
        runtime, made = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
        if runtime.cudaStreamCreate(ctypes.byref(made)) != 0:
            fail("stream: the runtime makes none")
        stream = handle = made.value
    whole = Whole("stream", dict(shared_ffn=4))
    results = []
    for own in (device, moe_core.Device(device.backend, stream=stream)):
        comm = world if own is device or world is None else moe_core.Communicator.from_pointer(own, world.pointer)
        layer = whole.layer(own, comm)
        x, dy = whole.inputs()
        y = layer(x)
        y.backward(dy)
        results.append((y.detach(), x.grad, layer.w1.grad))
    if own.stream != handle or own.stream == device.stream:
        fail(f"stream: the device's is {own.stream}, the caller's {handle}")
    for ours, theirs in zip(*results):
        if not torch.equal(ours, theirs):
            fail("stream: the caller's stream gives other numbers")
    del layer, own, comm, x, y
    gc.collect()
    if device.backend == "host":
        runtime.cudaStreamQuery.argtypes = runtime.cudaStreamDestroy.argtypes = [ctypes.c_void_p]
        if runtime.cudaStreamQuery(handle) != 0 or runtime.cudaStreamDestroy(handle) != 0:
            fail("stream: it went with the device")
    if moe_core.Device(device.backend, stream=0).stream != 0:
        fail("stream: 0 is not the default stream")


def layouts(world):
    """Every way to spread a layer over the ranks: {name: (groups, dispatch)}."""
    found = {"ep": (moe_core.Groups(ep=world), None)}
    if world is not None:
        found["shard"] = moe_core.Groups(tp=world), moe_core.Dispatch(tp_mode="shard_experts")
        found["etp"] = moe_core.Groups(etp=world, tp_ep=world), None
    if SIZE == 2:
        found["split"] = moe_core.Groups(ep=world, tp=world), moe_core.Dispatch(tp_mode="split_tokens")
    if SIZE == 4:
        across, beside = world.split(RANK % 2), world.split(RANK // 2)
        found["ep 2, etp 2"] = moe_core.Groups(ep=across, etp=beside, tp_ep=world), None
        found["ep 2, shard 2"] = moe_core.Groups(ep=across, tp=beside), moe_core.Dispatch(tp_mode="shard_experts")
    return found


def check_gather(device, world):
    """load_full and gather_full are each other's inverse in every layout, so any layout's model goes into any other."""
    whole = Whole("gather", dict(topk=2, gate_bias=True, biases=True, place="activation", shared_ffn=8,
                                 shared_biases=True, shared_gate=True, ffn=8, score="sigmoid", expert_bias=True))
    full = whole.weights
    for name, (groups, dispatch) in layouts(world).items():
        layer = whole.layer(device, world, groups=groups, dispatch=dispatch)
        layer.load_full(full)  # whole, of the layout before
        got = layer.gather_full()
        for key, value in layer.state_dict().items():
            want = whole.weights[key].detach().to(device.torch, value.dtype)
            if got[key].requires_grad or not torch.equal(got[key], want):
                fail(f"gather: {name}: {key} is another than the one that was loaded")
            got[key].add_(1)  # of its own: the layer keeps what it has
        again = layer.gather_full()
        check_shares(f"gather: {name}", layer, world, again, fail)
        if set(again) != set(layer.state_dict()) or not torch.equal(again["gate"] + 1, got["gate"]):
            fail(f"gather: {name}: what was gathered is the layer's own")
        full = again


def check_memory(device):
    """A device whose memory is PyTorch's gives the same numbers, holds no tensor when it is gone, and says what it has;
    without memory the library says so, and the next step works. CUDA's allocator is a table of two functions here."""
    whole = Whole("memory", dict(shared_ffn=4))
    results = []
    for memory in ("library", "torch"):
        own = moe_core.Device("host", memory=memory)
        layer = whole.layer(own, None)
        for _ in range(2):
            x, dy = whole.inputs()
            y = layer(x)
            y.backward(dy)
        results.append((y.detach(), x.grad, layer.w1.grad))
        held = own.memory()
        if held["in_use"] != 0 or not 0 < held["most_in_use"] <= held["reserved"] or held["fixed"] == 0:
            fail(f"memory: {held}")
        pool = own._memory
        if pool is not None and sum(t.numel() for t in pool.tensors.values()) != held["fixed"] + held["reserved"]:
            fail("memory: PyTorch's tensors are not what the device holds")
        if own.trim() != held["reserved"] or own.memory(restart=True)["reserved"] != 0:
            fail("memory: trim left something")
    for ours, theirs in zip(*results):
        if not torch.equal(ours, theirs):
            fail("memory: PyTorch's memory gives other numbers")
    empty = torch.empty

    def refuse(*size, **kinds):
        if kinds.get("dtype") is torch.uint8:
            raise RuntimeError("no memory")
        return empty(*size, **kinds)

    torch.empty = refuse
    try:
        expect("nomem", "bytes of host device memory", lambda: layer(whole.inputs()[0]))
    finally:
        torch.empty = empty
    if "no memory" not in str(pool.error):
        fail(f"memory: {pool.error}")
    layer(whole.inputs()[0]).backward(whole.inputs()[1])
    del layer, own, x, y
    gc.collect()
    if pool.tensors:
        fail(f"memory: {len(pool.tensors)} tensors are left")
    expect("arg", "memory is 'mine'", lambda: moe_core.Device("host", memory="mine"))
    asked = []
    keep = {name: getattr(torch.cuda, name) for name in ("caching_allocator_alloc", "caching_allocator_delete")}
    torch.cuda.caching_allocator_alloc = lambda *call: asked.append(call) or 4096
    torch.cuda.caching_allocator_delete = lambda *call: asked.append(call)
    try:
        cuda = moe_core._TorchMemory("cuda", torch.device("cuda", 1))
        if cuda.table.alloc(None, 300, 77) != 4096:
            fail("memory: CUDA's allocator was not asked")
        cuda.table.release(None, 4096, 300, 77)
    finally:
        for name, function in keep.items():
            setattr(torch.cuda, name, function)
    if asked != [(300, torch.device("cuda", 1), 77), (4096,)]:
        fail(f"memory: CUDA's allocator was asked {asked}")


def check_version(device):
    """A library whose structs have other sizes is refused, not called."""
    fields = moe_core.CLayerConfig._fields_
    keep, moe_core.CLayerConfig = moe_core.CLayerConfig, type("CLayerConfig", (ctypes.Structure,),
                                                              {"_fields_": fields + [("more", ctypes.c_int64)]})
    expect("unsupported", "another version", lambda: moe_core.Device("host"))
    moe_core.CLayerConfig = keep
    keep = os.environ.pop("MOE_CORE_LIBRARY", None)
    os.environ["MOE_CORE_LIBRARY"] = "/nowhere/libmoe_core.so"
    expect("unsupported", "/nowhere/libmoe_core.so", lambda: moe_core.Device("host"))
    del os.environ["MOE_CORE_LIBRARY"]
    if keep is not None:
        os.environ["MOE_CORE_LIBRARY"] = keep


FROZEN = (("gate", "gate_bias"), ("w1", "b1", "w2", "b2"), ("w1", "shared_gate"),
          ("gate", "gate_bias", "w1", "b1", "w2", "b2", "shared_w1", "shared_b1", "shared_w2", "shared_b2",
           "shared_gate"))


def check_frozen(device, world):
    """requires_grad off, and on again: what is frozen has no gradient and a main_grad that stays."""
    changes = dict(gate_bias=True, biases=True, place="activation", shared_ffn=4, shared_biases=True, shared_gate=True)
    whole = Whole("frozen", changes)
    layer = whole.layer(device, world)
    for frozen in (*FROZEN, ()):
        for name, value in layer.named_parameters():
            value.requires_grad_(name not in frozen)
            value.grad, value.main_grad = None, torch.full(value.shape, 0.5, device=value.device)
            value.overwrite_main_grad = name in frozen  # must not be obeyed there
        x, dy = whole.inputs()
        layer(x).backward(dy)
        close(f"frozen {frozen}: dx", x.grad, whole.sets[RANK]["x"].grad, 2e-5)
        for name, value in layer.named_parameters():
            if name in frozen and (value.grad is not None or not (value.main_grad == 0.5).all()):
                fail(f"frozen {frozen}: {name} has a gradient")
            elif name not in frozen:
                got = value.main_grad - 0.5
                if name not in ("w1", "b1", "w2", "b2"):
                    moe_core.reduce(device, got, world)
                close(f"frozen {frozen}: gradient of {name}", got, whole.part(layer, name), 2e-5)
    if SIZE > 1:
        layer.gate.requires_grad_(RANK != 1)
        try:
            layer(whole.inputs()[0])
            fail("ranks that freeze different parameters go on")
        except moe_core.MoeError as error:
            if error.name != "arg" or "rank 1 of the group freezes gate, rank 0 freezes nothing" not in str(error):
                fail(f"ranks that freeze different parameters: {error}")


def check_gate_dtype(device, world):
    """A gate of 16 bits gives what a float32 gate with the same numbers gives, in every bit."""
    whole = Whole("gate", dict(gate_bias=True, renormalise=True))
    for dtype in (torch.bfloat16, torch.float16):
        narrow, wide = whole.layer(device, world, gate_dtype=dtype), whole.layer(device, world)
        with torch.no_grad():
            wide.gate.copy_(narrow.gate)
            wide.gate_bias.copy_(narrow.gate_bias)
        results = []
        for layer in (narrow, wide):
            x, dy = whole.inputs()
            y = layer(x)
            y.backward(dy)
            results.append((y.detach(), x.grad, layer.gate.grad.to(dtype), layer.gate_bias.grad.to(dtype)))
        if narrow.gate.grad.dtype != dtype or not all(torch.equal(a, b) for a, b in zip(*results)):
            fail(f"a gate of {dtype} gives other numbers than one of float32")


def check_presets(device):
    for name in ("mixtral", "deepseek-v3", "qwen3-moe", "gpt-oss"):
        router, experts, topk = moe_core.Router.preset(device, name)
        layer = moe_core.MoELayer.from_preset(name, 8, 6, 4, device)
        if (layer.experts, layer.topk) != (experts, topk) or layer.gate.shape != (experts,
                                                                                  8) or (layer.b1
                                                                                         is not None) != (name
                                                                                                          == "gpt-oss"):
            fail(f"preset {name}: {layer}")
        if (layer.expert_bias is not None) != (name == "deepseek-v3"):
            fail(f"preset {name}: expert bias")
        close(f"{name}: shape", layer(torch.randn(2, 2, 8)).isnan().double(), torch.zeros(2, 2, 8).double(), 0.5)


def check_expert_bias(device, world):
    """One update from the tokens of all ranks, those of an evaluation left out."""
    whole = Whole("bias", dict(score="sigmoid", expert_bias=True, renormalise=True))
    layer = whole.layer(device, world)
    layer(whole.inputs()[0])
    own = torch.bincount(whole.sets[RANK]["index"].flatten(), minlength=8)
    if not torch.equal(layer.counts(), own):
        fail(f"counts {layer.counts()}, wanted {own}")
    before = layer.expert_bias.cpu().clone()
    with torch.no_grad():
        layer.expert_bias.copy_(-9 * own)  # sends the evaluation's tokens to the other experts
        for _ in range(3):
            layer(whole.inputs()[0])
        wrong = own + 3 * layer.counts()
        layer.expert_bias.copy_(before)
    sums = torch.stack([own, wrong]).float().to(device.torch)
    moe_core.reduce(device, sums, world)
    steps = 0.125 * torch.sign(sums.mean(1, keepdim=True) - sums).cpu()
    if torch.equal(*steps):
        fail("the evaluation would make no difference: this test proves nothing")
    moe_core.update_expert_bias([layer], world, 0.125)
    if not torch.equal(layer.expert_bias.cpu(), before + steps[0]):
        fail(f"expert bias {layer.expert_bias}, wanted {before + steps[0]}")
    # Microbatches in flight count together: the second one's tokens turn the signs.
    layer = whole.layer(device, world, in_flight=2)
    first = layer(whole.inputs()[0])
    with torch.no_grad():
        layer.expert_bias.copy_(-9 * own)
    second = [layer(whole.inputs()[0]) for _ in range(1)]
    both = own + layer.counts()
    with torch.no_grad():
        layer.expert_bias.copy_(before)
    sums = torch.stack([own, layer.counts(), both]).float().to(device.torch)
    moe_core.reduce(device, sums, world)
    steps = 0.125 * torch.sign(sums.mean(1, keepdim=True) - sums).cpu()
    if torch.equal(steps[2], steps[0]) or torch.equal(steps[2], steps[1]):
        fail("one microbatch alone would give the same: this test proves nothing")
    moe_core.update_expert_bias([layer], world, 0.125)
    if not torch.equal(layer.expert_bias.cpu(), before + steps[2]):
        fail(f"expert bias of two in flight {layer.expert_bias}, wanted {before + steps[2]}")
    del first, second


def check_communicators(device, world):
    """Split and borrowed ones: sums over the halves of the world."""
    half = world.split(RANK % 2)
    borrowed = moe_core.Communicator.from_pointer(device, half.pointer.value)
    value = torch.full((3,), float(RANK + 1), device=device.torch)
    moe_core.reduce(device, value, borrowed, scale=0.5)
    want = sum(r + 1 for r in range(SIZE) if r % 2 == RANK % 2) / 2
    if value.tolist() != [want] * 3 or (half.rank, half.size) != (RANK // 2, len(range(RANK % 2, SIZE, 2))):
        fail(f"a sum over half of the ranks: {value.tolist()}, wanted {want}; rank {half.rank} of {half.size}")
    if (world.split(0 if RANK == 0 else None) is None) != (RANK != 0):
        fail("split without a colour")
    half.destroy()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(3)
    device = moe_core.Device(os.environ.get("JOB_DEVICE", "host"))
    world = moe_core.Communicator.from_environment(device) if SIZE > 1 else None
    only = os.environ.get("JOB_CASES")
    for name, changes in CASES:
        if only is None or name in only.split(";"):
            check_case(name, changes, device, world)
    for name, dispatch, changes in DISPATCH if SIZE > 1 and only is None else []:
        check_case(name, changes, device, world, dispatch=moe_core.Dispatch(**dispatch))
    if SIZE == 4:
        check_expert_tensor_parallel(device, world)
    if SIZE == 2:
        check_tensor_parallel("shard_experts", dict(biases=True, shared_ffn=4, shared_gate=True), device, world)
        check_tensor_parallel("split_tokens", dict(score="sigmoid", renormalise=True, place="input", shared_ffn=4),
                              device, world)
    check_main_grad(device, world)
    check_in_flight(device, world)
    check_dropped_apart(device, world)
    check_stream(device, world)
    check_gather(device, world)
    check_expert_bias(device, world)
    check_delayed(device, world)
    check_frozen(device, world)
    check_gate_dtype(device, world)
    for dtype, tolerance in ((torch.bfloat16, 3e-2), (torch.float16, 4e-3)):
        check_narrow(dtype, tolerance, device, world)
    if SIZE == 1 and device.backend == "host":
        check_errors(device)
        check_module(device)
        check_presets(device)
        check_version(device)
        check_order(device)
        check_memory(device)
    if SIZE > 1:
        check_communicators(device, world)
    print(f"job_layer: rank {RANK} of {SIZE}: {len(CASES)} cases as plain PyTorch", flush=True)


main()
