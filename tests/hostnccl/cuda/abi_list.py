#!/usr/bin/env python3
"""abi_list.py HEADERS... : lists what our headers declare, as rows that abi.cc expands once per set of headers."""
import re
import sys

text = "".join(open(path).read() for path in sys.argv[1:])
text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)

for name, value in re.findall(r"^#define (cuda[A-Z]\w*) (0x[0-9a-f]+|\(\(int\)-\d+\))$", text, re.M):
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
