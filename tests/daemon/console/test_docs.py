"""test_docs.py: the manual pages and the completion name every command and every option, and none that is not there."""
import os
import re
import shutil
import subprocess
import unittest

from support import CATALOGUE, DAEMON, ROLLCALL, Case, until

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
DOCS = os.path.join(TREE, "docs")


def run(*args):
    return subprocess.run([ROLLCALL, *args], capture_output=True, text=True, check=True).stdout


def commands():
    return re.findall(r"^  (\w+) ", run("help").split("commands:")[1].split("options:")[0], re.M)


def page(name):
    with open(os.path.join(TREE, name), encoding="utf-8") as f:
        return f.read()


def options(text):
    return set(re.findall(r"--[a-z][a-z-]*", text))


def listed(command):
    """The options that the help of a command lists."""
    return set(re.findall(r"^  (?:-\w, |    )(--[a-z-]+)", run("help", command), re.M))


class Docs(unittest.TestCase):
    def commands(self):
        return [c for c in commands() if c != "help"]

    def manual(self, name):
        with open(os.path.join(DOCS, "man", name + ".1")) as f:
            return f.read().replace("\\-", "-")

    def test_each_command_has_a_manual_page_with_all_its_options(self):
        main = self.manual("rollcall")
        for command in self.commands():
            with self.subTest(command=command):
                page = self.manual("rollcall-" + command)
                self.assertIn(".BR rollcall-" + command, main)
                self.assertEqual(listed(command) - options(page), set(), "not in the manual page")
                heads = set(re.findall(r"--[a-z][a-z-]*", " ".join(re.findall(r"^\.B (.*)$", page, re.M))))
                self.assertEqual(heads - listed(command), set(), "in the manual page only")

    def test_help_and_manual_page_say_the_same_of_an_option(self):
        """Its letter and what its argument is called; and what a command does in one line."""
        for command in self.commands():
            help_ = run("help", command)
            page = self.manual("rollcall-" + command)
            with self.subTest(command=command):
                brief = help_.split("\n\n")[1].strip()
                self.assertEqual(page.split(".SH NAME\n")[1].split("\n")[0], f"rollcall-{command} - {brief}")
                synopsis = re.sub(r"^\.B |^\.br$", "", page.split(".SH SYNOPSIS\n")[1].split(".SH")[0], flags=re.M)
                self.assertIn(" ".join(("rollcall", command, "[OPTION...]")), " ".join(synopsis.split()))
            heads = {}
            for line in re.findall(r"^\.B (-.*)$", page, re.M):
                words = [word.split() for word in line.split(", ")]
                letters = {word[0] for word in words if len(word[0]) == 2}
                for word in words:
                    heads.setdefault(word[0], (letters, " ".join(word[1:])))
            for letter, name, argument in re.findall(r"^  (?:(-\w), |    )(--[a-z-]+)(?: (\S+))?(?= |$)", help_, re.M):
                with self.subTest(command=command, option=name):
                    self.assertEqual(heads[name], ({letter} - {""}, argument))

    def test_pages_name_no_command_that_is_not_there(self):
        """Neither in the text nor in lines of code, as SLURM.md has them."""
        pages = [os.path.join(DOCS, name) for name in os.listdir(DOCS) if name.endswith(".md")]
        known = set(commands())
        for path in (os.path.join(TREE, "README.md"), *pages):
            with open(path, encoding="utf-8") as f:
                named = set(re.findall(r"(?:`|^ {4})rollcall ([a-z]+)(?=[ `\n])", f.read(), re.M))
            self.assertEqual(named - known - {"python"}, set(), path)  # a line of a file begins so

    def test_the_first_page_names_every_command(self):
        named = set(re.findall(r"(?:`|^)rollcall (\w+)", page("README.md"), re.M))
        self.assertEqual(set(self.commands()) - named, set())

    def test_pages_that_set_up_several_nodes_call_the_keys_alike(self):
        keys = [set(re.findall(r"rollcall keygen --role (\w+) --name (\w+) keys", page(name)))
                for name in ("README.md", "docs/SLURM.md")]
        self.assertEqual({role for role, _ in keys[0]}, {"node", "viewer", "operator"})
        self.assertEqual(keys[0], keys[1])
        for name in ("README.md", "docs/SLURM.md"):
            self.assertEqual(set(re.findall(r"keys/(\w+)", page(name))) - {"allowed"} - {key for _, key in keys[0]},
                             set(), name)

    def test_the_libraries_to_install_are_those_that_cmake_asks_for(self):
        rows = [[re.findall(r"`([^`]+)`", cell) for cell in row.split("|")[1:3]]
                for row in re.findall(r"^\| `.*$", page("docs/INSTALL.md").split("**The build**")[0], re.M)]
        found = "".join(page(os.path.join(*name)) for name in (("cmake", "RollFind.cmake"),
                                                               ("daemon", "console", "CMakeLists.txt"),
                                                               ("daemon", "stack", "CMakeLists.txt")))
        needed = set(re.findall(r"pkg_check_modules\(\w+ REQUIRED IMPORTED_TARGET ([\w-]+)\)", found))
        self.assertIn("libzmq", needed)
        self.assertEqual({name for row in rows for name in row[0]}, needed | {"openblas"})
        tools = {"gcc", "libc6-dev", "cmake", "ninja-build", "pkg-config"}
        listed_ = subprocess.run([os.path.join(TREE, "scripts", "deps"), "--list", "--demo"], capture_output=True,
                                 text=True, check=True).stdout.split()
        self.assertEqual({name for row in rows for name in row[1]}, set(listed_) - tools)

    def test_pages_give_a_command_no_option_that_it_does_not_have(self):
        """Up to what is the job's own: behind `--`, and behind what a shell reads."""
        places = [os.path.join(TREE, "README.md"), *(os.path.join(DOCS, name) for name in os.listdir(DOCS))]
        places += [os.path.join(DOCS, "man", name) for name in os.listdir(os.path.join(DOCS, "man"))]
        known = {command: listed(command) | {"--help"} for command in self.commands()}
        letters = {command: set(re.findall(r"^  (-\w), ", run("help", command), re.M)) | {"-h"} for command in known}
        seen = 0
        for path in places:
            if os.path.isdir(path) or not path.endswith((".md", ".1")):
                continue
            with open(path, encoding="utf-8") as f:
                text = f.read().replace("\\-", "-")
            for command, words in re.findall(r"\brollcall ([a-z]+)((?: [^\s`|;&>()]+)+)", text):
                given = re.split(r" -- | --$", words + " ")[0]
                for option in re.findall(r"(?<= )--?[a-z][a-z-]*", given) if command in known else []:
                    seen += 1
                    with self.subTest(page=os.path.basename(path), command=command):
                        self.assertIn(option, known[command] | letters[command])
        self.assertGreater(seen, 50)

    def test_the_manual_page_names_every_environment_variable_that_is_read(self):
        """What a program reads is a text in its source by itself: "ROLLCALL_DIR"."""
        read = set()
        for part in ("interposer", "daemon", "trace"):
            for folder, _, names in os.walk(os.path.join(TREE, part)):
                for name in names:
                    if name.endswith((".c", ".h")):
                        with open(os.path.join(folder, name), encoding="utf-8") as f:
                            read |= set(re.findall(r'"(ROLLCALL_[A-Z_]+)"', f.read()))
        self.assertIn("ROLLCALL_DIR", read)
        named = set(re.findall(r"ROLLCALL_[A-Z_]+", self.manual("rollcall").split(".SH ENVIRONMENT")[1]))
        # The first is for tests, another folder in place of /; the second is what rollcall says to an interpreter.
        self.assertEqual(read - {"ROLLCALL_NODE_ROOT", "ROLLCALL_ZYGOTE"}, named)

    def test_completion_offers_every_command_and_option(self):
        with open(os.path.join(DOCS, "completion", "rollcall")) as f:
            text = f.read()
        for command in commands():
            self.assertRegex(text, rf'commands="[^"]*\b{command}\b')
        for command in self.commands():
            with self.subTest(command=command):
                line = f"rollcall {command} --"
                script = (f'source "{os.path.join(DOCS, "completion", "rollcall")}"; COMP_WORDS=({line}); '
                          'COMP_CWORD=2; _rollcall; echo "${COMPREPLY[@]}"')
                offered = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
                self.assertEqual(options(offered), listed(command) | {"--help"})

    def offered(self, program, *words):
        """What the completion of a program offers for the last of these words."""
        script = (f'source "{os.path.join(DOCS, "completion", program)}"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
                  f'_{program}; echo "${{COMPREPLY[@]}}"')
        return subprocess.run(["bash", "-c", script, "bash", program, *words], capture_output=True, text=True,
                              check=True).stdout.split()

    def test_behind_an_option_with_an_argument_no_option_is_offered(self):
        """But what it takes, where that can be listed."""
        for command in self.commands():
            for name in re.findall(r"^  (?:-\w, |    )(--[a-z-]+) [A-Z]", run("help", command), re.M):
                with self.subTest(command=command, option=name):
                    self.assertFalse([w for w in self.offered("rollcall", command, name, "") if w.startswith("-")])
        for name, argument in self.daemon_options():
            if argument:
                with self.subTest(option=name):
                    self.assertFalse([w for w in self.offered("rollcalld", f"--{name}", "") if w.startswith("-")])
        self.assertEqual(self.offered("rollcall", "keygen", "--role", ""), ["node", "viewer", "operator"])
        self.assertEqual(self.offered("rollcall", "remedy", "on", "f"), ["fill"])
        with open(os.path.join(TREE, "common", "remedy.def"), encoding="utf-8") as f:
            labels = re.findall(r'^ROLL_REMEDY_ROW\(\w+, \d+, "([a-z-]+)"', f.read(), re.M)
        self.assertEqual(self.offered("rollcall", "remedy", "off", ""), labels)

    def daemon_options(self):
        return re.findall(r"^ +--([a-z-]+)(?: ([A-Z:]+))?",
                          subprocess.run([DAEMON, "--help"], capture_output=True, text=True, check=True).stdout, re.M)

    def started(self, options):
        """Exit code and words of a daemon that refuses its options; one that takes them is ended when it is ready."""
        with subprocess.Popen([DAEMON, *options, "--ready-fd", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as daemon:
            if daemon.stdout.read(1):
                daemon.terminate()
            return daemon.wait(), daemon.stderr.read()

    def test_rollcalld_refuses_every_option_that_its_mode_has_no_use_for(self):
        everybody = {"curve-dir", "detach", "no-supervise", "ready-fd", "version", "help"}
        own = {"agent": {"dir", "own-dir", "if-none", "linger", "parent", "connect", "policy", "trace",
                         "trace-segment", "trace-limit", "trace-age"},
               "relay": {"listen", "insecure", "connect"}}
        judges = {"dir", "own-dir", "linger", "parent", "listen", "insecure", "policy", "trace", "trace-segment",
                  "trace-limit", "trace-age", "json", "expect", "http", "stacks", "digest", "stream", "case-ranks",
                  "case-records", "stall-ms", "suspect-ms", "incident-dir", "incident-keep"}
        own.update(root=judges, standalone=judges | {"if-none"})
        values = {"listen": "tcp://127.0.0.1:*", "connect": "tcp://127.0.0.1:9", "policy": "auto", "stacks": "ask",
                  "trace-segment": "1M", "trace-limit": "1M", "trace-age": "1h"}
        seen = set()
        for name, wants in self.daemon_options():
            seen.add(name)
            for mode, takes in own.items():
                if name in own or name in everybody or name in takes:
                    continue
                with self.subTest(option=name, mode=mode):
                    code, said = self.started([f"--{mode}", f"--{name}", *([values.get(name, "1")] if wants else [])])
                    self.assertEqual(code, 2, said)
                    self.assertRegex(said, rf"^rollcalld: --{name} is .*, not to --{mode}")
        self.assertEqual(seen, judges | own["agent"] | own["relay"] | set(own) | everybody)

    def test_rollcalld_has_every_option_in_its_manual_page_and_its_completion(self):
        names = {f"--{name}" for name, _ in self.daemon_options()}
        page = self.manual("rollcalld")
        self.assertEqual(names - options(page), set(), "not in the manual page")
        heads = " ".join(re.findall(r"^\.(?:B|BI|BR) (-.*)$", page, re.M))
        self.assertEqual(options(heads), names, "heads of the manual page")
        for name, argument in self.daemon_options():
            if argument:
                self.assertIn(f'.BI --{name} " {argument}"', page)
        self.assertIn(".SH EXAMPLES", page)
        script = (f'source "{os.path.join(DOCS, "completion", "rollcalld")}"; COMP_WORDS=(rollcalld --); COMP_CWORD=1; '
                  '_rollcalld; echo "${COMPREPLY[@]}"')
        offered = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
        self.assertEqual(options(offered), names)

    def test_manual_pages_format_without_warnings(self):
        if not shutil.which("groff"):
            self.skipTest("groff is not installed")
        for name in os.listdir(os.path.join(DOCS, "man")):
            r = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", os.path.join(DOCS, "man", name)],
                               capture_output=True, text=True)
            self.assertEqual((r.returncode, r.stderr), (0, ""), name)


class Sample(Case):
    def test_the_first_page_shows_what_why_says(self):
        """Of another job with the same mistake: what is a job's own, its group, numbers and place, is left out. The
        sample is about the verdict above it, and that one is held by a test of the page's own job."""
        def plain(text):
            text = re.sub(r" The call was made at .*?(?= Verdict 1 )", "", " ".join(text.split()))
            text = re.sub(r"the (default group|communicator of ranks 0-3) \(4 ranks\)", "GROUP", text)
            return re.sub(r"#\d+|(?<= of )\d+(?= float32)", "N", text)

        sample = re.search(r"^\$ rollcall why 0\n(.*?)^```", page("README.md"), re.M | re.S)[1]
        above = " ".join(re.search(r"^why +(Rank 3 .*?)^```", page("README.md"), re.M | re.S)[1].split())
        verdict = re.search(r"Verdict 1 \(count-mismatch, proven\): (.*)\.$", " ".join(sample.split()))[1]
        self.assertTrue(above.startswith(verdict), (verdict, above))
        number, line = re.search(r"made at train_ddp\.py:(\d+) metrics: `(.*?)`", " ".join(sample.split())).groups()
        self.assertEqual(page("docs/examples/train_ddp.py").splitlines()[int(number) - 1].strip(), line)
        self.need_nccl()
        job = self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", "--", CATALOGUE, "wrong-count",
                         "sick")
        said = []

        def says():
            said[:] = [plain(part) for part in self.rollcall("why", "0").stdout.split("\n\n")]
            return plain(sample) in said
        self.assertTrue(until(says), (plain(sample), said))
        job.terminate()
        job.communicate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
