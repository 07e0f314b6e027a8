"""rules_async.py: what runs beside the thread that asks for it: cp.async, the copy engine and its barriers, wgmma."""
import re

from function import rule
from reader import Unmodelled, operands


def shared(f, operand):
    return f.address(operand, 'shared')


def number(f, operand):
    return f.value(operand, 'uint32_t')


@rule('cp')
def copy(f, words, a):
    name = '.'.join(words)
    if name == 'cp.async.cg.shared.global':
        most, real = number(f, a[2]), number(f, a[3]) if len(a) > 3 else number(f, a[2])
        return f'emu_copy_async(T, {shared(f, a[0])}, {f.address(a[1], "global")}, {most}, {real}, {f.at()});'
    if name == 'cp.async.commit_group':
        return f'emu_copy_commit(T, {f.at()});'
    if name == 'cp.async.wait_group':
        return f'emu_copy_wait(T, {number(f, a[0])}, {f.at()});'
    box = 'cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes'
    if (name, len(a)) not in ((box, 3), (box + '.multicast::cluster', 4)):
        raise Unmodelled('a copy')
    engine_map, x, y = re.match(r'^\[([^,]+),\s*\{([^,]+),([^,]+)\}\]$', a[1]).groups()
    call, blocks = ('emu_copy_box_to', f'{f.value(a[3], "uint16_t")}, ') if len(a) == 4 else ('emu_copy_box', '')
    return f'{call}(T, {shared(f, a[0])}, {f.value(engine_map, "uint64_t")}, {f.value(x, "int32_t")}, ' \
           f'{f.value(y, "int32_t")}, {shared(f, a[2])}, {blocks}{f.at()});'


@rule('mapa')
def map_rank(f, words, a):
    if words[1:] != ['shared::cluster', 'u32']:
        raise Unmodelled('a form of mapa')
    return f.put(a[0], f'emu_map_rank(T, {number(f, a[1])}, {number(f, a[2])}, {f.at()})', 'uint32_t')


@rule('mbarrier')
def mbarrier(f, words, a):
    name = '.'.join(words[1:])
    if name == 'init.shared::cta.b64':
        return f'emu_mbarrier_init(T, {shared(f, a[0])}, {number(f, a[1])}, {f.at()});'
    if name == 'arrive.shared::cta.b64' and a[0] == '_':
        return f'emu_mbarrier_arrive(T, {shared(f, a[1])}, 0, {f.at()});'
    if name == 'arrive.shared::cluster.b64' and a[0] == '_':
        return f'emu_mbarrier_arrive_at(T, {shared(f, a[1])}, {f.at()});'
    if name == 'arrive.expect_tx.shared::cta.b64' and a[0] == '_':
        return f'emu_mbarrier_arrive(T, {shared(f, a[1])}, {number(f, a[2])}, {f.at()});'
    if name == 'try_wait.parity.shared::cta.b64':
        return f.put(a[0], f'emu_mbarrier_wait(T, {shared(f, a[1])}, {number(f, a[2])}, {f.at()})', 'bool')
    raise Unmodelled('a form of mbarrier')


@rule('fence')
def fence(f, words, a):
    name = '.'.join(words[1:])
    if name == 'proxy.async.shared::cta':
        return f'emu_fence_async(T, {f.at()});'
    if name == 'mbarrier_init.release.cluster':
        return f'emu_fence_mbarrier_init(T, {f.at()});'
    if name == 'proxy.tensormap::generic.acquire.gpu':
        return f'emu_map_acquire(T, {f.address(a[0], "generic")}, {number(f, a[1])}, {f.at()});'
    raise Unmodelled('a fence')


@rule('griddepcontrol')
def dependence(f, words, a):
    return {'wait': f'emu_wait_for_primary(T, {f.at()});',
            'launch_dependents': f'emu_release_dependents(T, {f.at()});'}[words[1]]


@rule('tensormap')
def tensor_map(f, words, a):
    name = '.'.join(words[1:])
    if name == 'replace.tile.global_address.shared::cta.b1024.b64':
        return f'emu_map_set_address(T, {shared(f, a[0])}, {f.value(a[1], "uint64_t")}, {f.at()});'
    if name == 'replace.tile.global_dim.shared::cta.b1024.b32':
        return f'emu_map_set_dim(T, {shared(f, a[0])}, {number(f, a[1])}, {number(f, a[2])}, {f.at()});'
    if name == 'cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned':
        return f'emu_map_publish(T, {f.address(a[0], "generic")}, {shared(f, a[1])}, {number(f, a[2])}, {f.at()});'
    raise Unmodelled('a change of a tensor map')


@rule('setmaxnreg')
def registers(f, words, a):
    return f'emu_set_registers(T, {"true" if words[1] == "inc" else "false"}, {number(f, a[0])}, {f.at()});'


@rule('wgmma')
def matrix_unit(f, words, a):
    if words[1] == 'fence':
        return f'emu_wgmma_fence(T, {f.at()});'
    if words[1] == 'commit_group':
        return f'emu_wgmma_commit(T, {f.at()});'
    if words[1] == 'wait_group':
        return f'emu_wgmma_wait(T, {number(f, a[0])}, {f.at()});'
    form = re.match(r'^mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(bf16|f16|e4m3)\.(\w+)$', '.'.join(words[1:]))
    n, k, kind, other = form.groups()
    sums = operands(a[0][1:-1])
    if kind != other or len(sums) != int(n) // 2 or a[1][0] == '{':
        raise Unmodelled('a form of wgmma')
    names = [f.register(r)[0] for r in sums]
    a += ['0', '0'] if len(a) == 6 else []
    scales = ', '.join(f.value(v, 'int32_t') for v in a[4:8])
    made = f'emu_wgmma(T, {n}, {k}, EMU_{kind.upper()}, d, {f.value(a[1], "uint64_t")}, {f.value(a[2], "uint64_t")}, ' \
           f'{f.value(a[3], "bool")}, {scales}, {f.at()});'
    back = ' '.join(f'{name} = d[{i}];' for i, name in enumerate(names))
    return f'{{ float d[{len(names)}] = {{ {", ".join(names)} }}; {made} {back} }}'
