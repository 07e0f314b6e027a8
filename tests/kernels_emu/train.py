#!/usr/bin/env python3
"""train.py: moe_train on the emulated kernels: every device is "cuda" (cuda_devices.c), and --check holds each loss,
gradient and parameter against the reference in double precision.

    train.py BUILD SEED [COUNT]

COUNT layouts of the table, chosen by the seed; all of them without COUNT. The seed is also that of the threads' order.
"""
import json
import os
import subprocess
import sys
import tempfile

SIZES = '--steps 2 --layers 1 --hidden 32 --ffn 32 --experts 8 --topk 2 --tokens 6 --context 4 --timeout 600 --check'
# Ranks, then what is different from the plain job.
LAYOUTS = [
    (2, ''),
    (2, '--microbatches 2 --recompute --activation geglu'),
    (4, '--ep 2 --dispatcher allgather --recompute'),
    (4, '--dispatcher deepep --probs activation'),
    (2, '--dispatcher hybridep --probs activation --vary-tokens --uneven max'),
    (2, '--dispatcher allgather --vary-tokens --uneven bound'),
    (4, '--etp 2 --ep 2 --bias --probs activation'),
    (2, '--tp 2 --shared 32 --shared-gate --bias --shared-overlap'),
    (4, '--tp 2 --tp-mode split --probs input --router mixtral --shared 8 --bias --shared-gate'),
    (4, '--tp 2 --tp-mode shard --shared 32 --shared-gate --bias --overlap'),
    (2, '--experts 32 --topk 8 --router deepseek-v3 --capacity 1 --keep-routing --recompute'),
    (2, '--topk 4 --router gpt-oss --activation clamped --bias --capacity 1 --pad-capacity'),
    (2, '--router qwen3-moe --microbatches 2 --overlap --buckets 20000 --shared 16 --bias'),
    (2, '--dtype bf16 --probs activation --layers 2'),
    (2, '--dtype f16 --vary-tokens --activation geglu-tanh'),
]


def environment(build, seed, counts):
    paths = [os.path.join(build, p) for p in ('tests/kernels_emu/lib', 'lib/hostnccl', 'lib')]
    env = {name: value for name, value in os.environ.items() if name not in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')}
    orders = 'ascending', 'descending', 'random', 'starving'
    return dict(env, LD_LIBRARY_PATH=':'.join(paths), HOSTCUDA_SMS='3', HOSTCUDA_FILL='171',
                LD_PRELOAD=os.path.join(build, 'tests/kernels_emu/lib/libkernels_emu_devices.so'),
                HOSTCUDA_CODE=os.path.join(build, 'tests/kernels_emu/kernels_emu.so'),
                KERNELS_EMU_ORDER=orders[seed % 4], KERNELS_EMU_SEED=str(seed), KERNELS_EMU_COUNTS=counts)


def kernels_in(path):
    """The names of the kernels that have run."""
    with open(path, encoding='utf-8') as file:
        return {json.loads(line)['kernel'] for line in file}


def trains(build, seed, ranks, options):
    with tempfile.TemporaryDirectory() as folder:
        counts = os.path.join(folder, 'counts')
        env = dict(environment(build, seed, counts), TMPDIR=folder)
        command = [os.path.join(build, 'bin/moe_train'), '--spawn', str(ranks), '--seed', str(seed), *SIZES.split(),
                   *options.split()]
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        kernels = kernels_in(counts) if os.path.exists(counts) else set()
    steps = sum(line.startswith('step ') for line in done.stdout.splitlines())
    right = done.returncode == 0 and steps == 2 and len(kernels) > 10
    print(f'{"right" if right else "WRONG"}, {len(kernels)} kernels: {ranks} ranks {options}'
          + ('' if right else f'\nstatus {done.returncode}\n{done.stdout}'), flush=True)
    return right


def main():
    if len(sys.argv) not in (3, 4):
        print(__doc__, file=sys.stderr)
        return 2
    build, seed = sys.argv[1], int(sys.argv[2], 0)
    count = int(sys.argv[3]) if len(sys.argv) > 3 else len(LAYOUTS)
    chosen = [LAYOUTS[(seed * count + i) % len(LAYOUTS)] for i in range(count)]
    rights = [trains(build, seed + i, *layout) for i, layout in enumerate(chosen)]
    return 0 if all(rights) else 1


if __name__ == '__main__':
    sys.exit(main())
