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
        r = self.rollcall("top", "--once")
        if r.returncode != 0:  # a root that is slow to answer
            return {}
        lines = r.stdout.split("\n\n")[1].splitlines()
        at = {name: lines[0].index(name) for name in ("STATE", "WAITS FOR", "LAST CALL")}
        return {int(line.split()[0]): (line[at["STATE"]:at["WAITS FOR"]].strip(),
                                       line[at["WAITS FOR"]:at["LAST CALL"]].strip()) for line in lines[1:]}

    def seen(self):
        return {rank["rank"]: (rank["stands"], rank["waits_for"] or "-") for rank in self.status()["ranks"]}

    def other(self, want):
        """What a face says otherwise than this of the ranks: {rank: (state, for whom it waits)}; "" where all agree.
        What a rank is inside stands beside its state."""
        letters, page, shown = {rank: state for rank, (state, _) in want.items()}, self.page(), self.top()
        if page != letters:
            return f"the page: {page}"
        for rank, (state, awaits) in want.items():
            stands, whom = shown.get(rank, ("", ""))
            if not re.match(r"in \w+$" if state == "inside" else rf"{state}( in \w+)?$", stands) or whom != awaits:
                return f"top: {shown}"
            why = " ".join((self.rollcall("why", str(rank)).stdout.split("\n\n") + [""])[1].split())
            waits = bool(re.search(r" (It|Its stream) waits in ", why))
            if (state != "stopped" and waits != (state == "waiting")  # such a one waits besides, and why says both
                    or ("process is stopped" in why) != (state == "stopped")
                    or awaits != "-" and f", for rank {awaits}: " not in why):
                return f"why: {why}"
        return ""

    def agree(self, want, others=None):
        """All faces say the same of all ranks, this of those in want, and one of these states of the others. They are
        asked one after the other: where something has changed meanwhile, they are asked again. Returns what they
        say."""
        said, all_ranks = "", {}

        def look():
            nonlocal said, all_ranks
            all_ranks = self.seen()
            here = {rank: all_ranks.get(rank) for rank in want}
            apart = [rank for rank in all_ranks if rank not in want and others and all_ranks[rank][0] not in others]
            said = "not what is wanted" if here != want or apart else self.other(all_ranks)
            return not said and self.seen() == all_ranks
        self.assertTrue(until(look), f"{said}; top --json: {all_ranks}")
        return all_ranks

    def test_in_a_hang_and_with_a_rank_that_is_stopped(self):
        job = self.begin(CATALOGUE, "skipped", "sick")
        waits = ("waiting", "3")
        # Before it hangs, ranks may wait for a moment for one that has no processor.
        self.assertTrue(until(lambda: "call-skipped" in self.rollcall("verdicts").stdout))
        self.agree({0: waits, 1: waits, 2: waits}, others=("busy", "waiting", "inside"))
        pid = until(lambda: self.pids().get(1))
        os.kill(pid, signal.SIGSTOP)
        self.agree({0: waits, 1: ("stopped", "-"), 2: waits})
        os.kill(pid, signal.SIGCONT)
        self.end(job)

    def test_when_all_ranks_have_ended_well_nobody_waits(self):
        """A job that is well while it runs: integration.web.looks."""
        done = self.path("done")
        job = self.begin("sh", "-c", f"{CATALOGUE} skipped healthy; touch {done}.$RANK; exec sleep 1000")
        self.assertTrue(until(lambda: all(os.path.exists(f"{done}.{rank}") for rank in range(4))))
        self.agree({rank: ("finished", "-") for rank in range(4)})  # what they have written is heard a moment later
        self.end(job)


if __name__ == "__main__":
    unittest.main(verbosity=2)
