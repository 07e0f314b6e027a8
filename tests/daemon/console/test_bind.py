"""test_bind.py: how `rollcall run` stands before a job's NCCL, what doctor says of it, and what nobody can see."""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import unittest

from support import Case, DAEMON, ROLLCALL, marked, summary_of, until

JOB = os.environ["ROLL_TEST_STATIC_JOB"]
RANKS = os.environ["ROLL_TEST_RANKS"]
OLD = os.environ["ROLL_TEST_OLD"]
STATIC = os.environ["ROLL_TEST_STATIC"]
INSIDE = os.environ["ROLL_TEST_INSIDE"]
USER = os.environ["ROLL_TEST_USER"]
HOSTNCCL = os.environ["ROLL_TEST_HOSTNCCL"]


class BindCase(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.env["LD_LIBRARY_PATH"] = HOSTNCCL

    def job(self, mode, ranks, *options, program=JOB, env=None):
        """A job of ranks that have NCCL linked in: its verdicts and its process."""
        verdicts, meet = self.path("verdicts"), self.path("meet")
        subprocess.run(["rm", "-rf", verdicts, meet], check=True)
        os.mkdir(meet)
        r = self.rollcall("run", "-n", str(ranks), "--json", verdicts, *options, "--", "sh", "-c",
                          f"exec {program} {mode} $RANK {ranks} {meet}", env={"HOSTNCCL_DIR": meet, **(env or {})})
        with open(verdicts) as f:
            return [json.loads(line) for line in f], r


class Judged(BindCase):
    """Records of the profiler plugin alone are enough for a verdict; and for none where nothing is wrong."""

    def test_count_mismatch_at_every_version(self):
        for version, ranks in ((7, 2), (7, 4), (5, 3), (4, 2), (4, 4), (2, 2), (1, 4)):
            with self.subTest(version=version, ranks=ranks):
                said, r = self.job("count", ranks, "--bind=plugin", env={"HOSTNCCL_PROFILER_NEWEST": str(version),
                                                                         "HOSTNCCL_ON_MISMATCH": "error"})
                found = [v for v in said if v["certainty"] != "note"]
                self.assertTrue(found, r.stderr)
                # Without call sites, and in a job that hangs at once, the odd call may be one that was added; which of
                # the two is more likely depends on how many of the calls behind it were recorded before the job ended.
                classes = {found[0]["code"], *(found[0].get("may_be") or [])}
                self.assertIn("count-mismatch", classes, found[0]["text"])
                self.assertLessEqual(classes, {"count-mismatch", "call-added", "calls-reordered"}, found[0]["text"])
                self.assertEqual((found[0]["seq"], found[0]["certainty"]),
                                 (10, "proven" if len(classes) == 1 else "suspected"), found[0]["text"])
                self.assertEqual(found[0]["culprits"], [ranks - 1] if ranks > 2 else [])
                self.assertNotIn("redop-mismatch", [v["code"] for v in said])

    def test_healthy_twins_are_silent(self):
        for version in (7, 4, 1):
            for mode, ranks in (("same", 4), ("two", 2), ("two", 4), ("nonblocking", 2)):
                with self.subTest(version=version, mode=mode, ranks=ranks):
                    said, r = self.job(mode, ranks, "--bind=plugin", env={"HOSTNCCL_PROFILER_NEWEST": str(version)})
                    self.assertEqual((r.returncode, said), (0, []), r.stderr)
                    self.assertEqual(summary_of(r.stderr)["ranks"], ranks)

    def test_bytes_of_a_send_and_its_receive(self):
        for version in (7, 4):
            said, r = self.job("wrong-recv", 2, "--bind=plugin", env={"HOSTNCCL_PROFILER_NEWEST": str(version),
                                                                      "HOSTNCCL_ON_MISMATCH": "error"})
            self.assertIn("p2p-bytes", [v["code"] for v in said], r.stderr)


class Picked(BindCase):
    SHOW = "echo $NCCL_PROFILER_PLUGIN,$ROLLCALL_CHAIN_PROFILER,$LD_AUDIT,$VLLM_NCCL_SO_PATH,$ROLLCALL_NCCL"

    def shown(self, *options, env=None):
        r = self.rollcall("run", *options, "--", "sh", "-c", self.SHOW, env=env)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout.strip().split(","), r.stderr

    def test_a_shared_nccl_needs_the_preload_alone(self):
        r = self.rollcall("run", "--", RANKS)
        self.assertRegex(r.stderr, r"(?m)^rollcall: bound by preload: interposer_ranks uses \S+/libnccl\.so\.2$")
        other = self.path("other")  # a program that finds another NCCL by itself: the ranks will not
        os.mkdir(other)
        shutil.copy(os.path.join(HOSTNCCL, "libnccl.so.2"), other)
        r = self.rollcall("run", "--hostnccl", "--", RANKS, env={"LD_LIBRARY_PATH": other})
        self.assertIn(f"interposer_ranks uses {os.path.realpath(HOSTNCCL)}/libnccl.so.2\n", r.stderr)
        seen, err = self.shown(env={"NCCL_PROFILER_PLUGIN": "mine"})
        self.assertEqual(seen, ["mine", "", "", "", ""])
        self.assertIn("rollcall: bound by preload: sh is not linked to NCCL; one that it loads later is seen, too", err)

    def test_an_nccl_linked_in_takes_the_plugin(self):
        r = self.rollcall("run", "--", INSIDE)
        self.assertIn(f"rollcall: bound by preload and NCCL's profiler plugin: NCCL is linked into {INSIDE}", r.stderr)

    def test_one_that_is_too_old_is_said_and_the_job_runs(self):
        r = self.rollcall("run", "--", OLD)
        self.assertEqual((r.returncode, r.stdout), (0, "NCCL version 2.21.5+cuda12.4\n"))
        self.assertIn(f"NCCL is linked into {OLD} and older than 2.23: its calls are not seen", r.stderr)

    def test_the_users_plugin_is_chained(self):
        seen, err = self.shown("--bind=plugin", env={"NCCL_PROFILER_PLUGIN": "/x/libmine.so"})
        self.assertRegex(seen[0], r"/librollcall\.so$")
        self.assertEqual(seen[1], "/x/libmine.so")
        self.assertIn("/x/libmine.so is chained behind it", err)
        for nobodys, chained in (("none", "none"), ("librollcall.so", ""), ("/elsewhere/lib/librollcall.so", "")):
            seen, err = self.shown("--bind=plugin", env={"NCCL_PROFILER_PLUGIN": nobodys})
            self.assertEqual(seen[1], chained)
            self.assertNotIn("chained", err)

    def test_a_chained_plugin_hears_the_job(self):
        log = self.path("log")
        said, r = self.job("same", 2, "--bind=plugin", env={"NCCL_PROFILER_PLUGIN": USER, "USER_PROFILER_LOG": log,
                                                            "USER_PROFILER_MASK": "2"})
        self.assertEqual((r.returncode, said), (0, []), r.stderr)
        self.assertEqual(summary_of(r.stderr)["ranks"], 2)
        with open(log) as f:
            heard = f.read()
        self.assertEqual(heard.count("start 2 parent 512\n"), 40)  # the task of each all-reduce, under its call

    def test_front_where_a_path_is_named(self):
        real = os.path.realpath(os.path.join(HOSTNCCL, "libnccl.so.2"))
        seen, err = self.shown("--bind=front", env={"VLLM_NCCL_SO_PATH": real})
        self.assertRegex(seen[3], r"/rollcall/front/[0-9.]+/libnccl\.so\.2$")
        self.assertEqual(seen[4], real)
        # The variable is set by hand: no front stands before a front.
        again, err = self.shown("--bind=front", env={"VLLM_NCCL_SO_PATH": seen[3]})
        self.assertEqual(again[3:], [seen[3], ""])
        self.assertIn("is a front already", err)
        other, err = self.shown("--bind=front", env={"VLLM_NCCL_SO_PATH": "/no/such/nccl", "SGLANG_NCCL_SO_PATH": real})
        self.assertEqual(other[3:], ["/no/such/nccl", ""])
        self.assertIn("/no/such/nccl cannot be found", err)
        seen, err = self.shown("--bind=front")
        self.assertEqual(seen[3:], ["", ""])
        self.assertIn("no front: neither VLLM_NCCL_SO_PATH nor SGLANG_NCCL_SO_PATH names an NCCL", err)

    def test_the_auditor_only_when_asked_for(self):
        for option in ("--audit", "--bind=audit"):
            seen, err = self.shown(option)
            self.assertRegex(seen[2], r"/librollcall_audit\.so$", err)
            self.assertIn("bound by preload and auditor, as asked for", err)
        meet = self.path("meet")
        os.mkdir(meet)
        r = self.rollcall("run", "--audit", "--", RANKS, "whole", "0", "1", meet, env={"HOSTNCCL_DIR": meet})
        self.assertEqual((r.returncode, summary_of(r.stderr)["ranks"]), (0, 1), r.stderr)

    def test_a_place_that_no_preload_can_name(self):
        for name in ("with blank", "with:colon"):
            for part, file in (("bin", ROLLCALL),
                               ("lib", os.path.join(os.path.dirname(ROLLCALL), "../lib/librollcall.so"))):
                os.makedirs(self.path(f"{name}/{part}"))
                shutil.copy(file, self.path(f"{name}/{part}"))
            r = subprocess.run([self.path(f"{name}/bin/rollcall"), "run", "--", "sh", "-c", "echo out; exit 3"],
                               env=self.env, capture_output=True, text=True, timeout=300)
            self.assertEqual((r.returncode, r.stdout), (3, "out\n"))
            self.assertIn("has a blank or a colon in it: install it elsewhere", r.stderr)
            self.assertIn("its library cannot be preloaded; the job runs unwatched", r.stderr)

    def test_wrong_names_are_refused(self):
        for options in (("--bind=magic",), ("--audit", "--bind=plugin")):
            r = self.rollcall("run", *options, "--", "true")
            self.assertEqual(r.returncode, 2)


class Doctor(BindCase):
    def doctor(self, *args, env=None):
        r = self.rollcall("doctor", "--json", *args, env=env)
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        return {line["check"]: line for line in lines}, r.returncode

    def test_commands(self):
        rows = ((RANKS, 0, "OK", "will see every NCCL call"), (INSIDE, 0, "OK", "by NCCL's profiler plugin"),
                (OLD, 1, "FAIL", "older than 2.23"), (STATIC, 1, "FAIL", "Nothing of"),
                ("sh", 0, "OK", "unless NCCL is linked into what it loads"))
        for command, code, state, text in rows:
            with self.subTest(command=command):
                told, rc = self.doctor(command)
                self.assertEqual((rc, told["in short"]["state"]), (code, state), told)
                self.assertIn(text, told["in short"]["text"])
        told, rc = self.doctor(RANKS, env={"ROLLCALL_DISABLE": "1"})
        self.assertEqual(rc, 1)
        self.assertIn("ROLLCALL_DISABLE=1", told["in short"]["text"])
        told, rc = self.doctor(INSIDE, env={"NCCL_PROFILER_PLUGIN": "inspector"})
        self.assertIn("NCCL_PROFILER_PLUGIN=inspector is yours: it is chained", told["by plugin"]["text"])
        told, rc = self.doctor(INSIDE, env={"NCCL_PROFILER_PLUGIN": "none"})
        self.assertNotIn("chained", told["by plugin"]["text"])

    def test_what_the_interpreter_of_a_command_is(self):
        told, _ = self.doctor(sys.executable, "train.py")
        self.assertRegex(told["python"]["text"], r"^CPython 3\.\d+")
        for flags, text in (("t", "free-threaded"), ("", "lines of Python")):
            with open(self.path("python3"), "w") as f:
                f.write(f"#!/bin/sh\necho cpython 3 13 {flags or '-'}\n")
            os.chmod(self.path("python3"), 0o755)
            told, _ = self.doctor(self.path("python3"), "train.py")
            self.assertIn(text, told["python"]["text"])
        with open(self.path("python3"), "w") as f:
            f.write("#!/bin/sh\nexit 1\n")
        told, _ = self.doctor(self.path("python3"), "train.py")
        self.assertEqual(told["python"]["state"], "WARN")
        self.assertNotIn("python", self.doctor("true")[0])

    def altered(self, name, change):
        """A copy of a program that uses NCCL, with some of its bytes exchanged."""
        with open(RANKS, "rb") as f:
            data = bytearray(f.read())
        change(data)
        with open(self.path(name), "wb") as f:
            f.write(data)
        os.chmod(self.path(name), 0o755)
        return self.path(name)

    def test_programs_that_nothing_can_be_preloaded_into(self):
        def for_musl(data):
            at = re.search(rb"/lib[^\0]*/ld-linux[^\0]*\0", data)
            data[at.start():at.end()] = b"/lib/ld-musl-any.so.1".ljust(at.end() - at.start(), b"\0")

        def for_another_machine(data):
            data[18:20] = b"\xf3\x00"  # RISC-V

        def for_another_size(data):
            data[4] = 1  # 32 bits; the rest of the file does not fit, and must be no trouble

        def cut_short(data):
            del data[100:]

        rows = ((for_musl, "uses musl: librollcall.so needs glibc"),
                (for_another_machine, "is made for another processor"),
                (for_another_size, "is made for another processor"), (cut_short, "is linked statically"))
        for change, text in rows:
            with self.subTest(change=change.__name__):
                program = self.altered(change.__name__, change)
                told, rc = self.doctor(program)
                self.assertEqual((rc, told["command"]["state"], told["in short"]["state"]), (1, "FAIL", "FAIL"), told)
                self.assertIn(text, told["command"]["text"])
                self.assertIn("Nothing of", told["in short"]["text"])
                self.assertNotIn("by preload", told)

    def test_set_user_id(self):
        program = self.altered("own", lambda data: None)
        os.chmod(program, 0o4755)  # our own rights are nothing that the loader would protect
        told, rc = self.doctor(program)
        self.assertEqual((rc, told["in short"]["state"]), (0, "OK"), told)
        if os.geteuid() == 0:
            os.chown(program, 65534, 65534)
            os.chmod(program, 0o4755)
        told, rc = self.doctor(program if os.geteuid() == 0 else "/bin/su")
        self.assertEqual((rc, told["in short"]["state"]), (1, "FAIL"), told)
        self.assertIn("the loader ignores LD_PRELOAD", told["command"]["text"])

    def test_what_is_no_program(self):
        os.mkfifo(self.path("pipe"))
        for name, text in ((self.path("pipe"), "give a program that can be run"),
                           ("/", "give a program that can be run"), ("no-such-program", "give a program")):
            told, rc = self.doctor(name)
            self.assertEqual((rc, told["command"]["state"]), (1, "FAIL"), told)
            self.assertIn(text, told["command"]["text"])
        r = self.rollcall("run", "--", self.path("pipe"), timeout=300)
        self.assertEqual(r.returncode, 126, r.stderr)

    def test_table_is_aligned(self):
        r = self.rollcall("doctor", RANKS)
        self.assertEqual({line[6:].index(line[6:].split("  ")[0]) for line in r.stdout.splitlines()}, {0})
        self.assertEqual({len(line[:22].rstrip()) <= 21 and line[20:22] == "  " for line in r.stdout.splitlines()},
                         {True}, r.stdout)

    def test_processes(self):
        told, rc = self.doctor(str(os.getpid()))
        self.assertEqual((rc, told["in short"]["state"]), (1, "FAIL"))
        self.assertIn("was not started under rollcall", told["in short"]["text"])
        told, rc = self.doctor("999999999")
        self.assertEqual((rc, told["process"]["state"]), (1, "FAIL"))


class Unseen(BindCase):
    """Attached, NCCL at work, nothing seen: a note, live and from the trace; and none where there is nothing to
    note."""

    def test_sick_and_healthy(self):
        results = {}
        healthy = self.path("healthy"), self.path("idle")
        for name in healthy:
            os.mkdir(name)

        def sick():
            results["sick"] = self.job("quiet", 2, "--bind=preload", "--trace", self.path("trace"))

        # A job that the plugin sees, beside what the job forks; a program with NCCL in it that does not use it; and
        # shells, preloaded too.
        def well():
            results["well"] = self.rollcall("run", "-n", "2", "--bind=plugin", "--", "bash", "-c",
                                            f"{JOB} idle 0 1 {healthy[1]} & {JOB} workers $RANK 2 {healthy[0]}; wait; "
                                            "sleep 1", env={"HOSTNCCL_DIR": healthy[0]})

        def alone():  # an agent that has no root keeps the note in its own trace
            rings, meet = self.path("alone"), self.path("alone-meet")
            os.mkdir(rings, 0o700)
            os.mkdir(meet)
            env = {**self.env, "ROLLCALL_DIR": rings, "HOSTNCCL_DIR": meet}
            agent = subprocess.Popen([DAEMON, "--agent", "--dir", rings, "--connect", f"ipc://{self.path('nobody')}",
                                      "--trace", self.path("kept")], env=env, stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.started.append(agent)
            results["job"] = subprocess.run([JOB, "quiet", "0", "1", meet], timeout=300,
                                            env={**env,
                                                 "LD_PRELOAD": os.path.join(os.path.dirname(ROLLCALL),
                                                                            "../lib/librollcall.so")})
            agent.terminate()
            results["agent"] = agent.wait(300)

        threads = [threading.Thread(target=t) for t in (sick, well, alone)]
        for t in threads:
            t.start()
        pids = until(lambda: [p for p in marked(self.mark) if self.is_quiet(p)])
        self.assertTrue(pids)
        until(lambda: self.at_work(pids[0]))
        told = self.rollcall("doctor", "--json", str(pids[0]))
        for t in threads:
            t.join()
        said, r = results["sick"]
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual([(v["code"], v["certainty"]) for v in said], [("attached-unseen", "note")] * 2)
        self.assertEqual(sorted(v["culprits"][0] for v in said), [0, 1])
        self.assertIn("attached-unseen", r.stderr)
        self.assertIn("none of its calls was seen", r.stderr)
        a = self.rollcall("analyze", "--json", self.path("trace"))
        again = [json.loads(line) for line in a.stdout.splitlines()][:-1]
        self.assertEqual([json.dumps(v, sort_keys=True) for v in again], [json.dumps(v, sort_keys=True) for v in said])
        self.assertEqual(told.returncode, 1, told.stdout)
        self.assertIn("NCCL is at work in it and nothing is seen", told.stdout)

        self.assertEqual((results["job"].returncode, results["agent"]), (0, 0))
        a = self.rollcall("analyze", "--json", self.path("kept"))
        kept = [json.loads(line) for line in a.stdout.splitlines()][:-1]
        self.assertEqual([v["code"] for v in kept], ["attached-unseen"], a.stderr)

        self.assertEqual(results["well"].returncode, 0, results["well"].stderr)
        self.assertNotIn("attached-unseen", results["well"].stderr)
        self.assertEqual(summary_of(results["well"].stderr)["ranks"], 2)

    def is_quiet(self, pid):
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            words = f.read().split(b"\0")
        return words[:2] == [JOB.encode(), b"quiet"] and b"alone" not in words[4]

    def at_work(self, pid):
        with open(f"/proc/{pid}/maps") as f:
            return "/hn-" in f.read()


if __name__ == "__main__":
    unittest.main(verbosity=2)
