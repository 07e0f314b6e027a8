"""function.py: one entry as a C++ function: its registers are variables, its labels labels, its branches gotos.

Each instruction is made by a rule, found by the first word of its name (`RULES`; the files rules_*.py add theirs). An
instruction that no rule knows becomes a call that ends the launch, so that a kernel with one branch that is not
modelled can still be run on the others.
"""
import functools
import re

from reader import SIZES, TYPES, Unmodelled, operands, statements

RULES = {}
SPECIAL = {f'%{name}.{axis}': f'T->{name}[{i}]'
           for name in ('tid', 'ntid', 'ctaid', 'nctaid') for i, axis in enumerate('xyz')}
SPECIAL['%laneid'] = '(T->number & 31)'


def rule(*names):
    """Makes a function the rule of instructions whose names begin with one of these words. It takes the Function, the
    words of the name and the operands, and returns C++."""
    def add(make):
        for name in names:
            RULES[name] = make
        return make
    return add


class Function:
    def __init__(self, module, entry):
        self.module, self.entry = module, entry
        self.kinds = {}          # of numbered registers: prefix -> C type
        self.used = {}           # variable -> C type
        self.scopes = [{}]       # registers of inner braces: name -> (variable, C type)
        self.shared = {}         # variable in shared memory -> offset
        self.shared_bytes = 0
        self.sites = []          # (file, line, instruction)
        self.unmodelled = []
        self.place = ('?', 0)
        self.matrix = set()      # registers that may hold a sum of the matrix unit that is not done
        self.known = {}          # numbered registers that have been met
        for text in module.shared:
            if text.split('[')[0].split()[-1] in entry.body:
                self.add_shared(text)

    # operands

    def register(self, name):
        """(variable, C type), or None."""
        for scope in reversed(self.scopes):  # a name there hides a numbered one
            if name in scope:
                return scope[name]
        if name in self.known:
            return self.known[name]
        match = re.match(r'^%([a-z]+)(\d+)$', name)
        if not match or match.group(1) not in self.kinds:
            return None
        variable = match.group(1) + match.group(2)
        self.used[variable] = self.kinds[match.group(1)]
        self.known[name] = variable, self.used[variable]
        return self.known[name]

    def value(self, operand, kind, raw=False):
        """The operand as an expression of a C type. `raw`: a register of the matrix unit may still be at work."""
        operand = operand.strip()
        if operand.startswith('!'):
            return '!' + self.value(operand[1:], kind)
        if operand in SPECIAL:
            return f'({kind}){SPECIAL[operand]}'
        found = self.register(operand)
        if found:
            name, own = found
            if operand in self.matrix and not raw:
                name = f'emu_settled(T, {name}, {self.at()})'
            return name if own == kind else self.as_type(name, own, kind)
        if operand in self.shared:
            return f'({kind}){self.shared[operand]}u'
        if operand in self.module.dynamic:
            return f'({kind})T->dynamic'
        if operand in self.entry.offsets:
            return f'({kind})(P + {self.entry.offsets[operand]})'
        return constant(operand, kind)

    @staticmethod
    def as_type(expression, own, kind):
        if 'float' in (own, kind) or 'double' in (own, kind):
            if SIZES[own] != SIZES[kind]:
                raise Unmodelled('a register of another size')
            return f'emu_bits<{kind}>({expression})'
        return f'({kind}){expression}'

    def put(self, register, expression, kind):
        """A statement: the register becomes an expression of a C type."""
        if register == '_':
            return f'(void)({expression});'
        found = self.register(register)
        if not found:
            raise Unmodelled('a target that is no register: ' + register)
        name, own = found
        if own == kind:
            return f'{name} = {expression};'
        return f'{name} = {self.as_type("(" + expression + ")", kind, own)};'

    def address(self, operand, space):
        """`[base+offset]` as a number: an offset in shared memory, else an address."""
        inner = operand.strip()[1:-1].strip()
        match = re.match(r'^(.+?)\s*\+\s*(-?\d+)$', inner)
        base, offset = (match.group(1).strip(), int(match.group(2))) if match else (inner, 0)
        if space == 'param' and base in self.entry.offsets:
            return f'(uint64_t)(P + {self.entry.offsets[base] + offset})'
        if space == 'shared':
            return f'(uint64_t)(uint32_t)({self.value(base, "uint32_t")} + {offset})'
        return f'({self.value(base, "uint64_t")} + (int64_t){offset})'

    def at(self):
        """The place of the instruction at hand, for messages: an argument of every call of the runtime."""
        site = (*self.place, self.instruction)
        if not self.sites or self.sites[-1] != site:
            self.sites.append(site)
        return f'S + {len(self.sites) - 1}'

    def add_shared(self, text):
        match = re.match(r'^\.shared\s+\.align\s+(\d+)\s+\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?$', text)
        align, size = int(match.group(1)), SIZES[TYPES[match.group(2)]]
        at = -(-self.shared_bytes // align) * align
        self.shared[match.group(3)] = 1024 + at  # the first 1024 bytes are the system's
        self.shared_bytes = at + int(match.group(4) or 1) * size

    # statements

    def declare(self, text):
        """`.reg .b32 %r<5>` or `.reg .pred p, q`: C++ of what must be declared here."""
        match = re.match(r'^\.reg\s+\.(\w+)\s+(.*)$', text)
        kind, out = TYPES[match.group(1)], ''
        for name in operands(match.group(2)):
            numbered = re.match(r'^%([a-z]+)<\d+>$', name)
            if numbered:
                self.kinds[numbered.group(1)] = kind
            else:
                variable = f's{len(self.scopes)}_' + re.sub(r'\W', '', name)
                self.scopes[-1][name] = (variable, kind)
                out += f'{kind} {variable};'
        return out

    def instruct(self, text):
        match = re.match(r'^(?:@(!?)([%\w]+)\s+)?(\S+)\s*(.*)$', text)
        negated, predicate, name, rest = match.groups()
        self.instruction = name
        words = name.split('.')
        try:
            if words[0] not in RULES:
                raise Unmodelled('no rule')
            made = RULES[words[0]](self, words, operands(rest))
        except (Unmodelled, KeyError, ValueError, IndexError, AttributeError) as why:
            self.unmodelled.append(f'{self.entry.name}: {text[:120]}: {why}')
            made = f'emu_unmodelled(T, {self.at()});'
        return f'if ({negated}{self.value(predicate, "bool")}) {{ {made} }}' if predicate else made

    def find_matrix_registers(self):
        """Targets of the matrix unit, and what they are moved into. The registers are known by then."""
        moves = re.findall(r'\bmov\.(?:f32|b32)\s+(%\w+),\s*(%\w+);', self.entry.body)
        for inner in re.findall(r'\bwgmma\.mma_async\S+\s*\{([^}]*)\}', self.entry.body):
            self.matrix.update(operands(inner))
        size = -1
        while self.matrix and size != len(self.matrix):
            size = len(self.matrix)
            self.matrix.update(to for to, source in moves if source in self.matrix)

    def translate(self):
        """The lines of the function."""
        self.find_matrix_registers()
        body = []
        for statement in statements(self.entry.body):
            if statement[0] == '{':
                self.scopes.append({})
                body.append('{')
            elif statement[0] == '}':
                self.scopes.pop()
                body.append('}')
            elif statement[0] == 'label':
                body.append(label(statement[1]) + ': ;')
            elif statement[0] == 'loc':
                if statement[2] > 0:
                    self.place = (self.module.files.get(statement[1], '?'), statement[2])
            elif statement[1].startswith('.reg'):
                body.append(self.declare(statement[1]))
            elif statement[1].startswith('.shared'):
                self.add_shared(statement[1])
            elif statement[1].startswith('.'):
                self.instruction = statement[1].split()[0]
                self.unmodelled.append(f'{self.entry.name}: {statement[1][:120]}')
                body.append(f'emu_unmodelled(T, {self.at()});')
            else:
                body.append(self.instruct(statement[1]))
        kinds = sorted(set(self.used.values()))
        declared = [f'{kind} {", ".join(f"{v} = {{}}" for v, own in self.used.items() if own == kind)};'
                    for kind in kinds]
        return [f'static void k_{self.entry.name}(struct emu_thread *T, const char *P)', '{',
                'const struct emu_site *const S = sites_' + self.entry.name + ';', *declared, *body, 'return;', '}']


def label(name):
    return 'L' + re.sub(r'\W', '_', name)


@functools.lru_cache(None)
def constant(operand, kind):
    match = re.match(r'^0[fF]([0-9A-Fa-f]{8})$', operand)
    if match:
        return f'emu_bits<float>(0x{match.group(1)}u)' if kind == 'float' else f'({kind})0x{match.group(1)}u'
    match = re.match(r'^0[dD]([0-9A-Fa-f]{16})$', operand)
    if match:
        return f'emu_bits<double>(0x{match.group(1)}ull)' if kind == 'double' else f'({kind})0x{match.group(1)}ull'
    if not re.match(r'^(-?\d+|0x[0-9a-fA-F]+U?)$', operand) or kind in ('float', 'double'):
        raise Unmodelled('operand ' + operand)
    number = int(operand.rstrip('U'), 0)
    return f'({kind}){number & 0xffffffffffffffff}ull'
