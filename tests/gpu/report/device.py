"""device.py: what the report knows of the GPUs, each number with where it is from.

Peaks are the vendor's, for dense operands. What the vendor does not say is measured by others; where a figure is for
another card of the family, its `source` says so. A number without a source has no place here.
"""
from collections import namedtuple

Fact = namedtuple("Fact", "value unit source")

DATASHEET_H100 = "NVIDIA H100 Tensor Core GPU datasheet, column H100 SXM (half of what it gives with sparsity)"
DATASHEET_H200 = "NVIDIA H200 Tensor Core GPU datasheet, column H200 SXM (half of what it gives with sparsity)"
WHITEPAPER = "NVIDIA H100 Tensor Core GPU Architecture whitepaper"
GUIDE = "CUDA C++ Programming Guide, technical specifications for compute capability 9.0"
L2 = ("Chips and Cheese, \"Nvidia's H100: Funny L2, and Tons of Bandwidth\", 2 July 2023: about 5.5 TB/s read on an "
      "H100 PCIe of 114 multiprocessors; taken as it is for both cards, so rather low for them")
CLUSTERS = ("accel-sim/gpu-app-collection #87 saw clusters of 8 on 120 of an H100's 132 multiprocessors: parts of 18, "
            "16 and 14 of them would give that, and 31 clusters of 4; chips differ, and the runtime asks the device")

_COMMON = {
    "multiprocessors": Fact(132, "", WHITEPAPER + ", H100 SXM5"),
    "tensor_flop_per_clock": Fact(4096, "flop per multiprocessor and clock, 16 bit", WHITEPAPER + ", 4 x 512 FMA"),
    "l2_bytes_per_s": Fact(5.5e12, "B/s", L2),
    "shared_bytes_per_clock": Fact(128, "B per multiprocessor and clock", GUIDE + ": 32 banks of 4 bytes"),
    "teams": Fact({0: 132, 1: 66, 2: 31}, "clusters of 1, 2 and 4 blocks at once", CLUSTERS),
}

DEVICES = {
    "H100 SXM": dict(_COMMON,
                     bf16_flop_per_s=Fact(989.4e12, "flop/s", DATASHEET_H100),
                     fp8_flop_per_s=Fact(1978.9e12, "flop/s", DATASHEET_H100),
                     dram_bytes_per_s=Fact(3.35e12, "B/s", DATASHEET_H100)),
    "H200": dict(_COMMON,
                 bf16_flop_per_s=Fact(989.4e12, "flop/s", DATASHEET_H200),
                 fp8_flop_per_s=Fact(1978.9e12, "flop/s", DATASHEET_H200),
                 dram_bytes_per_s=Fact(4.8e12, "B/s", DATASHEET_H200)),
}

# What a multiprocessor of sm_90 holds, for the occupancy.
LIMITS = {
    "threads": Fact(2048, "threads", GUIDE),
    "blocks": Fact(32, "blocks", GUIDE),
    "registers": Fact(65536, "registers", GUIDE),
    "register_unit": Fact(256, "registers of a warp, rounded up to", "CUDA occupancy calculator, cc 9.0"),
    "warp_unit": Fact(4, "warps of a block, rounded up to, when registers are counted", "CUDA occupancy calculator"),
    "shared": Fact(228 * 1024, "bytes", GUIDE),
    "shared_block": Fact(227 * 1024, "bytes of one block", GUIDE),
    "shared_reserved": Fact(1024, "bytes that the system takes for each block", GUIDE),
    "shared_unit": Fact(128, "bytes of a block, rounded up to", "CUDA occupancy calculator"),
}


def clock(device):
    """The clock at which the peak of 16-bit products is the vendor's."""
    d = DEVICES[device]
    return d["bf16_flop_per_s"].value / d["multiprocessors"].value / d["tensor_flop_per_clock"].value


def occupancy(threads, registers, shared):
    """Blocks that a multiprocessor holds at once, and its share of warps in percent, and what ends it."""
    limit = {name: fact.value for name, fact in LIMITS.items()}
    warps = -(-threads // 32)
    rounded = -(-warps // limit["warp_unit"]) * limit["warp_unit"]
    of_warp = -(-registers * 32 // limit["register_unit"]) * limit["register_unit"]
    of_block = -(-(shared + limit["shared_reserved"]) // limit["shared_unit"]) * limit["shared_unit"]
    bounds = {
        "warps": limit["threads"] // 32 // warps,
        "blocks": limit["blocks"],
        "registers": limit["registers"] // (of_warp * rounded) if registers else limit["blocks"],
        "shared": 0 if shared > limit["shared_block"] else limit["shared"] // of_block,
    }
    blocks = min(bounds.values())
    return blocks, 100.0 * blocks * warps * 32 / limit["threads"], min(bounds, key=bounds.get)
