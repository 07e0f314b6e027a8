#!/usr/bin/env python3
"""loads.py NVCC ROOT [PTX]: compiles permute and unpermute and fails unless their machine code moves 16 bytes at a
time, and issues the loads before it waits for one. PTX: a folder with what the build has made of them for sm_90a, which
then is only assembled.

A compiler that prefers fewer registers loads one piece, uses it, loads the next: right, and a third of the speed. So
this counts the longest run of 16-byte loads that nothing interrupts which needs their data. Operations are the lowest
12 bits of an instruction of 16 bytes; the width of a load or store is bits 73 to 75, 6 for 16 bytes.
"""
import os
import re
import struct
import subprocess
import sys
import tempfile

LDG, STG, FFMA, BRANCH = 0x981, 0x986, {0x223, 0x823, 0xC23, 0x423}, 0x947
WIDE = 6
# file, pattern of the kernel's name, loads in a row at least
EXPECTED = [
    ("gather.cu", r"map_gatherI5uint4", 4),
    ("scatter.cu", r"^_Z11map_scatterI13__nv_bfloat16Li8", 8),
    ("scatter.cu", r"^_Z11map_scatterI6__halfLi8", 8),
    ("scatter.cu", r"^_Z11map_scatterIfLi4", 8),
    ("scatter.cu", r"map_scatter_backwardI13__nv_bfloat16Li8", 4),
]


def fail(text):
    print(f"FAILED: {text}")
    sys.exit(1)


def instructions(path):
    """{kernel: [(operation, width)]} of a cubin."""
    with open(path, "rb") as f:
        elf = f.read()
    table, = struct.unpack_from("<Q", elf, 0x28)
    _, count, names_at = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * 64) for i in range(count)]
    names, found = headers[names_at][4], {}
    for name, _, _, _, offset, length in headers:
        text = elf[names + name:elf.index(b"\0", names + name)].decode()
        if text.startswith(".text."):
            words = [struct.unpack_from("<QQ", elf, offset + at) for at in range(0, length, 16)]
            found[text[6:]] = [(low & 0xFFF, high >> 9 & 7) for low, high in words]
    return found


def longest_run(code):
    """Most 16-byte loads before the first arithmetic on floats, store or jump that follows them."""
    best = run = 0
    for operation, width in code:
        if operation == LDG and width == WIDE:
            run += 1
        elif operation in FFMA or operation in (STG, BRANCH):
            run = 0
        best = max(best, run)
    return best


def command_of(nvcc, root, ptx, source, out):
    made = os.path.join(ptx, source.replace(".cu", ".ptx")) if ptx else ""
    if os.path.exists(made):
        return [os.path.join(os.path.dirname(os.path.realpath(nvcc)), "ptxas"), "-arch=sm_90a", "-o", out, made]
    return [nvcc, "-std=c++17", "-arch=sm_90a", f"-I{root}", "-cubin", "-o", out, os.path.join(root, "kernels", source)]


def main():
    nvcc, root, ptx = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
    with tempfile.TemporaryDirectory() as folder:
        for source in sorted({s for s, _, _ in EXPECTED}):
            out = os.path.join(folder, source + ".cubin")
            done = subprocess.run(command_of(nvcc, root, ptx, source, out), capture_output=True, text=True, timeout=900)
            if done.returncode != 0:
                fail(f"{source}: {done.stderr}")
            code = instructions(out)
            for _, pattern, least in (e for e in EXPECTED if e[0] == source):
                matching = [name for name in code if re.search(pattern, name)]
                if len(matching) != 1:
                    fail(f"{source}: {len(matching)} kernels match {pattern}: {sorted(code)}")
                run, stores = longest_run(code[matching[0]]), sum(op == STG and width == WIDE
                                                                  for op, width in code[matching[0]])
                print(f"{source}: {matching[0][:60]}: {run} loads of 16 bytes in a row, {stores} stores of 16 bytes")
                if run < least or stores < 1:
                    fail(f"{source}: {matching[0]}: {run} loads in a row, not {least}; {stores} stores of 16 bytes")


if __name__ == "__main__":
    main()
