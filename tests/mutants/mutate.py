"""mutate.py: mutants of a list, one change each, tried against the tests that must find it (scripts/mutate).

A list is a text file beside this one; its head says what a line is. Each worker has a copy of the tree in a folder of
its own, in which one file is changed at a time, so a mutant costs one file and the links behind it. Changes of
compiled code were rejected: who reads the list could not tell what a mutant is.

A mutant that makes a test hang is found by that, but a slow machine is not a mutant: the builds have a time of their
own, whose end is an error, and a test that did not end must do so when the change is gone. Such finds are said as such.
"""

import argparse
import os
import pathlib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SECONDS = 900  # for all tests of one mutant, where the list says nothing: only one that hangs takes so long
BUILD_SECONDS = 1800  # for one build: only a machine that has no time for us takes so long
FAILS, HANGS = "fails", "does not end"  # what a test does that finds a mutant
SHARE = 0.95  # of all mutants that are to be found
# A mutant may well leave something unused, which is an error elsewhere.
LENIENT = "".join(f'#pragma GCC diagnostic ignored "-W{name}"\n' for name in (
    "pragmas", "unused-variable", "unused-function", "unused-value", "unused-label", "unused-parameter",
    "unused-but-set-variable", "unused-but-set-parameter", "empty-body", "uninitialized", "maybe-uninitialized",
    "type-limits", "return-type"))


class Wrong(Exception):
    """A list, or a mutant in it, that says nothing."""


class Mutant:
    def __init__(self, number, kind, fields):
        self.number, self.kind = number, kind
        self.path, what, by, self.why = fields
        self.what, self.by = (text.replace("\\n", "\n").strip(" ") for text in (what, by))

    def text(self, tree):
        """The file with the change. Spaces at the beginning of lines do not count in what is looked for."""
        file = tree / self.path
        if not file.is_file():
            raise Wrong(f"line {self.number}: there is no {self.path}")
        old = file.read_text()
        pattern = r"\n\s*".join(re.escape(line.strip()) for line in self.what.split("\n"))
        places = list(re.finditer(pattern, old))
        if len(places) != 1:
            raise Wrong(f"line {self.number}: '{self.what}' stands {len(places)} times in {self.path}, not once")
        begin, end = places[0].span()
        by = self.by
        if not by and self.what.endswith(";"):
            by = ";"  # the body of an if stays one
        new = old[:begin] + by + old[end:]
        if new == old:
            raise Wrong(f"line {self.number}: it changes nothing")
        return new

    def place(self, tree):
        old = (tree / self.path).read_text()
        first = self.what.split("\n")[0].strip()
        return f"{self.path}:{old[: old.find(first)].count(chr(10)) + 1}"


class List:
    def __init__(self, name):
        self.file = HERE / f"{name}.txt"
        self.steps, self.mutants, self.seconds, self.needs = [], [], SECONDS, []
        if not self.file.is_file():
            raise Wrong(f"there is no list {self.file.relative_to(ROOT)}")
        for number, line in enumerate(self.file.read_text().splitlines(), 1):
            word, _, rest = line.partition(" ")
            if not line.strip() or word == "#" or line.startswith("#"):
                continue
            fields = [field.strip(" ") for field in re.split(r" ;;(?= )", " " + rest)]
            if word == "tests" and len(fields) == 2:
                self.steps.append((fields[0], fields[1].split(), None))
            elif word == "needs" and len(fields) == 2 and all(fields):
                self.needs.append((fields[0], fields[1].split()))
            elif word == "seconds" and rest.strip().isdecimal():
                self.seconds = int(rest)
            elif word == "run" and rest:
                self.steps.append(("", [], rest.split()))
            elif word in ("must", "open", "may") and len(fields) == 4 and fields[1] and fields[3]:
                self.mutants.append(Mutant(number, word, fields))
            else:
                raise Wrong(f"{self.file.relative_to(ROOT)}:{number}: no line of a list: {line}")


def check(names):
    """Whether each mutant of the lists still stands in the tree. Prints what does not."""
    bad = total = 0
    for name in names or [file.stem for file in sorted(HERE.glob("*.txt")) if file.name != "CMakeLists.txt"]:
        mutants = List(name)
        for mutant in mutants.mutants:
            total += 1
            try:
                mutant.text(ROOT)
            except Wrong as wrong:
                bad += 1
                print(f"{mutants.file.relative_to(ROOT)}: {wrong}")
    print(f"{total} mutants, {bad} that do not stand in the tree any more")
    return 1 if bad or total == 0 else 0


class Copy:
    """A copy of the tree with a build of its own."""

    def __init__(self, folder, mutants):
        self.tree, self.build, self.list = folder, folder / "build", mutants
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
        for name in filter(None, files.decode().split("\0")):
            source, target = ROOT / name, self.tree / name
            same = target.is_file() and source.is_file() and target.read_bytes() == source.read_bytes()
            if source.is_file() and not same:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                shutil.copymode(source, target)
        env = dict(os.environ, CCACHE_BASEDIR=str(self.tree), CCACHE_NOHASHDIR="1")
        # As developers build, so that a cache of compiled files holds all but the mutants.
        cached = [f"-DCMAKE_{word}_COMPILER_LAUNCHER=ccache" for word in ("C", "CXX") if shutil.which("ccache")]
        self.call(["cmake", "-S", self.tree, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                   "-DROLL_CUDA=OFF", *cached], env)
        self.env, self.trusted = env, set()
        self.program = {}
        for file in self.build.rglob("CTestTestfile.cmake"):  # ctest itself tells only of programs that are built
            for name, program in re.findall(r'add_test\(\[=\[(.*?)\]=\] "(.*?)"', file.read_text()):
                self.program[name] = os.path.relpath(program, self.build)

    def call(self, command, env):
        done = subprocess.run([str(part) for part in command], env=env, capture_output=True, text=True)
        if done.returncode != 0:
            raise Wrong(f"{command[0]} fails:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def make(self, *programs):
        """Builds them. What the compiler said, where it fails. A Wrong where it does not end."""
        process = subprocess.Popen(["ninja", "-C", str(self.build), *programs], env=self.env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        with process:
            try:
                said = process.communicate(timeout=BUILD_SECONDS)[0]
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                raise Wrong(f"the build of {' '.join(programs)} does not end in {BUILD_SECONDS} s") from None
        return said[-1500:] if process.returncode != 0 else ""

    def steps(self, path):
        """What is tried for a file, in the order of the list: a name, what has to be built, and the command."""
        for folder, names, run in self.list.steps:
            for name in names if path.startswith(folder) else []:
                if name not in self.program:
                    raise Wrong(f"no such test: {name}")
                starts = [one for prefix, programs in self.list.needs if name.startswith(prefix) for one in programs]
                command = ["ctest", "--test-dir", self.build, "-R", f"^{re.escape(name)}$"]
                yield name, [self.program[name], *starts], command
            if run:
                command = [self.build / "tests" / run[0], *(part.replace("@", str(self.tree)) for part in run[1:])]
                yield " ".join(run[:3]).replace("@/", ""), [f"tests/{run[0]}"], command

    def finds(self, command, seconds):
        """FAILS or HANGS, where it does one of the two in its time; else None."""
        # A program's output may be long, and goes nowhere; ctest's says whether a test ended by its own limit.
        ctest = command[0] == "ctest"
        with subprocess.Popen([str(part) for part in command], env=self.env, cwd=self.build, start_new_session=True,
                              text=True, stdout=subprocess.PIPE if ctest else subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            try:
                said = process.communicate(timeout=seconds)[0] or ""
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
                return HANGS
        return None if process.returncode == 0 else HANGS if "***Timeout" in said else FAILS

    def found_by(self, number, path):
        """What finds the change that is in the file, and how; None: nothing does. A Wrong where it does not build."""
        left = self.list.seconds
        for step in self.steps(path):
            said = self.make(*step[1])
            if said:
                raise Wrong(f"line {number}: it does not build:\n{said}")
            began = time.monotonic()
            how = self.finds(step[2], max(left, 1))
            if how:
                return step, how
            left -= time.monotonic() - began
        return None

    def attempt(self, mutant):
        """What finds it, and how; None: nothing. The copy is as it was behind it. What finds one for the first time has
        to find nothing where nothing is, and so has, each time, what did not end."""
        file, new = self.tree / mutant.path, mutant.text(self.tree)
        old = file.read_text()
        try:
            file.write_text(LENIENT + new)
            found = self.found_by(mutant.number, mutant.path)
        finally:
            file.write_text(old)
        if not found:
            return None
        step, how = found
        if how == HANGS or step[0] not in self.trusted:
            if self.make(*step[1]) or self.finds(step[2], self.list.seconds):
                raise Wrong(f"line {mutant.number}: {step[0]} {how}, and fails without any mutant as well")
            self.trusted.add(step[0])
        return step[0], how


def work(folder, mutants, left, say):
    try:
        copy = Copy(folder, mutants)
    except Wrong as wrong:
        say(None, None, wrong, 0)
        return
    while True:
        try:
            mutant = left.get_nowait()
        except queue.Empty:
            return
        began = time.monotonic()
        try:
            say(mutant, copy.attempt(mutant), None, time.monotonic() - began)
        except Wrong as wrong:
            say(mutant, None, wrong, time.monotonic() - began)


HELD = {"must": "MUST BE FOUND", "open": "a hole that is known", "may": "may live"}


def show(results, broken):
    """The table. How the whole ends. `results`: of each mutant what found it and how (None: nothing), and seconds."""
    found = sum(1 for _, by, _ in results if by)
    hang = sum(1 for _, by, _ in results if by and by[1] == HANGS)
    for mutant, by, _ in sorted(results, key=lambda result: result[0].number):
        if not by:
            print(f"lives      {mutant.place(ROOT)}  {HELD[mutant.kind]}\n           {mutant.why}")
        elif mutant.kind != "must":
            print(f"found      {mutant.place(ROOT)}  '{mutant.kind}' in the list: make it 'must'")
    holes = [mutant for mutant, by, _ in results if mutant.kind == "must" and not by]
    share = found / len(results) if results else 0
    print(f"{found} of {len(results)} mutants found ({100 * share:.1f} %, of which {100 * SHARE:.0f} are asked for), "
          f"{hang} of them because a test did not end; "
          f"{len(holes)} that must be found {'lives' if len(holes) == 1 else 'live'}; {broken} could not be tried")
    return 1 if holes or broken or share < SHARE else 0


def run(options):
    mutants = List(options.lists[0])
    left, results, lock, broken = queue.Queue(), [], threading.Lock(), 0
    for mutant in mutants.mutants:
        if not options.only or options.only in f"{mutant.path} {mutant.what} {mutant.by} {mutant.why}":
            left.put(mutant)
    count = left.qsize()

    def say(mutant, by, wrong, seconds):
        nonlocal broken
        with lock:
            if wrong:
                broken += 1
                print(f"wrong      {wrong}", flush=True)
                return
            results.append((mutant, by, seconds))
            word = ("hangs" if by[1] == HANGS else "found") if by else "LIVES" if mutant.kind == "must" else "lives"
            print(f"{word:10} {mutant.place(ROOT):46} {by[0] if by else '-':44} {seconds:4.0f} s   {mutant.why}",
                  flush=True)

    folder = pathlib.Path(options.dir or tempfile.mkdtemp(prefix="roll-mutants-"))
    try:
        threads = [threading.Thread(target=work, args=(folder / str(i), mutants, left, say))
                   for i in range(max(1, min(options.jobs, count)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        if not options.dir:
            shutil.rmtree(folder, ignore_errors=True)
    broken += left.qsize()
    return show(results, broken)


def main():
    parser = argparse.ArgumentParser(prog="scripts/mutate", description="Tries mutants against the tests.")
    parser.add_argument("lists", nargs="*", metavar="LIST", help="of tests/mutants/, without .txt")
    parser.add_argument("--check", action="store_true", help="only whether each mutant still stands in the tree")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="copies of the tree side by side")
    parser.add_argument("--only", help="only mutants in whose line this text stands")
    parser.add_argument("--dir", help="where the copies are, and stay for the next time")
    options = parser.parse_args()
    if not options.check and len(options.lists) != 1:
        parser.error("name one list")
    try:
        return check(options.lists) if options.check else run(options)
    except Wrong as wrong:
        print(f"mutate: {wrong}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
