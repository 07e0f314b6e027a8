"""compiled.py: code that torch.compile or Triton has compiled. No operation of it comes to the dispatch mode: its
kernels are launched, and skipped like the others. What such a kernel writes is noted as skipped, so that a value which
is read back is never taken for one that the host has computed.

PyTorch compiles while the mode is on, because the mode says that it ignores the inside of compiled code (newer
releases) or is not counted among the modes (older ones). Computing the compiled graph on the host instead was rejected:
then the rehearsal would not run what the job runs, such as Inductor's order of collectives. Needs no PyTorch by itself:
it waits for the job's imports of Inductor and Triton."""
import ast
import functools
import textwrap

from rollcall.rehearse import notes, settings

_STORES = ("store", "atomic_", "experimental_descriptor_store")
_PYTHON = frozenset(("range", "min", "max", "abs", "int", "float", "bool", "len", "print"))


def _wrote(tensors):
    from rollcall.rehearse import mode
    notes.op("compiled")
    for t in tensors:
        if getattr(t, "is_cuda", False):
            mode.mark_skipped(t)


# Inductor's kernels: their arguments say by their names what is written.


def _is_written(name, mutated):
    return name in mutated or name.startswith(("out_ptr", "in_out_ptr"))


def follow_inductor(module):
    kind = module.CachingAutotuner
    run = kind.run
    if hasattr(run, "_rollcall"):
        return

    @functools.wraps(run)
    def launch(self, *args, **kwargs):
        out = run(self, *args, **kwargs)
        try:
            mutated = getattr(self, "mutated_arg_names", None) or ()
            names = self.fn.arg_names
            _wrote([a for n, a in (*zip(names, args), *kwargs.items()) if _is_written(n, mutated)])
        except Exception as why:  # the job runs on
            settings.complain(f"what a compiled kernel wrote is not known: {type(why).__name__}: {why}")
        return out

    launch._rollcall = True
    kind.run = launch


# Kernels that the job wrote for Triton: what they store through is read from their text.


def _names(node):
    """The names that an address is made of; what is loaded from memory is a value, and no address."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "load":
        return set()
    found = {node.id} if isinstance(node, ast.Name) else set()
    return found.union(*(_names(child) for child in ast.iter_child_nodes(node)))


def stored_through(source):
    """The parameters of a Triton kernel that its stores may go through; None where the text does not say so: another
    function of the job's may store, and gets the address."""
    tree = next(n for n in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(n, ast.FunctionDef))
    parameters = [a.arg for a in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    made_of = {name: {name} for name in parameters}
    for _ in range(8):  # a name may be made of one that is assigned further down, in a loop
        before = {name: set(of) for name, of in made_of.items()}
        for node in ast.walk(tree):
            value = getattr(node, "value", None)
            if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or value is None:
                continue
            of = set().union(*(made_of.get(n, set()) for n in _names(value)))
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for name in _names(target):
                    made_of[name] = made_of.get(name, set()) | of
        if made_of == before:
            break
    stored = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called.startswith(_STORES):
            # d.store(at, value) of a descriptor, or tl.store(pointer, value).
            of = getattr(node.func, "value", None)
            at = of if isinstance(of, ast.Name) and of.id in made_of else \
                node.args[0] if node.args else node.keywords[0].value
            stored |= set().union(*(made_of.get(n, set()) for n in _names(at)))
        elif isinstance(node.func, ast.Name) and called not in _PYTHON:
            return None
    return [name for name in parameters if name in stored]


def follow_triton(module):
    kind = module.JITFunction
    run = kind.run
    if hasattr(run, "_rollcall"):
        return

    @functools.wraps(run)
    def launch(self, *args, **kwargs):
        out = run(self, *args, **kwargs)
        if kwargs.get("warmup"):
            return out
        try:
            stored = self.__dict__.get("_rollcall_stored", False)
            if stored is False:
                try:
                    stored = stored_through(self.src)
                except Exception:
                    stored = None
                self._rollcall_stored = stored
            given = [*zip(self.arg_names, args), *kwargs.items()]
            _wrote([a for n, a in given if stored is None or n in stored])
        except Exception as why:  # the job runs on
            settings.complain(f"what a kernel of Triton wrote is not known: {type(why).__name__}: {why}")
        return out

    launch._rollcall = True
    kind.run = launch


FOLLOWED = {"torch._inductor.runtime.triton_heuristics": follow_inductor, "triton.runtime.jit": follow_triton}
