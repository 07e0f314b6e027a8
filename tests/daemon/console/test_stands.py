"""test_stands.py: how a rank stands is the same for everybody who asks: the page, `top` and `why`. On a hang, with a
rank that is stopped, and when all have ended well."""
import json
import os
import re
import shutil
import signal
import subprocess
import unittest

from support import Case, CATALOGUE, until

LETTERS = {"r": "running", "c": "inside", "w": "waiting", "b": "busy", "s": "stopped", "d": "dead", "n": "silent",
           "f": "finished"}  # docs/WEB.md


class Stands(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.assertTrue(shutil.which("curl"), "curl is needed")

    def begin(self, *command, ranks=4):
        job = self.start("run", "-n", str(ranks), "--hostnccl", "--quiet", "--grace", "1", "--http", "127.0.0.1:0",
                         "--", *command)
        self.assertTrue(until(lambda: len(self.pids()) == ranks), "not all ranks are there")
        words = dict(line.split() for line in self.rollcall("page").stdout.splitlines())
        self.address, self.password = words["page"], words["password"]
        return job

    def end(self, job):
        job.terminate()
        job.communicate()

    def status(self):
        r = self.rollcall("top", "--json")
        return json.loads(r.stdout) if r.returncode == 0 else {"ranks": []}

    def pids(self):
        return {rank["rank"]: rank["pid"] for rank in self.status()["ranks"]}

    def page(self):
        """The state of each rank in the first picture that a page is sent."""
        with subprocess.Popen(["curl", "-s", "-N", "--digest", "-u", f"viewer:{self.password}",
                               f"{self.address}api/listen"], stdout=subprocess.PIPE, text=True, env=self.env) as p:
            part, got = None, {}
            for line in p.stdout:
                if line.startswith("event:"):
                    part = line.split(":", 1)[1].strip()
                elif line.startswith("data:"):
                    got[part] = json.loads(line[5:])
                if "places" in got and "field" in got:
                    break
            p.kill()
        pairs = [h["ranks"] for h in got["places"]["hosts"]]
        ranks = [r for p in pairs for a, b in zip(p[::2], p[1::2]) for r in range(a, b + 1)]
        return dict(zip(ranks, (LETTERS[letter] for letter in got["field"]["states"])))

    def top(self):
        """What `top` prints of each rank: how it stands, and for whom it waits."""
        lines = self.rollcall("top", "--once").stdout.split("\n\n")[1].splitlines()
        at = {name: lines[0].index(name) for name in ("STATE", "WAITS FOR", "LAST CALL")}
        return {int(line.split()[0]): (line[at["STATE"]:at["WAITS FOR"]].strip(),
                                       line[at["WAITS FOR"]:at["LAST CALL"]].strip()) for line in lines[1:]}

    def agree(self, want):
        """All faces say this of the ranks: {rank: (state, for whom it waits)}. What a rank is inside stands beside its
        state."""
        def seen():
            return {rank["rank"]: (rank["stands"], rank["waits_for"] or "-") for rank in self.status()["ranks"]}
        self.assertTrue(until(lambda: seen() == want), f"{seen()} is not {want}")
        letters = {rank: state for rank, (state, _) in want.items()}
        self.assertTrue(until(lambda: self.page() == letters), f"the page does not come to {letters}")
        shown = self.top()
        for rank, (state, awaits) in want.items():
            self.assertRegex(shown[rank][0], r"^in \w+$" if state == "inside" else rf"^{state}( in \w+)?$", shown)
            self.assertEqual(shown[rank][1], awaits, shown)
            why = " ".join(self.rollcall("why", str(rank)).stdout.split("\n\n")[1].split())
            if state != "stopped":  # such a one waits besides, and why says both
                self.assertEqual(bool(re.search(r" (It|Its stream) waits in ", why)), state == "waiting", why)
            self.assertEqual("process is stopped" in why, state == "stopped", why)
            if awaits != "-":
                self.assertIn(f", for rank {awaits}: ", why)

    def test_in_a_hang_and_with_a_rank_that_is_stopped(self):
        job = self.begin(CATALOGUE, "skipped", "sick")
        waits = ("waiting", "3")
        rank3 = until(lambda: next((r["stands"] for r in self.status()["ranks"] if r["rank"] == 3 and
                                    r["stands"] in ("busy", "waiting", "inside")), None))
        self.assertTrue(rank3)
        awaits = next(r["waits_for"] for r in self.status()["ranks"] if r["rank"] == 3) or "-"
        self.agree({0: waits, 1: waits, 2: waits, 3: (rank3, awaits)})
        os.kill(self.pids()[1], signal.SIGSTOP)
        self.agree({0: waits, 1: ("stopped", "-"), 2: waits, 3: (rank3, awaits)})
        os.kill(self.pids()[1], signal.SIGCONT)
        self.end(job)

    def test_when_all_ranks_have_ended_well_nobody_waits(self):
        """A job that is well while it runs: integration.web.looks."""
        done = self.path("done")
        job = self.begin("sh", "-c", f"{CATALOGUE} skipped healthy; touch {done}.$RANK; exec sleep 1000")
        self.assertTrue(until(lambda: all(os.path.exists(f"{done}.{rank}") for rank in range(4))))
        ended = {("finished", None)}  # what they have written is heard a moment later
        until(lambda: {(rank["stands"], rank["waits_for"]) for rank in self.status()["ranks"]} == ended)
        r = self.status()
        self.assertEqual({(rank["stands"], rank["waits_for"]) for rank in r["ranks"]}, ended, r)
        self.assertTrue(until(lambda: self.page() == {rank: "finished" for rank in range(4)}))
        self.assertEqual(self.top(), {rank: ("finished", "-") for rank in range(4)})
        self.end(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
