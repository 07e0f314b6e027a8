#!/usr/bin/env python3
"""Of prototypes.txt: stub libraries whose functions check every argument, and calls of all of them.

usage: make_stubs.py PROTOTYPES OUT_DIR: writes every_LIBRARY.c for each library, and every_call.c

The arguments differ from each other, and fill what they travel in: pointers into an array (the wrappers look at some of
what they point to: it is zero), negative and large integers, fractions.
"""
import os
import sys

import prototypes

C_TYPE = {"pointer": "void *", "int": "int ", "long": "int64_t ", "bool": "bool ", "float": "float ",
          "double": "double ", "window": "struct window "}
LENGTHS = ("num_gemms", "num_tensors", "num_a_tensors", "num_c_tensors", "num_d_tensors", "group_count")
HEAD = """/* Made by make_stubs.py: do not edit. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
struct window { void *window; uint64_t offset; void *scale; uint64_t scale_offset; };
extern char every_area[32][256];
extern int every_wrong, every_seen;
"""
READERS = """
size_t nvte_tensor_ndims(const void *t);
size_t nvte_tensor_size(const void *t, size_t dim);
size_t nvte_tensor_numel(const void *t);
int nvte_tensor_type(const void *t);
size_t nvte_grouped_tensor_num_tensors(const void *t);
size_t nvte_tensor_ndims(const void *t) { (void)t; return 0; }
/* The library's own throws: no such dimension. */
size_t nvte_tensor_size(const void *t, size_t dim) { (void)t; every_wrong++; return dim; }
size_t nvte_tensor_numel(const void *t) { (void)t; return 1; }
int nvte_tensor_type(const void *t) { (void)t; return 6; }
size_t nvte_grouped_tensor_num_tensors(const void *t) { (void)t; return 9; }
"""


def value(i, kind, name):
    if name in LENGTHS:
        return "3"
    return {"pointer": f"(void *)every_area[{i}]", "int": str(-1000 - i if i % 2 else 0x10203000 + i),
            "long": f"INT64_C({(i << 40) + i})", "bool": "true" if i % 3 else "false", "float": f"{i}.25f",
            "double": f"{i}.0625",
            "window": f"(struct window){{every_area[{i}], {i}000000000001u, every_area[{i}] + 1, {i}000000000002u}}"}[
                kind]


def result(n):
    return 40 + n % 50


def prototype(f):
    parts = [C_TYPE[kind] + name for kind, name in f.parameters]
    return f"{f.returns} {f.name}({', '.join(parts) or 'void'})"


def stub(n, f):
    out = [prototype(f) + ";", prototype(f), "{", "    every_seen++;"]
    for i, (kind, name) in enumerate(f.parameters):
        want = value(i, kind, name)
        test = f"memcmp(&{name}, &{want}, sizeof {name}) != 0" if kind == "window" else f"!({name} == {want})"
        out.append(f'    if ({test}) {{ fprintf(stderr, "stub: {f.name}: {name} is not as passed\\n"); every_wrong++; '
                   '}')
    out += [f"    return {result(n)};" if f.returns == "int" else "    return;", "}"]
    return "\n".join(out) + "\n"


def call(n, f):
    types = ", ".join(C_TYPE[kind].strip() for kind, _ in f.parameters) or "void"
    values = ", ".join(value(i, kind, name) for i, (kind, name) in enumerate(f.parameters))
    back = f" != {result(n)}" if f.returns == "int" else ""
    line = f"function({values}){back}"
    line = f'if ({line}) {{ fprintf(stderr, "{f.name}: not its result\\n"); every_wrong++; }}' if back else line + ";"
    return f"""    {{
        {f.returns} (*function)({types}) = {f.name};
        if (looked_up) {{
            void *found = dlsym(dlopen("lib{f.library}.so", RTLD_NOW | RTLD_NOLOAD), "{f.name}");
            every_wrong += found == NULL;
            memcpy(&function, &found, sizeof found);
        }}
        before();
        {line}
    }}
"""


def main():
    path, folder = sys.argv[1:]
    functions = prototypes.read(path)
    for library in sorted({f.library for f in functions}):
        with open(os.path.join(folder, f"every_{library}.c"), "w") as out:
            out.write(HEAD + (READERS if library == "transformer_engine" else ""))
            out.writelines(stub(n, f) for n, f in enumerate(functions) if f.library == library)
    with open(os.path.join(folder, "every_call.c"), "w") as out:
        out.write(HEAD + "int every_call(bool looked_up, void (*before)(void));\n")
        out.writelines(prototype(f) + ";\n" for f in functions)
        out.write("int every_call(bool looked_up, void (*before)(void))\n{\n")
        out.writelines(call(n, f) for n, f in enumerate(functions))
        out.write(f"    return {len(functions)};\n}}\n")


if __name__ == "__main__":
    main()
