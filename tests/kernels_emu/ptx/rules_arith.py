"""rules_arith.py: moves, arithmetic, comparisons, conversions and branches: what a thread does with its registers."""
from function import label, rule
from reader import SIZES, TYPES, Unmodelled, operands

FLOATS = ('float', 'double')
HALVES = {('b32', 2): 'uint16_t', ('b64', 2): 'uint32_t', ('b64', 4): 'uint16_t', ('b16', 2): 'uint8_t'}


def kind_of(words):
    return TYPES[words[-1]]


def unsigned(kind):
    """Integers wrap, which only unsigned ones do in C."""
    return 'u' + kind if kind.startswith('int') else kind


@rule('bra')
def branch(f, words, a):
    return f'goto {label(a[0])};'


@rule('ret', 'exit')
def leave(f, words, a):
    return 'return;'


@rule('trap')
def trap(f, words, a):
    return f'emu_trap(T, {f.at()});'


@rule('mov')
def move(f, words, a):
    kind, to, source = kind_of(words), a[0], a[1]
    if to[0] == '{':
        parts = operands(to[1:-1])
        part = HALVES[words[-1], len(parts)]
        put = ' '.join(f.put(p, f'({part})(whole >> {i * 8 * SIZES[part]})', part) for i, p in enumerate(parts))
        return f'{{ {kind} whole = {f.value(source, kind)}; {put} }}'
    if source[0] == '{':
        parts = operands(source[1:-1])
        part = HALVES[words[-1], len(parts)]
        joined = ' | '.join(f'({kind}){f.value(p, part)} << {i * 8 * SIZES[part]}' for i, p in enumerate(parts))
        return f.put(to, joined, kind)
    return f.put(to, f.value(source, kind, raw=to in f.matrix), kind)


@rule('cvta')
def generic_address(f, words, a):
    value = f.value(a[1], 'uint64_t')
    if 'shared' in words:
        value += ' - T->shared_address()' if 'to' in words else ' + T->shared_address()'
    elif 'global' not in words and 'param' not in words:
        raise Unmodelled('a space')
    return f.put(a[0], value, 'uint64_t')


@rule('add', 'sub')
def add(f, words, a):
    kind = kind_of(words)
    x, y = (f.value(v, unsigned(kind)) for v in a[1:])
    if kind in FLOATS:
        if 'rz' in words and words[0] == 'add':
            return f.put(a[0], f'emu_add_rz({x}, {y})', kind)
        if set(words[1:-1]) - {'rn', 'ftz'}:
            raise Unmodelled('rounding')
    return f.put(a[0], f'({unsigned(kind)})({x} {"+" if words[0] == "add" else "-"} {y})', unsigned(kind))


@rule('and', 'or', 'xor')
def combine(f, words, a):
    kind = kind_of(words)
    sign = {'and': '&', 'or': '|', 'xor': '^'}[words[0]]
    return f.put(a[0], f'({kind})({f.value(a[1], kind)} {sign} {f.value(a[2], kind)})', kind)


@rule('not')
def invert(f, words, a):
    kind = kind_of(words)
    value = f.value(a[1], kind)
    return f.put(a[0], f'!{value}' if kind == 'bool' else f'({kind})~{value}', kind)


@rule('neg')
def negate(f, words, a):
    kind = unsigned(kind_of(words))
    value = f.value(a[1], kind)
    return f.put(a[0], f'-{value}' if kind in FLOATS else f'({kind})(0 - {value})', kind)


@rule('mul', 'mad')
def multiply(f, words, a):
    kind = kind_of(words)
    if 'wide' in words:
        if words[0] == 'mad':
            raise Unmodelled('wide')
        wide = {'uint16_t': 'uint32_t', 'int16_t': 'int32_t', 'uint32_t': 'uint64_t', 'int32_t': 'int64_t'}[kind]
        return f.put(a[0], f'({wide})({f.value(a[1], kind)}) * ({wide})({f.value(a[2], kind)})', wide)
    if 'hi' in words:
        if words[0] == 'mad':
            raise Unmodelled('hi')
        return f.put(a[0], f'emu_mul_hi({f.value(a[1], kind)}, {f.value(a[2], kind)})', kind)
    u = unsigned(kind)
    if kind in FLOATS and set(words[1:-1]) - {'rn', 'ftz'}:
        raise Unmodelled('rounding')
    product = f'{f.value(a[1], u)} * {f.value(a[2], u)}'
    if words[0] == 'mad':
        product += f' + {f.value(a[3], u)}'
    return f.put(a[0], f'({u})({product})', u)


@rule('fma')
def fused(f, words, a):
    kind = kind_of(words)
    name = {'rn': 'emu_fma', 'rm': 'emu_fma_rm'}[words[1]]
    return f.put(a[0], f'{name}({", ".join(f.value(v, kind) for v in a[1:])})', kind)


def call(name):
    def make(f, words, a):
        kind = kind_of(words)
        if words[0] == 'div' and kind == 'float' and words[1] not in ('rn',):
            raise Unmodelled('rounding')
        return f.put(a[0], f'{name}<{kind}>({", ".join(f.value(v, kind) for v in a[1:])})', kind)
    return make


for ptx in ('div', 'rem', 'min', 'max', 'abs', 'ex2', 'lg2', 'sqrt'):
    rule(ptx)(call('emu_' + ptx))


@rule('rcp')
def reciprocal(f, words, a):
    kind = kind_of(words)
    return f.put(a[0], f'emu_rcp{"_approx" if "approx" in words else ""}({f.value(a[1], kind)})', kind)


@rule('copysign')
def copy_sign(f, words, a):
    kind = kind_of(words)
    return f.put(a[0], f'std::copysign({f.value(a[2], kind)}, {f.value(a[1], kind)})', kind)


@rule('shl', 'shr')
def shift(f, words, a):
    kind = kind_of(words)
    return f.put(a[0], f'emu_{words[0]}<{kind}>({f.value(a[1], kind)}, {f.value(a[2], "uint32_t")})', kind)


@rule('bfi', 'bfe')
def field(f, words, a):
    kind = kind_of(words)
    whole, numbers = a[1:-2], a[-2:]
    args = [f.value(v, kind) for v in whole] + [f.value(v, 'uint32_t') for v in numbers]
    return f.put(a[0], f'emu_{words[0]}<{kind}>({", ".join(args)})', kind)


@rule('prmt')
def bytes_of_two(f, words, a):
    if words[1:] != ['b32']:
        raise Unmodelled('a mode')
    return f.put(a[0], f'emu_prmt({", ".join(f.value(v, "uint32_t") for v in a[1:])})', 'uint32_t')


@rule('popc')
def ones(f, words, a):
    return f.put(a[0], f'(uint32_t)__builtin_popcountll((uint64_t){f.value(a[1], kind_of(words))})', 'uint32_t')


@rule('setp')
def compare(f, words, a):
    if len(words) != 3:
        raise Unmodelled('a combination')
    how, kind = words[1], kind_of(words)
    sign = {'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>=', 'lo': '<', 'hi': '>'}
    x, y = f.value(a[1], kind), f.value(a[2], kind)
    apart = f'emu_unordered({x}, {y})' if kind in FLOATS else 'false'
    if how in ('nan', 'num'):
        test = apart if how == 'nan' else '!' + apart
    elif kind in FLOATS and len(how) == 3:
        test = f'({apart} || {x} {sign[how[:2]]} {y})'
    elif kind in FLOATS and how == 'ne':
        test = f'(!{apart} && {x} != {y})'
    else:
        test = f'({x} {sign[how]} {y})'
    return f.put(a[0], test, 'bool')


@rule('selp')
def select(f, words, a):
    kind = kind_of(words)
    return f.put(a[0], f'({f.value(a[3], "bool")} ? {f.value(a[1], kind)} : {f.value(a[2], kind)})', kind)


def convert_fp8(f, to, source, a):
    four = 'true' if 'e4m3x2' in (to, source) else 'false'
    if source == 'f16x2' or (to not in ('e4m3x2', 'e5m2x2') and to != 'f16x2'):
        raise Unmodelled('a conversion')
    if to == 'f16x2':
        return f.put(a[0], f'emu_half2_of_fp8({f.value(a[1], "uint16_t")}, {four})', 'uint32_t')
    return f.put(a[0], f'emu_fp8_of({f.value(a[1], "float")}, {f.value(a[2], "float")}, {four})', 'uint16_t')


@rule('cvt')
def convert(f, words, a):
    to, source = [w for w in words[1:] if w in TYPES or w in ('e4m3x2', 'e5m2x2')]
    if 'e4m3x2' in (to, source) or 'e5m2x2' in (to, source):
        return convert_fp8(f, to, source, a)
    narrow = {'f16': 'emu_half_of', 'bf16': 'emu_bf16_of'}
    if to in ('f16x2', 'bf16x2'):
        high, low = (f'(uint32_t){narrow[to[:-2]]}({f.value(v, "float")})' for v in a[1:])
        return f.put(a[0], f'{high} << 16 | {low}', 'uint32_t')
    if source in narrow:
        if to != 'f32':
            raise Unmodelled('a conversion')
        return f.put(a[0], f'emu_float_of_{source}({f.value(a[1], "uint16_t")})', 'float')
    if to in narrow:
        if source != 'f32':
            raise Unmodelled('a conversion')
        return f.put(a[0], f'{narrow[to]}({f.value(a[1], "float")})', 'uint16_t')
    kind, own = TYPES[to], TYPES[source]
    value = f.value(a[1], own)
    if own in FLOATS and kind in FLOATS:
        if 'sat' in words:
            return f.put(a[0], f'emu_saturated({value})', kind)
        whole = {'rzi': 'std::trunc', 'rni': 'std::rint', 'rmi': 'std::floor', 'rpi': 'std::ceil'}
        name = next((whole[w] for w in words if w in whole), '')
        return f.put(a[0], f'({kind}){name}({value})', kind)
    if 'sat' in words:
        raise Unmodelled('saturation')
    if own in FLOATS:
        if not {'rzi', 'rni'} & set(words):
            raise Unmodelled('rounding')
        return f.put(a[0], f'emu_whole<{kind}>({value}, {"true" if "rzi" in words else "false"})', kind)
    return f.put(a[0], f'({kind}){value}', kind)
