#!/usr/bin/env python3
"""mutants.py: kernels with a mistake each, which the emulator must find, by the words that it must say.

    mutants.py SOURCE BUILD CXX [NAME...]

A mutant is a change of one kernel's PTX: the instructions that it leaves out or changes are the program's own (inline
assembly), so the compiler moves them and does not rewrite them; for scales, the only reads and products of their kind.
One kernel is translated and compiled in the place of the build's own, and the part `product` of gpu_kernels runs on it,
or `product8`, for the kernels of FP8 by FP8; they also run without a mistake, which must be right.
Changing the CUDA source was rejected: the compiler takes minutes for the files of which one kernel is needed.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ptx'))
import translate  # noqa: E402
from reader import Module  # noqa: E402

HOPPER = 'gemm_hopper', '_Z11gemm_hopperILi0E13__nv_bfloat16Lb0EEv9gemm_args'
SCALED = 'gemm_scaled', '_Z11gemm_scaledILi0E13__nv_bfloat16S0_Lb0EEv9gemm_args'
MMA = 'gemm_mma', '_Z8gemm_mmaILi0E13__nv_bfloat16Ev9gemm_args'
PLAN = 'gemm_plan', '_Z9gemm_plan14gemm_plan_args'
FP8 = 'gemm_scaled', '_Z11gemm_scaledILi0E13__nv_fp8_e5m213__nv_bfloat16Lb0EEv9gemm_args'
FP8_GRAD = 'gemm_scaled', '_Z11gemm_scaledILi2E13__nv_fp8_e5m2fLb0EEv9gemm_args'
COLUMNS = 'quantize', '_Z13round_columnsI13__nv_bfloat16Ev8Rounding'
TURN = 'quantize', '_Z12turn_weightsPK16moe_linear_groupPKllllPh'

OF_FP8 = FP8, FP8_GRAD, COLUMNS, TURN

RACE = 'race in shared memory'
SYNC = r'bar\.warp\.sync\s+-1;'
# wait_a parity: the operand behind the barrier's address.
WAIT = r'(mbarrier\.try_wait\.parity\.shared::cta\.b64\s+\w+,\s*\[[^\]]*\],\s*)(%r\d+)'
INIT = r'(mbarrier\.init\.shared::cta\.b64\s+\[[^\]]*\],\s*)(%r\d+)'
STRIDE = r'\b4611686293305360384\b'  # swizzle of 128 bytes, stride 1024, leading 16
SET_ROWS = r'tensormap\.replace\.tile\.global_dim\.shared::cta\.b1024\.b32\s+(\[[^\]]*\]),\s*1,\s*(%r\d+);'
ONE_MORE = (r'{ .reg .b32 more; add.s32 more, \2, 1; '
            r'tensormap.replace.tile.global_dim.shared::cta.b1024.b32 \1, 1, more; }')

# A read of a scale, and a product of two; the scale beside it in memory is that of the row's next block, or the one
# before it, and there is one: a row of the product has an even number of blocks.
SCALE = r'ld\.global\.nc\.f32\s+(%f\d+),\s*\[(%rd\d+)\];'
BESIDE = r'{ .reg .b64 other; xor.b64 other, \2, 4; ld.global.nc.f32 \1, [other]; }'
TWO_SCALES = r'ld\.global\.nc\.v2\.f32\s+\{(%f\d+),\s*(%f\d+)\}'
SCALES_TIMES = r'mul\.f32\s+(%f\d+),\s*(%f\d+),\s*(%f\d+);'
# Whether wgmma adds to its sums: the first one of a block of scales does not.
ADDS = r'setp\.ne\.b32\s+p,\s*%r\d+,\s*0;'

# name: (kernel, pattern, which of its matches: from, to (None: the last), replacement, order, words)
MUTANTS = {
    'syncwarp before a map is changed': (PLAN, SYNC, 0, 1, '', 'random', RACE),
    'map one row long': (PLAN, SET_ROWS, 0, None, ONE_MORE, 'random', 'out of bounds: row'),
    'syncwarp before a stage is given back': (HOPPER, SYNC, 0, 1, '', 'starving', 'deadlock'),
    'stage given back early': (HOPPER, r'(wgmma\.wait_group\.sync\.aligned\s+)1;', 0, None, r'\g<1>2;', 'random', RACE),
    'sums used before the wait': (HOPPER, r'wgmma\.wait_group\.sync\.aligned\s+0;', 0, None, '', 'random',
                                  'a register of wgmma is used before wgmma.wait_group'),
    'sums touched without a fence': (HOPPER, r'wgmma\.fence\.sync\.aligned;', 0, None, '', 'random',
                                     'no wgmma.fence'),
    'map not acquired': (HOPPER, r'fence\.proxy\.tensormap::generic\.acquire\.gpu\s+[^;]*;', 0, 1, '', 'random',
                         'has not acquired it'),
    'kernel before not waited for': (HOPPER, r'griddepcontrol\.wait;', 0, None, '', 'random',
                                     'a read before griddepcontrol.wait'),
    'parity of the full stages': (HOPPER, WAIT, 0, 1, r'\g<1>0', 'random', RACE),
    'parity of the empty stages': (HOPPER, WAIT, 2, 3, r'\g<1>1', 'random', 'more arrivals than the mbarrier expects'),
    # Seven of eight would be enough: of the four warps of a group one may speak for all.
    'half of the arrivals': (HOPPER, INIT, 1, 2, r'\g<1>4', 'random', RACE),
    'one arrival too many': (HOPPER, INIT, 1, 2, r'\g<1>9', 'random', 'deadlock'),
    'expect_tx of too few bytes': (HOPPER, r'(mbarrier\.arrive\.expect_tx[^;]*,\s*)%r\d+;', 0, None, r'\g<1>49024;',
                                   'descending', 'more bytes arrive than the mbarrier was told of'),
    'expect_tx of too many bytes': (HOPPER, r'(mbarrier\.arrive\.expect_tx[^;]*,\s*)%r\d+;', 0, None, r'\g<1>49280;',
                                    'random', 'deadlock'),
    'descriptor stride': (HOPPER, STRIDE, 0, None, str(0x4000002000010000), 'random', 'tolerances'),
    'cp.async not waited for': (MMA, r'(cp\.async\.wait_group\s+)1;', 0, None, r'\g<1>2;', 'random', RACE),
    'block barrier left out': (MMA, r'bar\.sync\s+0;', 1, 2, '', 'random', RACE),
    'barriers not made known': (HOPPER, r'fence\.(mbarrier_init\.release\.cluster|proxy\.async\.shared::cta);', 0, None,
                                '', 'random', 'without a fence that makes it known to the copy engine'),
    'FP8 sums used before the wait': (FP8, r'wgmma\.wait_group\.sync\.aligned\s+0;', 0, None, '', 'random',
                                      'a register of wgmma is used before wgmma.wait_group'),
    'FP8 gradient: one barrier of a stage': (FP8_GRAD, INIT, 2, 3, r'\g<1>9', 'random', 'deadlock'),
    "FP8: a row's scale of another block": (FP8, SCALE, 1, 3, BESIDE, 'random', 'tolerances'),
    "FP8: a weight's scale left out": (FP8, SCALES_TIMES, 0, 2, r'mov.f32 \1, \3;', 'random', 'tolerances'),
    'FP8: sums of the block before kept': (FP8, ADDS, 0, 1, 'setp.eq.b32 p, 0, 0;', 'random', 'tolerances'),
    'FP8 gradient: scale of the column beside': (FP8_GRAD, TWO_SCALES, 0, None,
                                                 r'ld.global.nc.v2.f32 {\2,\1}', 'random', 'tolerances'),
    'columns: largest read early': (COLUMNS, r'bar\.sync\s+0;', 0, 1, '', 'random', RACE),
    'columns: bytes read early': (COLUMNS, r'bar\.sync\s+0;', 1, 2, '', 'random', RACE),
    'weights turned early': (TURN, r'bar\.sync\s+0;', 0, 1, '', 'random', RACE),
    'proxy fence before wgmma': (SCALED, r'fence\.proxy\.async\.shared::cta;', 1, None, '', 'random',
                                 'no fence.proxy.async'),
}


def changed(body, pattern, begin, end, replacement):
    """The body with some matches of the pattern replaced; all of them, where there is no end."""
    found = list(re.finditer(pattern, body))
    chosen = found[begin:end]
    if not chosen or (end is not None and len(chosen) != end - begin):
        raise SystemExit(f'{len(found)} matches of {pattern}')
    for match in reversed(chosen):
        body = body[:match.start()] + match.expand(replacement) + body[match.end():]
    return body


def build(source, build_folder, cxx, mutant, folder):
    """The library of the mutant: its path."""
    (file, name), pattern, begin, end, replacement = mutant[:5]
    with open(os.path.join(build_folder, 'tests/kernels_emu', file + '.ptx'), encoding='utf-8') as text:
        module = Module(text.read())
    module.entries = [entry for entry in module.entries if entry.name == name]
    if len(module.entries) != 1:
        raise SystemExit(f'{file} has no kernel {name}')
    module.entries[0].body = changed(module.entries[0].body, pattern, begin, end, replacement)
    lines, unmodelled = translate.translated(module, source)
    if unmodelled:
        raise SystemExit('not modelled: ' + '; '.join(unmodelled))
    made = os.path.join(folder, 'mutant')
    with open(made + '.cc', 'w', encoding='utf-8') as text:
        text.write('\n'.join(lines) + '\n')
    objects = sorted(glob.glob(os.path.join(build_folder, 'tests/kernels_emu/CMakeFiles/kernels_emu_code.dir/*.o')))
    for command in (
            [cxx, '-w', '-O0', '-ffp-contract=off', '-fPIC', '-fvisibility=hidden', '-std=c++17', '-I' + source, '-c',
             '-o', made + '.o', made + '.cc'],
            [cxx, '-shared', '-o', made + '.so', *objects, made + '.o',
             os.path.join(build_folder, 'lib/libkernels_emu_machine.a')]):
        subprocess.run(command, check=True)
    return made + '.so'


def product(build_folder, library, order, *parts):
    """The code and the words of parts of gpu_kernels on that library."""
    paths = [os.path.join(build_folder, p) for p in ('tests/kernels_emu/lib', 'lib/hostnccl', 'lib')]
    env = dict(os.environ, LD_LIBRARY_PATH=':'.join(paths), HOSTCUDA_CODE=library, HOSTCUDA_SMS='3',
               KERNELS_EMU_ORDER=order, KERNELS_EMU_SEED='1')
    done = subprocess.run([os.path.join(build_folder, 'tests/gpu_kernels'), '--seed', '1', '--sample', '1', *parts],
                          env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def is_found(source, build_folder, cxx, name):
    mutant = MUTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        code, said = product(build_folder, build(source, build_folder, cxx, mutant, folder), mutant[5],
                             'product8' if mutant[0] in OF_FP8 else 'product')
    found = code not in (0, 2, 3) and mutant[6] in said
    print(('found: ' if found else f'NOT FOUND, code {code}: ') + name + ('' if found else '\n' + said), flush=True)
    return found


def is_right(build_folder):
    """Without a mistake nothing is found."""
    rights = []
    for order in sorted({mutant[5] for mutant in MUTANTS.values()}):
        code, said = product(build_folder, os.path.join(build_folder, 'tests/kernels_emu/kernels_emu.so'), order,
                             'product', 'product8')
        rights.append(code == 0)
        print(f'{"right" if code == 0 else "WRONG"} without a mistake, {order}' + ('' if code == 0 else '\n' + said),
              flush=True)
    return all(rights)


def main():
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    found = [is_found(*sys.argv[1:4], name) for name in sys.argv[4:] or MUTANTS]
    return 0 if is_right(sys.argv[2]) and all(found) else 1


if __name__ == '__main__':
    sys.exit(main())
