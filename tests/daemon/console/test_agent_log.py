"""test_agent_log.py: where one sees that the agent which a rank started does not reach its root, and never in the job;
and what agents and relays say when the level above goes away and comes back."""
import os
import re
import signal
import subprocess
import unittest

from support import Case, CATALOGUE, DAEMON, ROLLCALL, marked, until

STAMP = r"rollcalld: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "


class Started(Case):
    """Ranks that hang, with the preload and a root that is named, as under srun."""

    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.out, self.keys = self.path("out"), self.path("keys")
        self.rollcall("keygen", self.keys)

    def check_and_remove(self):
        for pid in marked(self.mark):  # agents, which linger
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        for where in (self.rings, self.path("root")):
            for name in os.listdir(where) if os.path.isdir(where) else []:
                os.remove(os.path.join(where, name))
        super().check_and_remove()

    def root(self):
        os.mkdir(self.path("root"), 0o700)
        read, write = os.pipe()
        self.started.append(subprocess.Popen(
            [DAEMON, "--root", "--dir", self.path("root"), "--listen", "tcp://127.0.0.1:*", "--curve-dir", self.keys,
             "--ready-fd", str(write)], pass_fds=[write], env=self.env, stderr=subprocess.DEVNULL))
        os.close(write)
        with os.fdopen(read) as f:
            return f.readline().strip()

    def preload(self):
        place = subprocess.run([ROLLCALL, "run", "-q", "--", "env"], capture_output=True, text=True, env=self.env,
                               check=True).stdout
        return [line.split("=", 1)[1] for line in place.splitlines() if line.startswith("LD_PRELOAD=")][0]

    def ranks(self, endpoint, keys, numbers=range(4)):
        preload = self.preload()
        with open(self.out, "ab") as out:
            for rank in numbers:
                env = {**self.env, "LD_PRELOAD": preload, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "4",
                       "ROLLCALL_JOB": "lonely", "ROLLCALL_BIN": DAEMON, "HOSTNCCL_DIR": self.tmp,
                       "ROLLCALL_DAEMON": endpoint, "ROLLCALL_CURVE_DIR": keys}
                self.started.append(subprocess.Popen([CATALOGUE, "skipped", "sick"], env=env, stdout=out, stderr=out))

    def log(self):
        try:
            with open(os.path.join(self.rings, "agent.log")) as f:
                return f.read()
        except OSError:
            return ""

    def seen_where_one_looks(self, words):
        """The log, doctor and jobs say so; the ranks said nothing."""
        self.assertTrue(until(lambda: words in self.log()), self.log())
        self.assertRegex(self.log(), f"(?m)^{STAMP}.*{re.escape(words)}")
        doctor = self.rollcall("doctor")
        self.assertEqual(doctor.returncode, 1)
        self.assertRegex(doctor.stdout, f"(?m)^FAIL +agent .*agent.log: {STAMP}")
        self.assertTrue(until(lambda: f"    agent  rollcalld: " in self.rollcall().stdout))
        with open(self.out) as f:
            self.assertEqual(f.read(), "")

    def test_keys_that_are_not_there(self):
        self.ranks("tcp://127.0.0.1:1", self.path("none"))
        self.seen_where_one_looks("agent: cannot start: ")
        for p in self.started:
            p.kill()
            p.wait()
        doctor = self.rollcall("doctor")  # what was, is no failure of what comes
        self.assertRegex(doctor.stdout, "(?m)^-- +agent .*none runs any more; .*agent: cannot start: ")
        self.assertEqual(doctor.returncode, 0)

    def test_keys_of_another_root(self):
        self.rollcall("keygen", self.path("other"))
        self.ranks(self.root(), self.path("other"))
        self.seen_where_one_looks("cannot be reached")
        self.assertRegex(self.rollcall("doctor").stdout, "(?m)^FAIL +agent .*handshake failed: .*or has other keys$")

    def test_a_key_that_is_not_on_the_list(self):
        self.rollcall("keygen", "--role", "node", "--name", "n1", self.keys)
        os.remove(self.keys + "/allowed/n1.pub")
        self.ranks(self.root(), self.keys + "/n1")
        self.seen_where_one_looks("cannot be reached")
        self.assertRegex(self.rollcall("doctor").stdout, "(?m)^FAIL +agent .*key refused: the client's public key is ")

    def test_nobody_at_the_endpoint(self):
        self.ranks("tcp://127.0.0.1:1", self.keys)
        self.seen_where_one_looks("cannot be reached")

    def test_top_says_whom_the_root_has_not_heard_of(self):
        endpoint = self.root()
        self.ranks(endpoint, self.keys, range(2))
        env = {"ROLLCALL_DAEMON": endpoint, "ROLLCALL_CURVE_DIR": self.keys}
        self.assertTrue(until(lambda: "no record of ranks 2-3 (2 of 4): not begun, or the agent there does not reach"
                              in self.rollcall("top", "--once", env=env).stdout))
        self.ranks(endpoint, self.keys, range(2, 4))
        self.assertTrue(until(lambda: "no record of" not in self.rollcall("top", "--once", env=env).stdout))
        doctor = self.rollcall("doctor", env=env)
        self.assertRegex(doctor.stdout, r"(?m)^OK +agent .*one serves .*connected to tcp")


class Away(Case):
    def daemon(self, name, *args):
        read, write = os.pipe()
        with open(self.path(name + ".log"), "ab") as log:
            p = subprocess.Popen([DAEMON, *args, "--no-supervise", "--ready-fd", str(write)], pass_fds=[write],
                                 env=self.env, stdout=log, stderr=log)
        self.started.append(p)
        os.close(write)
        with os.fdopen(read) as f:
            self.assertNotEqual(f.readline(), "")
        return p

    def lines(self, name, words):
        with open(self.path(name + ".log")) as f:
            return [line for line in f if words in line]

    def test_the_level_above_goes_away_and_comes_back(self):
        for d in ("root", "node", "far"):
            os.mkdir(self.path(d), 0o700)
        top, middle = "ipc://" + self.path("top"), "ipc://" + self.path("middle")
        root = self.daemon("root", "--root", "--dir", self.path("root"), "--listen", top)
        relay = self.daemon("relay", "--relay", "--connect", top, "--listen", middle)
        agents = [self.daemon("near", "--agent", "--dir", self.path("node"), "--connect", top),
                  self.daemon("far", "--agent", "--dir", self.path("far"), "--connect", middle)]
        for name in ("relay", "near", "far"):
            self.assertTrue(until(lambda: self.lines(name, "connected to")), name)
        root.kill()
        root.wait()
        for name in ("relay", "near"):
            self.assertTrue(until(lambda: self.lines(name, f"{top} has gone away")), name)
        root = self.daemon("root", "--root", "--dir", self.path("root"), "--listen", top)
        for name in ("relay", "near"):
            self.assertTrue(until(lambda: self.lines(name, f"connected to {top}, after ")), name)
            self.assertEqual(len(self.lines(name, "has gone away")), 1, name)
            self.assertEqual(len(self.lines(name, "connected to")), 2, name)
            self.assertEqual(self.lines(name, "cannot be reached"), [], name)
            for line in self.lines(name, ""):
                self.assertRegex(line, f"^{STAMP}")
        relay.kill()
        relay.wait()
        self.assertTrue(until(lambda: self.lines("far", f"{middle} has gone away")))
        for p in (*agents, root):
            p.terminate()
            p.wait()


if __name__ == "__main__":
    unittest.main(verbosity=2)
