#!/usr/bin/env python3
"""Compares prototypes.txt with ext.def, and with the vendors' headers and libraries where they are.

usage: check_prototypes.py CC PROTOTYPES EXT_DEF [CUDA_INCLUDE]

Transformer Engine is not there on most machines and its wheel is large, so it is never downloaded:
ROLLCALL_TE_WHEEL=FILE.whl (pip download --no-deps transformer-engine-cu12) or the folder that it was unpacked to has
its headers and symbols compared too. What was not compared is said on standard error.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import zipfile

import prototypes

CC, PROTOTYPES, EXT_DEF = sys.argv[1:4]
CUDA = sys.argv[4] if len(sys.argv) > 4 else ""
failures = []


def fail(text):
    failures.append(text)
    print("FAILED:", text)


def kinds(parameters):
    return [kind for kind, _ in parameters]


def bare(name):
    """The name in the source of a C++ function's mangled one."""
    match = re.match(r"_Z(\d+)", name)
    return name[match.end():match.end() + int(match.group(1))] if match else name


def wrapped():
    """The rows of ext.def: name to kinds, None for those that are forwarded without a prototype."""
    program = ('#define ROLL_EXT_CALL(name, library, ret, absent, params, ...) @@ ret name params @@\n'
               '#define ROLL_EXT_DENSE(name, library, ret, absent, params, ...) @@ ret name params @@\n'
               '#define ROLL_EXT_NOTE(n, name, library, op) @@ void name @@\n'
               f'#include "{os.path.abspath(EXT_DEF)}"\n')
    text = subprocess.run([CC, "-E", "-P", "-x", "c", "-"], input=program, capture_output=True, text=True,
                          check=True).stdout
    out = {}
    for row in re.findall(r"@@\s*(.*?)\s*@@", text, flags=re.S):
        returns, name, parameters = re.match(r"^(\w+) (\w+)\s*(?:\((.*)\))?$", row, flags=re.S).groups()
        out[name] = None if parameters is None else (returns, kinds(prototypes.parameters_of(parameters)))
    return out


def declared(headers):
    """Functions that C headers declare: name to kinds. No C parser: what these headers need."""
    out = {}
    for path in headers:
        text = re.sub(r"/\*.*?\*/|//[^\n]*|^\s*#[^\n]*", " ", open(path, errors="replace").read(), flags=re.S | re.M)
        for before, name, parameters in re.findall(r"(\w+)\s+((?:nvte_|cublas)\w+)\s*\(([^()]*)\)\s*;", text):
            if before != "return":
                out[name] = kinds(prototypes.parameters_of(parameters))
    return out


def compare(functions, headers, what):
    known, compared = declared(headers), 0
    for f in functions:
        name = bare(f.name)
        if name == "nvte_multi_stream_cublas_gemm":
            continue  # in no header since 2.8: its parameters are nvte_multi_tensor_gemm's
        if name not in known:
            fail(f"{what} does not declare {name}")
        elif known[name] != kinds(f.parameters):
            fail(f"{f.name}: {what} has {known[name]}, prototypes.txt {kinds(f.parameters)}")
        compared += 1
    print(f"{what}: {compared} prototypes compared")


def transformer_engine(functions, folder):
    compare(functions, glob.glob(f"{folder}/**/include/transformer_engine/*.h", recursive=True), "Transformer Engine")
    for library in glob.glob(f"{folder}/**/libtransformer_engine.so", recursive=True):
        listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                                check=True).stdout
        symbols = {line.split()[-1].split("@")[0] for line in listed.splitlines() if line}
        for f in functions:
            # The C name ended with 2.7; the C++ one has taken its place.
            if f.name not in symbols and f.name != "nvte_multi_stream_cublas_gemm":
                fail(f"{library} has no {f.name}")
        for name in sorted(symbols):
            if re.match(
                r"nvte_(ep_(?!handle_mem_size)|grouped_gemm|grouped_.*bias_add|fused_(moe|topk|score)|"
                r"multi_(un)?padding)",
                name):
                if name not in {f.name for f in functions}:
                    fail(f"{library} has {name}, which ext.def does not know")
        print(f"{library}: {len(symbols)} symbols looked through")


functions = prototypes.read(PROTOTYPES)
ours = wrapped()
for f in functions:
    if f.name not in ours:
        fail(f"{f.name} is in prototypes.txt and not in ext.def")
    elif ours[f.name] is not None and ours[f.name] != (f.returns, kinds(f.parameters)):
        fail(f"{f.name}: ext.def has {ours[f.name]}, prototypes.txt {(f.returns, kinds(f.parameters))}")
for name in sorted(set(ours) - {f.name for f in functions}):
    fail(f"{name} is in ext.def and not in prototypes.txt")
print(f"ext.def: {len(ours)} functions compared")

blas = [os.path.join(CUDA, name) for name in ("cublas_api.h", "cublasLt.h")]
if CUDA and all(map(os.path.exists, blas)):
    compare([f for f in functions if f.library != "transformer_engine"], blas, "cuBLAS")
else:
    print("SKIPPED: no headers of cuBLAS to compare with", file=sys.stderr)

wheel = os.environ.get("ROLLCALL_TE_WHEEL", "")
te = [f for f in functions if f.library == "transformer_engine"]
if os.path.isdir(wheel):
    transformer_engine(te, wheel)
elif wheel:
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as z:
        z.extractall(folder, [n for n in z.namelist() if n.endswith(("libtransformer_engine.so", ".h"))])
        transformer_engine(te, folder)
else:
    print("SKIPPED: Transformer Engine itself: set ROLLCALL_TE_WHEEL to its wheel", file=sys.stderr)

sys.exit(1 if failures else 0)
