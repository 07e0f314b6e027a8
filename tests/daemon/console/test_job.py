"""test_job.py: a real NCCL job: the verdict live, from the trace and from the raw rings; the consoles beside it."""
import json
import os
import re
import signal
import subprocess
import unittest

from support import Case, CATALOGUE, DAEMON, END_S, ROLLCALL, command_of, marked, summary_of, until

ROOT = (DAEMON, "--no-supervise", "--root")  # one process, which is killed by its pid

TERMINATED = 128 + 15

# What a verdict says of the fault, as opposed to when it was said.
FACTS = ("number", "code", "certainty", "culprits", "comm", "seq", "field", "step", "layer", "phase", "event_ns")


def facts(verdict, *, without=()):
    return {k: verdict.get(k) for k in FACTS if k not in without}


def read(path):
    with open(path) as f:
        return [json.loads(line) for line in f]


def findings(path):
    """The findings in a file that is being written; a note is none."""
    try:
        return [v for v in read(path) if v["certainty"] != "note"]
    except (FileNotFoundError, ValueError):
        return []


class Job(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()

    def run_hung(self, *options, command, ranks="4", enough=lambda said: "call-skipped" in said):
        """Runs a job that hangs, and ends it once it has printed enough: a limit of its own might end it before it
        works, on a busy machine."""
        with open(self.path("out"), "w+") as out, open(self.path("err"), "w+") as err:
            p = subprocess.Popen([ROLLCALL, "run", "-n", ranks, "--hostnccl", "--grace", "1", *options, "--", *command],
                                 stdout=out, stderr=err, stdin=subprocess.DEVNULL, text=True, env=self.env)
            self.started.append(p)
            self.assertTrue(until(lambda: enough(self.said()) or p.poll() is not None))
            p.terminate()
            p.wait(END_S)
        with open(self.path("out")) as out, open(self.path("err")) as err:
            return subprocess.CompletedProcess(p.args, p.returncode, out.read(), err.read())

    def said(self):
        with open(self.path("out")) as out, open(self.path("err")) as err:
            return out.read() + err.read()

    def run_sick(self, *options, program="skipped", ranks="4", enough=lambda said: "call-skipped" in said):
        return self.run_hung(*options, command=[CATALOGUE, program, "sick"], ranks=ranks, enough=enough)

    def test_what_a_job_did_is_told_where_digests_were_compared(self):
        r = self.rollcall("run", "-n", "4", "--hostnccl", "--digest", "--", CATALOGUE, "wrong-count", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        did = re.search(r"what the job did: ranks 0-3, (\d+) calls by each, on 1 communicator\n", r.stderr)
        self.assertTrue(did, r.stderr)
        self.assertIn(f"4 ranks, {4 * int(did[1])} calls compared by digests: 0 findings, nothing lost", r.stderr)
        self.assertIn("has its members on one node", r.stderr)

    def test_how_calls_are_compared_is_asked_for_once_and_of_a_root_of_our_own(self):
        for options, word in ((("--digest", "--stream"), "choose one"),
                              (("--digest", "--trace", "t"), "keeps no trace"),
                              (("--stream", "--daemon", "tcp://127.0.0.1:9"), "already running")):
            r = self.rollcall("run", *options, "--", "true")
            self.assertEqual(r.returncode, 2, r.stderr)
            self.assertIn(word, r.stderr)

    def test_verdict_is_the_same_live_from_the_trace_and_from_the_rings(self):
        live, trace, kept = self.path("live.json"), self.path("trace"), self.path("kept")
        # One rank keeps a copy of all rings while the job hangs, as somebody would who finds a hung job without a
        # daemon.
        keep = (f"until grep -q proven {live}; do sleep 0.1; done; mkdir {kept}.new && "
                f"cp $ROLLCALL_DIR/*.ring {kept}.new && mv {kept}.new {kept}")
        command = f"(test $RANK = 0 && {{ {keep}; }}) & exec {CATALOGUE} skipped sick"
        r = self.run_hung("--json", live, "--trace", trace, command=["sh", "-c", command],
                          enough=lambda said: os.path.exists(kept))
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        first = read(live)
        findings = [v for v in first if v["certainty"] != "note"]
        self.assertTrue(findings, r.stderr)
        self.assertEqual(findings[0]["culprits"], [3], r.stderr)
        self.assertIn(findings[0]["code"], r.stderr)
        self.assertEqual(summary_of(r.stderr)["findings"], len(findings), r.stderr)
        self.assertEqual(summary_of(r.stderr)["ranks"], 4)
        self.assertEqual(summary_of(r.stderr)["lost"], 0)

        a = self.rollcall("analyze", "--json", trace)
        self.assertEqual(a.returncode, 1, a.stderr)
        again = [json.loads(line) for line in a.stdout.splitlines()]
        self.assertEqual(again[-1]["schema"], "rollcall.summary/1")
        self.assertEqual([json.dumps(v, sort_keys=True) for v in again[:-1]],
                         [json.dumps(v, sort_keys=True) for v in first])

        a = self.rollcall("analyze", "--json", kept)
        self.assertEqual(a.returncode, 1, a.stderr)
        rings = [v for v in map(json.loads, a.stdout.splitlines()) if v["schema"] == "rollcall.verdict/1"
                 and v["certainty"] != "note"]
        self.assertIn(facts(findings[0], without=("number",)), [facts(v, without=("number",)) for v in rings])

        a = self.rollcall("analyze", trace)
        self.assertEqual(a.returncode, 1)
        self.assertIn(findings[0]["code"], a.stdout)
        self.assertRegex(a.stdout.splitlines()[-1], r"^4 ranks, .* finding")

    def test_a_job_ended_from_outside_is_told_alike_live_and_from_its_trace(self):
        live, trace = self.path("live.json"), self.path("trace")
        r = self.run_sick("--json", live, "--trace", trace)
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        a = self.rollcall("analyze", "--json", trace)
        said = read(live)
        self.assertEqual(list(map(json.loads, a.stdout.splitlines()))[:-1], said)
        # The job's end by `run` is a verdict like any other, which `run` itself does not print.
        ended = [v for v in said if v["code"] == "rank-dead"]
        self.assertEqual([v["certainty"] for v in ended], ["note"], r.stderr)
        self.assertIn("were ended from outside", ended[0]["text"])
        self.assertNotIn("were ended from outside", r.stderr)
        a = self.rollcall("analyze", trace)
        self.assertIn("were ended from outside", " ".join(a.stdout.split()))
        # One summary, word by word, what not all ranks have called included.
        summary = r.stderr.splitlines()[-1]
        self.assertRegex(summary,
                         r"^rollcall: 4 ranks, .*, "
                         r"(1 call that not all its ranks made|\d+ calls that not all their ranks made)$")
        self.assertEqual("rollcall: " + a.stdout.splitlines()[-1], summary)

    def test_a_rank_that_ends_by_the_signal_passed_on_is_no_finding(self):
        # The last rank hangs and dies by the signal at once; the others wait for it and do not hear the signal, so that
        # it is dead while they live, until SIGKILL ends them.
        command = f"test $RANK = 2 || trap '' INT TERM; exec {CATALOGUE} busy sick"
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                live, trace = self.path(f"{number.name}.json"), self.path(f"{number.name}.trace")
                p = self.start("run", "-n", "3", "--hostnccl", "--grace", "2", "--json", live, "--trace", trace, "--",
                               "sh", "-c", command)
                self.assertTrue(until(lambda: findings(live)))
                p.send_signal(number)
                told = p.communicate(timeout=END_S)[1]
                self.assertEqual(p.returncode, 128 + number, told)
                said = read(live)
                self.assertEqual([v["code"] for v in said if v["certainty"] != "note"], ["rank-busy"], told)
                self.assertLessEqual(len([v for v in said if v["code"] == "rank-dead"]), 1, told)
                self.assertEqual(summary_of(told)["findings"], 1, told)
                a = self.rollcall("analyze", "--json", trace)
                self.assertEqual([json.loads(line) for line in a.stdout.splitlines()][:-1], said)

    def test_the_signal_passed_on_through_a_launcher_is_no_finding(self):
        # As under torchrun: the ranks are sessions of a launcher, which hands the signal on and reaps them, so that
        # nobody writes how they ended. A rank that died before the signal stays a finding.
        launcher = ("trap 'kill -TERM $pids; sleep 1; kill -KILL $pids; exit 143' TERM INT; for r in 0 1 2; do "
                    "(test $r = 2 || trap '' INT TERM; export RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 LOCAL_WORLD_SIZE=3; "
                    "exec setsid $0 $1 sick) & pids=\"$pids $!\"; done; wait")
        for program, found in (("busy", ("rank-busy", "suspected", [2])), ("killed", ("rank-dead", "proven", [2]))):
            with self.subTest(program):
                live, trace = self.path(f"{program}.json"), self.path(f"{program}.trace")
                p = self.start("run", "--hostnccl", "--json", live, "--trace", trace, "--", "sh", "-c", launcher,
                               CATALOGUE, program)
                self.assertTrue(until(lambda: findings(live)))  # a note that comes before it is none
                p.send_signal(signal.SIGTERM)
                told = p.communicate(timeout=END_S)[1]
                said = read(live)
                self.assertEqual([(v["code"], v["certainty"], v["culprits"]) for v in said if v["certainty"] != "note"],
                                 [found], told)
                a = self.rollcall("analyze", "--json", trace)
                of_trace = [json.loads(line) for line in a.stdout.splitlines()][:-1]
                self.assertEqual(of_trace[:len(said)], said)
                # Nobody waits for ranks that the launcher does not reap: that they died, the trace may learn later.
                self.assertTrue({(v["code"], v["certainty"]) for v in of_trace[len(said):]} <= {("rank-dead", "note")},
                                of_trace)

    def test_a_rank_that_died_before_the_signal_is_a_finding(self):
        live = self.path("live.json")
        p = self.start("run", "-n", "3", "--hostnccl", "--grace", "2", "--json", live, "--", CATALOGUE, "killed",
                       "sick")
        self.assertTrue(until(lambda: findings(live)))
        p.send_signal(signal.SIGINT)
        told = p.communicate(timeout=END_S)[1]
        self.assertEqual(p.returncode, 128 + signal.SIGKILL, told)
        self.assertEqual([(v["code"], v["culprits"]) for v in read(live) if v["certainty"] != "note"],
                         [("rank-dead", [2])], told)

    def test_fail_on_finding(self):
        # The rank that ended early leaves the others waiting only in the sick program; here they do not, and the job
        # ends with 0.
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--fail-on-finding", "--", CATALOGUE, "straggler", "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(summary_of(r.stderr)["findings"], 0, r.stderr)
        # A job that hangs and is ended by its own limit, which it takes for success.
        live = self.path("live.json")
        r = self.rollcall("run", "-n", "4", "--hostnccl", "--fail-on-finding", "--json", live, "--", "sh", "-c",
                          f"{CATALOGUE} skipped sick & until grep -q proven {live}; do sleep 0.1; done; kill -KILL $!; "
                          "exit 0")
        self.assertEqual(r.returncode, 1, r.stderr)

    def test_quiet_and_json_on_standard_output(self):
        r = self.run_sick("--quiet", "--json", "-")
        self.assertEqual(r.returncode, TERMINATED)
        verdicts = [json.loads(line) for line in r.stdout.splitlines() if line.startswith('{"')]
        self.assertTrue(any(v["schema"] == "rollcall.verdict/1" and v["certainty"] != "note" for v in verdicts),
                        r.stdout)
        self.assertNotIn("ranks,", r.stderr)

    def test_a_limit_shorter_than_the_patience_still_says_who_waits(self):
        # The patience is 5 s.
        r = self.rollcall("run", "-n", "3", "--hostnccl", "--timeout", "4", "--", CATALOGUE, "busy", "sick")
        self.assertEqual(r.returncode, 124, r.stderr)
        self.assertNotIn("rank-busy", r.stderr)
        self.assertRegex(r.stderr,
                         r"(?m)^rollcall: Ranks 0-1 are inside .* They wait in .*, for rank 2: "
                         r"rank 2 is not inside any call")

    def test_one_side_of_a_verdict_is_all_who_wait_in_the_call(self):
        r = self.run_sick("--json", "-", program="finished", enough=lambda said: "rank-finished" in said)
        said = [json.loads(line) for line in r.stdout.splitlines() if line.startswith('{"')]
        found = [v for v in said if v["code"] == "rank-finished"]
        self.assertEqual([(s["ranks_text"]) for s in found[0]["evidence"]], ["3", "0-2"], r.stderr)

    def test_colour_only_on_a_terminal(self):
        r = self.run_sick(program="wrong-count", ranks="2", enough=lambda said: "count-mismatch" in said)
        self.assertNotIn("\x1b", r.stderr)

    def test_consoles_beside_a_hung_job(self):
        live = self.path("live.json")
        job = self.start("run", "-n", "4", "--hostnccl", "--timeout", "300", "--json", live, "--", CATALOGUE, "skipped",
                         "sick")
        self.assertTrue(until(lambda: findings(live)), "no verdict")
        top = self.rollcall("top", "--once")
        self.assertEqual(top.returncode, 0, top.stderr)
        self.assertIn("ranks 4", top.stdout)
        self.assertIn("RANK  HOST", top.stdout)
        status = json.loads(self.rollcall("top", "--json").stdout)
        self.assertEqual(status["schema"], "rollcall.status/2")
        self.assertEqual([r["rank"] for r in status["ranks"]], [0, 1, 2, 3])
        self.assertRegex(status["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
        why = self.rollcall("why", "0")
        self.assertEqual(why.returncode, 0, why.stderr)
        text = " ".join(why.stdout.split())  # its lines break where the durations in them let them
        self.assertRegex(text, r"\b[Rr]ank 3\b")
        self.assertIn("Verdict 1 (", text)  # and the verdict itself behind it, once
        self.assertEqual(len(re.findall(r"(?m)^(PROVEN|SUSPECTED|PREDICTED) ", why.stdout)), 1, why.stdout)
        self.assertEqual(self.rollcall("why").returncode, 0)
        r = self.rollcall("why", "99")
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "whose ranks are 0-3")
        verdicts = self.rollcall("verdicts", "--json")
        self.assertEqual(verdicts.returncode, 1)
        self.assertEqual(json.loads(verdicts.stdout.splitlines()[0])["schema"], "rollcall.verdict/1")
        r = self.rollcall("remedy", "on", "fill")
        self.assertEqual(r.returncode, 0)
        self.assert_one_line(r.stderr, "no rank of this job has reported an MoE layer so far")
        r = self.rollcall("remedy", "on", "fill", "--group", "0x12")
        self.assertEqual((r.returncode, r.stdout), (2, ""))
        self.assert_one_line(r.stderr, "no rank of this job is a member of communicator 0x0000000000000012")
        self.assertRegex(self.rollcall("remedy", "list").stdout, r"fill +on +local")
        self.assertIn('"fill"', self.rollcall("remedy", "on", "fill", "--layer", "3", "--json").stdout)
        self.assertRegex(self.rollcall("remedy", "off", "fill").stdout, r"fill +off")
        job.terminate()
        self.assertEqual(job.wait(300), 128 + 15)

    def test_why_names_what_was_found_where_nobody_waits(self):
        live = self.path("live.json")
        job = self.start("run", "-n", "2", "--hostnccl", "--timeout", "300", "--json", live, "--", CATALOGUE,
                         "wrong-count", "sick")
        self.assertTrue(until(lambda: findings(live)), "no verdict")
        why = " ".join(self.rollcall("why").stdout.split())
        self.assertRegex(why, r"\b1 finding\b|Verdict 1 \(", why)
        job.terminate()
        self.assertEqual(job.wait(300), 128 + 15)

    def test_tables_of_a_job_that_is_compared_by_digests(self):
        """Groups, and with JSON each rank of so small a job; records are judged, or there was no verdict."""
        live = self.path("live.json")
        job = self.start("run", "-n", "4", "--digest", "--hostnccl", "--timeout", "300", "--json", live, "--",
                         CATALOGUE, "skipped", "sick")
        self.assertTrue(until(lambda: findings(live)), "no verdict")
        groups = ""

        def told():  # a verdict may come before the last of them is seen to wait
            nonlocal groups
            groups = self.rollcall("top", "--once", "-g").stdout
            return (re.search(r"(?m)^0-2 +3 +waiting( in cuda\w+)? +3 +AllReduce", groups) and
                    re.search(r"(?m)^3 +1 +(running|busy|in cuda\w+|waiting( in cuda\w+)?) +\S+ +AllReduce", groups))
        self.assertTrue(until(told), groups)
        status = json.loads(self.rollcall("top", "--json", "-g").stdout)
        self.assertEqual([(r["rank"], r["last"]["op"]) for r in status["ranks"]], [(n, "AllReduce") for n in range(4)])
        self.assertEqual(status["digests"]["records"], "judged")
        job.terminate()
        self.assertEqual(job.wait(300), 128 + 15)

    def test_who_asks_is_told_which_job_answers(self):
        """One daemon, several, and one that was killed and has left its socket: the job, and the option that picks
        it."""
        who = (r"job %s: ranks 0-3 \(4 ranks\) on host \S+, watched since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
               r"\(.* (m?s|min)\)\n\n")
        start = lambda name: self.start("run", "-n", "4", "--hostnccl", "--json", self.path(name), "--", CATALOGUE,
                                        "skipped", "sick", env={"ROLLCALL_JOB": name})
        hung = lambda name: until(lambda: os.path.exists(self.path(name)) and os.path.getsize(self.path(name)) > 0)
        one = start("one")
        self.assertTrue(hung("one"))
        for command in ("why", "verdicts"):
            self.assertRegex(self.rollcall(command).stdout, "^" + who % "one")
        run = json.loads(self.rollcall("why", "--json").stdout)["run"]
        self.assertEqual((run["job"], run["ranks"], run["ranks_text"], run["hosts"]), ("one", 4, "0-3", 1))
        two = start("two")
        self.assertTrue(hung("two"))
        r = self.rollcall("why")
        self.assertEqual((r.returncode, r.stdout), (3, ""))
        lines = r.stderr.splitlines()
        self.assertEqual(len(lines), 3, r.stderr)
        self.assertIn("2 daemons", lines[0])
        for job in ("one", "two"):
            said = [line for line in lines if f"  job {job}: ranks 0-3 (4 ranks) on host " in line]
            self.assertEqual(len(said), 1, r.stderr)
            option = said[0].removeprefix("rollcall: ").split()[:2]
            self.assertEqual(option, ["--job", job])
            self.assertRegex(self.rollcall("why", *option).stdout, "^" + who % job)
        # Killed: what it leaves behind is nobody who could be asked.
        left = [p for p in marked(self.mark) if os.path.basename(DAEMON) in command_of(p)
                and self.env_of(p, "ROLLCALL_JOB") == "two"]
        self.assertTrue(left)
        for process in left:
            os.kill(process, 9)
        self.assertTrue(until(lambda: self.rollcall("why").returncode == 0))
        self.assertRegex(self.rollcall("verdicts").stdout, "^" + who % "one")
        for job in (one, two):
            job.terminate()
            job.wait(END_S)
        r = self.rollcall("why")
        self.assertEqual((r.returncode, r.stdout), (3, ""))
        self.assert_one_line(r.stderr, "no rollcalld is running")

    def env_of(self, pid, name):
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(v.split("=", 1) for v in f.read().decode(errors="replace").split("\0") if "=" in v).get(name)

    def test_nothing_is_left_when_run_is_killed_in_a_hung_job(self):
        live = self.path("live.json")
        job = self.start("run", "-n", "4", "--hostnccl", "--timeout", "300", "--json", live, "--", CATALOGUE, "skipped",
                         "sick")
        self.assertTrue(until(lambda: findings(live)), "no verdict")
        job.kill()
        job.wait()
        self.assertTrue(until(lambda: not marked(self.mark)), [command_of(p) for p in marked(self.mark)])
        self.assertTrue(until(lambda: not os.listdir(self.rings)))
        self.assertTrue(read(live))  # the verdicts survive

    def test_run_joins_a_root_that_is_named(self):
        endpoint = f"ipc://{self.path('root')}"
        root = subprocess.Popen([*ROOT, "--listen", endpoint], env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
        kept = self.path("kept")
        r = self.run_sick("--daemon", endpoint, "--trace", kept, "--trace-segment", "64K", "--trace-limit", "1M",
                          "--trace-age", "7d")
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        self.assertIn("call-skipped", r.stderr)
        self.assertEqual(summary_of(r.stderr)["ranks"], 4, r.stderr)
        # The node's agent kept what its ranks recorded, and it tells the same.
        self.assertTrue(os.listdir(kept) and all("@" in name for name in os.listdir(kept)), os.listdir(kept))
        a = self.rollcall("analyze", kept)
        self.assertEqual(a.returncode, 1, a.stderr)
        self.assertIn("call-skipped", a.stdout)
        # The root is not ours: it is still there and knows the run.
        self.assertIsNone(root.poll())
        self.assertIn(", none running, watched since ", self.rollcall("why", "--daemon", endpoint).stdout)
        verdicts = self.rollcall("verdicts", "--daemon", endpoint)
        self.assertEqual(verdicts.returncode, 1, verdicts.stderr)
        self.assertIn("call-skipped", verdicts.stdout)
        r = self.rollcall("run", "--daemon", endpoint, "--http", "127.0.0.1:0", "--", "true")
        self.assertEqual(r.returncode, 2)
        self.assert_one_line(r.stderr, "belongs to the root")
        for wrong in (["--trace-limit", "1G"], ["--trace", kept, "--trace-age", "1q"],
                      ["--trace", kept, "--trace-segment", "1K"]):
            r = self.rollcall("run", *wrong, "--", "true")
            self.assertEqual(r.returncode, 2)
            self.assert_one_line(r.stderr, "--trace-")
        root.terminate()
        self.assertEqual(root.wait(300), 1)  # a root says by its code that there was a finding

    def test_who_follows_hears_a_root_that_was_killed_and_started_again(self):
        endpoint = f"ipc://{self.path('root')}"
        command = [*ROOT, "--listen", endpoint, "--trace", self.path("trace")]
        root = subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
        with open(self.path("heard"), "w") as heard:
            follower = subprocess.Popen([ROLLCALL, "verdicts", "--follow", "--json", "--daemon", endpoint],
                                        stdout=heard, stderr=subprocess.DEVNULL, env=self.env)
        self.started.append(follower)

        def findings():
            return [(v["job"], v["number"]) for v in read(self.path("heard")) if v["certainty"] != "note"]

        self.run_sick("--daemon", endpoint, enough=lambda said: bool(findings()))
        before = findings()
        follower.send_signal(signal.SIGSTOP)  # however long the root takes, the follower did not wait for it
        root.kill()
        root.wait()
        os.unlink(self.path("root"))
        root = subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
        follower.send_signal(signal.SIGCONT)
        self.run_sick("--daemon", endpoint, enough=lambda said: len(findings()) > len(before))
        after = findings()
        self.assertEqual(after[:len(before)], before)
        self.assertEqual(len(set(after)), len(after), "a verdict is told twice")
        self.assertEqual(len({job for job, _ in after}), 2, after)
        follower.terminate()
        self.assertEqual(follower.wait(END_S), 1)
        root.terminate()
        root.wait(END_S)

    def test_a_run_hears_a_root_that_was_killed_and_started_again(self):
        endpoint = f"ipc://{self.path('root')}"
        command = [*ROOT, "--listen", endpoint]
        root = subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
        started, go = self.path("started"), self.path("go")
        job = f"touch {started}.$RANK; until test -e {go}; do sleep 0.1; done; exec {CATALOGUE} skipped sick"

        def root_again(said):
            nonlocal root
            if all(os.path.exists(f"{started}.{r}") for r in range(4)) and not os.path.exists(go):
                root.kill()
                root.wait()
                os.unlink(self.path("root"))
                root = subprocess.Popen(command, env=self.env, stderr=subprocess.DEVNULL)
                self.started.append(root)
                self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
                with open(go, "w"):
                    pass
            return "call-skipped" in said

        r = self.run_hung("--daemon", endpoint, command=["sh", "-c", job], enough=root_again)
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        self.assertEqual(len(re.findall(r"(?m)^PROVEN +call-skipped", r.stderr)), 1, r.stderr)
        root.terminate()
        root.wait(END_S)

    def test_a_run_hears_a_root_that_comes_later(self):
        endpoint, go = f"ipc://{self.path('root')}", self.path("go")
        job = f"until test -e {go}; do sleep 0.1; done; exec {CATALOGUE} skipped sick"

        def root_comes(said):
            waits = "the job runs on, its verdicts are shown once the root answers" in said
            if waits and not os.path.exists(go):
                self.started.append(subprocess.Popen([*ROOT, "--listen", endpoint], env=self.env,
                                                     stderr=subprocess.DEVNULL))
                with open(go, "w"):
                    pass
            return "call-skipped" in said

        r = self.run_hung("--daemon", endpoint, command=["sh", "-c", job], enough=root_comes)
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        self.assertEqual(r.stderr.count("once the root answers"), 1, r.stderr)
        self.assertEqual(len(re.findall(r"(?m)^PROVEN +call-skipped", r.stderr)), 1, r.stderr)

    def test_a_call_that_rollcall_refused_is_the_mismatch_that_it_is(self):
        # Who comes later is refused, and that may be any rank.
        self.rollcall("run", "-n", "4", "--hostnccl", "--on-mismatch", "error", "--timeout", "5", "--json",
                      self.path("live.json"), "--", CATALOGUE, "wrong-count", "sick")
        found = [v for v in read(self.path("live.json")) if v["certainty"] != "note"]
        self.assertEqual([(v["code"], v["certainty"], v["culprits"]) for v in found],
                         [("count-mismatch", "proven", [3])], found)
        self.assertRegex(found[0]["text"], r"rollcall refused the calls? of (rank 3|ranks? [0-2])")

    def test_two_jobs_on_one_root_hear_of_themselves_only(self):
        endpoint = f"ipc://{self.path('root')}"
        root = subprocess.Popen([*ROOT, "--listen", endpoint], env=self.env, stderr=subprocess.DEVNULL)
        self.started.append(root)
        self.assertTrue(until(lambda: os.path.exists(self.path("root"))))
        sick = self.run_sick("--daemon", endpoint)
        self.assertIn("call-skipped", sick.stderr)
        well = self.rollcall("run", "-n", "2", "--hostnccl", "--fail-on-finding", "--daemon", endpoint, "--", CATALOGUE,
                             "skipped", "healthy")
        self.assertEqual(well.returncode, 0, well.stderr)
        self.assertNotIn("call-skipped", well.stderr)
        self.assertEqual(summary_of(well.stderr)["ranks"], 2, well.stderr)
        newest = self.rollcall("verdicts", "--daemon", endpoint)
        self.assertEqual(newest.returncode, 0, newest.stdout)
        lines = newest.stdout.splitlines()
        self.assertRegex(lines[0], r"^job \S+: ranks 0-1 \(2 ranks\) ")
        self.assertEqual(lines[2:], ["", "Nothing has been found."])
        other = lines[1].removeprefix("the newest job here; others, ended: ").split()
        self.assertEqual(other[0], "--job", newest.stdout)
        self.assertIn("call-skipped", self.rollcall("verdicts", "--daemon", endpoint, *other).stdout)
        shown, _ = self.in_terminal("verdicts", "--daemon", endpoint, columns=50, streams=("stdout",))
        self.assertIn(lines[1], " ".join(shown.split()))
        self.assertLessEqual(max(map(len, shown.splitlines())), 50, shown)
        root.terminate()
        root.wait(300)

    def test_verdict_wakes_the_console_at_once(self):
        r = self.run_sick("--json", self.path("live.json"))
        self.assertEqual(r.returncode, TERMINATED, r.stderr)
        first = [v for v in read(self.path("live.json")) if v["certainty"] != "note"][0]
        # How soon it comes is a figure (roll_bench verdict).
        self.assertLess(first["time_ns"] - first["event_ns"], END_S * 1_000_000_000, "the verdict came late")


if __name__ == "__main__":
    unittest.main(verbosity=2)
