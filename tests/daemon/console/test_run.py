"""test_run.py: `rollcall run` as a launcher: codes, signals, output, time limits, and nothing left behind."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest

from support import CATALOGUE, Case, DAEMON, END_S, ROLLCALL, marked, command_of, summary_of, until


class Codes(Case):
    def test_returns_0_when_the_job_does(self):
        r = self.rollcall("run", "--", "true")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(r.stdout, "")
        self.assert_one_line(r.stderr, "no rank recorded a call of NCCL")

    def test_says_what_a_job_without_calls_may_have_lacked(self):
        r = self.rollcall("run", "--", "sh", "-c", "exit 4")
        self.assertEqual(r.returncode, 4, r.stderr)
        self.assert_one_line(r.stderr, "nothing to judge: the job ended with code 4 before one")
        self.assertEqual("; this machine has no GPU: `rollcall rehearse -- COMMAND`" in r.stderr,
                         not os.path.exists("/dev/nvidia0"), r.stderr)

    def test_returns_the_code_of_the_rank_that_failed_first(self):
        # The others end when rank 2 can no longer be signalled: its end has been noted.
        first = self.path("first")
        wait = (f"until test -s {first}; do sleep 0.02; done; "
                f"while kill -0 $(cat {first}) 2>/dev/null; do sleep 0.02; done")
        r = self.rollcall("run", "-n", "3", "--", "sh", "-c", f"test $RANK = 2 && {{ echo $$ >{first}.new; mv "
                          f"{first}.new {first}; exit 7; }}; {wait}; exit $RANK")
        self.assertEqual(r.returncode, 7, r.stderr)

    def test_returns_128_plus_the_signal(self):
        r = self.rollcall("run", "-n", "2", "--", "sh", "-c", "test $RANK = 1 && kill -9 $$; exit 0")
        self.assertEqual(r.returncode, 128 + signal.SIGKILL)

    def test_other_ranks_run_on_when_one_fails(self):
        out = self.path("late")
        r = self.rollcall("run", "-n", "2", "--", "sh", "-c", f"test $RANK = 0 && exit 3; sleep 0.5; touch {out}")
        self.assertEqual(r.returncode, 3)
        self.assertTrue(os.path.exists(out))

    def test_command_that_is_not_there_is_127_and_not_executable_126(self):
        r = self.rollcall("run", "--", "/nonexistent/program")
        self.assertEqual(r.returncode, 127)
        self.assert_one_line(r.stderr, "/nonexistent/program")
        self.assertNotIn("bound by", r.stderr)
        r = self.rollcall("run", "--", "no-such-program-anywhere")
        self.assertEqual(r.returncode, 127)
        self.assertNotIn("bound by", r.stderr)
        plain = self.path("plain")
        open(plain, "w").close()
        r = self.rollcall("run", "-n", "2", "--", plain)
        self.assertEqual(r.returncode, 126)
        self.assert_one_line(r.stderr, "ermission denied")
        self.assertNotIn("bound by", r.stderr)
        self.assertIn("bound by", self.rollcall("run", "--", "true").stderr)

    def test_script_that_is_not_there_is_said_once_before_the_job(self):
        for arguments in (["python3", "none.py"], ["python3", "-u", "-X", "dev", "none.py", "--lr", "1"]):
            r = self.rollcall("run", "-n", "4", "--", *arguments)
            self.assertEqual((r.returncode, r.stdout), (127, ""))
            self.assertEqual(r.stderr, "rollcall: none.py: no such script; nothing was started\n")
        r = self.rollcall("doctor", "--", "python3", "none.py")
        self.assertNotEqual(r.returncode, 0)
        self.assertIn("none.py: no such file", r.stdout)
        for arguments in (["-c", "print(1)", "none.py"], ["-m", "this", "none.py"]):
            self.assertEqual(self.rollcall("run", "-n", "1", "--", "python3", *arguments).returncode, 0)

    def test_options_of_the_command_are_its_own(self):
        r = self.rollcall("run", "sh", "-c", "echo $0 $1", "--json", "--no-such-option")
        self.assertEqual((r.returncode, r.stdout), (0, "--json --no-such-option\n"))


class Environment(Case):
    def test_ranks_get_their_place_and_the_preload(self):
        show = "echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $LD_PRELOAD"
        r = self.rollcall("run", "-n", "3", "--", "sh", "-c", show)
        lines = sorted(line.split() for line in r.stdout.splitlines())
        self.assertEqual([line[:5] for line in lines], [[str(i), str(i), "3", "3", "127.0.0.1"] for i in range(3)])
        self.assertEqual(len({line[5] for line in lines}), 1)
        self.assertTrue(all(line[6].endswith("/librollcall.so") for line in lines))

    def test_preload_keeps_what_was_there(self):
        r = self.rollcall("run", "--", "sh", "-c", "echo $LD_PRELOAD",
                          env={"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libm.so.6"})
        self.assertRegex(r.stdout, r"librollcall\.so:/usr/lib/x86_64-linux-gnu/libm\.so\.6\n")

    def test_private_directory_is_ours_alone(self):
        r = self.rollcall("run", "--", "sh", "-c", "stat -c '%a %u' $ROLLCALL_DIR; echo $ROLLCALL_DIR")
        mode, where = r.stdout.splitlines()
        self.assertEqual(mode, f"700 {os.geteuid()}")
        self.assertTrue(where.startswith(self.rings + "/run-"))
        self.assertFalse(os.path.exists(where))

    def test_hostnccl_comes_first(self):
        r = self.rollcall("run", "--hostnccl", "--", "sh", "-c", "echo $LD_LIBRARY_PATH $HOSTNCCL_DIR",
                          env={"LD_LIBRARY_PATH": "/x"})
        self.assertRegex(r.stdout, r"^\S+/hostnccl:/x \S+/hostnccl\n$", r.stderr)

    def test_hostnccl_comes_before_what_a_program_brings(self):
        bound, own = os.environ["ROLL_TEST_BOUND"], "21000\n"
        self.assertEqual(self.rollcall("run", "--", bound).stdout, own)
        r = self.rollcall("run", "--hostnccl", "--", bound)
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stdout, r"^\d+\n$")
        self.assertNotEqual(r.stdout, own)

    def test_doctor_says_which_copies_a_program_would_use(self):
        def libraries(*options):
            r = self.rollcall("doctor", "--json", *options, os.environ["ROLL_TEST_BOUND"])
            self.assertEqual(r.returncode, 0, r.stdout + r.stderr)
            return [c["text"] for c in map(json.loads, r.stdout.splitlines()) if c["check"] == "library"]

        stand_in = " (stand-in, on host memory)"
        self.assertEqual(libraries(), [os.path.join(os.path.dirname(os.environ["ROLL_TEST_BOUND"]), "bound",
                                                    "libnccl.so.2")])
        found = libraries("--hostnccl")
        self.assertTrue(found and all(line.endswith(stand_in) for line in found), found)
        ours = os.environ["ROLL_TEST_HOSTNCCL"]
        self.assertLessEqual({os.path.dirname(line.removesuffix(stand_in).split(", release ")[0]) for line in found},
                             {ours, os.path.join(ours, "nvml")})
        self.assertEqual(["libnccl.so.2" in line for line in found].count(True), 1, found)


class Output(Case):
    def test_output_and_input_pass_through(self):
        r = self.rollcall("run", "--", "sh", "-c", "cat; printf err >&2", stdin=None, input="a\0b")
        self.assertEqual(r.stdout, "a\0b")
        self.assertIn("err", r.stderr)

    def test_prefix_tags_whole_lines(self):
        r = self.rollcall("run", "-n", "2", "--prefix", "--", "sh", "-c", "printf 'a\\nb '; sleep 0.1; printf 'c'")
        self.assertEqual(sorted(r.stdout.splitlines()), ["[0] a", "[0] b c", "[1] a", "[1] b c"])

    def test_prefix_takes_lines_of_any_length(self):
        r = self.rollcall("run", "-n", "1", "--prefix", "--", sys.executable, "-c", "print('x' * 100000)")
        self.assertEqual(r.stdout.replace("[0] ", "").replace("\n", ""), "x" * 100000)

    def test_nothing_is_lost_when_our_standard_output_does_not_block(self):
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        p = subprocess.Popen([ROLLCALL, "run", "--timeout", "300", "--", sys.executable, "-c", "print('x' * 1000000)"],
                             stdout=write_end, stderr=subprocess.PIPE, env=self.env)
        self.started.append(p)
        os.close(write_end)
        time.sleep(0.5)  # the pipe is full by then
        with os.fdopen(read_end) as f:
            self.assertEqual(len(f.read()), 1000001)
        self.assertEqual(p.wait(300), 0)

    def test_quiet_says_nothing(self):
        r = self.rollcall("run", "--quiet", "--", "true")
        self.assertEqual((r.returncode, r.stdout, r.stderr), (0, "", ""))

    def test_json_that_cannot_be_written_is_said_before_the_job(self):
        ran = self.path("ran")
        r = self.rollcall("run", "--json", "/nonexistent/v.json", "--", "touch", ran)
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "/nonexistent/v.json")
        self.assertFalse(os.path.exists(ran))


class Ends(Case):
    def begin(self, *args):
        """Starts a job that sleeps, and waits until its ranks run."""
        ready = self.path("ready")
        p = self.start("run", *args, "--", "sh", "-c", f"touch {ready}.${{RANK:-0}}; exec sleep 100",
                       start_new_session=True)
        self.assertTrue(until(lambda: os.path.exists(ready + ".0")))
        return p

    def test_interrupt_reaches_the_ranks(self):
        p = self.begin("-n", "2")
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(300), 128 + signal.SIGINT)

    def test_a_job_that_ignores_sigterm_is_killed_after_the_grace_time(self):
        ready = self.path("ready")
        p = self.start("run", "-n", "2", "--grace", "0.5", "--", "sh", "-c",
                       f"trap '' TERM; touch {ready}.$RANK; while :; do sleep 1; done")
        self.assertTrue(until(lambda: all(os.path.exists(f"{ready}.{r}") for r in range(2))))
        p.send_signal(signal.SIGTERM)
        self.assertEqual(p.wait(300), 128 + signal.SIGKILL)
        self.assertIn("SIGTERM is passed on to 2 ranks, which have 0.5 s to end; a second one kills them\n",
                      p.stderr.read())

    def test_the_same_signal_again_kills_at_once(self):
        ready = self.path("ready")
        p = self.start("run", "--grace", "60", "--", "sh", "-c",
                       f"trap '' INT; touch {ready}; while :; do sleep 1; done")
        self.assertTrue(until(lambda: os.path.exists(ready)))
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        time.sleep(0.2)
        p.send_signal(signal.SIGINT)
        self.assertEqual(p.wait(300), 128 + signal.SIGKILL)

    def test_timeout_ends_a_job_in_which_nothing_moves(self):
        begin = time.monotonic()
        r = self.rollcall("run", "-n", "2", "--timeout", "1", "--", "sleep", "100")
        self.assertEqual(r.returncode, 124)
        self.assertIn("nothing has moved for 1 s", r.stderr)
        self.assertLess(time.monotonic() - begin, END_S)

    def test_timeout_tells_first_of_the_rank_that_is_waited_for(self):
        self.need_nccl()
        r = self.rollcall("run", "-n", "3", "--hostnccl", "--timeout", "3", "--", CATALOGUE, "busy", "sick")
        self.assertEqual(r.returncode, 124, r.stderr)
        told = [line for line in r.stderr.splitlines() if re.match(r"rollcall: Ranks? \d", line)]
        if "rank-busy" not in r.stderr:  # a slow machine may have made a finding of it before
            self.assertRegex(told[0], r"^rollcall: Rank 2 is ")
            self.assertRegex(told[1], r"^rollcall: Ranks 0-1 .* for rank 2: ")

    def test_calls_that_failed_are_counted(self):
        self.need_nccl()
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--trace", self.path("t"), "--", CATALOGUE, "refused-retry",
                          "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        failed = r"\d calls? returned an error \((?:the first, )?\w+ of rank \d: ncclInvalidArgument\)$"
        self.assertRegex(r.stderr.splitlines()[-1], failed)
        self.assertEqual("rollcall: " + self.rollcall("analyze", self.path("t")).stdout.splitlines()[-1],
                         r.stderr.splitlines()[-1])

    def test_the_address_of_the_page_is_told(self):
        r = self.rollcall("run", "--http", "127.0.0.1:0", "--", "true")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertRegex(r.stderr, r"(?m)^rollcall: the page of this job is http://127\.0\.0\.1:[1-9]\d*/ ")

    def test_timeout_ends_a_job_whose_hosts_only_poll(self):
        self.need_nccl()
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--timeout", "3", "--", CATALOGUE, "poll-skipped", "sick")
        self.assertEqual(r.returncode, 124, r.stderr)
        self.assertIn("nothing has moved for 3 s", r.stderr)

    def test_timeout_spares_a_job_that_prints(self):
        r = self.rollcall("run", "--timeout", "3", "--", "sh", "-c", "for i in $(seq 20); do echo $i; sleep 0.2; done")
        self.assertEqual((r.returncode, r.stdout), (0, "".join(f"{i}\n" for i in range(1, 21))))

    def test_orphans_of_ranks_are_ended(self):
        r = self.rollcall("run", "-n", "1", "--", "sh", "-c", "sleep 100 & exit 5")
        self.assertEqual(r.returncode, 5)  # the sleep is looked for at the end of each test

    def test_nothing_is_left_when_run_is_killed(self):
        p = self.begin("-n", "16")  # it is still starting the others when the first one runs
        self.assertTrue(os.listdir(self.rings))
        p.kill()
        p.wait()
        self.assertTrue(until(lambda: not marked(self.mark)), [command_of(x) for x in marked(self.mark)])
        self.assertTrue(until(lambda: not os.listdir(self.rings)))

    def test_the_daemon_waits_for_a_job_that_begins_late(self):
        # Loading a model may take minutes: a daemon that lingers must not take that for the end of the job.
        modes = {"standalone": ["--standalone"], "agent": ["--agent", "--connect", "tcp://127.0.0.1:9"]}
        ends = {}
        for mode, arguments in modes.items():
            for parent in (os.getpid(), 1):
                folder = self.path(f"{mode}-{parent}")
                os.mkdir(folder, 0o700)
                daemon = subprocess.Popen([DAEMON, *arguments, "--dir", folder, "--linger", "1", "--parent",
                                           str(parent)], env=self.env, stdin=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL)
                self.started.append(daemon)
                ends[mode, parent == 1] = daemon
        for mode in modes:
            self.assertTrue(until(lambda: ends[mode, True].poll() is not None), f"{mode}: nobody's daemon stays")
        time.sleep(1.5)
        for mode in modes:
            self.assertIsNone(ends[mode, False].poll(), f"{mode}: it left although its parent lives")
            ends[mode, False].terminate()
            self.assertIsNotNone(ends[mode, False].wait(300))

    def test_job_runs_on_when_the_daemon_cannot_start(self):
        """What the job itself needs of the run's directory stays there: here where the stand-ins of NCCL meet."""
        self.need_nccl()
        for name in ("bin", "lib"):
            os.mkdir(self.path(name))
        shutil.copy(ROLLCALL, self.path("bin"))
        shutil.copy(os.path.join(os.path.dirname(ROLLCALL), "../lib/librollcall.so"), self.path("lib"))
        os.symlink(os.path.realpath(os.path.join(os.path.dirname(ROLLCALL), "../lib/hostnccl")),
                   self.path("lib/hostnccl"))
        with open(self.path("bin/rollcalld"), "w") as f:
            f.write("#!/bin/sh\nexit 3\n")
        os.chmod(self.path("bin/rollcalld"), 0o755)

        def run(*arguments):
            r = subprocess.run([self.path("bin/rollcall"), "run", *arguments], env=self.env, capture_output=True,
                               text=True, stdin=subprocess.DEVNULL, timeout=END_S)
            self.assertIn("its daemon could not be started; the job runs unwatched", r.stderr)
            self.assertRegex(r.stderr.splitlines()[-1], "^rollcall: NOBODY WATCHED this job: its daemon could not")
            return r
        r = run("-n", "2", "--hostnccl", "--", CATALOGUE, "wrong-count", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        r = run("--fail-on-finding", "--quiet", "--", "true")
        self.assertEqual(r.returncode, 3, r.stderr)
        self.assertIn("ends with 3 where it would end with 0", r.stderr)
        self.assertEqual(run("--fail-on-finding", "--", "sh", "-c", "exit 6").returncode, 6)

    def test_a_trace_a_port_or_bundles_that_cannot_be_had_do_not_cost_the_verdicts(self):
        self.need_nccl()
        file = self.path("file")
        open(file, "w").close()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            http = ("--http", f"127.0.0.1:{taken.getsockname()[1]}")
            for options, reasons, lacks in (
                    (("--trace", f"{file}/x"), [f"--trace {file}/x"], "--trace"),
                    (("--trace", file), [f"--trace {file} is not a directory"], "--trace"),
                    (http, ["another program has this port"], "--http"),
                    (("--incident-dir", file, *http), [f"--incident-dir {file}", "another program has this port"],
                     "--http and --incident-dir"),
                    (("--trace", f"{file}/x", "--trace-limit", "1M", *http),
                     [f"--trace {file}/x: cannot be made: {file} is not a directory", "another program has this port"],
                     "--trace and --http")):
                with self.subTest(lacks=lacks):
                    r = self.rollcall("run", "-n", "2", "--hostnccl", "--fail-on-finding", *options, "--", CATALOGUE,
                                      "wrong-count", "healthy")
                    self.assertEqual(r.returncode, 0, r.stderr)
                    for reason in reasons:
                        self.assertEqual(r.stderr.count(reason), 1, r.stderr)
                    several = "s" if len(reasons) > 1 else ""
                    self.assertIn(f"the job is watched, but without {lacks}, for the reason{several} above\n",
                                  r.stderr)
                    self.assertEqual(summary_of(r.stderr)["ranks"], 2, r.stderr)
                    self.assertIn(f"the job was watched, but without {lacks}", r.stderr.splitlines()[-1])

    def test_an_address_that_is_none_is_refused_before_the_job(self):
        ran = self.path("ran")
        for address, why in (("foo", "not an address"), (":99999", "not an address"),
                             ("0.0.0.0:9400", "only addresses of this host")):
            r = self.rollcall("run", "--http", address, "--", "touch", ran)
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn(f"--http {address}: {why}", r.stderr)
            self.assertTrue(r.stderr.endswith("rollcall: nothing was started\n"), r.stderr)
            d = subprocess.run([DAEMON, "--root", "--dir", self.path("root"), "--http", address], env=self.env,
                               capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=END_S)
            self.assertEqual((d.returncode, why in d.stderr), (2, True), d.stderr)
        self.assertFalse(os.path.exists(ran))

    def test_job_runs_on_when_the_daemon_is_killed(self):
        done, begun, told = self.path("done"), self.path("begun"), self.path("told")
        p = self.start("run", "--fail-on-finding", "--", "sh", "-c",
                       f"touch {begun}; until test -e {told}; do sleep 0.05; done; touch {done}")
        self.assertTrue(until(lambda: os.path.exists(begun)))
        daemons = until(lambda: [x for x in marked(self.mark) if command_of(x).startswith(DAEMON)])
        self.assertEqual(len(daemons), 1)
        os.kill(daemons[0], signal.SIGKILL)
        while "the daemon ended (signal 9); the job runs on unwatched" not in (line := p.stderr.readline()):
            self.assertTrue(line, "it ended without a word about the daemon")
        open(told, "w").close()
        self.assertEqual(p.wait(300), 3)
        self.assertTrue(os.path.exists(done))
        self.assertIn("NOBODY WATCHED this job to its end: the daemon ended before the job did", p.stderr.read())


class Terminal(Case):
    """The command has the terminal as in a shell: it may read it, and Ctrl-C reaches it."""

    def test_command_reads_the_terminal_and_ctrl_c_ends_it(self):
        import pty
        pid, fd = pty.fork()
        if pid == 0:
            os.environ.clear()
            os.environ.update(self.env)
            os.execv(ROLLCALL, [ROLLCALL, "run", "--", "sh", "-c", "read x; echo got:$x; exec sleep 100"])
        seen = b""
        time.sleep(0.5)
        os.write(fd, b"hello\n")
        end = time.monotonic() + END_S
        while b"got:hello" not in seen and time.monotonic() < end:
            seen += os.read(fd, 1000)
        self.assertIn(b"got:hello", seen)
        time.sleep(0.2)
        os.write(fd, b"\x03")
        status = until(lambda: os.waitpid(pid, os.WNOHANG)[1] or None)
        os.close(fd)
        self.assertEqual(os.waitstatus_to_exitcode(status), 128 + signal.SIGINT)


if __name__ == "__main__":
    unittest.main(verbosity=2)
