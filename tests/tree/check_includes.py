#!/usr/bin/env python3
"""check_includes.py: no #include of the product points upward, and the build of the daemon names the same order.

The rule is the table of parts in CONTRIBUTING.md: a file includes its own part and the parts that its row names. A row
may name only rows above it, so the table has no circle. What is included as <nccl.h> or <cuda_runtime.h> is the
vendor's interface and no part, whoever's header it is.

  check_includes.py    first on planted violations, each of which must be found, then on the tree
"""
import os
import re
import sys

import tree

SOURCE = re.compile(r"\.(c|h|def|cu|cuh)$")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)')
LIBRARIES = {"roll_trace": "trace", "roll_base": "base", "roll_wire": "wire", "roll_store": "store",
             "roll_engine": "engine", "roll_expect": "expect", "roll_symbols": "stack", "roll_stack": "stack",
             "roll_verdict": "verdict", "roll_feed": "feed", "roll_digest": "digest",
             "roll_dumps": "dumps", "roll_metrics": "http",
             "roll_agent": "agent", "roll_root": "root", "roll_relay": "relay",
             "roll_rollcalld": "rollcalld", "roll_console": "console"}
HEADERS = {"common", "base containers"}  # parts that are headers alone: whoever includes them links nothing for it


def includes(path, text, files):
    """(line, file) of each #include of a file of the product; of each that names the product's folders and no file,
    (line, None)."""
    for number, line in enumerate(text.split("\n"), 1):
        found = INCLUDE.match(line)
        if found is None:
            continue
        name = found.group(1) or found.group(2)
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if name in files:
            yield number, name, name
        elif found.group(1) and beside in files:
            yield number, name, beside
        elif found.group(1) and name != "cblas.h":
            yield number, name, None


def judge(parts, texts, excused):
    """Faults of these files, {path: text}; `excused` as tree.exceptions: one that excuses nothing is a fault as
    well."""
    faults, used, graph = [], set(), {}
    for path in sorted(texts):
        part = parts.of(path)
        if part is None:
            faults.append(f"{path}:1: belongs to no part of the table in CONTRIBUTING.md")
            continue
        graph[path] = []
        for number, name, target in includes(path, texts[path], texts):
            if target is None:
                faults.append(f"{path}:{number}: #include \"{name}\": no such file, seen from the top of the tree")
                continue
            graph[path].append((number, target))
            other = parts.of(target)
            if other == part or other in parts.allowed[part] or other is None:
                continue
            if f"{path} -> {target}" in excused:
                used.add(f"{path} -> {target}")
                continue
            may = ", ".join(sorted(parts.allowed[part], key=parts.order.index)) or "nothing"
            faults.append(f"{path}:{number}: #include \"{name}\": {part} may not include {other}; it may include {may}")
    faults += [f"tests/tree/exceptions.txt: include: {what}: no longer needed" for what in excused if what not in used]
    return faults + rounds(graph)


def rounds(graph):
    """Headers that include each other in a circle."""
    faults, done = [], set()

    def walk(path, way):
        for number, target in graph.get(path, ()):
            if target in way:
                faults.append(f"{path}:{number}: #include \"{target}\" closes a circle of includes: "
                              f"{' -> '.join(way[way.index(target):] + [target])}")
            elif target not in done:
                walk(target, way + [target])
        done.add(path)
    for path in graph:
        if path not in done:
            walk(path, [path])
    return faults


def linked(texts):
    """{part: the parts whose libraries it links} by the daemon's CMakeLists.txt, {path: text}."""
    found = {}
    for text in texts.values():
        text = re.sub(r"#.*", "", text)
        calls = re.findall(r"(roll_daemon_part|target_link_libraries)\s*\(\s*(\w+)([^)]*)\)", text)
        for call, target, rest in calls:
            target = "roll_" + target if call == "roll_daemon_part" else target
            part = {"rollcalld": "rollcalld", "rollcall": "console"}.get(target) or LIBRARIES.get(target)
            if part is None:
                continue
            names = set(re.findall(r"\broll_\w+", rest)) | ({"roll_trace"} if call == "roll_daemon_part" else set())
            found.setdefault(part, set()).update(LIBRARIES[n] for n in names - {"roll_flags"} if n in LIBRARIES)
    return {part: names - {part} for part, names in found.items()}


def agree(parts, found):
    """Faults: a part of the daemon whose row and whose libraries differ. The console has several rows, and HEADERS are
    no libraries."""
    faults = []
    for part, names in sorted(found.items()):
        rows = [r for r in parts.order if r == part or r.startswith(part + " ")]
        if not rows:
            faults.append(f"daemon/CMakeLists.txt: {part} is no part of the table in CONTRIBUTING.md")
            continue
        may = {a.split(" ")[0] for r in rows for a in parts.allowed[r] - HEADERS} - {part}
        if may != names:
            faults.append(f"daemon/: {part} links {', '.join(sorted(names))}, and the table in CONTRIBUTING.md lets it "
                          f"include {', '.join(sorted(may))}")
    return faults


def try_self():
    table = tree.Parts("| low | `a/low/` | nothing |\n| top | `a/top/`, `a/x/*.h` | low |\n| alone | `a/top/{p,q}.c` | "
                       "nothing |\n")
    good = {"a/low/l.h": "", "a/top/t.c": '#include "a/low/l.h"\n#include <stdio.h>\n', "a/x/t.h": "",
            "a/top/p.c": '# include "../top/q.c"\n', "a/top/q.c": ""}
    assert judge(table, good, {}) == []
    for path, text, want in (
            ("a/low/l.h", '\n#include "a/top/t.c"\n', "a/low/l.h:2: #include \"a/top/t.c\": low may not include top"),
            ("a/low/l.h", '  #  include "../top/t.c"\n', "low may not include top"),
            ("a/low/l.h", '#include <a/x/t.h>\n', "low may not include top"),
            ("a/top/q.c", '#include "a/low/l.h"\n', "alone may not include low; it may include nothing"),
            ("a/top/t.c", '#include "nowhere.h"\n', "no such file"),
            ("b/new.c", "", "belongs to no part"),
            ("a/x/t.h", '#include "a/x/t.h"\n', "closes a circle")):
        faults = judge(table, {**good, path: text}, {})
        assert any(want in f for f in faults), (want, faults)
    bad = {**good, "a/low/l.h": '#include "a/x/t.h"\n'}
    assert judge(table, bad, {"a/low/l.h -> a/x/t.h": "for a reason"}) == []
    assert "no longer needed" in judge(table, good, {"a/low/l.h -> a/x/t.h": "for a reason"})[0]
    lists = {"x": "roll_daemon_part(wire roll_base) # roll_engine\nadd_library(roll_stack STATIC a.c)\n"
             "target_link_libraries(roll_stack PUBLIC roll_symbols roll_base)\n"}
    assert linked(lists) == {"wire": {"base", "trace"}, "stack": {"base"}}
    rows = tree.Parts("| trace | `t/` | nothing |\n| base | `b/` | trace |\n| wire | `w/` | base, trace |\n| stack | "
                      "`s/` | base, trace |\n")
    assert len(agree(rows, linked(lists))) == 1 and "stack links base" in agree(rows, linked(lists))[0]
    pure = tree.Parts("| trace | `t/` | nothing |\n| base containers | `b/m.h` | trace |\n| base | `b/` | base "
                      "containers, trace |\n| engine | `e/` | base containers, trace |\n")
    assert pure.of("b/m.h") == "base containers" and pure.of("b/n.h") == "base"
    assert agree(pure, {"base": {"trace"}, "engine": {"trace"}}) == []
    assert "engine links base, trace" in agree(pure, {"engine": {"base", "trace"}})[0]
    hidden = {"b/m.h": "", "b/n.h": "", "e/e.c": '#include "b/m.h"\n', "t/t.h": ""}
    assert judge(pure, hidden, {}) == []
    assert "engine may not include base;" in judge(pure, {**hidden, "e/e.c": '#include "b/n.h"\n'}, {})[0]
    low = judge(pure, {**hidden, "b/m.h": '#include "b/n.h"\n'}, {})
    assert "base containers may not include base;" in low[0]
    for table in ("| low | `l/` | top |\n| top | `t/` | low |\n", "| low | `l/` | nobody |\n"):
        try:
            tree.Parts(table)
        except SystemExit:
            continue
        raise AssertionError(table)


if __name__ == "__main__":
    try_self()
    texts = {f: tree.read(f) for f in tree.listed(*tree.PRODUCT) if SOURCE.search(f)}
    lists = {f: tree.read(f) for f in tree.listed("daemon") if f.endswith("CMakeLists.txt")}
    table = tree.parts()
    unseen = [f"CONTRIBUTING.md: part {p}: no file" for p in table.order if not any(table.of(f) == p for f in texts)]
    faults = unseen + judge(table, texts, tree.exceptions("include")) + agree(table, linked(lists))
    tree.end(faults, f"{len(texts)} files include nothing above them; {len(linked(lists))} folders of the daemon link "
             "what they may include")
