#!/usr/bin/env python3
"""rollcall.moe without PyTorch: check_plain.py PACKAGE_FOLDER. What can be imported, what is said where PyTorch is
missing, and the layouts (layout.py), whose every number is looked up by indices as well.

The Python that runs this may have PyTorch: it is hidden. A tensor is a list of numbers with a shape here
(plain_tensor.py).
"""
import itertools
import subprocess
import sys

from plain_tensor import Tensor

PACKAGE = sys.argv[1]
sys.path.insert(0, PACKAGE)

HIDDEN = """
import sys
sys.path.insert(0, {package!r})
for name in ("torch", "megatron", "torchtitan", "transformer_engine"):
    sys.modules[name] = None  # importing it fails
import rollcall.moe, rollcall.moe.layout, rollcall.moe.shards
for name in ("megatron", "torchtitan", "linear", "checkpoint"):
    try:
        __import__("rollcall.moe." + name)
    except ImportError as error:
        text = str(error)
        wanted = ("rollcall.moe." + name, "needs PyTorch", "pip install torch", sys.executable, "rollcall.moe.layout")
        missing = [word for word in wanted if word not in text]
        if missing:
            sys.exit(name + ": the error lacks " + repr(missing) + ": " + text)
    else:
        sys.exit(name + " was imported without PyTorch")
print("said")
"""


def fail(text):
    sys.exit(f"check_plain: {text}")


def want(what, got, wanted):
    if got != wanted:
        fail(f"{what}: {got!r}, wanted {wanted!r}")


def refused(what, text, function, *arguments, **more):
    try:
        function(*arguments, **more)
    except ValueError as error:
        if text not in str(error):
            fail(f"{what}: the error lacks {text!r}: {error}")
    else:
        fail(f"{what} was accepted")


def lookup(form, sizes, state, name, i, row, column):
    """Number (row, column) of a matrix, or number row of a bias, by what the frameworks' forwards do with the tensors:
    nothing of layout.py."""
    h, f, first = sizes.hidden, sizes.ffn, sizes.ffn if sizes.gated and name.startswith("up") else 0
    if form == "legacy":  # weight1.view(L, H, 2F) and weight2.view(L, F, H), multiplied from the right
        if name == "down":
            return state["weight2"].memory[(i * f + column) * h + row]
        return state["weight1"].memory[(i * h + column) * (2 if sizes.gated else 1) * f + first + row]
    if form in ("titan", "titan_efd"):
        key = {"gate": ("w1", "w1_EFD"), "down": ("w2", "w2_EDF"), "up": ("w3", "w3_EFD")}[name][form == "titan_efd"]
        return state[key].at(i, row, column)
    before = f"local_experts.{i}." if form == "sequential" else ""
    after = "" if form == "sequential" else str(i)
    linear = "linear_fc2" if name.startswith("down") else "linear_fc1"
    if name.endswith("_bias"):
        return state[f"{before}{linear}.bias{after}"].at(first + row)
    return state[f"{before}{linear}.weight{after}"].at(first + row, column)


def numbered(layout, form, sizes, prefix=""):
    """The tensors of a form, each number another."""
    state, count = {}, itertools.count(1)
    for key, shape in layout.shapes(form, sizes).items():
        state[prefix + key] = Tensor(shape)
        state[prefix + key].memory = [next(count) for _ in state[prefix + key].memory]
    return state


def check_form(layout, form, sizes):
    """Every number of every tensor is that of one expert's one place, and the place is the right one."""
    state, hit = numbered(layout, form, sizes), set()
    for (name, i), part in layout.parts(form, sizes).items():
        view = state[part.key].as_strided(part.shape, part.stride, part.offset)
        want(f"{form} {name} {i}", part.shape, sizes.shape(name))
        for index in itertools.product(*map(range, part.shape)):
            number = view.at(*index)
            want(f"{form} {sizes} {name} of expert {i} at {index}", number,
                 lookup(form, sizes, state, name, i, index[0], index[-1]))
            if number in hit:
                fail(f"{form} {sizes}: {name} of expert {i} shares a number with another")
            hit.add(number)
    want(f"{form} {sizes}: numbers", len(hit), sum(len(t.memory) for t in state.values()))


def allowed(layout, form, sizes):
    return not (sizes.bias and form in layout.NO_BIAS) and (sizes.gated or form not in layout.ONLY_GATED)


def check_conversions(layout, sizes):
    forms, count = [form for form in layout.FORMS if allowed(layout, form, sizes)], 0
    for source, target in itertools.product(forms, forms):
        state = numbered(layout, source, sizes, "mlp.experts.")
        state["mlp.router.weight"] = Tensor((2, 2))
        read = None if source != "legacy" else sizes
        there = layout.convert(state, source, target, read, prefix="mlp.experts.")
        bare = {key[len("mlp.experts."):]: value for key, value in there.items()}
        mine = {key[len("mlp.experts."):]: value for key, value in state.items() if key.startswith("mlp.experts.")}
        want(f"keys of {target}", list(bare), list(layout.shapes(target, sizes)))
        for name, i in itertools.product(sizes.names(), range(sizes.experts)):
            for index in itertools.product(*map(range, sizes.shape(name))):
                want(f"{source} as {target}, {name} of expert {i} at {index}",
                     lookup(target, sizes, bare, name, i, index[0], index[-1]),
                     lookup(source, sizes, mine, name, i, index[0], index[-1]))
        back = layout.convert(there, target, source, sizes, prefix="mlp.experts.")
        for key, value in back.items():
            want(f"{source} as {target} and back, {key}", value.memory, state[key].memory)
        count += 1
    return count


def check_layouts():
    from rollcall.moe import layout
    if "torch" in sys.modules:
        fail("rollcall.moe.layout imports torch")
    count = 0
    for experts, gated, bias in itertools.product((1, 3), (True, False), (True, False)):
        sizes = layout.Sizes(experts, 2, 3, gated, bias)
        for form in layout.FORMS:
            if allowed(layout, form, sizes):
                check_form(layout, form, sizes)
            else:
                refused(f"{form} with {sizes}", form, layout.shapes, form, sizes)
        count += check_conversions(layout, sizes)
    sizes = layout.Sizes(3, 2, 4)
    want("the keys of TEGroupedMLP", list(layout.shapes("grouped", layout.Sizes(2, 2, 4, bias=True)).items()),
         [("linear_fc1.weight0", (8, 2)), ("linear_fc1.bias0", (8,)), ("linear_fc1.weight1", (8, 2)),
          ("linear_fc1.bias1", (8,)), ("linear_fc2.weight0", (2, 4)), ("linear_fc2.bias0", (2,)),
          ("linear_fc2.weight1", (2, 4)), ("linear_fc2.bias1", (2,))])
    want("the keys of GroupedExperts", list(layout.shapes("titan", sizes).items()),
         [("w1", (3, 4, 2)), ("w2", (3, 2, 4)), ("w3", (3, 4, 2))])
    for form in ("grouped", "sequential", "titan", "titan_efd"):
        want(f"sizes read off {form}", layout.sizes_of(numbered(layout, form, sizes, "a."), form, "a."), sizes)
    refused("a form that does not exist", "'flat'", layout.shapes, "flat", sizes)
    refused("no experts", "0 experts", layout.shapes, "titan", layout.Sizes(0, 2, 4))
    refused("sizes of legacy", "Sizes(", layout.sizes_of, {}, "legacy")
    refused("another form", "linear_fc2.weight0", layout.convert, numbered(layout, "titan", sizes), "grouped", "titan")
    state = numbered(layout, "titan", sizes)
    state["w2"] = Tensor((3, 4, 2))
    refused("a turned weight", "w2 is (3, 4, 2), wanted (3, 2, 4)", layout.convert, state, "titan", "grouped", sizes)
    del state["w2"]
    refused("a missing weight", "no w2", layout.convert, state, "titan", "grouped", sizes)
    return count


hidden = subprocess.run([sys.executable, "-c", HIDDEN.format(package=PACKAGE)], capture_output=True, text=True)
if hidden.returncode != 0 or hidden.stdout != "said\n":
    fail(f"without PyTorch: {hidden.stdout}{hidden.stderr}")
print(f"without PyTorch the modules say what to do; {check_layouts()} conversions between layouts, number by number")
