#!/usr/bin/env python3
"""torch_grouped.py: how fast torch._grouped_mm multiplies the shapes that gpu_kernels times (kernels_gemm.c), one line
of JSON each.

Only the forward product, bfloat16, row offsets on the device, as the library's own. Exit 3 where torch, its grouped
product or a GPU is missing.
"""
import json
import statistics
import sys

CALLS, TIMES = 8, 11
# groups, rows (of a group, or of all when ragged), n, k, ragged
SHAPES = [(8, 4096, 768, 2048, False), (16, 2048, 768, 2048, False), (16, 4096, 7168, 2048, False),
          (16, 4096, 2048, 7168, False), (16, 8192, 8192, 5120, True), (128, 16, 2048, 7168, False),
          (128, 65536, 1536, 2048, True)]


def counts(groups, rows, ragged):
    """The rows of each group: those of race() in kernels_gemm.c."""
    if not ragged:
        return [rows] * groups
    some = [2 * rows * (g + 1) // (groups * (groups + 1)) for g in range(groups - 1)]
    return some + [rows - sum(some)]


def main():
    try:
        import torch
    except ImportError:
        print("torch_grouped: no torch", file=sys.stderr)
        return 3
    if not hasattr(torch, "_grouped_mm") or not torch.cuda.is_available():
        print("torch_grouped: no torch._grouped_mm, or no GPU", file=sys.stderr)
        return 3
    for groups, m, n, k, ragged in SHAPES:
        rows = counts(groups, m, ragged)
        x = torch.rand(sum(rows), k, device="cuda", dtype=torch.bfloat16) * 2 - 1
        w = torch.rand(groups, n, k, device="cuda", dtype=torch.bfloat16) * 2 - 1
        ends = torch.tensor(rows, device="cuda").cumsum(0).to(torch.int32)
        times = []
        for i in range(TIMES + 1):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(CALLS):
                torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / CALLS)
        ms = statistics.median(times[1:])
        name = f"torch forward bf16 {groups}x{'ragged ' if ragged else ''}{m}x{n}x{k}"
        print(json.dumps({"kernel": name, "shapes": 1, "worst_in_tolerances": 0, "large_shape_ms": ms,
                          "tflops": round(2 * sum(rows) * n * k / ms * 1e-9), "right": True}), flush=True)
        del x, w
    return 0


sys.exit(main())
