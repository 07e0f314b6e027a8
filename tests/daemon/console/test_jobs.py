"""test_jobs.py: `rollcall` alone: which jobs run here, how they stand, how to look closer; and how to start one."""
import json
import os
import socket
import subprocess
import unittest

from support import Case, CATALOGUE, DAEMON, ROLLCALL, until


class Jobs(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()

    def hung(self, *options, program="skipped"):
        return self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", *options, "--", CATALOGUE, program,
                          "sick")

    def end(self, *processes):
        for p in processes:
            p.terminate()
        for p in processes:
            p.communicate()

    def jobs(self):
        return json.loads(self.rollcall("jobs", "--json").stdout)["jobs"]

    def test_where_nothing_runs_it_says_how_to_start(self):
        r = self.rollcall()
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertIn(f"No job runs under rollcall here ({self.rings}).", r.stdout)
        self.assertIn("rollcall run -- torchrun", r.stdout)
        self.assertEqual(self.rollcall("jobs").stdout, r.stdout)
        self.assertEqual(json.loads(self.rollcall("jobs", "--json").stdout), {"schema": "rollcall.jobs/1", "jobs": []})

    def test_a_running_job_is_told_with_its_finding_and_the_way_to_look_closer(self):
        p = self.hung()
        self.assertTrue(until(lambda: any(job.get("findings") for job in self.jobs())))

        def told():
            """By the root: a root that is slow to answer has its job told by the rings."""
            r = self.rollcall()
            return r if "watched since" in r.stdout and "proven call-skipped" in r.stdout else None
        r = until(told)
        self.assertTrue(r, "the root never answered")
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        first, state, look = r.stdout.splitlines()
        self.assertRegex(first, r"^job run-\S+: ranks 0-3 \(4 ranks\) on host \S+, watched since ")
        self.assertRegex(state, r"^    state  1 finding; the newest: proven call-skipped, rank 3; [\d,]+ calls, the "
                                r"last .* ago$")
        self.assertRegex(look, r"^    look   rollcall top   rollcall verdicts   rollcall why   rollcall stacks$")
        self.end(p)

    def test_the_line_that_names_the_job_is_broken_between_words_on_a_terminal(self):
        p = self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", "--", CATALOGUE, "skipped", "sick",
                       env={"ROLLCALL_JOB": "a-job"})
        self.assertTrue(until(lambda: any(job.get("findings") for job in self.jobs())))

        def told(command):  # by the root
            shown, _ = self.in_terminal(command, columns=50, streams=("stdout",))
            return shown if "watched" in shown else None
        for command in ("jobs", "why", "verdicts"):
            with self.subTest(command=command):
                shown = until(lambda: told(command))
                self.assertTrue(shown, "the root never answered")
                head = shown.split("    state  " if command == "jobs" else "\n\n")[0].splitlines()
                self.assertGreater(len(head), 1, shown)
                self.assertLessEqual(max(map(len, head)), 50, shown)
                self.assertRegex(" ".join(head), r"^job a-job: ranks 0-3 \(4 ranks\) on host \S+, watched since \S+ "
                                                 r"\([\d.]+ \w+\)$")
        self.end(p)

    def test_a_job_that_is_compared_by_digests_tells_when_it_moved(self):
        p = self.hung("--digest")
        # One answer is looked at: a root that is slow to answer is not in the next one.
        job = until(lambda: next((job for job in self.jobs() if job.get("findings")), None))
        self.assertTrue(job)
        self.assertIsInstance(job["calls_per_s"], float)
        self.assertGreater(job["last_ns"], 0)
        top = self.rollcall("top", "--once")
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertLess(len(top.stdout.splitlines()[1]), 160, top.stdout)
        self.end(p)

    def test_each_of_several_jobs_has_the_option_that_picks_it(self):
        p = [self.hung(), self.hung()]
        self.assertTrue(until(lambda: sum(job["ranks_live"] == 4 for job in self.jobs()) == 2))

        def looks():
            """Those of both jobs: a root that is slow to answer has its job told by the rings, without them."""
            lines = self.rollcall().stdout.splitlines()
            found = [line for line in lines if line.startswith("    look   rollcall top ")]
            return found if len(found) == 2 else None
        found = until(looks)
        self.assertEqual(len(found or ()), 2, found)
        for line in found:
            words = line.split("rollcall top ")[1].split()[:2]
            self.assertEqual(words[0], "--job", line)  # the name is enough: nobody wants to type an ipc:// address
            top = self.rollcall("top", "--once", *words)
            self.assertEqual(top.returncode, 0, top.stderr)
        self.end(*p)

    def test_a_job_without_a_daemon_is_told_by_its_rings(self):
        place = subprocess.run([ROLLCALL, "run", "-q", "--", "env"], capture_output=True, text=True, env=self.env,
                               check=True).stdout
        preload = [line.split("=", 1)[1] for line in place.splitlines() if line.startswith("LD_PRELOAD=")][0]
        ranks = []
        for rank in range(4):
            env = {**self.env, "LD_PRELOAD": preload, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4",
                   "ROLLCALL_JOB": "lonely", "ROLLCALL_BIN": "/nonexistent", "HOSTNCCL_DIR": self.tmp,
                   "ROLLCALL_QUIET": "1"}
            ranks.append(subprocess.Popen([CATALOGUE, "skipped", "sick"], env=env, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL))
        self.started += ranks
        self.assertTrue(until(lambda: [job.get("ranks_live") for job in self.jobs()] == [4]))
        r = self.rollcall()
        self.assertRegex(r.stdout, r"^job lonely: 4 ranks here \(0-3\), for ")
        self.assertIn("not judged: no daemon of yours here knows this job", r.stdout)
        self.assertIn(f"rollcall analyze {self.rings}", r.stdout)
        for p in ranks:
            p.kill()
            p.wait()
        self.assertIn("No job runs", self.rollcall().stdout)
        for name in os.listdir(self.rings):
            os.remove(os.path.join(self.rings, name))

    def test_a_job_chooses_among_several_daemons(self):
        p = [self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", "--", CATALOGUE, "skipped",
                        "sick", env={"ROLLCALL_JOB": name}) for name in ("left", "right")]
        self.assertTrue(until(lambda: sum(job.get("findings") == 1 for job in self.jobs()) == 2))
        for name in ("left", "right"):
            for command, code in (("top", 0), ("why", 0), ("verdicts", 1)):
                r = self.rollcall(command, *(["--once"] if command == "top" else []), "--job", name)
                self.assertEqual((r.returncode, r.stderr), (code, ""), command)
                self.assertRegex(r.stdout.splitlines()[0], f"job {name}[ :]")
        r = self.rollcall("why")
        self.assertEqual(r.returncode, 3)
        self.assertIn("2 daemons of yours are running here; pick a job", r.stderr)
        r = self.rollcall("why", "--job", "neither")
        self.assertEqual(r.returncode, 3)
        self.assertIn("rollcall: job neither is watched by none of them\n", r.stderr)
        for name in ("left", "right"):
            self.assertRegex(r.stderr, rf"(?m)^rollcall: --job {name}  job {name}: ranks 0-3 \(4 ranks\) on host ")
        self.assertNotIn("ipc://", r.stderr)
        r = self.rollcall("why", "--job")
        self.assertEqual(r.returncode, 2)
        self.assertIn("option '--job' needs an argument: `rollcall jobs` lists the jobs", r.stderr)
        endpoint = until(lambda: next((job["daemon"] for job in self.jobs() if job.get("daemon")), None))
        r = self.rollcall("why", "--daemon", endpoint, "--job", "neither")
        self.assertEqual(r.returncode, 3)
        self.assertRegex(r.stderr, r"no such job here; those here: (left|right)\n")
        self.end(*p)

    def test_what_cannot_be_answered_is_no_matter_of_usage(self):
        os.mkdir(self.path("root"), 0o700)
        read, write = os.pipe()
        root = subprocess.Popen([DAEMON, "--root", "--dir", self.path("root"), "--no-supervise", "--ready-fd",
                                 str(write)], pass_fds=[write], env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        os.close(write)
        with os.fdopen(read) as f:
            endpoint = f.readline().strip()
        for arguments in (["top", "--once"], ["why"], ["why", "3"], ["verdicts"], ["remedy", "list"], ["stacks", "0"]):
            for job, words in (([], "no run yet"), (["--job", "x"], "no such job here")):
                r = self.rollcall(*arguments, "--daemon", endpoint, *job)
                self.assertEqual((r.returncode, r.stdout), (3, ""), arguments)
                self.assert_one_line(r.stderr, words)
        root.terminate()
        root.wait()

    def root(self, name, *options):
        """Starts a root; its process and its endpoint."""
        os.mkdir(self.path(name), 0o700)
        read, write = os.pipe()
        root = subprocess.Popen([DAEMON, "--root", "--dir", self.path(name), "--no-supervise", "--ready-fd", str(write),
                                 *options], pass_fds=[write], env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        os.close(write)
        with os.fdopen(read) as f:
            return root, f.readline().strip()

    def test_ranks_with_a_key_for_looking_are_told_which_one_they_need(self):
        """And nobody says that they made no call: they did, and the root did not take it."""
        keys = self.path("keys")
        self.assertEqual(self.rollcall("keygen", keys).returncode, 0)
        for role in ("viewer", "node"):
            self.assertEqual(self.rollcall("keygen", "--role", role, "--name", role, keys).returncode, 0)
        root, endpoint = self.root("keyed", "--listen", "tcp://127.0.0.1:0", "--curve-dir", keys)
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--daemon", endpoint, "--", CATALOGUE, "skipped", "healthy",
                          env={"ROLLCALL_CURVE_DIR": os.path.join(keys, "viewer")})
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("agent: the root refuses what is sent: this key is for looking and may not report: ranks and "
                      "agents take one with the role node (`rollcall keygen --role node --name NAME DIR`)", r.stderr)
        self.assertNotIn("no rank recorded a call", r.stderr)
        # The agent may say its line once more behind it.
        self.assertRegex(r.stderr, "(?m)^rollcall: NOBODY WATCHED this job to its end: nothing of what its ranks "
                                   "recorded has come to the root")
        with open(os.path.join(keys, "viewer", "client.key"), encoding="utf-8") as f:
            self.assertNotIn(f.read().split()[0], r.stderr)  # names and places are told, no key ever
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--daemon", endpoint, "--", CATALOGUE, "skipped", "healthy",
                          env={"ROLLCALL_CURVE_DIR": os.path.join(keys, "node")})
        self.assertIn("this key may not ask, it is for ranks: take one with the role viewer or operator", r.stderr)
        root.terminate()
        root.wait()

    def test_mistakes_of_connection_are_told_apart(self):
        for name in ("ours", "theirs"):
            self.assertEqual(self.rollcall("keygen", self.path(name)).returncode, 0)
        made = self.rollcall("keygen", "--role", "viewer", "--name", "me", self.path("ours"))
        self.assertIn("not for ranks: this key may not report", made.stdout)
        keyed, endpoint = self.root("keyed", "--listen", "tcp://127.0.0.1:0", "--curve-dir", self.path("ours"))
        plain, local = self.root("plain", "--listen", "tcp://127.0.0.1:0")
        with open(self.path("file"), "w"), socket.create_server(("127.0.0.1", 0)) as other, \
                socket.socket(socket.AF_UNIX) as left, socket.create_server(("127.0.0.1", 0)) as freed:
            left.bind(self.path("left"))  # nobody listens
            none = freed.getsockname()[1]
            freed.close()
            cases = (
                ((f"ipc://{self.path('none')}",), "there is no such socket"),
                ((f"ipc://{self.path('file')}",), "that file is no socket"),
                ((f"ipc://{self.path('left')}",),
                 "the socket is there, but nobody listens any more: the daemon has ended"),
                ((f"tcp://127.0.0.1:{none}",), "nobody listens on that port of 127.0.0.1"),
                (("tcp://no-such-host.invalid:7777",), "there is no host no-such-host.invalid"),
                ((f"tcp://127.0.0.1:{other.getsockname()[1]}",),
                 "something listens there, but it is no rollcalld, or is stopped"),
                ((endpoint, "--curve-dir", self.path("theirs")), f"it does not take the keys of {self.path('theirs')}"),
                ((endpoint,), "it does not take this user's cookie"),
                ((local, "--curve-dir", self.path("ours")), f"it does not take the keys of {self.path('ours')}"))
            asked = [self.start("why", "--daemon", *arguments) for arguments, _ in cases]
            for p, (arguments, why) in zip(asked, cases):
                told = p.communicate(timeout=300)[1]
                self.assertEqual(p.returncode, 3, told)
                self.assert_one_line(told, f"no answer from {arguments[0]} within 3000 ms: {why}")
        for arguments, why in ((("why",), "no run yet"), (("stacks", "0"), "this key may not ")):
            r = self.rollcall(*arguments, "--daemon", endpoint, "--curve-dir", self.path("ours/me"))
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, why)
        for root in (keyed, plain):
            root.terminate()
            root.wait()

    def test_what_is_no_ring_is_passed_over(self):
        path = os.path.join(self.rings, "x.0.0.1.ring")
        with open(path, "wb") as f:
            f.write(b"ROLLRING" + bytes(100))
        r = self.rollcall()
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        self.assertIn("No job runs", r.stdout)
        os.remove(path)

    def test_a_root_that_does_not_answer_is_one_line(self):
        r = self.rollcall(env={"ROLLCALL_DAEMON": "ipc:///nonexistent/root"})
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "ipc:///nonexistent/root")
        self.assertIn("No job runs", r.stdout)


class Did(Case):
    """What `run` says at the end of a healthy job, and only there."""

    def setUp(self):
        super().setUp()
        self.need_nccl()

    def end_of(self, *options):
        return self.rollcall("run", "-n", "4", "--hostnccl", *options, "--", CATALOGUE, "straggler", "healthy")

    def test_a_healthy_job_is_told_in_few_lines_before_the_summary(self):
        r = self.end_of()
        self.assertEqual(r.returncode, 0, r.stderr)
        lines = r.stderr.splitlines()
        at = lines.index("rollcall: what the job did: ranks 0-3")
        self.assertRegex(lines[at + 1], r"^rollcall:   world, ranks 0-3: AllReduce, [\d.,]+ calls and \S+ \S+ a rank$")
        self.assertRegex(lines[at + 2], r"^rollcall:   (slowest|no rank is slow)")
        self.assertRegex(lines[-1], r"^rollcall: 4 ranks, .* 0 findings, nothing lost$")
        self.assertEqual(len(lines), at + 4, r.stderr)

    def test_brief_and_quiet(self):
        self.assertNotIn("what the job did", self.end_of("--brief").stderr)
        self.assertIn("0 findings", self.end_of("--brief").stderr)
        self.assertEqual(self.end_of("--quiet").stderr, "")

    def test_a_sick_job_has_its_finding_and_no_picture(self):
        p = self.start("run", "-n", "4", "--hostnccl", "--grace", "1", "--", CATALOGUE, "skipped", "sick")
        self.assertTrue(until(lambda: any(job.get("findings") for job in
                                          json.loads(self.rollcall("jobs", "--json").stdout)["jobs"])))
        p.terminate()
        said = p.communicate()[1]
        self.assertIn("call-skipped", said)
        self.assertNotIn("what the job did", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
