"""rules_async.py: what runs beside the thread that asks for it: cp.async, the copy engine and its barriers, wgmma.

Most of these instructions are one call of the runtime with their operands in their order: a table says which. Those
with a result, or with operands of a form of their own, have a rule below.
"""
import re

from function import rule
from reader import Unmodelled, operands

# instruction: (call, its operands). Operands: s an offset in shared memory, g and G an address in global and in any
# memory, n and l a number of 32 and of 64 bits, _ the result that is not wanted; other words are arguments as they are.
CALLS = {
    'cp.async.commit_group': ('emu_copy_commit', ''),
    'cp.async.wait_group': ('emu_copy_wait', 'n'),
    'mbarrier.init.shared::cta.b64': ('emu_mbarrier_init', 's n'),
    'mbarrier.arrive.shared::cta.b64': ('emu_mbarrier_arrive', '_ s =0'),
    'mbarrier.arrive.expect_tx.shared::cta.b64': ('emu_mbarrier_arrive', '_ s n'),
    'mbarrier.arrive.shared::cluster.b64': ('emu_mbarrier_arrive_at', '_ s'),
    'fence.proxy.async.shared::cta': ('emu_fence_async', ''),
    'fence.mbarrier_init.release.cluster': ('emu_fence_mbarrier_init', ''),
    'fence.proxy.tensormap::generic.acquire.gpu': ('emu_map_acquire', 'G n'),
    'griddepcontrol.wait': ('emu_wait_for_primary', ''),
    'griddepcontrol.launch_dependents': ('emu_release_dependents', ''),
    'tensormap.replace.tile.global_address.shared::cta.b1024.b64': ('emu_map_set_address', 's l'),
    'tensormap.replace.tile.global_dim.shared::cta.b1024.b32': ('emu_map_set_dim', 's n n'),
    'tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned':
        ('emu_map_publish', 'G s n'),
    'setmaxnreg.inc.sync.aligned.u32': ('emu_set_registers', '=true n'),
    'setmaxnreg.dec.sync.aligned.u32': ('emu_set_registers', '=false n'),
    'wgmma.fence.sync.aligned': ('emu_wgmma_fence', ''),
    'wgmma.commit_group.sync.aligned': ('emu_wgmma_commit', ''),
    'wgmma.wait_group.sync.aligned': ('emu_wgmma_wait', 'n'),
}
OPERANDS = {
    's': lambda f, v: f.address(v, 'shared'),
    'g': lambda f, v: f.address(v, 'global'),
    'G': lambda f, v: f.address(v, 'generic'),
    'n': lambda f, v: f.value(v, 'uint32_t'),
    'l': lambda f, v: f.value(v, 'uint64_t'),
}


@rule('cp', 'mbarrier', 'fence', 'griddepcontrol', 'tensormap', 'setmaxnreg', 'wgmma')
def call(f, words, a):
    name = '.'.join(words)
    make = matrix_unit if words[1] == 'mma_async' else OTHERS.get(name)
    if make:
        return make(f, name, a)
    if name not in CALLS:
        raise Unmodelled('a form of ' + words[0])
    function, kinds = CALLS[name]
    left, given = list(a), ''
    for kind in kinds.split():
        if kind[0] == '=':
            given += f', {kind[1:]}'
            continue
        operand = left.pop(0)
        if kind == '_' and operand != '_':
            raise Unmodelled('a result of ' + words[0])
        given += '' if kind == '_' else ', ' + OPERANDS[kind](f, operand)
    if left:
        raise Unmodelled('an operand of ' + words[0])
    return f'{function}(T{given}, {f.at()});'


def copy_16(f, name, a):
    most = f.value(a[2], 'uint32_t')
    real = f.value(a[3], 'uint32_t') if len(a) > 3 else most
    return f'emu_copy_async(T, {f.address(a[0], "shared")}, {f.address(a[1], "global")}, {most}, {real}, {f.at()});'


def copy_box(f, name, a):
    is_to_many = name.endswith('.multicast::cluster')
    if len(a) != (4 if is_to_many else 3):
        raise Unmodelled('a copy')
    engine_map, x, y = re.match(r'^\[([^,]+),\s*\{([^,]+),([^,]+)\}\]$', a[1]).groups()
    function, blocks = ('emu_copy_box_to', f'{f.value(a[3], "uint16_t")}, ') if is_to_many else ('emu_copy_box', '')
    return f'{function}(T, {f.address(a[0], "shared")}, {f.value(engine_map, "uint64_t")}, ' \
           f'{f.value(x, "int32_t")}, {f.value(y, "int32_t")}, {f.address(a[2], "shared")}, {blocks}{f.at()});'


def wait(f, name, a):
    made = f'emu_mbarrier_wait(T, {f.address(a[1], "shared")}, {f.value(a[2], "uint32_t")}, {f.at()})'
    return f.put(a[0], made, 'bool')


def matrix_unit(f, name, a):
    form = re.match(r'^wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(bf16|f16|e4m3|e5m2)\.(\w+)$', name)
    n, k, kind, other = form.groups()
    sums = operands(a[0][1:-1])
    both_8 = {kind, other} <= {'e4m3', 'e5m2'}
    if (kind != other and not both_8) or len(sums) != int(n) // 2 or a[1][0] == '{':
        raise Unmodelled('a form of wgmma')
    names = [f.register(r)[0] for r in sums]
    a += ['0', '0'] if len(a) == 6 else []
    scales = ', '.join(f.value(v, 'int32_t') for v in a[4:8])
    made = f'emu_wgmma(T, {n}, {k}, EMU_{kind.upper()}, EMU_{other.upper()}, d, {f.value(a[1], "uint64_t")}, ' \
           f'{f.value(a[2], "uint64_t")}, {f.value(a[3], "bool")}, {scales}, {f.at()});'
    back = ' '.join(f'{name} = d[{i}];' for i, name in enumerate(names))
    return f'{{ float d[{len(names)}] = {{ {", ".join(names)} }}; {made} {back} }}'


BOX = 'cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes'
OTHERS = {'cp.async.cg.shared.global': copy_16, BOX: copy_box, BOX + '.multicast::cluster': copy_box,
          'mbarrier.try_wait.parity.shared::cta.b64': wait}


@rule('mapa')
def map_rank(f, words, a):
    if words[1:] != ['shared::cluster', 'u32']:
        raise Unmodelled('a form of mapa')
    rank, offset = f.value(a[2], 'uint32_t'), f.value(a[1], 'uint32_t')
    return f.put(a[0], f'emu_map_rank(T, {offset}, {rank}, {f.at()})', 'uint32_t')
