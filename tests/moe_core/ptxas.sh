#!/usr/bin/env bash
# ptxas.sh NVCC ARCH ROOT PTX FILE.cu...: compiles each kernel file and fails when the assembler reports spills or a
# stack frame. PTX: a folder with what the build has made of the files for sm_90a, of which then only the assembler's
# part is done again; empty: none.
set -u
nvcc=$1
arch=$2
root=$3
ptx=$4
shift 4
kernels=0
assemble() {
    local made=$ptx/$(basename "$1" .cu).ptx
    if [ "$arch" = 90a ] && [ -n "$ptx" ] && [ -f "$made" ]; then
        "$(dirname "$(readlink -f "$nvcc")")/ptxas" -arch=sm_90a -v -o /dev/null "$made"
    else
        "$nvcc" -std=c++17 -gencode="arch=compute_$arch,code=sm_$arch" -I"$root" -cubin -Xptxas -v -o /dev/null "$1"
    fi
}
for file in "$@"; do
    grep -q __global__ "$file" || continue # launches only
    log=$(assemble "$file" 2>&1) || { echo "$log"; exit 1; }
    found=$(grep -c 'Compiling entry function' <<<"$log")
    clean=$(grep -c ' 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads' <<<"$log")
    grep -E 'Compiling entry|spill|Used' <<<"$log" | sed "s|^|$(basename "$file"): |"
    # Warp-group products one after the other, instead of side by side: the kernel is right, and slow.
    if grep 'Potential Performance Loss' <<<"$log"; then
        echo "FAILED: $file"
        exit 1
    fi
    if [ "$found" -lt 1 ] || [ "$found" != "$clean" ]; then
        echo "FAILED: $file: $found kernels, $clean without spills"
        exit 1
    fi
    kernels=$((kernels + found))
done
echo "$kernels kernels, no spills"
