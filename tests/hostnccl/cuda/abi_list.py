#!/usr/bin/env python3
"""abi_list.py VERSION HEADERS... : lists what our headers declare with CUDART_VERSION=VERSION, as rows that abi.cc
expands once per set of headers."""
import re
import sys

VERSION = int(sys.argv[1])
CONDITION = re.compile(r"#(if CUDART_VERSION (>=|<) (\d+)|if|ifdef|ifndef|else|endif)\b")


def seen(text):
    """The lines that the compiler would see, as far as only the version decides."""
    kept, open_ifs = [], []
    for line in text.splitlines(keepends=True):
        found = CONDITION.match(line)
        if found and found[1] == "else":
            open_ifs[-1] = None if open_ifs[-1] is None else not open_ifs[-1]
        elif found and found[1] == "endif":
            open_ifs.pop()
        elif found and found[2]:
            open_ifs.append(VERSION >= int(found[3]) if found[2] == ">=" else VERSION < int(found[3]))
        elif found:
            open_ifs.append(None)  # both branches
        elif False not in open_ifs:
            kept.append(line)
    return "".join(kept)


text = seen("".join(open(path).read() for path in sys.argv[2:]))
text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)

for name, value in re.findall(r"^#define (cuda[A-Z]\w*) +(0x[0-9a-f]+|\(\(int\)-\d+\))$", text, re.M):
    print(f"VALUE({name}, {value})")
for name, value in re.findall(r"^ +((?:cuda|CU)\w+) = (\d+),", text, re.M):
    if name not in ("cudaDevAttrMax", "cudaGraphNodeTypeCount"):  # grow with every release
        print(f"VALUE({name}, {value})")
for struct, body in re.findall(r"^(?:typedef )?(?:struct|union) (\w+) \{(.*?)^\}", text, re.S | re.M):
    if struct == "dim3":  # has constructors in C++
        print("SIZE(dim3)")
        continue
    print(f"SIZE({struct})")
    for fields in re.findall(r"^    (?! )[\w ]+?[ *]+(\w+(?:\[\d+\])?(?:, \w+(?:\[\d+\])?)*);", body, re.M):
        for field in fields.split(", "):
            print(f"FIELD({struct}, {field.split('[')[0]})")
for name in re.findall(r"^(?:cudaError_t|CUresult|const char \*) ?(cu\w+)\(", text, re.M):
    print(f"FUNCTION({name})")
