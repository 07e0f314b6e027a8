"""tree.py: what the checks of the tree share: its files, the table of parts in CONTRIBUTING.md, named exceptions, and
how a check ends."""
import fnmatch
import os
import re
import subprocess
import sys

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
PRODUCT = ("common", "trace", "interposer", "daemon", "moe_core", "hostnccl", "kernels")


def listed(*folders, root=ROOT):
    """The files that belong to the tree: tracked, or new and not ignored; a source without .git is walked."""
    git = ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard", "--", *folders]
    answer = subprocess.run(git, capture_output=True, text=True)
    if answer.returncode == 0 and answer.stdout:  # a checkout that ignores this folder knows none of its files
        found = answer.stdout.split("\n")
    else:
        found = []
        for folder in folders or os.listdir(root):
            if os.path.isfile(os.path.join(root, folder)):
                found.append(folder)
            for at, folders_here, files in os.walk(os.path.join(root, folder)):
                folders_here[:] = [f for f in folders_here if not f.startswith((".", "build", "__pycache__"))]
                found += [os.path.relpath(os.path.join(at, f), root) for f in files]
    return sorted({f for f in found if f and os.path.isfile(os.path.join(root, f))})


def read(path, root=ROOT):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def alternatives(pattern):
    """`a/{b,c}.h` as `a/b.h` and `a/c.h`; a folder `a/` stands for all below it."""
    brace = re.search(r"\{([^{}]*)\}", pattern)
    if brace is None:
        return [pattern + "*" if pattern.endswith("/") else pattern]
    return [a for word in brace.group(1).split(",")
            for a in alternatives(pattern[:brace.start()] + word + pattern[brace.end():])]


class Parts:
    """The table under "Data flows one way": each part's files, and which other parts its files may include."""

    def __init__(self, text):
        self.files, self.allowed = {}, {}
        for line in text.split("\n"):
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            if len(cells) == 3 and re.fullmatch(r"[a-z_/. ]+", cells[0]) and "`" in cells[1]:
                self.files[cells[0]] = [a for p in re.findall(r"`([^`]+)`", cells[1]) for a in alternatives(p)]
                self.allowed[cells[0]] = {w.strip() for w in cells[2].split(",") if w.strip() not in ("", "nothing")}
        for part, names in self.allowed.items():
            for name in names - set(self.files):
                raise SystemExit(f"CONTRIBUTING.md: part {part} may include {name}, which is no part")
        self.order = list(self.files)
        for i, part in enumerate(self.order):
            for name in self.allowed[part]:
                if self.order.index(name) >= i:
                    raise SystemExit(f"CONTRIBUTING.md: part {part} may include {name}, which stands below it in the "
                                     "table")

    def of(self, path):
        """The part of a file: of the patterns that fit, the longest decides. None: it belongs to none."""
        fits = [(len(p.replace("*", "")), part) for part, patterns in self.files.items() for p in patterns
                if fnmatch.fnmatchcase(path, p)]
        return max(fits)[1] if fits else None


def parts():
    text = read("CONTRIBUTING.md")
    found = Parts(text[text.index("## Data flows one way"):text.index("## Style")])
    if len(found.files) < 10:
        raise SystemExit("CONTRIBUTING.md: the table of parts was not found")
    return found


def exceptions(kind):
    """Lines `kind: what: reason` of exceptions.txt as {what: reason}."""
    found = {}
    for number, line in enumerate(read("tests/tree/exceptions.txt").split("\n"), 1):
        if line and not line.startswith("#"):
            cells = line.split(": ", 2)
            if len(cells) != 3 or len(cells[2]) < 20:
                raise SystemExit(f"tests/tree/exceptions.txt:{number}: not `kind: what: reason`")
            if cells[0] == kind:
                found[cells[1]] = cells[2]
    return found


def end(faults, what):
    for fault in faults:
        print(fault)
    print(f"{len(faults)} faults" if faults else what)
    sys.exit(1 if faults else 0)
