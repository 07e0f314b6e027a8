#!/usr/bin/env python3
"""check_moe_alone.py: moe_core needs neither kernels/ nor hostnccl/ nor trace/ to be compiled.

A copy of moe_core/ and common/ in an empty folder, and each of its files through the compiler without code
(-fsyntax-only), against the headers of NCCL and of the CUDA runtime that are given. A planted include of each folder
that is not there must fail first: otherwise the copy would prove nothing.

  check_moe_alone.py COMPILER HEADERS...
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile

import tree

FOREIGN = {"kernels": "kernels/index.h", "hostnccl": "hostnccl/cuda/hostcuda.h", "trace": "trace/op.h"}
OPTIONS = ["-fsyntax-only", "-std=gnu11", "-D_GNU_SOURCE", "-Wno-psabi", '-DROLL_VERSION="0"']


def compiled(compiler, headers, top, path):
    options = [*OPTIONS, "-I", top, "-isystem", os.path.join(top, "moe_core/host/plain")]
    for folder in headers:
        options += ["-isystem", folder]
    if path.endswith("_avx2.c"):
        options += ["-mavx2", "-mf16c", "-mfma"] if os.uname().machine == "x86_64" else []
    return subprocess.run([compiler, *options, os.path.join(top, path)], capture_output=True, text=True)


def main(compiler, headers):
    with tempfile.TemporaryDirectory(prefix="moe_alone_") as top:
        files = [f for f in tree.listed("moe_core", "common") if f.endswith((".c", ".h", ".def"))]
        for path in files:
            os.makedirs(os.path.dirname(os.path.join(top, path)), exist_ok=True)
            shutil.copyfile(os.path.join(tree.ROOT, path), os.path.join(top, path))
        # The headers that stand in for the vendor's lie in hostnccl/: a copy, so that the folder itself is not in
        # reach.
        for i, folder in enumerate(headers):
            if os.path.abspath(folder).startswith(tree.ROOT + os.sep):
                headers[i] = os.path.join(top, "headers")
                shutil.copytree(folder, headers[i])
        faults = []
        for folder, name in FOREIGN.items():
            if not os.path.isfile(os.path.join(tree.ROOT, name)):
                faults.append(f"{name} is gone: name another header of {folder}/ here")
            with open(os.path.join(top, "planted.c"), "w", encoding="utf-8") as planted:
                planted.write(f'#include "{name}"\n')
            if compiled(compiler, headers, top, "planted.c").returncode == 0:
                faults.append(f"a planted #include \"{name}\" was found: the copy proves nothing")
        sources = [f for f in files if f.startswith("moe_core/") and f.endswith(".c")]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for path, done in zip(sources, pool.map(lambda f: compiled(compiler, headers, top, f), sources)):
                if done.returncode != 0:
                    faults.append(f"{path}: not without its neighbours:\n{done.stderr[:1500]}")
    tree.end(faults, f"{len(sources)} files of moe_core are compiled where kernels/, hostnccl/ and trace/ are not")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
