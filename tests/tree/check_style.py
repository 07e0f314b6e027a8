#!/usr/bin/env python3
"""check_style.py: what the page CONTRIBUTING.md says of the text of sources and clang-format does not see.

  columns   no line is longer than 120; a row of a table (.def) is one line, of at most 160
  sizeof    takes parentheses
  banner    no comment is underlined or framed with ---- or ====
  guard     a header's guard is its path
  label     the one label of a function is `out:`, where it releases something
  head      the first comment of a file begins with its name, and says what it is for
  chain     a function with `out:` has no chain `rc = rc ? rc : step()`: it uses one of the two
"""
import re

import tree

COLUMNS, COLUMNS_OF_A_ROW = 120, 160  # what a table is read for is the column: its rows stay whole
RULES = {"columns", "sizeof", "banner", "guard", "label", "chain", "head"}
C = (".c", ".h", ".cu", ".cuh")
OURS = C + (".def", ".cmake", "CMakeLists.txt", ".py", ".sh")
BANNER = re.compile(r"^\s*(/\*|\*|//|#)\s*[-=*#~]{3,}(\s|$)|[-=~]{4,}\s*(\*/)?\s*$")
SIZEOF = re.compile(r"\bsizeof\s+[^\s(]|\bsizeof\s+\(")
LABEL = re.compile(r"^\s*([A-Za-z_]\w*):\s*(\\)?$")
CHAIN = re.compile(r"\b(rc|err|error) = \1 (!= 0 )?\? \1 :")
ROW = re.compile(r"\s*[A-Z][A-Z0-9_]*\(")
LETTERS = re.compile(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'')


# The stand-in for a vendor's header, and headers that are meant to be included more than once.
UNGUARDED = ("moe_core/host/plain/cblas.h", "moe_core/host/host_rows_body.h", "moe_core/host/host_small_body.h",
             "tests/hostnccl/nccl/abi_table.h", "tests/interposer/bench_tp.h")


def wanted_guard(path):
    """moe_core/include/moe/x.h is installed as moe/x.h; what stands for a vendor's header has the vendor's guard."""
    if path.startswith("hostnccl/include/") or path in UNGUARDED:
        return None
    path = re.sub(r"^moe_core/include/", "", path)
    name = re.sub(r"[^A-Za-z0-9]", "_", path).upper()
    return name if name.startswith("MOE_") else "ROLL_" + name


def code(text):
    """The lines without texts and comments, so that neither is taken for code."""
    blank = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)
    return [re.sub(r"//.*", "", LETTERS.sub('""', line)) for line in blank.split("\n")]


def judge(path, text):
    """(line, rule, words) of each fault of one file."""
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        most = COLUMNS_OF_A_ROW if path.endswith(".def") and ROW.match(line) else COLUMNS
        if len(line) > most:
            yield number, "columns", f"{len(line)} columns, {most} at most"
        if path.endswith(OURS) and not path.endswith(".md") and BANNER.search(line) and re.match(r"\s*(/\*|\*|//|#)",
                                                                                                 line):
            yield number, "banner", "a banner: a plain comment, or nothing"
    if path.endswith(C + (".def",)) and path.rsplit("/")[-1] + ":" not in "\n".join(lines[:4]):
        yield 1, "head", f"the first comment begins with the file's name: {path.rsplit('/')[-1]}: what it is for"
    if not path.endswith(C):
        return
    label = chain = None
    for number, line in enumerate(code(text), 1):
        if SIZEOF.search(line):
            yield number, "sizeof", "sizeof takes parentheses, without a space"
        found = LABEL.match(line)
        if found and found.group(1) not in ("default", "public", "private"):
            if found.group(1) != "out":
                yield number, "label", f"the label is called out, not {found.group(1)}"
            label = number
        chain = number if CHAIN.search(line) else chain
        if line.startswith("}"):
            if label and chain:
                yield label, "chain", f"this function releases at out: and chains codes in line {chain}: one of the two"
            label = chain = None
    if path.endswith((".h", ".cuh")) and wanted_guard(path):
        guard = re.search(r"^#ifndef (\w+)\n#define (\w+)$", text, re.M)
        if not guard or not guard.group(1) == guard.group(2) == wanted_guard(path):
            yield 1, "guard", f"the guard of this header is {wanted_guard(path)}"


def try_self():
    def rules(path, text):
        head = "" if text.startswith("/* a") else f"/* {path.rsplit('/')[-1]}: what it is for. */"
        return sorted({rule for _, rule, _ in judge(path, head + "\n" + text)})
    assert rules("a/b.c", "/* a file that does not say its name */\n") == ["head"]
    assert rules("a/b.c", "int f(void)\n{\n    return sizeof(int);\n}\n") == []
    for path in ("a/b.c", "a/b.py", "a/CMakeLists.txt", "a/b.sh", "scripts/b"):
        assert rules(path, "x" * 121) == ["columns"] and rules(path, "…" * 120) == []
    assert rules("a/b.def", "A_ROW(" + "x" * 154) == [] and rules("a/b.def", "A_ROW(" + "x" * 155) == ["columns"]
    assert rules("a/b.def", "/* " + "x" * 118) == ["columns"]
    assert rules("a/b.c", "int n = sizeof x;\n") == ["sizeof"] == rules("a/b.c", "int n = sizeof (x);\n")
    assert rules("a/b.c", '/* sizeof x */ const char *t = "sizeof x";\n') == []
    for banner in ("/* ---- x ---- */", "// =====", "# ----- x", " * ======", "/* --- x --- */", "/****"):
        assert rules("a/b.py" if banner[0] == "#" else "a/b.c", banner) == ["banner"], banner
    assert rules("a/b.c", "/* the list - and --- a dash */\n x-- - --y;\n") == []
    assert rules("a/b.h", "#ifndef ROLL_A_B_H\n#define ROLL_A_B_H\n#endif\n") == []
    assert rules("a/b.h", "#ifndef ROLL_B_H\n#define ROLL_B_H\n#endif\n") == ["guard"] == rules("a/b.h", "int x;\n")
    assert wanted_guard("moe_core/include/moe/ops.h") == "MOE_OPS_H" and wanted_guard("moe_core/a.h") == "MOE_CORE_A_H"
    both = "int f(void)\n{\n    rc = rc ? rc : g();\nout:\n    return rc;\n}\n"
    assert rules("a/b.c", both) == ["chain"]
    assert rules("a/b.c", both.replace("out:\n", "")) == [] == rules("a/b.c", both.replace("rc = rc ? rc : ", ""))
    assert rules("a/b.c", both.replace("out:", "done:").replace("rc = rc ? rc : ", "")) == ["label"]
    assert rules("a/b.c", "int f(void)\n{\n    err = err != 0 ? err : g();\n}\nint h(void)\n{\nout:\n    x;\n}\n") == []


def ours(path):
    if path.endswith(OURS):
        return True
    return path.startswith("scripts/") and tree.read(path)[:2] == "#!"


if __name__ == "__main__":
    try_self()
    files = [f for f in tree.listed() if ours(f)]
    found = [(f, *fault) for f in files for fault in judge(f, tree.read(f))]
    faults = [f"{f}:{number}: {rule}: {words}" for f, number, rule, words in found]
    tree.end(faults, f"{len(files)} files: {', '.join(sorted(RULES))} are as CONTRIBUTING.md says")
