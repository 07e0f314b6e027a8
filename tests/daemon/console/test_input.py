"""test_input.py: bad input: each gets one clear line, the documented exit code, and nothing is lost or left behind."""
import json
import os
import shutil
import socket
import subprocess
import tempfile
import unittest

from support import Case, CATALOGUE, DAEMON, ROLLCALL


class Console(Case):
    ASKING = (["top", "--once"], ["top", "--json"], ["why"], ["why", "3"], ["verdicts"], ["verdicts", "--follow"],
              ["remedy", "list"], ["remedy", "on", "fill"])

    def test_no_daemon_here_is_code_3(self):
        for args in self.ASKING:
            with self.subTest(args=args):
                r = self.rollcall(*args)
                self.assertEqual((r.returncode, r.stdout), (3, ""))
                self.assertEqual(len(r.stderr.splitlines()), 1, r.stderr)

    def test_unreachable_daemon_is_code_3_and_named(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            endpoint = f"tcp://127.0.0.1:{s.getsockname()[1]}"  # bound, not listening
            r = self.rollcall("why", "--daemon", endpoint)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, endpoint)

    def test_malformed_endpoint_is_code_2(self):
        r = self.rollcall("why", "--daemon", "nonsense")
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "nonsense")

    def test_run_with_an_unreachable_root_runs_the_job(self):
        r = self.rollcall("run", "--daemon", "tcp://127.0.0.1:9", "--", "sh", "-c", "echo ran; exit 5")
        self.assertEqual((r.returncode, r.stdout), (5, "ran\n"), r.stderr)
        self.assertIn("tcp://127.0.0.1:9", r.stderr)

    def test_libzmq_is_loaded_by_those_who_ask_a_daemon_and_missed_in_one_line(self):
        with tempfile.TemporaryDirectory() as broken:
            with open(os.path.join(broken, "libzmq.so.5"), "wb"):
                pass
            env = {**os.environ, "LD_LIBRARY_PATH": broken}
            r = subprocess.run([ROLLCALL, "--version"], env=env, capture_output=True, text=True)
            self.assertEqual((r.returncode, r.stderr), (0, ""))
            r = subprocess.run([ROLLCALL, "why", "--daemon", "tcp://127.0.0.1:9"], env=env, capture_output=True,
                               text=True)
            self.assertEqual(r.returncode, 3)
            self.assertIn("libzmq.so.5", r.stderr.splitlines()[0])
            r = subprocess.run([ROLLCALL, "run", "--daemon", "tcp://127.0.0.1:9", "--", "sh", "-c", "exit 5"], env=env,
                               capture_output=True, text=True)
            self.assertEqual(r.returncode, 5, r.stderr)


class Width(Case):
    def test_a_message_is_broken_between_words_on_a_terminal_and_one_line_elsewhere(self):
        wrong = "run", "--bind", "magic", "--", "true"
        one = self.rollcall(*wrong).stderr
        self.assertEqual(len(one.splitlines()), 1)
        self.assertGreater(len(one), 60)
        shown, code = self.in_terminal(*wrong, columns=60)
        self.assertEqual(code, 2)
        lines = shown.splitlines()
        self.assertGreater(len(lines), 1)
        self.assertLessEqual(max(map(len, lines)), 60, shown)
        self.assertTrue(all(line.startswith(" " * len("rollcall: ")) for line in lines[1:]), shown)
        self.assertEqual(" ".join(shown.split()), " ".join(one.split()))
        self.assertEqual(self.in_terminal(*wrong)[0], one)  # it does not say how wide it is

    def test_a_summary_is_broken_between_words_on_a_terminal(self):
        empty = self.path("empty.rtrc")
        with open(empty, "wb") as f:
            f.write(b"ROLLTRCE\x01\x00\x01\x00\0\0\0\0")
        one = self.rollcall("analyze", empty).stdout
        self.assertEqual(len(one.splitlines()), 1)
        shown, code = self.in_terminal("analyze", empty, columns=40, streams=("stdout",))
        self.assertEqual(code, 4)
        self.assertLessEqual(max(map(len, shown.splitlines())), 40, shown)
        self.assertEqual(" ".join(shown.split()), " ".join(one.split()))


class Files(Case):
    def write(self, name, data):
        with open(self.path(name), "wb") as f:
            f.write(data)
        return self.path(name)

    def test_file_that_cannot_be_read_is_code_3(self):
        garbage = self.write("garbage.rtrc", b"not a trace at all")
        empty = self.write("empty.rtrc", b"")
        for name in (self.path("missing.rtrc"), garbage, empty):
            for command in ("dump", "analyze", "digest"):
                with self.subTest(command=command, name=name):
                    r = self.rollcall(command, name)
                    self.assertEqual(r.returncode, 3)
                    self.assert_one_line(r.stderr, os.path.basename(name))
        r = self.rollcall("dump", self.tmp)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "is a directory: name one file of it")

    READING = (["analyze"], ["report", "-o", "out.html"], ["report", "--md"], ["digest", "-o", "out.rdig"],
               ["export", "--perfetto", "-o", "out.pf"], ["export", "--sqlite", "-o", "out.db"],
               ["export", "--flight-recorder", "-o", "out"], ["replay"], ["dump"])

    def test_every_command_that_reads_files_says_in_one_line_what_is_wrong_with_one(self):
        """It names what was given, ends with 3, prints nothing else, and leaves nothing behind."""
        noise = bytes(range(256)) * 300
        os.mkdir(self.path("folder"))
        os.mkdir(self.path("other"))
        for name in ("noise", "noise.rtrc", "noise.ring", "noise.rdig"):
            self.write(name, noise)
        self.write("other/notes.txt", b"nothing of ours\n")
        os.mkfifo(self.path("pipe.rtrc"))
        given = ["missing", "folder", "other", "noise", "noise.rtrc", "noise.ring", "noise.rdig", "pipe.rtrc"]
        if os.geteuid() != 0:
            os.mkdir(self.path("locked"), 0)
            os.chmod(self.write("denied.rtrc", noise), 0)
            given += ["locked", "denied.rtrc"]
        before = sorted(os.listdir(self.tmp))
        for command in self.READING:
            for name in given:
                with self.subTest(command=command, given=name):
                    r = self.rollcall(*command, name, cwd=self.tmp)
                    self.assertEqual((r.returncode, r.stdout), (3, ""), r.stderr)
                    self.assert_one_line(r.stderr, name)
                    self.assertEqual(sorted(os.listdir(self.tmp)), before)

    def test_directory_without_recordings_is_code_3(self):
        r = self.rollcall("analyze", self.tmp)
        self.assertEqual(r.returncode, 3)
        os.remove(self.write("x.rtrc", b""))
        self.assertEqual(self.rollcall("analyze", self.tmp).returncode, 3)

    def test_digest_that_is_damaged_is_code_3_and_says_what_to_do(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digest", "golden", "v2.rdig")
        with open(golden, "rb") as f:
            data = f.read()
        newer = data[:10] + b"\x63" + data[11:]
        for name, bad, says in (("cut.rdig", data[:-1], "truncated"), ("newer.rdig", newer, "version"),
                                ("bit.rdig", data[:100] + bytes([data[100] ^ 1]) + data[101:], "checksum")):
            with self.subTest(name=name):
                r = self.rollcall("analyze", self.write(name, bad))
                self.assertEqual((r.returncode, r.stdout), (3, ""), r.stderr)
                self.assert_one_line(r.stderr, f"{name}: not judged: ")
                self.assertIn(says, r.stderr)
                self.assertIn("`rollcall digest` on its node", r.stderr)
                beside = self.rollcall("analyze", golden, self.path(name)).stdout.splitlines()[-1]
                alone = self.rollcall("analyze", golden).stdout.splitlines()[-1]
                self.assertEqual(beside, f"Not judged: 1 file that cannot be read. Of the others: {alone}")

    def test_file_that_is_no_good_says_what_happened_and_what_to_do(self):
        golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "digest", "golden", "v2.rdig")
        good = shutil.copy(golden, self.path("good.rdig"))
        empty, other = self.write("empty.rdig", b""), self.write("other.rdig", b"something else altogether")
        again, is_digest = "`rollcall digest --output FILE DIR` on its node", "`rollcall analyze` reads"
        for command, name, says, what in (
                ("dump", empty, "empty: nothing was written", again), ("digest", empty, "empty: nothing", again),
                ("analyze", empty, "empty: nothing", again), ("dump", good, "a digest of traces", is_digest),
                ("digest", good, "a digest of traces", is_digest), ("dump", other, "no digest", again),
                ("digest", other, "no digest", again), ("analyze", other, "no digest", again),
                ("dump", self.write("empty.rtrc", b""), "empty: nothing was written into it", "")):
            with self.subTest(command=command, name=name):
                r = self.rollcall(command, name)
                self.assertEqual(r.returncode, 3, r.stderr)
                self.assert_one_line(r.stderr, f"{os.path.basename(name)}: {says}")
                self.assertIn(what, r.stderr)
        r = self.rollcall("dump", self.write("short.rtrc", b"ROLL"))  # where to look is not here again
        self.assertEqual(r.returncode, 3)
        self.assertNotIn("rollcall dump", r.stderr)

    def test_digest_of_nothing_is_code_3(self):
        r = self.rollcall("digest", self.tmp)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "no trace (*.rtrc) with a rank in it")
        r = self.rollcall("digest", "--output", self.path("no/such/x.rdig"), self.tmp)
        self.assertEqual(r.returncode, 3)

    def test_trace_cut_short_is_code_4(self):
        head = b"ROLLTRCE" + bytes([1, 0, 1, 0, 0, 0, 0, 0])
        cut = self.write("cut.rtrc", head + b"RLFR\x01\x00")
        for command in ("dump", "analyze"):
            with self.subTest(command=command):
                r = self.rollcall(command, cut)
                self.assertEqual(r.returncode, 4, r.stderr)
                self.assert_one_line(r.stderr, "cut short")

    def test_trace_without_a_rank_is_code_4(self):
        empty = self.write("empty.rtrc", b"ROLLTRCE\x01\x00\x01\x00\0\0\0\0")
        r = self.rollcall("analyze", empty)
        self.assertEqual(r.returncode, 4, r.stderr)
        self.assertIn("0 ranks", r.stdout)

    def test_listing_that_cannot_be_written_is_code_3(self):
        trace = self.write("empty.rtrc", b"ROLLTRCE\x01\x00\x01\x00\0\0\0\0")
        with open("/dev/full", "w") as full:
            r = subprocess.run([ROLLCALL, "dump", trace], env=self.env, stdout=full, stderr=subprocess.PIPE, text=True,
                               timeout=300)
        self.assertEqual(r.returncode, 3, r.stderr)
        self.assert_one_line(r.stderr, "standard output")

    def test_trace_of_another_version_is_code_3(self):
        other = self.write("other.rtrc", b"ROLLTRCE" + bytes([9, 0, 9, 0, 0, 0, 0, 0]))
        for command in ("dump", "analyze"):
            r = self.rollcall(command, other)
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, "incompatible version")


class Recording(Case):
    """The job runs as if rollcall were not there when there is nowhere to record."""

    def setUp(self):
        super().setUp()
        self.need_nccl()

    def job(self, *prefix, env=None):
        return subprocess.run([*prefix, ROLLCALL, "run", "-n", "2", "--hostnccl", "--", CATALOGUE, "straggler",
                               "healthy"], capture_output=True, text=True, timeout=300, env={**self.env, **(env or {})})

    def test_ring_of_another_version_is_code_3(self):
        kept = self.path("kept")
        copy = f"{CATALOGUE} straggler healthy; code=$?; mkdir -p {kept}; cp $ROLLCALL_DIR/*.ring {kept}; exit $code"
        r = self.rollcall("run", "-n", "1", "--hostnccl", "--", "sh", "-c", copy)
        self.assertEqual(r.returncode, 0, r.stderr)
        ring = os.path.join(kept, os.listdir(kept)[0])
        self.assertEqual(self.rollcall("dump", "--limit", "1", ring).returncode, 0)
        with open(ring, "r+b") as f:
            f.seek(8)
            f.write(bytes([9, 0, 9, 0]))
        for command in ("dump", "analyze"):
            r = self.rollcall(command, ring)
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, "incompatible version")

    def test_trace_of_a_healthy_job_cut_short_is_code_4(self):
        trace = self.path("trace")
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--trace", trace, "--", CATALOGUE, "straggler", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        r = self.rollcall("analyze", trace)
        self.assertEqual((r.returncode, r.stderr), (0, ""), r.stdout)
        self.assertRegex(r.stdout.splitlines()[-1], r"^2 ranks, .* nothing lost$")
        name = os.path.join(trace, os.listdir(trace)[0])
        os.truncate(name, os.path.getsize(name) - 10)
        r = self.rollcall("analyze", trace)
        self.assertEqual(r.returncode, 4, r.stdout + r.stderr)
        self.assert_one_line(r.stderr, "cut short")
        self.assertEqual(self.rollcall("dump", name).returncode, 4)

    def test_second_daemon_on_the_directory_is_code_3(self):
        command = f"{DAEMON} --agent --dir $ROLLCALL_DIR --connect ipc:///nonexistent; echo code $?"
        r = self.rollcall("run", "--", "sh", "-c", command)
        self.assertEqual(r.stdout, "code 3\n", r.stderr)

    def test_full_ring_directory(self):
        if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("needs root and a private mount namespace for a small tmpfs")
        small = self.path("small")
        os.mkdir(small)
        # The stand-in NCCL keeps its own segments elsewhere: what is full is rollcall's directory.
        script = (f"mount -t tmpfs -o size=64k,mode=700 none {small} && "
                  f"exec \"$@\"")
        r = self.job("unshare", "-m", "sh", "-c", script, "sh",
                     env={"ROLLCALL_DIR": small, "HOSTNCCL_DIR": self.path("nccl")})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("no space", r.stderr.lower())

    def test_file_size_limit(self):
        # 2 MiB: too few for a ring, enough for what the job itself writes.
        r = self.job("sh", "-c", "ulimit -f 4096; exec \"$@\"", "sh")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("limit", r.stderr.lower())


class Doctor(Case):
    def test_says_ok_here_and_fails_on_a_file_in_the_way(self):
        r = self.rollcall("doctor")
        self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
        self.assertRegex(r.stdout, r"^OK +in short +rollcall works here\.")
        self.assertRegex(r.stdout, r"(?m)^OK +preload")
        blocked = self.path("blocked")
        open(blocked, "w").close()
        r = self.rollcall("doctor", env={"ROLLCALL_DIR": blocked})
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"^FAIL +in short +rollcall does not work here yet\. This fails: rings\.\n")
        self.assertRegex(r.stdout, r"(?m)^FAIL +rings .*blocked")
        r = self.rollcall("doctor", "/bin/sh", env={"ROLLCALL_DIR": blocked})
        self.assertRegex(r.stdout, r"^FAIL +in short +`rollcall run` will see .* But first mend what fails: rings\.\n")

    def test_a_terminal_has_its_lines_broken_and_coloured_and_a_pipe_one_line_a_check(self):
        shown, code = self.in_terminal("doctor", columns=60, streams=("stdout",), env={"ROLLCALL_DIR": self.rings})
        self.assertEqual(code, 0, shown)
        self.assertEqual([line for line in shown.splitlines() if len(line) > 60 and " " in line[22:]], [])
        self.assertRegex(shown, r"(?m)^WARN +nccl .*\n {22}\S|^OK +nccl ")  # a machine may have an NCCL
        self.assertNotIn("\033", shown)  # NO_COLOR is set
        shown, _ = self.in_terminal("doctor", columns=60, streams=("stdout",),
                                    env={"NO_COLOR": "", "TERM": "xterm", "ROLLCALL_DIR": "/dev/null/no"})
        self.assertRegex(shown, "(?m)^\033\\[1m\033\\[31mFAIL\033\\[0m  rings ")
        self.assertNotIn("\033", self.rollcall("doctor", env={"NO_COLOR": "", "TERM": "xterm"}).stdout)

    def test_json_is_one_object_a_line(self):
        r = self.rollcall("doctor", "--json", "/bin/sh")
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        self.assertTrue(all(line["schema"] == "rollcall.doctor/1" for line in lines))
        self.assertIn("command", [line["check"] for line in lines])
        self.assertEqual([line["check"] for line in lines].index("in short"), 0)

    def test_command_that_uses_nccl_and_one_that_is_not_there(self):
        self.need_nccl()
        r = self.rollcall("doctor", CATALOGUE)
        self.assertRegex(r.stdout, r"OK +command .*uses the shared libnccl")
        r = self.rollcall("doctor", "/nonexistent")
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"^FAIL +in short +/nonexistent cannot be run")
        self.assertRegex(r.stdout, r"FAIL +command .*not found")

    def test_small_file_size_limit_fails(self):
        r = subprocess.run(["sh", "-c", f"ulimit -f 64; exec {ROLLCALL} doctor"], capture_output=True, text=True,
                           env=self.env)
        self.assertEqual(r.returncode, 1)
        self.assertRegex(r.stdout, r"FAIL +limits")


class Keys(Case):
    def test_keygen_makes_keys_once(self):
        where = self.path("keys")
        self.assertEqual(self.rollcall("keygen", where).returncode, 0)
        self.assertEqual(os.stat(os.path.join(where, "server.key")).st_mode & 0o777, 0o600)
        with open(os.path.join(where, "server.key")) as f:
            before = f.read()
        r = self.rollcall("keygen", where)
        self.assertEqual(r.returncode, 3)
        self.assertEqual(len(r.stderr.splitlines()), 1)
        with open(os.path.join(where, "server.key")) as f:
            self.assertEqual(f.read(), before)
        r = self.rollcall("doctor", env={"ROLLCALL_CURVE_DIR": where})
        self.assertRegex(r.stdout, r"OK +keys")
        os.chmod(os.path.join(where, "client.key"), 0o644)
        r = self.rollcall("doctor", env={"ROLLCALL_CURVE_DIR": where})
        self.assertRegex(r.stdout, r"FAIL +keys")


if __name__ == "__main__":
    unittest.main(verbosity=2)
