"""reader.py: the text of a PTX module, cut into entries, and an entry's body into statements.

It knows the outer form alone: where an entry begins, what its parameters are, where a statement ends. What a statement
means is said elsewhere. A grammar with a tree was rejected: the compiler writes one form only, and a module of a
megabyte is read in a second this way.
"""
import re

# C types by PTX type, and their sizes.
TYPES = {'u8': 'uint8_t', 's8': 'int8_t', 'b8': 'uint8_t', 'u16': 'uint16_t', 's16': 'int16_t', 'b16': 'uint16_t',
         'f16': 'uint16_t', 'bf16': 'uint16_t', 'u32': 'uint32_t', 's32': 'int32_t', 'b32': 'uint32_t',
         'f16x2': 'uint32_t', 'bf16x2': 'uint32_t', 'u64': 'uint64_t', 's64': 'int64_t', 'b64': 'uint64_t',
         'f32': 'float', 'f64': 'double', 'pred': 'bool'}
SIZES = {'uint8_t': 1, 'int8_t': 1, 'uint16_t': 2, 'int16_t': 2, 'uint32_t': 4, 'int32_t': 4, 'uint64_t': 8,
         'int64_t': 8, 'float': 4, 'double': 8}


class Unmodelled(Exception):
    """What the emulator has no model of."""


class Entry:
    """A kernel: its name, parameters (name -> offset; and (offset, bytes) in order), body, most threads of a block."""

    def __init__(self, name, body, threads_max):
        self.name, self.body, self.threads_max = name, body, threads_max
        self.offsets, self.parameters = {}, []

    def add_parameter(self, name, align, size):
        end = self.parameters[-1][0] + self.parameters[-1][1] if self.parameters else 0
        at = -(-end // align) * align
        self.offsets[name] = at
        self.parameters.append((at, size))


class Module:
    """The entries of a file, its source files by number, and its variables in shared memory."""

    def __init__(self, text):
        self.files = {int(n): name for n, name in re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', text, re.M)}
        self.dynamic = set(re.findall(r'\.extern\s+\.shared\s+\.align\s+\d+\s+\.b8\s+([\w$]+)\[\]', text))
        self.shared = re.findall(r'^(\.shared [^;]*);', text, re.M)
        self.entries = [read_entry(text, match) for match in
                        re.finditer(r'\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\n\{', text, re.S)]


def read_entry(text, match):
    threads = re.search(r'\.maxntid\s+(\d+)', match.group(3))
    body = text[match.end():closing(text, match.end())]
    entry = Entry(match.group(1), body, int(threads.group(1)) if threads else 1024)
    form = r'\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)(?:\[(\d+)\])?'
    for align, kind, name, count in re.findall(form, match.group(2)):
        size = int(count) if count else SIZES[TYPES[kind]]
        entry.add_parameter(name, int(align) if align else size, size)
    return entry


def closing(text, at):
    """Where the brace is closed that was opened before `at`."""
    depth = 1
    for match in re.compile(r'//[^\n]*|"[^"\n]*"|[{}]').finditer(text, at):
        depth += {'{': 1, '}': -1}.get(match.group(0), 0)
        if depth == 0:
            return match.start()
    raise ValueError('an entry without an end')


STATEMENT = re.compile(r'''\s+ | //[^\n]* | (?P<brace>[{}]) | \.loc\s+(?P<loc>[^\n]*) | \.pragma[^;]*;
                       | (?P<label>[$\w]+):(?!:) | (?P<text>[^;]+);''', re.X)


def statements(body):
    """Yields ('{', ), ('}', ), ('label', name), ('loc', file, line) and ('text', statement)."""
    at = 0
    while at < len(body):
        match = STATEMENT.match(body, at)
        if match is None:
            raise ValueError('no statement: ' + body[at:at + 60])
        at = match.end()
        if match.group('brace'):
            yield (match.group('brace'),)
        elif match.group('loc'):
            words = match.group('loc').split()
            yield ('loc', int(words[0]), int(words[1]))
        elif match.group('label'):
            yield ('label', match.group('label'))
        elif match.group('text'):
            text = match.group('text')
            yield ('text', ' '.join((re.sub(r'//[^\n]*', '', text) if '//' in text else text).split()))


def operands(text):
    """`a, {b, c}, [d+4]` -> ['a', '{b, c}', '[d+4]']"""
    if '{' not in text and '(' not in text:
        return [part.strip() for part in text.split(',')] if text.strip() else []
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += (c in '{[(') - (c in '}])')
        if c == ',' and depth == 0:
            out.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return out + [last] if last else out
