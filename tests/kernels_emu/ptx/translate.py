#!/usr/bin/env python3
"""translate.py: PTX, as nvcc writes it, into C++ that runs on the emulator's machine (machine.h).

    translate.py IN.ptx OUT.cc [--root FOLDER]

Writes a function for each entry and registers it. FOLDER is cut off the names of source files in messages. What is not
modelled is named on standard error; code 1 with --strict, where there is any.
"""
import argparse
import sys

from function import Function
from reader import Module
import rules_arith  # noqa: F401 (each adds its rules)
import rules_async  # noqa: F401
import rules_memory  # noqa: F401
import rules_together  # noqa: F401


def sites(function, root):
    """The table of places that messages name."""
    lines = [f'static const struct emu_site sites_{function.entry.name}[] = {{']
    for file, line, instruction in function.sites or [('?', 0, '')]:
        if root and file.startswith(root):
            file = file[len(root):].lstrip('/')
        lines.append(f'{{"{file}", {line}, "{instruction}"}},')
    return lines + ['};']


def register(function):
    entry = function.entry
    listed = ''.join(f'{{{at}, {size}}}, ' for at, size in entry.parameters) + '{0, 0}'
    return [f'static const struct emu_parameter parameters_{entry.name}[] = {{{listed}}};',
            f'static const struct emu_registration registration_{entry.name}("{entry.name}", k_{entry.name}, '
            f'{function.shared_bytes}, {entry.threads_max}, parameters_{entry.name}, {len(entry.parameters)});']


def translated(module, root):
    """The lines of the C++ of a module's entries, and what of it is not modelled."""
    lines, unmodelled = ['#include "tests/kernels_emu/machine.h"'], []
    for entry in module.entries:
        function = Function(module, entry)
        body = function.translate()
        unmodelled += function.unmodelled
        lines += sites(function, root) + body + register(function)
    return lines, unmodelled


def main():
    parser = argparse.ArgumentParser(description='PTX into C++ for the emulator.')
    parser.add_argument('ptx')
    parser.add_argument('out')
    parser.add_argument('--root', default='')
    parser.add_argument('--strict', action='store_true')
    args = parser.parse_args()
    with open(args.ptx, encoding='utf-8') as file:
        module = Module(file.read())
    lines, unmodelled = translated(module, args.root)
    with open(args.out, 'w', encoding='utf-8') as file:
        file.write('\n'.join(lines) + '\n')
    for line in unmodelled:
        print('not modelled: ' + line, file=sys.stderr)
    return 1 if unmodelled and args.strict else 0


if __name__ == '__main__':
    sys.exit(main())
