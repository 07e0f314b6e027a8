"""test_jobs.py: `rollcall` alone: which jobs run here, how they stand, how to look closer; and how to start one."""
import json
import os
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
        r = self.rollcall()
        self.assertEqual((r.returncode, r.stderr), (0, ""))
        first, state, look = r.stdout.splitlines()
        self.assertRegex(first, r"^job run-\S+: ranks 0-3 \(4 ranks\) on host \S+, watched since ")
        self.assertRegex(state, r"^    state  1 finding; the newest: proven call-skipped, rank 3; [\d,]+ calls, the "
                                r"last .* ago$")
        self.assertRegex(look, r"^    look   rollcall top   rollcall verdicts   rollcall why   rollcall stacks$")
        self.end(p)

    def test_a_job_that_is_compared_by_digests_tells_when_it_moved(self):
        p = self.hung("--digest")
        self.assertTrue(until(lambda: any(job.get("findings") for job in self.jobs())))
        job = self.jobs()[0]
        self.assertIsInstance(job["calls_per_s"], float)
        self.assertGreater(job["last_ns"], 0)
        top = self.rollcall("top", "--once")
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertLess(len(top.stdout.splitlines()[1]), 160, top.stdout)
        self.end(p)

    def test_each_of_several_jobs_has_the_option_that_picks_it(self):
        p = [self.hung(), self.hung()]
        self.assertTrue(until(lambda: sum(job["ranks_live"] == 4 for job in self.jobs()) == 2))
        r = self.rollcall()
        looks = [line for line in r.stdout.splitlines() if line.startswith("    look")]
        self.assertEqual(len(looks), 2, r.stdout)
        for line in looks:
            words = line.split("rollcall top ")[1].split()[:2]
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
        self.assertIn("2 daemons of yours are running here; pick one", r.stderr)
        r = self.rollcall("why", "--job", "neither")
        self.assertEqual(r.returncode, 3)
        self.assertIn("rollcall: job neither is watched by none of them\n", r.stderr)
        self.assertEqual(r.stderr.count("rollcall: --daemon ipc://"), 2)
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
        self.assertRegex(lines[at + 1], r"^rollcall:   world, ranks 0-3: AllReduce, [\d.]+ calls and \S+ \S+ a rank$")
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
