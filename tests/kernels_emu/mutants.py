#!/usr/bin/env python3
"""mutants.py: kernels with a mistake each, which the emulator must find, by the words that it must say.

    mutants.py SOURCE BUILD NVCC CXX [NAME...]

A mutant is a change of text. It is compiled, translated and linked with the build's other kernels; then the layer part
of gpu_kernels runs on it. Without names: those that compile in seconds. `all`: the others, too (two minutes).
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

HOPPER, PLAN = 'kernels/gemm/gemm_hopper.cu', 'kernels/gemm/gemm_plan.cu'
INSTRUCTIONS = 'kernels/gemm/hopper.cuh'
COPY_MAP = '    reinterpret_cast<uint32_t *>(scratch)[lane] = reinterpret_cast<const uint32_t *>(from)[lane];\n'
# name: (file that is compiled, file that is changed, text, its replacement, order, words)
MUTANTS = {
    'syncwarp before a map is changed': (PLAN, PLAN, COPY_MAP + '    __syncwarp();\n', COPY_MAP, 'random',
                                         'race in shared memory'),
    'map one row long': (PLAN, INSTRUCTIONS, '::"r"(map), "r"(rows)', '::"r"(map), "r"(rows + 1)', 'random',
                         'tolerances'),
    'syncwarp before a stage is given back': (HOPPER, HOPPER, '        __syncwarp(); /* a lane', '        /* a lane',
                                              'starving', 'deadlock'),
    'stage given back early': (HOPPER, HOPPER, 'wgmma_wait<1>();', 'wgmma_wait<2>();', 'random',
                               'race in shared memory'),
    'sums used before the wait': (HOPPER, HOPPER, '    wgmma_wait<0>();\n', '', 'random',
                                  'a register of wgmma is used before wgmma.wait_group'),
    'map not acquired': (HOPPER, HOPPER, '            map_acquire(map_a);\n', '', 'random', 'has not acquired it'),
    'kernel before not waited for': (HOPPER, HOPPER, '    wait_for_primary();\n', '', 'random',
                                     'a read before griddepcontrol.wait'),
}
QUICK = [name for name, mutant in MUTANTS.items() if mutant[0] == PLAN]


def build(source, build_folder, nvcc, cxx, mutant, folder):
    """The library of the mutant: its path."""
    compiled, changed, text, replacement = mutant[:4]
    for part in ('kernels', 'moe_core/include', 'moe_core/base'):
        shutil.copytree(os.path.join(source, part), os.path.join(folder, part))
    path = os.path.join(folder, changed)
    with open(path, encoding='utf-8') as file:
        before = file.read()
    if text not in before:
        raise SystemExit(f'{changed} has no longer the text: {text}')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(before.replace(text, replacement, 1))
    made, name = os.path.join(folder, 'mutant'), os.path.splitext(os.path.basename(compiled))[0]
    objects = glob.glob(os.path.join(build_folder, 'tests/kernels_emu/CMakeFiles/kernels_emu_code.dir/*.o'))
    others = [o for o in objects if os.path.basename(o) != name + '.cc.o']
    if len(others) != len(objects) - 1:
        raise SystemExit('the kernels of the build are not where they were')
    translate = os.path.join(source, 'tests/kernels_emu/ptx/translate.py')
    for command in (
            [nvcc, '-ptx', '-arch=sm_90a', '-O3', '-lineinfo', '-std=c++17', '-DMOE_KERNELS_SM90A', '-I' + folder,
             '-I' + os.path.join(folder, 'moe_core/include'), '-o', made + '.ptx', os.path.join(folder, compiled)],
            [sys.executable, '-B', translate, made + '.ptx', made + '.cc', '--root', folder, '--strict'],
            [cxx, '-w', '-O1', '-ffp-contract=off', '-fPIC', '-fvisibility=hidden', '-std=c++17', '-I' + source, '-c',
             '-o', made + '.o', made + '.cc'],
            [cxx, '-shared', '-o', made + '.so', *others, made + '.o',
             os.path.join(build_folder, 'lib/libkernels_emu_machine.a')]):
        subprocess.run(command, check=True)
    return made + '.so'


def is_found(source, build_folder, nvcc, cxx, name):
    mutant = MUTANTS[name]
    with tempfile.TemporaryDirectory() as folder:
        library = build(source, build_folder, nvcc, cxx, mutant, folder)
        paths = [os.path.join(build_folder, p) for p in ('tests/kernels_emu/lib', 'lib/hostnccl', 'lib')]
        env = dict(os.environ, LD_LIBRARY_PATH=':'.join(paths), HOSTCUDA_CODE=library, HOSTCUDA_SMS='3',
                   KERNELS_EMU_ORDER=mutant[4], KERNELS_EMU_SEED='1')
        command = [os.path.join(build_folder, 'tests/gpu_kernels'), '--seed', '1', '--sample', '4', 'layer']
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
    found = done.returncode not in (0, 2, 3) and mutant[5] in done.stdout
    print(('found: ' if found else 'NOT FOUND: ') + name + ('' if found else '\n' + done.stdout), flush=True)
    return found


def main():
    if len(sys.argv) < 5:
        print(__doc__, file=sys.stderr)
        return 2
    names = sys.argv[5:] or QUICK
    names = list(MUTANTS) if names == ['all'] else names
    return 0 if all([is_found(*sys.argv[1:5], name) for name in names]) else 1


if __name__ == '__main__':
    sys.exit(main())
