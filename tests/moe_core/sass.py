#!/usr/bin/env python3
"""sass.py NVCC ROOT [PTX]: compiles the grouped products and fails unless their machine code holds the matrix
instructions that are meant, and no spills. PTX: a folder with what the build has made of them for sm_90a, which then is
only assembled.

Instructions are 16 bytes, the operation is in their lowest 12 bits. So no disassembler is needed (the development
machine's CUDA has none); where there is one (nvdisasm), its words are compared with these numbers first. Also fails
when the assembler says that it serialised the matrix instructions.
"""
import collections
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HMMA, HGMMA, QGMMA = 0x23C, 0x9F0, 0x9F3
NAMES = {HMMA: "HMMA", HGMMA: "HGMMA", QGMMA: "QGMMA"}
# file, architecture, {pattern of the kernel's name: (operation, at least so many in each such kernel)}
EXPECTED = [
    ("gemm/gemm_hopper.cu", "90a", {r"gemm_hopper": (HGMMA, 4)}),
    ("gemm/gemm_scaled.cu", "90a", {r"gemm_scaled.*fp8_": (QGMMA, 4), r"gemm_scaled(?!.*fp8_)": (HGMMA, 8)}),
    ("gemm/gemm_mma.cu", "80", {r"gemm_mma": (HMMA, 32)}),
]
KERNELS = {"gemm/gemm_hopper.cu": 12, "gemm/gemm_scaled.cu": 14, "gemm/gemm_mma.cu": 6}


def fail(text):
    print(f"FAILED: {text}")
    sys.exit(1)


def compile_file(nvcc, root, ptx, source, arch, out):
    made = os.path.join(ptx, os.path.basename(source).replace(".cu", ".ptx")) if ptx and arch == "90a" else ""
    command = [nvcc, "-std=c++17", f"-gencode=arch=compute_{arch},code=sm_{arch}", f"-I{root}", "-cubin", "-Xptxas",
               "-v", "-o", out, os.path.join(root, "kernels", source)]
    if os.path.exists(made):
        command = [os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas"), f"-arch=sm_{arch}", "-v", "-o", out,
                   made]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        fail(f"{source}: {done.stderr}")
    if done.stderr.count(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads") != KERNELS[source]:
        fail(f"{source}: spills or a stack frame:\n{done.stderr}")
    if "Potential Performance Loss" in done.stdout + done.stderr:
        fail(f"{source}: the assembler serialised matrix instructions:\n{done.stderr}")


def kernels_of(path):
    """{kernel: its instructions} of a cubin, a 64-bit ELF file: sections .text.NAME."""
    with open(path, "rb") as f:
        elf = f.read()
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_at][4]
    found = {}
    for name, _, _, _, offset, length in headers:
        text = elf[names + name:elf.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            found[text[len(".text."):]] = [struct.unpack_from("<Q", elf, offset + at)[0] & 0xFFF
                                           for at in range(0, length, 16)]
    return found


def compare_with_disassembler(path, kernels):
    tool = shutil.which("nvdisasm")
    if tool is None:
        print("no nvdisasm: the numbers of the operations are taken as they were compared before")
        return
    text = subprocess.run([tool, "-c", path], capture_output=True, text=True, timeout=100).stdout
    for operation, name in NAMES.items():
        want = len(re.findall(rf"\b{name}\.", text))
        got = sum(operations.count(operation) for operations in kernels.values())
        if got != want:
            fail(f"{path}: {got} x {operation:#x}, nvdisasm has {want} x {name}")


def main():
    nvcc, root = sys.argv[1:3]
    ptx = sys.argv[3] if len(sys.argv) > 3 else ""
    os.environ["PATH"] += os.pathsep + os.path.dirname(os.path.realpath(nvcc))
    with tempfile.TemporaryDirectory() as folder:
        for source, arch, expected in EXPECTED:
            path = os.path.join(folder, f"{os.path.basename(source)}.{arch}.cubin")
            compile_file(nvcc, root, ptx, source, arch, path)
            kernels = kernels_of(path)
            compare_with_disassembler(path, kernels)
            checked = 0
            for name, operations in kernels.items():
                counts = collections.Counter(operations)
                for pattern, (operation, least) in expected.items():
                    if re.search(pattern, name):
                        checked += 1
                        if counts[operation] < least:
                            fail(f"{source} for sm_{arch}: {name}: {counts[operation]} x {NAMES[operation]}, at least "
                                 f"{least} wanted")
                print(f"{source} sm_{arch} {name}: " + ", ".join(f"{counts[o]} x {n}" for o, n in NAMES.items()
                                                                 if counts[o]))
            if checked != KERNELS[source]:
                fail(f"{source} for sm_{arch}: {checked} kernels known, {KERNELS[source]} wanted")
    print("every kernel has its matrix instructions")


main()
