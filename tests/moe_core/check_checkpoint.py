"""check_checkpoint.py: moe_checkpoint.py reads what moe_train saves: names and shapes of every tensor, the same numbers
from every layout that drew the same model, and a refusal of what is damaged. No torch is needed.

usage: check_checkpoint.py MOE_TRAIN FOLDER_OF_MOE_CHECKPOINT
"""
import os
import struct
import subprocess
import sys
import tempfile

TRAIN, FOLDER = sys.argv[1:3]
sys.path.insert(0, FOLDER)
import moe_checkpoint  # noqa: E402

C, H, F, E, L, S = 4, 8, 6, 8, 2, 4
OPTIONS = ["--steps", "1", "--context", C, "--hidden", H, "--ffn", F, "--experts", E, "--layers", L, "--bias",
           "--shared", S, "--shared-gate", "--router", "gpt-oss", "--topk", "2", "--lr", "0"]
LAYER = {"norm.weight": (H,), "router.weight": (E, H), "router.bias": (E,), "experts.w1": (E, 2 * F, H),
         "experts.w2": (E, H, F), "experts.b1": (E, 2 * F), "experts.b2": (E, H), "shared_expert.w1": (2 * S, H),
         "shared_expert.w2": (H, S), "shared_expert.b1": (2 * S,), "shared_expert.b2": (H,), "shared_expert.gate": (H,)}
MODEL = {"embedding.weight": (C, 256, H), "norm.weight": (H,), "head.weight": (256, H),
         **{f"layers.{n}.{name}": shape for n in range(L) for name, shape in LAYER.items()}}


def check(holds, what):
    if not holds:
        sys.exit(f"FAILED: {what}")


def numbers(tensor):
    return list(tensor.numbers) if isinstance(tensor, moe_checkpoint.Plain) else tensor.flatten().tolist()


def saved(tmp, name, *layout):
    path = os.path.join(tmp, name)
    done = subprocess.run([TRAIN, "--spawn", "4", "--save", path, *map(str, OPTIONS), *layout], capture_output=True,
                          text=True, env=dict(os.environ, TMPDIR=tmp), timeout=500, check=False)
    check(done.returncode == 0, f"{name}: status {done.returncode}: {done.stderr}")
    return os.path.join(path, "step-00000001.safetensors")


def refused(path, data, words):
    with open(path, "wb") as f:
        f.write(data)
    try:
        moe_checkpoint.read(path)
    except moe_checkpoint.BadCheckpoint as wrong:
        check(words in str(wrong) and path in str(wrong), f"it says '{wrong}', wanted '{words}'")
        return
    check(False, f"a file was read that is to be refused: {words}")


with tempfile.TemporaryDirectory() as work:
    files = {name: saved(work, name, *layout) for name, layout in
             (("ep4", ("--ep", "4")), ("ep1", ("--ep", "1")), ("etp", ("--ep", "2", "--etp", "2")),
              ("tp", ("--tp", "2")), ("shard", ("--tp", "2", "--tp-mode", "shard", "--ep", "2")))}
    states = {name: moe_checkpoint.read(path) for name, path in files.items()}
    state, facts = states["ep1"]
    want = {f"{kind}.{name}": shape for kind in ("model", "optimizer.mean", "optimizer.variance")
            for name, shape in MODEL.items()}
    check({name: tuple(t.shape) for name, t in state.items()} == want, "names or shapes differ")
    check((facts["step"], facts["hidden"], facts["experts"]) == ("1", str(H), str(E)), f"facts: {facts}")
    for layout, (other, _) in states.items():  # without a learning rate all layouts keep the model that they drew
        for name in other:
            if name.startswith("model."):
                check(numbers(other[name]) == numbers(state[name]), f"{layout}: {name} differs from that of ep 1")
    distinct = numbers(state["model.layers.1.experts.w1"])
    check(len(set(distinct)) == E * 2 * F * H, "weights repeat: some rank's part was taken twice")
    check(any(numbers(state["optimizer.variance.head.weight"])), "the moments are all zero")
    full = moe_checkpoint.layer(state, 1)
    check(set(full) == set(moe_checkpoint.LAYER) - {"expert_bias"}, f"a layer's names: {sorted(full)}")
    check(numbers(full["w2"]) == numbers(state["model.layers.1.experts.w2"]), "w2 of layer 1 is another")
    with open(files["ep1"], "rb") as f:
        good = f.read()
    at = 8 + struct.unpack("<Q", good[:8])[0] + 1000
    bad = os.path.join(work, "bad")
    refused(bad, good[:at] + bytes([good[at] ^ 1]) + good[at + 1:], "is damaged")
    refused(bad, good[:-1], "bytes, by its header")
    refused(bad, good[:100], "is no checkpoint")
    refused(bad, b"", "is no checkpoint")
    refused(bad, good.replace(b"moe_train/1", b"moe_train/9"), "is no checkpoint of this moe_train")
print(f"{len(want)} tensors, {len(states)} layouts, 5 files refused")
