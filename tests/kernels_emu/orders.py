#!/usr/bin/env python3
"""orders.py: the kernels give the same bits in every order of threads (docs/MOE.md, "Results are the same in every
run"), by the digests of all that gpu_kernels compares.

    orders.py BUILD SEED SAMPLE PART...

Races are not looked for: other tests do that, and without it a run is several times shorter. With other numbers most
digests must be others, or they would say nothing; rows whose cases have no rows, or an error, have no numbers.
"""
import concurrent.futures
import json
import os
import subprocess
import sys

ORDERS = 'ascending', 'descending', 'random', 'starving'


def digests(build, order, seed, sample, parts):
    """Row of the parts -> digest."""
    paths = [os.path.join(build, p) for p in ('tests/kernels_emu/lib', 'lib/hostnccl', 'lib')]
    env = dict(os.environ, LD_LIBRARY_PATH=':'.join(paths), HOSTCUDA_SMS='3', HOSTCUDA_FILL='171',
               HOSTCUDA_CODE=os.path.join(build, 'tests/kernels_emu/kernels_emu.so'), KERNELS_EMU_ORDER=order,
               KERNELS_EMU_SEED=seed, KERNELS_EMU_RACES='0')
    done = subprocess.run([os.path.join(build, 'tests/gpu_kernels'), '--digest', '--seed', seed, '--sample', sample,
                           *parts], env=env, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f'{order}: status {done.returncode}\n{done.stdout}')
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {row['kernel']: row['digest'] for row in rows if row['shapes']}


def main():
    if len(sys.argv) < 5:
        print(__doc__, file=sys.stderr)
        return 2
    build, seed, sample, parts = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(digests, build, order, seed, sample, parts) for order in ORDERS]
        other = pool.submit(digests, build, ORDERS[0], str(int(seed) + 1), sample, parts)
        of_order = dict(zip(ORDERS, (run.result() for run in runs)))
        other = other.result()
    first, wrong = of_order[ORDERS[0]], 0
    for name, digest in first.items():
        differ = [order for order in ORDERS if of_order[order].get(name) != digest]
        wrong += len(differ) > 0
        print(f'{name}: ' + (f'OTHER BITS in {", ".join(differ)}' if differ else digest))
    rows = len(first)
    alike = [name for name in first if other.get(name) == first[name]]
    print(f'{rows} rows, {wrong} with other bits; other numbers change {rows - len(alike)} of them')
    return 1 if wrong or not first or 2 * len(alike) > rows else 0


if __name__ == '__main__':
    sys.exit(main())
