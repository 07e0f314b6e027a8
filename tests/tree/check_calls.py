#!/usr/bin/env python3
"""check_calls.py: no circle of files that call each other, and the pure parts need nothing from outside but what their
lists allow.

Both are read from the objects (`nm`). A call is a symbol, function or variable, that one object of a library wants and
another of it defines; calls through a pointer and functions that are inlined from headers are not seen as such. A
circle that is wanted stands in exceptions.txt with its reason: exactly the files of the circle, so that one that grows
or shrinks must be looked at again. What a list proves is that the part's own objects name no other symbol of libc: it
does not prove what an allowed function does inside, nor on which path a function is called.

  check_calls.py OBJECTS NM    OBJECTS: lines of "[library]" and below them the paths of its objects
"""
import os
import re
import subprocess
import sys

import tree

INSTRUMENTS = re.compile(
    r"^__(asan|ubsan|tsan|sanitizer|gcov|llvm|sancov|lsan)_|^_GLOBAL_OFFSET_TABLE_$|^__stack_chk_fail$")
# The libraries whose outside is listed, and those whose functions they may call.
LISTED = {"roll_engine": ("roll_trace",), "rollcall_interposer": ("rollcall_interposer_set1",
                                                                  "rollcall_interposer_set2")}


def source(path):
    """The source file of an object: .../folder/CMakeFiles/target.dir/a/b.c.o."""
    found = re.search(r"(?:^|/)([^:]*?)/?CMakeFiles/[^/]+\.dir/(.*)\.o$", path)
    folder, name = found.groups()
    # The checkout may lie below such a name.
    at = max(("/" + folder + "/").rfind("/" + top + "/") for top in tree.PRODUCT)
    return os.path.normpath(os.path.join(folder[at:], name.replace("__/", "../"))) if at >= 0 else name


def plain(symbol):
    """The function's own name of what compilers that fortify call: __read_chk and __open_2. An instrument's
    __asan_stack_malloc_2 keeps its name."""
    return symbol if INSTRUMENTS.match(symbol) else re.sub(r"^__(\w+)_(?:chk|2)$", r"\1", symbol)


def symbols(text):
    """(defined, wanted) of the output of `nm -P`: name, kind and the rest."""
    defined, wanted = set(), set()
    for line in text.split("\n"):
        cells = line.split()
        if len(cells) >= 2 and len(cells[1]) == 1:
            if cells[1] in "Uwv":
                wanted.add(plain(cells[0].split("@")[0]))
            elif cells[1] in "TDBRVWCGSi":
                defined.add(cells[0])
    return defined, wanted


def circles(graph):
    """The strongly connected parts of more than one node, by Tarjan."""
    number, low, way, out = {}, {}, [], []

    def visit(node):
        number[node] = low[node] = len(number)
        way.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in number:
                visit(other)
            if other in way:
                low[node] = min(low[node], low[other])
        if low[node] == number[node]:
            part = []
            while not part or part[-1] != node:
                part.append(way.pop())
            if len(part) > 1:
                out.append(sorted(part))
    for node in sorted(graph):
        if node not in number:
            visit(node)
    return sorted(out)


def calls(objects):
    """{file: {file that it calls: symbols}} of one library's {file: (defined, wanted)}."""
    home = {s: f for f, (defined, _) in objects.items() for s in defined}
    graph = {f: {} for f in objects}
    for file, (defined, wanted) in objects.items():
        for symbol in wanted - defined:
            if home.get(symbol, file) != file:
                graph[file].setdefault(home[symbol], []).append(symbol)
    return graph


def judge_circles(libraries, excused, whole=()):
    """`excused`: one circle each; `whole`: libraries of which no circle is judged."""
    faults, used = [], set()
    for library, objects in libraries.items():
        graph = calls(objects)
        for circle in circles(graph):
            key = " ".join([library, *circle])
            used |= {key, library}
            if key in excused or library in whole:
                continue
            faults.append(f"circle: {key}: these files call each other")
            for file in circle:
                for other in circle:
                    if other in graph[file]:
                        faults.append(f"  {file} calls {other}: {' '.join(sorted(graph[file][other])[:8])}")
    return faults + [f"tests/tree/exceptions.txt: {key}: is no circle any more" for key in [*excused, *whole]
                     if key not in used]


def judge_outside(library, objects, helpers, allowed):
    """Symbols that a library's objects want, that neither they nor its helpers define, against a list of names."""
    inside = {s for part in (objects, *helpers) for defined, _ in part.values() for s in defined}
    judged, faults, seen = dict(objects), [], set()
    spare = {file: both for part in helpers for file, both in part.items()}
    while True:  # what the library reaches of its helpers is held to the same list
        asked = {s for _, wanted in judged.values() for s in wanted}
        more = {file: both for file, both in spare.items() if file not in judged and both[0] & asked}
        if not more:
            break
        judged.update(more)
    for file, (_, wanted) in sorted(judged.items()):
        for symbol in sorted(wanted - inside):
            seen.add(symbol)
            if symbol not in allowed and not INSTRUMENTS.match(symbol):
                faults.append(f"{file}: needs {symbol}, which tests/tree/{library}.symbols does not allow")
    return faults, seen


def allowed_symbols(text):
    return {w for line in text.split("\n") for w in line.split("#")[0].split()}


def try_self():
    assert source("/x/build/daemon/engine/CMakeFiles/roll_engine.dir/judge/a.c.o") == "daemon/engine/judge/a.c"
    assert source("/x/build/interposer/CMakeFiles/i.dir/__/trace/op.c.o") == "trace/op.c"
    assert source("/daemon/build/trace/CMakeFiles/i.dir/op.c.o") == "trace/op.c"
    assert source("/x/trace/rollcall/build/daemon/engine/CMakeFiles/e.dir/judge/a.c.o") == "daemon/engine/judge/a.c"
    assert source("/srv/common/rollcall/build/hostnccl/cuda/CMakeFiles/e.dir/a.c.o") == "hostnccl/cuda/a.c"
    assert symbols("__asan_stack_malloc_2 U\n") == (set(), {"__asan_stack_malloc_2"})  # no fortified function
    assert symbols("g U\n__memmove_chk U\n__open_2@GLIBC_2 U\n") == (set(), {"g", "memmove", "open"})
    assert symbols("f T 0 8\nprintf U\nd d 0 4\nweak w\nx@GLIBC_2 U\n") == ({"f"}, {"printf", "weak", "x"})
    a, b, c, d = ({"a"}, {"b"}), ({"b"}, {"c", "printf"}), ({"c"}, set()), ({"d"}, {"a"})
    good = {"lib": {"a.c": a, "b.c": b, "c.c": c, "d.c": d}}
    bad = {"lib": {**good["lib"], "c.c": ({"c"}, {"a"})}}
    assert judge_circles(good, {}) == []
    assert any("c.c calls a.c: a" in f for f in judge_circles(bad, {}))
    assert judge_circles(bad, {"lib a.c b.c c.c": "wanted"}) == []
    assert judge_circles(bad, {"lib a.c b.c": "another circle"}) != []
    assert judge_circles(bad, {}, {"lib": "all of it"}) == []
    assert "no circle any more" in judge_circles(good, {}, {"lib": "all of it"})[0]
    assert "no circle any more" in judge_circles(good, {"lib a.c b.c c.c": "wanted"})[0]
    assert judge_outside("lib", good["lib"], [], {"printf"}) == ([], {"printf"})
    assert "b.c: needs printf" in judge_outside("lib", good["lib"], [], {"puts"})[0][0]
    assert judge_outside("lib", good["lib"], [{"io.c": ({"printf"}, set())}], set())[0] == []
    deep = [{"io.c": ({"printf"}, {"write_out"}), "far.c": ({"write_out"}, {"socket"}), "apart.c": ({"x"}, {"abort"})}]
    assert ["far.c: needs socket" in f for f in judge_outside("lib", good["lib"], deep, set())[0]] == [True]
    assert allowed_symbols("a b # c\n# d\ne\n") == {"a", "b", "e"}


def main(listing, nm):
    libraries, objects, faults = {}, None, []
    for line in open(listing, encoding="utf-8"):
        line = line.strip()
        if line.startswith("["):
            objects = libraries.setdefault(line.strip("[]"), {})
        elif line.endswith(".o"):
            if os.path.isfile(line):
                objects[source(line)] = symbols(subprocess.run([nm, "-P", line], capture_output=True, text=True,
                                                               check=True).stdout)
            else:
                faults.append(f"{line}: not built")
    faults += judge_circles(libraries, tree.exceptions("circle"), tree.exceptions("circles"))
    count = sum(len(o) for o in libraries.values())
    instrumented = any(s.startswith(("__asan_", "__tsan_", "__gcov_", "__sanitizer_")) for o in libraries.values()
                       for _, w in o.values() for s in w)
    for library, helpers in LISTED.items():
        allowed = allowed_symbols(tree.read(f"tests/tree/{library}.symbols"))
        found, seen = judge_outside(library, libraries[library], [libraries[h] for h in helpers], allowed)
        faults += found
        # Another compiler, or a sanitizer, may do without some; with the usual build a list says no more than is so.
        if not instrumented and "-v" in sys.argv:
            print(f"{library}: listed and not needed by this build: {' '.join(sorted(allowed - seen)) or 'none'}")
    tree.end(faults, f"{count} objects: no circle but those named; {', '.join(LISTED)} need what their lists allow")


if __name__ == "__main__":
    try_self()
    main(sys.argv[1], sys.argv[2])
