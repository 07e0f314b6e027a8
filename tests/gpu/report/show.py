"""show.py: the report as tables and as JSON: columns aligned, units in the heads, and what is left out said in words.
"""
import json

import device as devices
import plan

SCHEMA = "rollcall.kernel-report/1"
# Groups, rows of each, n, k: shapes of which gpu-check measures the same.
SHAPES = [(8, 4096, 768, 2048), (16, 2048, 768, 2048), (16, 4096, 7168, 2048), (16, 4096, 2048, 7168),
          (128, 16, 2048, 7168), (128, 512, 1536, 2048)]
GOAL = 650e12  # flop/s: the speed at which a product's demand of the L2 is given


def table(head, rows, left=1):
    """Lines of a table; the first `left` columns and the last one begin at the left."""
    cells = [list(map(str, row)) for row in [head, *rows]]
    width = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        parts = [c.ljust(width[i]) if i < left or i == len(head) - 1 else c.rjust(width[i]) for i, c in enumerate(row)]
        yield "  ".join(parts).rstrip()


def loop_words(loops):
    """The loop that matters: with matrix instructions, else the one with most traffic, else the longest."""
    if loops is None:
        return ""
    if not loops:
        return "none"
    size, mix = max(loops, key=lambda loop: (loop[1].get("matrix", 0), loop[1].get("global", 0) +
                                             loop[1].get("shared", 0) + loop[1].get("tma", 0), loop[0]))
    return f"{size}: " + ", ".join(f"{name} {count}" for name, count in sorted(mix.items(), key=lambda x: -x[1]))


def kernel_data(kernel):
    dynamic = kernel.dynamic or 0
    blocks, percent, limit = devices.occupancy(kernel.threads or 1024, kernel.registers, kernel.shared + dynamic)
    return {"file": kernel.file, "kernel": kernel.name, "registers": kernel.registers, "spilled_bytes": kernel.spills,
            "stack_bytes": kernel.stack, "static_shared_bytes": kernel.shared, "dynamic_shared_bytes": kernel.dynamic,
            "threads": kernel.threads, "blocks_per_multiprocessor": blocks, "occupancy_percent": round(percent, 1),
            "occupancy_limit": limit,
            "inner_loops": None if kernel.loops is None else
            [{"instructions": size, "mix": mix} for size, mix in kernel.loops]}


def kernel_lines(kernels):
    rows = []
    for k in kernels:
        d = kernel_data(k)
        rows.append([k.file.replace("kernels/", "", 1), k.name, k.registers, k.spills, k.shared,
                     "of the call" if k.dynamic is None else k.dynamic, k.threads or "any",
                     d["blocks_per_multiprocessor"], f"{d['occupancy_percent']:.0f}", d["occupancy_limit"],
                     loop_words(k.loops)])
    head = ["file", "kernel", "registers", "spilled B", "static B", "dynamic B", "threads", "blocks/SM", "warps %",
            "limit", "inner loop: instructions of each class"]
    return table(head, rows, left=2)


def product_data(device, kinds, shapes, paths):
    """One entry for each product and way of sharing copies."""
    out = []
    for groups, m, n, k in shapes:
        for kind in kinds:
            for name in paths:
                path = plan.PATHS[name]
                if kind == plan.WGRAD and path.widens:
                    continue  # that path has no such product
                for team_log in range(1 if kind == plan.WGRAD and path.fp8 else 3):  # nor teams for that one
                    t = plan.traffic(name, plan.Problem(kind, [m] * groups, n, k), team_log, device)
                    ceiling, level = t.ceiling(device)
                    out.append({"device": device, "product": kind, "groups": groups, "m": m, "n": n, "k": k,
                                "path": name, "blocks_of_a_team": 1 << team_log, "places": t.places, "flop": t.flop,
                                "l2_read_bytes": t.l2_bytes, "dram_bytes": t.dram_bytes + t.out_bytes,
                                "dram_least_bytes": t.dram_least + t.out_bytes,
                                "shared_bytes": t.shared_per_stage() * sum_stages(t), "busy_percent": 100 * t.busy,
                                "seconds": t.times(device), "ceiling_flop_per_s": ceiling, "ceiling_by": level,
                                "l2_bytes_per_s_at_650_tflops": t.l2_asked(GOAL)})
    return out


def sum_stages(t):
    return round(t.busy * t.longest * t.teams) << t.team_log


def product_lines(entries):
    rows = []
    for e in entries:
        ms = [f"{e['seconds'][level] * 1e3:.3f}" for level in ("tensor", "shared", "L2", "DRAM")]
        rows.append([f"{e['product']} {e['groups']}x{e['m']}x{e['n']}x{e['k']}", e["path"], e["blocks_of_a_team"],
                     f"{e['flop'] / 1e9:.0f}", f"{e['l2_read_bytes'] / 1e9:.2f}", f"{e['dram_bytes'] / 1e9:.2f}",
                     f"{e['shared_bytes'] / 1e9:.2f}", f"{e['flop'] / e['l2_read_bytes']:.0f}",
                     f"{e['busy_percent']:.0f}", *ms, f"{e['ceiling_flop_per_s'] / 1e12:.0f}",
                     f"{e['l2_bytes_per_s_at_650_tflops'] / 1e12:.1f}", e["ceiling_by"]])
    head = ["product", "path", "team", "GFLOP", "L2 GB", "DRAM GB", "shared GB", "flop/L2 B", "busy %", "tensor ms",
            "shared ms", "L2 ms", "DRAM ms", "ceiling TFLOP/s", "L2 TB/s at 650", "set by"]
    return table(head, rows, left=2)


def read_counts(path):
    """{kernel: sums over its launches} of a file that the emulator has appended to."""
    sums = {}
    with open(path) as f:
        for line in filter(str.strip, f):
            entry = json.loads(line)
            s = sums.setdefault(entry["kernel"], {"launches": 0})
            s["launches"] += 1
            for name, value in entry.items():
                if name.endswith(("_bytes", "_flop", "_boxes")) and name != "shared_bytes":
                    s[name] = s.get(name, 0) + value
    return sums


def count_data(sums, device, demangle):
    """What each kernel moved and computed, and its least time by level."""
    d = {name: fact.value for name, fact in devices.DEVICES[device].items()}
    out = []
    for (name, s), plain in zip(sums.items(), demangle(list(sums))):
        get = lambda *names: sum(s.get(n, 0) for n in names)  # noqa: E731
        read = get("global_read_bytes", "cp_async_bytes", "tma_bytes")
        flop = get("wgmma_flop", "mma_flop")
        shared = get("shared_read_bytes", "shared_written_bytes", "cp_async_bytes", "tma_bytes", "tma_zero_bytes",
                     "wgmma_shared_bytes")
        touched = get("touched_read_bytes", "touched_written_bytes")
        peak = d["fp8_flop_per_s" if "e4m3" in plain or "e5m2" in plain else "bf16_flop_per_s"]
        whole = d["shared_bytes_per_clock"] * devices.clock(device) * d["multiprocessors"]
        seconds = {"tensor": flop / peak, "shared": shared / whole, "L2": read / d["l2_bytes_per_s"],
                   "DRAM": touched / d["dram_bytes_per_s"]}
        level = max(seconds, key=seconds.get)
        out.append({"device": device, "kernel": plain, "launches": s["launches"], "flop": flop, "l2_read_bytes": read,
                    "written_bytes": get("global_written_bytes"), "shared_bytes": shared, "dram_bytes": touched,
                    "seconds": seconds, "least_s": seconds[level], "set_by": level})
    return out


def count_lines(entries):
    rows = [[e["kernel"], e["launches"], f"{e['flop'] / 1e6:.2f}", f"{e['l2_read_bytes'] / 1e6:.3f}",
             f"{e['written_bytes'] / 1e6:.3f}", f"{e['shared_bytes'] / 1e6:.3f}", f"{e['dram_bytes'] / 1e6:.3f}",
             f"{e['least_s'] * 1e6:.2f}", e["set_by"]] for e in entries]
    head = ["kernel", "launches", "matrix MFLOP", "read MB", "written MB", "shared MB", "touched MB", "least us",
            "set by"]
    return table(head, rows)


def source_lines(names):
    said = {}
    for name in names:
        for what, fact in devices.DEVICES[name].items():
            said.setdefault((what, str(fact.value), fact.unit, fact.source), []).append(name)
    for (what, value, unit, source), of in said.items():
        yield f"  {', '.join(of)}: {what} {value} {unit}: {source}".replace("  :", ":")
    for what, fact in devices.LIMITS.items():
        yield f"  occupancy: {what} {fact.value} {fact.unit}: {fact.source}"
