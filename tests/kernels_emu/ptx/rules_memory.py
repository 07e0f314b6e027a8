"""rules_memory.py: loads, stores and atomic operations. Every access goes through the runtime, which checks it."""
from function import rule
from reader import SIZES, TYPES, Unmodelled, operands

SPACES = ('global', 'shared', 'param', 'local', 'const')


def space_of(words):
    return next((s for s in SPACES if any(w.split('::')[0] == s for w in words)), 'generic')


def room(f, words, operand, size, how):
    """A pointer to `size` bytes that may be read or written. `how`: of enum emu_how."""
    space = space_of(words)
    if space in ('local', 'const'):
        raise Unmodelled('space ' + space)
    if space == 'param':
        return f.address(operand, space)
    if {'relaxed', 'volatile'} & set(words):
        how += ' | EMU_STRONG'
    elif {'acquire', 'release', 'sc', 'mmio'} & set(words):
        raise Unmodelled('an order of memory')
    if 'nc' in words:
        how += ' | EMU_CONSTANT'
    return f'emu_at(T, {f.address(operand, space)}, {size}, EMU_{space.upper()}, {how}, {f.at()})'


@rule('ld')
def load(f, words, a):
    kind = TYPES[words[-1]]
    registers = operands(a[0][1:-1]) if a[0][0] == '{' else [a[0]]
    place = room(f, words, a[1], len(registers) * SIZES[kind], 'EMU_READ')
    count = len(registers)
    put = ' '.join(f.put(r, f'v[{i}]', kind) for i, r in enumerate(registers))
    return f'{{ {kind} v[{count}]; memcpy(v, (const void *){place}, sizeof(v)); {put} }}'


@rule('st')
def store(f, words, a):
    kind = TYPES[words[-1]]
    values = operands(a[1][1:-1]) if a[1][0] == '{' else [a[1]]
    place = room(f, words, a[0], len(values) * SIZES[kind], 'EMU_WRITE')
    listed = ', '.join(f.value(v, kind) for v in values)
    return f'{{ {kind} v[] = {{ {listed} }}; memcpy((void *){place}, v, sizeof(v)); }}'


@rule('atom', 'red')
def atomic(f, words, a):
    kind = TYPES[words[-1]]
    what = words[-2]
    if what not in ('add', 'or', 'and', 'min', 'max', 'cas', 'exch') or {'acquire', 'release', 'acq_rel'} & set(words):
        raise Unmodelled('an atomic operation')
    if words[0] == 'red':
        a = ['_'] + a
    place = f'emu_at(T, {f.address(a[1], space_of(words))}, {SIZES[kind]}, EMU_{space_of(words).upper()}, ' \
        f'EMU_READ | EMU_WRITE | EMU_STRONG, {f.at()})'
    values = ', '.join(f.value(v, kind) for v in a[2:])
    return f.put(a[0], f'emu_atomic_{what}<{kind}>({place}, {values})', kind)
