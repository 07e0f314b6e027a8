#!/usr/bin/env python3
"""rollcall.moe.checkpoint with torch.distributed.checkpoint, on four ranks: what is saved in one layout is loaded in
each other one, in every bit, of layers, drop-in experts and their optimizers; asynchronous saves; saves that fail or
are killed; the example of docs/DROPIN.md (JOB_DOC). Files go to JOB_FOLDER.

Every tensor of the whole model, and of its optimizer's state, is drawn from a seed of its name, so each rank knows
which numbers it must have without asking another.
"""
import logging
import os
import re
import signal
import sys
import time
import traceback
import warnings
import zlib

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import shard_cases
import support
from rollcall.moe import checkpoint, core, megatron, shards, torchtitan
from support import fail, refused, same, want

moe_core = core()
warnings.filterwarnings("ignore")
logging.disable(logging.ERROR)
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = os.environ["JOB_FOLDER"]
E, H, F = 8, 8, 8


class Layouts:
    """Models of one kind, by layout: make(layout) is a model whose part is under `experts`."""

    def __init__(self, kind, made):
        self.kind, self.made = kind, made

    def model(self, layout, **more):
        torch.manual_seed(RANK)
        return torch.nn.ModuleDict({"experts": self.made[layout](**more), "other": torch.nn.Linear(3, 2)})


def layers(device, world, mesh):
    """MoELayer in every layout of four ranks."""
    across, beside, alone = world.split(RANK % 2), world.split(RANK // 2), moe_core.Groups()
    groups = {"ep 4": moe_core.Groups(ep=world), "etp 4": moe_core.Groups(etp=world, tp_ep=world), "dp 4": alone,
              "ep 2, etp 2": moe_core.Groups(ep=across, etp=beside, tp_ep=world), "shard 4": moe_core.Groups(tp=world),
              "ep 2, dp 2": moe_core.Groups(ep=beside), "ep 2, fsdp 2": moe_core.Groups(ep=beside),
              "ep 2, shard 2": moe_core.Groups(ep=across, tp=beside)}

    def make(name, experts=E):
        layer = moe_core.MoELayer(
            H, F, experts, 2, 4, device, groups=groups[name],
            router=moe_core.Router(score="sigmoid", gate_bias=True, expert_bias=True),
            expert=moe_core.Experts(bias=True, place="activation", shared_ffn=8, shared_bias=True, shared_gate=True),
            dispatch=moe_core.Dispatch(tp_mode="shard_experts") if "shard" in name else None, world_rank=RANK)
        if "fsdp" in name:
            fully_shard(layer, mesh=mesh)
        return layer
    return Layouts("MoELayer", {name: lambda name=name, **more: make(name, **more) for name in groups})


def megatrons():
    """The drop-in for Megatron-LM: groups are only asked for sizes and ranks."""
    groups = {"ep 4": dict(ep=(4, RANK)), "ep 2, etp 2": dict(ep=(2, RANK // 2), expt_tp=(2, RANK % 2)),
              "etp 4": dict(expt_tp=(4, RANK)), "dp 4": dict(), "ep 2, dp 2": dict(ep=(2, RANK % 2))}

    def make(name):
        members = support.Groups(**groups[name])
        return megatron.TEGroupedMLP(E // members.ep.size(), shard_cases.config(), pg_collection=members)
    return Layouts("TEGroupedMLP", {name: lambda name=name: make(name) for name in groups})


def titans(mesh):
    """The drop-in for torchtitan: experts of one rank as plain tensors, and as torchtitan has them."""
    def plain(ranks):
        module = torchtitan.GroupedExperts(H, F, E // ranks, False)
        module.expert_parallel = (RANK % ranks, ranks)
        return module

    def sharded():
        module = torchtitan.GroupedExperts(H, F, E // SIZE, False)
        for name, value in list(module.named_parameters()):
            whole = DTensor.from_local(value.detach(), mesh, [Shard(0)])
            module.register_parameter(name, torch.nn.Parameter(whole))
        return module
    return Layouts("GroupedExperts", {"ep 4": lambda: plain(4), "ep 2, dp 2": lambda: plain(2),
                                      "dp 4": lambda: plain(1), "DTensor 4": sharded})


def drawn(key, what, shape, seed):
    """A tensor of the whole model, or of its optimizer's state."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {key} {what}".encode()))
    return torch.rand(shape, generator=generator)


def part(share, value, key, what, seed):
    """What this rank must have: of a DTensor by PyTorch's own arithmetic."""
    if share is None or tuple(value.shape) == share.shape:
        mine = drawn(key, what, tuple(value.shape), seed)
    else:
        mine = torch.full(share.local, float("nan"))
        shards.take(share, drawn(key, what, share.shape, seed), mine)
    if isinstance(value, DTensor):
        mine = distribute_tensor(mine, value.device_mesh, value.placements, src_data_rank=None).to_local()
    return mine


def tensors(model, optimizer):
    """(share, key in the whole model, what, tensor) of all that is saved."""
    said = shards.of_model(model)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        share = said.get(name)
        key = share.key if share is not None else name
        yield share, key, "", value.detach()
        for what in ("exp_avg", "exp_avg_sq") if value in optimizer.state else ():
            yield share, key, what, optimizer.state[value][what]


def local_of(value):
    return value.to_local() if isinstance(value, DTensor) else value


def optimizer_of(model, rate):
    """AdamW with a state."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.5, rate))
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def filled(model, optimizer, seed):
    for share, key, what, value in tensors(model, optimizer):
        local_of(value).copy_(part(share, value, key, what, seed))
    for state in optimizer.state.values():
        state["step"].fill_(seed)


def poisoned(model, optimizer):
    for *_, value in tensors(model, optimizer):
        local_of(value).fill_(float("nan"))
    for state in optimizer.state.values():
        state["step"].fill_(1000)


def check_has(said, model, optimizer, seed, rate):
    for share, key, what, value in tensors(model, optimizer):
        same(f"rank {RANK}: {said}: {key} {what}", local_of(value), part(share, value, key, what, seed))
    for state in optimizer.state.values():
        want(f"{said}: steps", float(state["step"]), float(seed))
    for group in optimizer.param_groups:
        want(f"{said}: the rate", (group["lr"], group["betas"]), (rate, (0.5, rate)))


def check_kind(layouts, seed=3, rate=0.25):
    """Every layout into every layout. The number of loads."""
    count, folders = 0, {}
    for name in layouts.made:
        model = layouts.model(name)
        optimizer = optimizer_of(model, rate)
        filled(model, optimizer, seed)
        folders[name] = os.path.join(FOLDER, layouts.kind, name)
        dcp.save({"app": checkpoint.State(model, optimizer)}, checkpoint_id=folders[name])
        check_has(f"{layouts.kind}, saving in {name}", model, optimizer, seed, rate)
    for name in layouts.made:
        model = layouts.model(name)
        optimizer = optimizer_of(model, 0.75)
        for source, folder in folders.items():
            poisoned(model, optimizer)
            dcp.load({"app": checkpoint.State(model, optimizer)}, checkpoint_id=folder)
            check_has(f"{layouts.kind}, {source} to {name}", model, optimizer, seed, rate)
            count += 1
        fresh = layouts.model(name)  # an optimizer that has made no step
        optimizer = torch.optim.AdamW(fresh.parameters(), lr=0.75)
        dcp.load({"app": checkpoint.State(fresh, optimizer)}, checkpoint_id=folders[name])
        check_has(f"{layouts.kind}, {name} to a new job", fresh, optimizer, seed, rate)
    if RANK == 0:
        check_plain(layouts, folders, seed)
    torch.distributed.barrier()
    return count


def check_plain(layouts, folders, seed):
    """As one file, a checkpoint of any layout is the state of a model on one rank."""
    alone = layouts.model("dp 4")
    optimizer = optimizer_of(alone, 0.5)
    for name, folder in folders.items():
        file = folder + ".pt"
        dcp_to_torch_save(folder, file)
        app = torch.load(file, weights_only=True)["app"]
        for share, key, what, value in tensors(alone, optimizer):
            got = app["optimizer"][f"state.{key}.{what}"] if what else app["model"][key]
            same(f"{layouts.kind}, {name} as a file: {key} {what}", got, drawn(key, what, value.shape, seed))
        keys = {key for _, key, what, _ in tensors(alone, optimizer) if not what}
        want(f"{layouts.kind}, {name} as a file", {k for k in app["model"] if "_extra_state" not in k}, keys)
    poisoned(alone, optimizer)
    alone.load_state_dict(app["model"])
    for share, key, what, value in tensors(alone, optimizer):
        if not what:
            same(f"{layouts.kind}: a model on one rank, from the file: {key}", value, drawn(key, "", value.shape, seed))


def check_async(layouts):
    """The numbers are those of the call, whatever is done to the model while they are written."""
    model = layouts.model("ep 2, etp 2")
    optimizer, folder = optimizer_of(model, 0.5), os.path.join(FOLDER, "async")
    filled(model, optimizer, 11)
    future = dcp.async_save({"app": checkpoint.State(model, optimizer)}, checkpoint_id=folder)
    poisoned(model, optimizer)
    future.result()
    other = layouts.model("ep 4")
    second = optimizer_of(other, 0.75)
    poisoned(other, second)
    dcp.load({"app": checkpoint.State(other, second)}, checkpoint_id=folder)
    check_has("asynchronous", other, second, 11, 0.5)
    # The older stager, which copies whole tensors: refused, and not one rank's part saved for the whole.
    writer = dcp.FileSystemWriter(os.path.join(FOLDER, "older"))
    try:
        dcp.async_save({"app": checkpoint.State(model, optimizer)}, storage_writer=writer).result()
    except NotImplementedError as error:
        want("the older stager", "a part" in str(error), True)
    else:
        fail("the older stager was accepted")


def check_wrapped(layouts):
    """Wrappers' names are no part of a checkpoint."""
    model = layouts.model("ep 2, etp 2")
    optimizer, folder = optimizer_of(model, 0.5), os.path.join(FOLDER, "wrapped")
    filled(model, optimizer, 13)
    dcp.save({"app": checkpoint.State(torch.compile(model), optimizer)}, checkpoint_id=folder)
    other = layouts.model("dp 4")
    second = optimizer_of(other, 0.75)
    filled(other, second, 14)  # alike on all ranks, as DistributedDataParallel wants it
    wrapped = torch.nn.parallel.DistributedDataParallel(other)
    poisoned(other, second)
    dcp.load({"app": checkpoint.State(wrapped, second)}, checkpoint_id=folder)
    check_has("compiled, to DistributedDataParallel", other, second, 13, 0.5)


class Failing(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        done = super().write_data(plan, planner)
        if RANK == 1:
            raise OSError("no space left")
        return done


def check_failed(layouts):
    """What DCP promises, a folder for each save: a save that fails leaves no checkpoint there, and the older one
    whole."""
    model = layouts.model("ep 4")
    optimizer, good, bad = optimizer_of(model, 0.5), os.path.join(FOLDER, "good"), os.path.join(FOLDER, "bad")
    filled(model, optimizer, 5)
    dcp.save({"app": checkpoint.State(model, optimizer)}, checkpoint_id=good)
    filled(model, optimizer, 6)
    refused("a save that fails", dcp.api.CheckpointException, "no space left", dcp.save,
            {"app": checkpoint.State(model, optimizer)}, storage_writer=Failing(bad))
    want("its files", {name[:2] for name in os.listdir(bad)}, {"__"})
    refused("a folder without a checkpoint", dcp.api.CheckpointException, "metadata", dcp.load,
            {"app": checkpoint.State(model, optimizer)}, checkpoint_id=bad)
    dcp.load({"app": checkpoint.State(model, optimizer)}, checkpoint_id=good)
    check_has("the older one", model, optimizer, 5, 0.5)
    # Of another size: refused, by the tensor's name.
    other = layouts.model("ep 4", experts=2 * E)
    refused("more experts than there are", dcp.api.CheckpointException, "experts.", dcp.load,
            {"app": checkpoint.State(other)}, checkpoint_id=good)


def check_killed(model, optimizer):
    """A process that is killed between its files and the metadata. Before there are threads of process groups."""
    class Killed(dcp.FileSystemWriter):
        def finish(self, metadata, results):
            os.kill(os.getpid(), signal.SIGKILL)

    folder = os.path.join(FOLDER, "killed")
    child = os.fork()
    if child == 0:
        torch.Tensor.is_pinned = lambda self: False  # the CUDA runtime, which a forked process cannot ask
        try:
            writer = Killed(folder, per_thread_copy_ahead=0)  # without a stream
            dcp.save({"app": checkpoint.State(model, optimizer)}, storage_writer=writer, no_dist=True)
        except BaseException:
            traceback.print_exc()
        os._exit(9)
    want("how the child ended", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGKILL)
    want("what it left", [name[:2] for name in os.listdir(folder)], ["__"])
    refused("what a killed save left", dcp.api.CheckpointException, "metadata", dcp.load,
            {"app": checkpoint.State(model, optimizer)}, checkpoint_id=folder, no_dist=True)


def check_example(layouts):
    """The block of docs/DROPIN.md, as it stands there."""
    with open(os.environ["JOB_DOC"], encoding="utf-8") as f:
        blocks = [block for block in re.findall(r"(?ms)^```python\n(.*?)^```", f.read()) if "checkpoint.State" in block]
    want("examples in the document", len(blocks), 1)
    for name in ("ep 4", "ep 2, etp 2"):
        model = layouts.model(name)
        optimizer = optimizer_of(model, 0.5)
        filled(model, optimizer, 8)
        place = os.path.join(FOLDER, f"example {name}")
        if RANK == 0:
            os.mkdir(place)
        torch.distributed.barrier()
        os.chdir(place)
        exec(blocks[0], {"model": model, "optimizer": optimizer})
        check_has("the example", model, optimizer, 8, 0.5)
        want("its folders", len([1 for _, _, files in os.walk(place) if ".metadata" in files]), 1)


def check_warning(layouts):
    """What the document warns of: without State, DCP saves one rank's experts."""
    layer, folder = layouts.model("ep 4")["experts"], os.path.join(FOLDER, "without")
    dcp.save({"layer": layer.state_dict()}, checkpoint_id=folder)
    saved = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata["layer.w1"]
    want("w1, without State", (tuple(saved.size), len(saved.chunks)), ((E // SIZE, 2 * F, H), 1))


def main():
    torch.set_num_threads(1)
    if RANK == 0:
        alone = megatrons().model("dp 4")
        check_killed(alone, optimizer_of(alone, 0.5))
    device = moe_core.Device("host")
    world = moe_core.Communicator.from_environment(device)
    store = torch.distributed.PrefixStore("checkpoint", world.store)
    torch.distributed.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "ep"))
    row = torch.distributed.device_mesh.init_device_mesh("cpu", (4,))
    kinds = layers(device, world, mesh["dp"]), megatrons(), titans(row)
    start = time.monotonic()
    loads = [check_kind(layouts) for layouts in kinds]
    for check in (check_async, check_wrapped, check_failed, check_example, check_warning):
        check(kinds[0])
    if RANK == 0:
        print(f"job_checkpoint: {SIZE} ranks, {' + '.join(map(str, loads))} loads in other layouts in every bit, torch "
              f"{torch.__version__}, {time.monotonic() - start:.1f} s")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    want("ranks", SIZE, 4)
    sys.exit(main())
