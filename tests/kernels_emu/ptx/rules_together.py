"""rules_together.py: instructions in which the threads of a block or of a warp meet, and the matrix unit of sm_80."""
from function import rule
from reader import Unmodelled, operands


@rule('bar', 'barrier')
def barrier(f, words, a):
    if words[1] == 'warp':
        return f'emu_sync_warp(T, {f.value(a[0], "uint32_t")}, {f.at()});'
    if words[1] == 'cluster' and words[2] in ('arrive', 'wait'):
        return f'emu_cluster_{words[2]}(T, {f.at()});'
    if words[1] == 'sync':
        count = f.value(a[1], 'uint32_t') if len(a) > 1 else '0'
        return f'emu_barrier(T, {f.value(a[0], "uint32_t")}, {count}, {f.at()});'
    if words[1] != 'red' or len(a) != 3 or words[2] not in ('or', 'and'):
        raise Unmodelled('a barrier')
    made = f'emu_barrier_{words[2]}(T, {f.value(a[1], "uint32_t")}, {f.value(a[2], "bool")}, {f.at()})'
    return f.put(a[0], made, 'bool')


@rule('shfl')
def shuffle(f, words, a):
    to, _, right = a[0].partition('|')
    values = ', '.join(f.value(v, 'uint32_t') for v in a[1:5])
    made = f'bool right; uint32_t got = emu_shuffle(T, EMU_SHUFFLE_{words[2].upper()}, {values}, &right, {f.at()});'
    return f'{{ {made} {f.put(to, "got", "uint32_t")} {f.put(right, "right", "bool") if right else "(void)right;"} }}'


@rule('vote')
def vote(f, words, a):
    ballot = f'emu_ballot(T, {f.value(a[1], "bool")}, {f.value(a[2], "uint32_t")}, {f.at()})'
    if words[1:3] != ['sync', 'ballot']:
        raise Unmodelled('a vote')
    return f.put(a[0], ballot, 'uint32_t')


@rule('redux')
def reduce(f, words, a):
    if words[2:4] not in (['max', 'u32'], ['min', 'u32']):
        raise Unmodelled('a reduction')
    made = f'emu_reduce_{words[2]}(T, {f.value(a[1], "uint32_t")}, {f.value(a[2], "uint32_t")}, {f.at()})'
    return f.put(a[0], made, 'uint32_t')


@rule('ldmatrix')
def load_matrix(f, words, a):
    if words[1:5] != ['sync', 'aligned', 'm8n8', 'x4']:
        raise Unmodelled('a form of ldmatrix')
    trans = 'true' if 'trans' in words else 'false'
    put = ' '.join(f.put(r, f'r[{i}]', 'uint32_t') for i, r in enumerate(operands(a[0][1:-1])))
    return f'{{ uint32_t r[4]; emu_load_matrix(T, r, {f.address(a[1], "shared")}, {trans}, {f.at()}); {put} }}'


@rule('mma')
def multiply(f, words, a):
    if words[1:7] != ['sync', 'aligned', 'm16n8k16', 'row', 'col', 'f32'] or words[-1] != 'f32':
        raise Unmodelled('a form of mma')
    half = {'f16': 'true', 'bf16': 'false'}[words[-2]]
    d, x, y, c = (operands(v[1:-1]) for v in a)
    sums = ', '.join(f.value(v, 'float') for v in c)
    left, right = (', '.join(f.value(v, 'uint32_t') for v in part) for part in (x, y))
    put = ' '.join(f.put(r, f'd[{i}]', 'float') for i, r in enumerate(d))
    return f'{{ float d[4] = {{ {sums} }}; const uint32_t a[4] = {{ {left} }}, b[2] = {{ {right} }}; ' \
           f'emu_mma(T, d, a, b, {half}, {f.at()}); {put} }}'
