"""test_incident.py: bundles about findings: made by itself, by hand, judged again; no secrets, and full disks."""
import json
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import unittest

from support import Case, CATALOGUE, DAEMON, END_S, ROLLCALL, until

FACTS = ("code", "certainty", "culprits")
SECRETS = {"NCCL_MY_TOKEN": "t0p-one", "TORCH_API_KEY": "t0p-two", "SLURM_SECRET_WORD": "t0p-three",
           "CUDA_PASSPHRASE": "t0p-four", "NOT_OF_THE_LIST": "t0p-five", "NCCL_URL": "http://me:t0p-six@host/x"}


def standing(lines):
    """What is wrong, by these verdicts: findings that no later one ended."""
    verdicts = [v for v in map(json.loads, lines) if v["schema"] == "rollcall.verdict/1"]
    ended = {v[k] for v in verdicts for k in ("supersedes", "confirms", "withdraws") if v[k]}
    return sorted(str([v[k] for k in FACTS]) for v in verdicts
                  if v["certainty"] != "note" and v["number"] not in ended)


class Incident(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.out = self.path("bundles")

    def hung(self, *options, program="skipped", env=None, before=()):
        """A job that hangs under `run`, and what it has said so far in a file."""
        err = open(self.path("err"), "w")
        command = [*before, ROLLCALL, "run", "-n", "4", "--hostnccl", "--grace", "1", *options, "--", CATALOGUE,
                   program, "sick"]
        p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, stdin=subprocess.DEVNULL,
                             env={**self.env, **(env or {})})
        err.close()
        self.started.append(p)
        return p

    def said(self):
        with open(self.path("err")) as f:
            return f.read()

    def end(self, p):
        p.terminate()
        self.assertEqual(p.wait(END_S), 128 + signal.SIGTERM, self.said())

    def bundles(self):
        return sorted(os.listdir(self.out)) if os.path.isdir(self.out) else []

    def read(self, bundle, name):
        with open(os.path.join(self.out, bundle, name)) as f:
            return f.read()

    def judged(self, bundle):
        r = self.rollcall("analyze", "--json", os.path.join(self.out, bundle))
        self.assertEqual(r.returncode, 1, r.stderr)
        return standing(r.stdout.splitlines())

    def test_a_finding_makes_one_bundle_that_is_judged_alike(self):
        for how in ("--stream", "--digest"):
            with self.subTest(how=how):
                self.out = self.path("bundles" + how)
                p = self.hung("--incident-dir", self.out, how, env=SECRETS)
                self.assertTrue(until(lambda: "a bundle about" in self.said() or p.poll() is not None))
                self.end(p)
                self.assertEqual(len(self.bundles()), 1, self.bundles())
                bundle = self.bundles()[0]
                self.assertEqual(self.judged(""), self.judged(bundle))  # the folder of all bundles is read as well
                found = standing(self.read(bundle, "verdicts.ndjson").splitlines())
                self.assertEqual(len(found), 1)
                self.assertIn("'call-skipped', 'proven', [3]", found[0])
                self.assertEqual(self.judged(bundle), found)
                self.check_files(bundle)

    def check_files(self, bundle):
        about = json.loads(self.read(bundle, "incident.json"))
        self.assertEqual((about["recorded"], about["left_out"]), ("0-3", []))
        readme = self.read(bundle, "README.md")
        whole = ""
        for folder, _, files in os.walk(os.path.join(self.out, bundle)):
            self.assertEqual(stat.S_IMODE(os.stat(folder).st_mode), 0o700)
            for name in files:
                path = os.path.join(folder, name)
                self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600, path)
                with open(path, "rb") as f:
                    whole += f.read().decode(errors="replace")
                short = os.path.relpath(path, os.path.join(self.out, bundle))
                if short != "README.md":
                    self.assertIn(f"`{short}`", readme)
        self.assertNotIn("t0p-", whole)
        environment = self.read(bundle, "environment.txt")
        self.assertRegex(environment, r"(?m)^NCCL_MY_TOKEN=\(hidden\) +# ranks 0-3$")
        self.assertRegex(environment, r"(?m)^NCCL_URL=http://\*@host/x +# ranks 0-3$")
        self.assertRegex(environment, r"(?m)^RANK=2 +# rank 2$")
        self.assertNotIn("NOT_OF_THE_LIST", environment)
        self.assertRegex(self.read(bundle, "versions.txt"), r"(?s)root: rollcall .*glibc.*libzmq.*libnccl\.so\.2")
        self.assertIn("cat_sync", self.read(bundle, "stacks.txt") if "stacks.txt" in readme else "cat_sync")
        self.assertIn("proven call-skipped", self.read(bundle, "logs.txt"))
        self.assertEqual(json.loads(self.read(bundle, "status.json"))["schema"], "rollcall.status/2")

    def test_a_healthy_job_makes_none(self):
        r = self.rollcall("run", "-n", "4", "--hostnccl", "--incident-dir", self.out, "--", CATALOGUE, "skipped",
                          "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(self.bundles(), [])

    def test_a_job_that_is_ended_behind_its_finding_has_its_bundle(self):
        """The root is to end at once, and writes it first; the rings are kept as long."""
        p = self.hung("--incident-dir", self.out, program="abort-left")
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        self.end(p)
        self.assertEqual(len(self.bundles()), 1, self.said())
        self.assertEqual(self.judged(self.bundles()[0]),
                         standing(self.read(self.bundles()[0], "verdicts.ndjson").splitlines()))

    def test_by_hand_as_often_as_one_likes_and_none_is_overwritten(self):
        p = self.hung()
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        for n in (1, 2, 3):
            r = self.rollcall("incident", "--dir", self.out, "--no-stacks")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual(len(self.bundles()), n)
            self.assertIn(os.path.basename(r.stdout.strip()), self.bundles())
            self.assertEqual(self.judged(os.path.basename(r.stdout.strip())), ["['call-skipped', 'proven', [3]]"])
        r = self.rollcall("incident", "--dir", self.out, "--keep", "3")
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "there are 3 of")
        r = self.rollcall("incident", "--dir", self.out, "--ranks", "2", "--no-stacks")
        self.assertEqual(r.returncode, 0, r.stderr)
        about = json.loads(self.read(os.path.basename(r.stdout.strip()), "incident.json"))
        self.assertEqual(about["recorded"], "0,3")  # the culprit, and one of the others
        self.end(p)

    def test_a_disk_that_is_full_is_one_line_and_leaves_nothing(self):
        p = self.hung()
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        r = self.rollcall("incident", "--dir", self.out,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300)))
        self.assertEqual(r.returncode, 3)
        self.assert_one_line(r.stderr, "no bundle is written: File too large")
        self.assertEqual(self.bundles(), [])
        self.end(p)

    def test_a_full_disk_costs_a_living_root_nothing(self):
        small = self.path("small")
        os.mkdir(small)
        enter = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                 f'mount -t tmpfs -o size=8k,mode=700 tmpfs {small} && exec "$@"', "sh"]
        if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
            self.skipTest("no folder of a size of our own can be had here (unshare --mount)")
        p = self.hung("--incident-dir", small, before=enter)
        self.assertTrue(until(lambda: "no bundle is written" in self.said() or p.poll() is not None), self.said())
        self.assertIn("No space left on device", self.said())
        r = self.rollcall("verdicts", "--json")
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn("call-skipped", r.stdout)
        self.end(p)

    def test_a_directory_holds_so_many_of_all_jobs(self):
        p = self.hung()
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        os.makedirs(os.path.join(self.out, "incident-other.0-20260101T000000Z", "trace"), 0o700)
        os.makedirs(os.path.join(self.out, "incident-other.7-20260101T000000Z"), 0o700)
        os.chmod(self.out, 0o700)
        with open(os.path.join(self.out, "incident-other.0-20260101T000000Z", "trace", "x"), "wb") as f:
            f.truncate(3 << 20)
        for options, said in ((("--most", "2"), "there are 2 of all jobs already"),
                              (("--most-bytes", "3M"), "those of all jobs have 3145728 bytes")):
            r = self.rollcall("incident", "--dir", self.out, "--no-stacks", *options)
            self.assertEqual(r.returncode, 3)
            self.assert_one_line(r.stderr, said)
            self.assertEqual(len(self.bundles()), 2)
        r = self.rollcall("incident", "--dir", self.out, "--no-stacks", "--most", "3", "--most-bytes", "1G", "--keep",
                          "1")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertEqual(len(self.bundles()), 3)
        self.end(p)

    def test_several_at_a_time_stay_within_the_bound(self):
        """Who asks at the same time sees the same place free; only so many get a name."""
        p = self.hung()
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        makers = [self.start("incident", "--dir", self.out, "--no-stacks", "--keep", "2") for _ in range(5)]
        codes = []
        for maker in makers:
            maker.communicate(timeout=END_S)
            codes.append(maker.returncode)
        self.assertEqual(sorted(codes), [0, 0, 3, 3, 3])
        self.assertEqual(len(self.bundles()), 2)
        self.end(p)

    def test_bundles_at_the_same_time_into_one_directory_are_all_whole(self):
        """More ask at once than a root has room for: nobody's ranks are left out, and no bundle has another's files."""
        p = self.hung()
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        makers = [self.start("incident", "--dir", self.out) for _ in range(8)]
        for maker in makers:
            out, err = maker.communicate(timeout=END_S)
            self.assertEqual(maker.returncode, 0, err)
            about = json.loads(self.read(os.path.basename(out.strip()), "incident.json"))
            self.assertEqual((about["recorded"], about["left_out"]), ("0-3", []))
            for file in about["files"]:
                path = os.path.join(self.out, os.path.basename(out.strip()), file["name"])
                self.assertEqual(os.path.getsize(path), file["bytes"], path)
        self.assertEqual(len(self.bundles()), len(makers))  # and nothing that is half made
        self.end(p)

    def test_a_program_that_hangs_is_killed_and_the_root_ends(self):
        """A stand-in for `rollcall incident` that no SIGTERM ends, as one that a disk holds."""
        bin_dir, mark = self.path("bin"), self.path("mark")
        os.mkdir(bin_dir)
        with open(os.path.join(bin_dir, "rollcall"), "w") as f:
            f.write("#!" + sys.executable + "\nimport os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
                    f"open({mark!r} + '.part', 'w').write(str(os.getpid()))\nos.rename({mark!r} + '.part', {mark!r})\n"
                    f"time.sleep({END_S})\n")
        os.chmod(os.path.join(bin_dir, "rollcall"), 0o755)
        err = open(self.path("root.err"), "w")
        root = subprocess.Popen([DAEMON, "--dir", self.path("rings"), "--incident-dir", self.out], stderr=err,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                env={**self.env, "ROLLCALL_BIN": os.path.join(bin_dir, "rollcalld")})
        err.close()
        self.started.append(root)
        job = self.hung("--daemon", "ipc://" + self.path("rings/root"), before=())
        self.assertTrue(until(lambda: os.path.exists(mark) or root.poll() is not None or job.poll() is not None),
                        self.said())
        with open(mark) as f:
            pid = int(f.read())
        root.terminate()
        self.assertIsNotNone(root.wait(END_S))
        self.assertFalse(os.path.exists(f"/proc/{pid}"))
        job.terminate()
        job.wait(END_S)

    def test_a_root_with_keys_makes_one_and_says_that_relays_have_told_no_log(self):
        keys, read, write = self.path("keys"), *os.pipe()
        self.assertEqual(self.rollcall("keygen", keys).returncode, 0)
        with open(self.path("root.err"), "w") as err:
            root = subprocess.Popen([DAEMON, "--root", "--no-supervise", "--listen", "tcp://127.0.0.1:0", "--curve-dir",
                                     keys, "--incident-dir", self.out, "--ready-fd", str(write)], pass_fds=[write],
                                    stdin=subprocess.DEVNULL, stderr=err, env=self.env)
        self.started.append(root)
        os.close(write)
        with os.fdopen(read) as f:
            endpoint = f.readline().strip()
        with open(self.path("relay.err"), "w") as err:
            relay = subprocess.Popen([DAEMON, "--relay", "--connect", endpoint, "--curve-dir", keys, "--listen",
                                      "ipc://" + self.path("relay")], stdin=subprocess.DEVNULL, stderr=err,
                                     env=self.env)
        self.started.append(relay)

        def err(name):
            with open(self.path(name + ".err")) as f:
                return f.read()
        self.assertTrue(until(lambda: "connected to" in err("relay") or relay.poll() is not None), err("relay"))
        job = self.hung("--daemon", endpoint, env={"ROLLCALL_CURVE_DIR": keys})
        self.assertTrue(until(lambda: re.search("a bundle about|no bundle is written", err("root"))
                              or root.poll() is not None or job.poll() is not None), err("root"))
        job.terminate()
        job.wait(END_S)
        for daemon in (relay, root):
            daemon.terminate()
            daemon.wait(END_S)
        self.assertEqual(len(self.bundles()), 1, err("root"))
        about = json.loads(self.read(self.bundles()[0], "incident.json"))
        self.assertEqual(about["recorded"], "0-3")
        self.assertEqual(len(about["left_out"]), 1, about["left_out"])
        self.assertRegex(about["left_out"][0], "^the logs of 1 relay [(].+[)]: a relay answers no question")
        self.assertIn("the logs of 1 relay", self.read(self.bundles()[0], "README.md"))

    def test_a_hostile_name_makes_no_path(self):
        name = "../../..//x\n<b>`$(id)"
        p = self.hung("--incident-dir", self.out, env={"ROLLCALL_JOB": name})
        self.assertTrue(until(lambda: "a bundle about" in self.said() or p.poll() is not None))
        self.end(p)
        self.assertEqual(len(self.bundles()), 1)
        self.assertRegex(self.bundles()[0], r"^incident-[A-Za-z0-9_.-]+$")
        for _, _, files in os.walk(os.path.join(self.out, self.bundles()[0])):
            for file in files:
                self.assertRegex(file, r"^[A-Za-z0-9_.-]+$")
        self.assertNotIn("<b>", self.read(self.bundles()[0], "README.md").replace("\\<b\\>", ""))

    def test_directories_that_others_may_write_are_refused_and_the_job_is_watched(self):
        os.mkdir(self.out)
        os.chmod(self.out, 0o777)
        r = subprocess.run([DAEMON, "--incident-dir", self.out], env=self.env, capture_output=True, text=True)
        self.assertEqual(r.returncode, 3)
        self.assertRegex(r.stderr, r"\Arollcalld: --incident-dir .* must be writable by nobody else.*\n\Z")
        r = self.rollcall("run", "-n", "2", "--hostnccl", "--incident-dir", self.out, "--", CATALOGUE, "skipped",
                          "healthy")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("the job was watched, but without --incident-dir", r.stderr)
        r = self.rollcall("run", "--incident-dir", "x", "--daemon", "tcp://127.0.0.1:9", "--", "true")
        self.assertEqual(r.returncode, 2)
        r = subprocess.run([DAEMON, "--agent", "--connect", "tcp://127.0.0.1:9", "--incident-dir", "x"], env=self.env,
                           capture_output=True, text=True)
        self.assertEqual(r.returncode, 2)
        self.assertIn("belongs to the root", r.stderr)

    def test_what_is_larger_than_wished_is_named(self):
        p = self.hung(program="skipped")
        self.assertTrue(until(lambda: "PROVEN" in self.said() or p.poll() is not None))
        r = self.rollcall("incident", "--dir", self.out, "--bytes", "255K")
        self.assertEqual(r.returncode, 2)
        r = self.rollcall("incident", "--dir", self.out, "--bytes", "256K", "--ranks", "1")
        self.assertEqual(r.returncode, 0, r.stderr)
        size = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(self.out) for f in files)
        self.assertLess(size, 300 * 1024)
        readme = self.read(self.bundles()[0], "README.md")
        self.assertTrue(re.search(r"\d+ of its \d+ bytes|Nothing: no record was lost|rank", readme))
        self.assertIn("last calls of 1 rank", r.stderr)
        self.assertNotRegex(r.stderr + readme, r"\b1 ranks")
        self.assertRegex(readme, r"(?m)^- \*\*proven call-skipped\*\*, rank 3: ")
        # What is not in it is told once: what was lost, what was left out, or that it is neither.
        missing = readme.split("## Not in it\n\n")[1]
        self.assertRegex(missing, r"\A(Nothing: no record was lost, and no file left out\.\n|(Lost, by cause: .*\n\n?)?"
                                  r"(- .*\n)*)\Z")
        self.assertNotEqual(missing, "")
        self.end(p)

    def test_no_root_is_one_line(self):
        r = self.rollcall("incident", "--dir", self.out)
        self.assertEqual(r.returncode, 3)
        self.assertEqual(self.bundles(), [])


if __name__ == "__main__":
    unittest.main()
