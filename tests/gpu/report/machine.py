"""machine.py: what the compiler made of each kernel: registers, spills, shared memory, and the instructions of its
inner loops.

Kernels are compiled once more for sm_90a, each file by itself, and kept until a source changes. Reading them out of
libmoe_kernels.so was rejected: that needs one more of the vendor's tools, and the library may be built for other GPUs.
Instructions need nvdisasm, which CUDA's compiler packages do not have.
"""
import collections
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor

ARCH = "90a"
NO_NVCC = ("no nvcc (CUDA 12.4 or later): registers, shared memory, occupancy and instructions of the kernels are left "
           "out. On PyPI: pip install nvidia-cuda-nvcc")
NO_NVDISASM = ("no nvdisasm: the instructions of the inner loops are left out. On PyPI: pip install "
               "nvidia-cuda-nvdisasm; it is looked for in $ROLL_NVDISASM, on PATH, beside nvcc and in Python's "
               "packages")

# The first class whose pattern an operation matches. docs/MOE.md explains the words.
CLASSES = [
    ("matrix", r"[HQIDB]G?MMA"),
    ("tma", r"UTMA"),
    ("barrier", r"SYNCS|BAR|UCGABAR|WARPSYNC|NANOSLEEP|DEPBAR|LDGDEPBAR|WARPGROUP"),
    ("fence", r"MEMBAR|FENCE|ERRBAR|CGAERRBAR|CCTL"),
    ("spill", r"LDL|STL"),
    ("global", r"LDG|STG|RED|ATOMG|LD\b|ST\b|ATOM\b"),
    ("shared", r"LDS|STS|LDSM|STSM|ATOMS"),
    ("float", r"F(ADD|MUL|FMA|SETP|MNMX|SEL|CHK)|MUFU|H(ADD|MUL|FMA|SETP|MNMX)2|D(ADD|MUL|FMA)"),
    ("convert", r"F2|I2|FRND|PRMT"),
    ("lanes", r"SHFL|VOTE|REDUX|MATCH"),
    ("integer", r"U?(I|LOP|SHF|LEA|SEL|VI|POPC|FLO|BREV|BMSK|SGXT|PLOP|P2R|R2P|LOP3)"),
    ("move", r"U?MOV|CS2R|S2U?R|R2UR|LDC|ULDC|VOTEU|CS2UR|MOVM"),
    ("branch", r"BRA|BRX|EXIT|RET|CALL|BSSY|BSYNC|JMP|BREAK|YIELD"),
    ("other", r""),
]

Kernel = collections.namedtuple("Kernel", "file name registers spills stack shared threads dynamic loops")


def find_nvcc(given=None):
    for path in (given, os.environ.get("CUDACXX"), shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if path and os.access(path, os.X_OK):
            return path
    return None


def find_nvdisasm(nvcc):
    site = sysconfig.get_paths()["purelib"]
    near = [os.path.join(os.path.dirname(os.path.realpath(nvcc)), "nvdisasm")] if nvcc else []
    packed = sorted(glob.glob(os.path.join(site, "nvidia", "**", "bin", "nvdisasm"), recursive=True))
    for path in [os.environ.get("ROLL_NVDISASM"), shutil.which("nvdisasm"), *near, *packed]:
        if path and os.access(path, os.X_OK):
            return path
    return None


def sources(root):
    """The files with kernels; some have none, because templates are instantiated elsewhere."""
    return sorted(glob.glob(os.path.join(root, "kernels", "**", "*.cu"), recursive=True))


def constants(path, root, seen=None):
    """{name: value} of the enumerators of a file and of what it includes from this tree: what its launches say."""
    seen = set() if seen is None else seen
    if path in seen or not os.path.exists(path):
        return {}
    seen.add(path)
    with open(path) as f:
        text = re.sub(r"/\*.*?\*/|^[ \t]*#(?!include)[^\n]*", "", f.read(), flags=re.S | re.M)
    values = {}
    for name in re.findall(r'#include "((?:kernels|moe_core)/[^"]+)"', text):
        values.update(constants(os.path.join(root, name), root, seen))
    for body in re.findall(r"\benum\s*\w*\s*\{([^}#]*)\}", text):
        last = -1
        for entry in filter(None, (e.strip() for e in body.split(","))):
            name, _, value = (part.strip() for part in entry.partition("="))
            if re.fullmatch(r"[\w\s+\-*/()<>]+", value) and "sizeof" not in value:
                words = re.sub(r"\b(0x[0-9a-fA-F]+|\d+)[uUlL]*\b", r"\1", value).replace("/", "//")
                unknown = [w for w in re.findall(r"[A-Za-z_]\w*", words) if w not in values and not w.startswith("0x")]
                value = None if unknown else eval(words, {"__builtins__": {}}, values)  # our own sources' arithmetic
            else:
                value = last + 1 if not value else None
            if value is not None:
                values[name] = last = value
    return values


def dynamic_bytes(path, root):
    """The dynamic shared memory of a file's launches: a number, 0, or None where it depends on the call."""
    with open(path) as f:
        text = f.read()
    if "extern __shared__" not in text:
        return 0
    return constants(path, root).get("SHARED_BYTES")


def demangle(names):
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True) if names else None
    return done.stdout.split("\n")[:len(names)] if done and done.returncode == 0 else list(names)


def short(name):
    """gemm_hopper<0, __half, false> from what the demangler says."""
    name = re.sub(r"^(void )?", "", name)
    depth, end = 0, len(name)
    for i, c in enumerate(name):
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0 and not name.startswith("(anonymous", i):
            end = i
            break
    name = name[:end].replace("(anonymous namespace)::", "").replace("__nv_bfloat16", "bf16").replace("__half", "f16")
    name = name.replace("__nv_fp8_e4m3", "e4m3").replace("__nv_fp8_e5m2", "e5m2").replace("unsigned ", "u")
    name = name.replace("(bool)0", "false").replace("(bool)1", "true")
    return re.sub(r"\((?:int|moe_dtype)\)", "", name)


def read_log(text):
    """{mangled: (registers, spilled bytes, stack, static shared memory)} of what ptxas -v says."""
    found, name, spills, stack = {}, None, 0, 0
    for line in text.splitlines():
        if m := re.search(r"Compiling entry function '(\S+)'", line):
            name, spills, stack = m.group(1), 0, 0
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            stack, spills = int(m.group(1)), int(m.group(2)) + int(m.group(3))
        elif (m := re.search(r"Used (\d+) registers", line)) and name is not None:
            shared = re.search(r"(\d+) bytes smem", line)
            found[name] = (int(m.group(1)), spills, stack, int(shared.group(1)) if shared else 0)
            name = None
    return found


def read_threads(ptx):
    """{mangled: threads of a block at most} from the launch bounds in PTX."""
    found = {}
    for m in re.finditer(r"\.entry\s+([\w$]+)\s*\(.*?\)(.*?)\{", ptx, re.S):
        bounds = re.search(r"\.maxntid\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", m.group(2))
        x, y, z = (int(n or 1) for n in bounds.groups()) if bounds else (0, 0, 0)
        found[m.group(1)] = x * y * z
    return found


def class_of(operation):
    return next(name for name, pattern in CLASSES if re.match(pattern, operation))


def is_wait(classes):
    """A loop around a barrier that does no work belongs to the loop around it."""
    return "barrier" in classes and not classes & {"matrix", "tma", "global", "shared", "float", "convert", "spill"}


def inner_loops(sass):
    """{mangled: [(instructions, {class: count}), ...]}: the loops that hold no other loop but waits, longest first."""
    loops, name, code, labels = {}, None, [], {}

    def end():
        if name is None:
            return
        jumps = [(labels[to], at) for at, (_, to) in enumerate(code) if to in labels and labels[to] <= at]
        spans = [s for s in jumps if s[0] < s[1] and not is_wait({class_of(op) for op, _ in code[s[0]:s[1] + 1]})]
        inner = [s for s in set(spans) if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
        counted = [collections.Counter(class_of(op) for op, _ in code[first:last + 1]) for first, last in inner]
        loops[name] = sorted(((sum(c.values()), dict(c)) for c in counted), key=lambda loop: -loop[0])

    for line in sass.splitlines():
        if m := re.match(r"\.text\.(\S+):", line):
            end()
            name, code, labels = m.group(1), [], {}
        elif m := re.match(r"(\.L_x_\d+):", line):
            labels[m.group(1)] = len(code)
        elif m := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);", line):
            target = re.search(r"`\((\.L_x_\d+)\)", m.group(2))
            code.append((m.group(1), target.group(1) if target and m.group(1).startswith("BRA") else None))
    end()
    return loops


def compile_file(nvcc, nvdisasm, root, path, folder):
    """[Kernel] of one file; from `folder` where the sources are the same."""
    stamp = hashlib.sha256()
    for name in [path, *sorted(glob.glob(os.path.join(root, "kernels", "**", "*.*h"), recursive=True)),
                 *sorted(glob.glob(os.path.join(os.path.dirname(__file__), "*.py"))), nvcc, nvdisasm or ""]:
        stamp.update(name.encode())
        if name.endswith((".cu", ".h", ".cuh", ".py")):
            with open(name, "rb") as f:
                stamp.update(f.read())
    kept = os.path.join(folder, os.path.basename(path) + ".json")
    try:
        with open(kept) as f:
            data = json.load(f)
        if data["stamp"] == stamp.hexdigest():
            return [Kernel(*row) for row in data["kernels"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    cubin = os.path.join(folder, os.path.basename(path) + ".cubin")
    base = [nvcc, "-std=c++17", f"-gencode=arch=compute_{ARCH},code=sm_{ARCH}", "-DMOE_KERNELS_SM90A", f"-I{root}"]
    done = subprocess.run([*base, "-cubin", "-Xptxas", "-v", "-o", cubin, path], capture_output=True, text=True)
    ptx = subprocess.run([*base, "-ptx", "-o", cubin + ".ptx", path], capture_output=True, text=True)
    if done.returncode != 0 or ptx.returncode != 0:
        raise RuntimeError(f"{path} does not compile:\n{done.stderr}{ptx.stderr}")
    with open(cubin + ".ptx") as f:
        threads = read_threads(f.read())
    os.unlink(cubin + ".ptx")
    loops = {}
    if nvdisasm is not None:
        text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True)
        if text.returncode != 0:
            raise RuntimeError(f"{nvdisasm}: {text.stderr}")
        loops = inner_loops(text.stdout)
    found = read_log(done.stderr + done.stdout)
    dynamic = dynamic_bytes(path, root)
    kernels = [Kernel(os.path.relpath(path, root), short(plain), *found[name][:3], found[name][3], threads[name],
                      dynamic if uses_dynamic(path, plain) else 0, loops.get(name))
               for name, plain in zip(found, demangle(list(found)))]
    with open(kept, "w") as f:
        json.dump({"stamp": stamp.hexdigest(), "kernels": kernels}, f)
    return kernels


def uses_dynamic(path, plain):
    """Whether the kernel, or a function of its file that it is made of, names dynamic shared memory."""
    with open(path) as f:
        text = f.read()
    name = re.sub(r"^void ", "", plain).split("<")[0].split("(")[0].split("::")[-1]
    body = re.search(rf"\b{re.escape(name)}\s*\([^;{{]*\)\s*\{{(.*?)\n\}}", text, re.S)
    return bool(body and "extern __shared__" in body.group(1))


def compile_all(nvcc, nvdisasm, root, folder, only=None, say=None):
    os.makedirs(folder, exist_ok=True)
    paths = [p for p in sources(root) if only is None or re.search(only, os.path.relpath(p, root))]

    def one(path):
        kernels = compile_file(nvcc, nvdisasm, root, path, folder)
        if say:
            say(f"  {os.path.relpath(path, root)}: {len(kernels)} kernels")
        return kernels

    with ThreadPoolExecutor(max_workers=max(1, os.cpu_count() or 1)) as pool:
        return [k for kernels in pool.map(one, paths) for k in kernels]

