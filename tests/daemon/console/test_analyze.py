"""test_analyze.py: traces of several jobs in one place: which job each verdict is about, and how one is chosen."""
import json
import os
import unittest

from support import Case, CATALOGUE, until


class Several(Case):
    def setUp(self):
        super().setUp()
        self.need_nccl()
        self.traces = self.path("traces")
        self.record("alpha", "sick")
        self.record("beta", "healthy")

    def record(self, name, health, program="wrong-count"):
        p = self.start("run", "-n", "4", "--hostnccl", "--quiet", "--grace", "1", "--trace", self.traces, "--",
                       CATALOGUE, program, health, env={"ROLLCALL_JOB": name})
        if health == "sick":
            self.assertTrue(until(lambda: any(
                job.get("findings") for job in json.loads(self.rollcall("jobs", "--json").stdout)["jobs"])))
            p.terminate()
        p.communicate()

    def objects(self, *args):
        r = self.rollcall("analyze", "--json", *args)
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        return r, [v for v in lines if v["schema"] == "rollcall.verdict/1"], lines[-1] if lines else None

    def test_each_verdict_stands_below_its_job(self):
        r = self.rollcall("analyze", self.traces)
        self.assertEqual(r.returncode, 1, r.stderr)
        lines = r.stdout.splitlines()
        heads = [i for i, line in enumerate(lines) if line.startswith("job ")]
        self.assertEqual(len(heads), 2, r.stdout)
        self.assertRegex(lines[heads[0]], r"^job alpha: 4 ranks, [\d,]+ calls on 1 communicator: 1 finding")
        self.assertRegex(lines[heads[1]], r"^job beta: 4 ranks, [\d,]+ calls on 1 communicator: 0 findings, nothing")
        found = [i for i, line in enumerate(lines) if "count-mismatch" in line]
        self.assertTrue(found and all(heads[0] < i < heads[1] for i in found), r.stdout)
        self.assertRegex(lines[-1], r"^2 jobs: 8 ranks, [\d,]+ calls on 2 communicators: 1 finding")

    def test_the_json_says_so_too(self):
        r, verdicts, summary = self.objects(self.traces)
        self.assertEqual((r.returncode, summary["runs"]), (1, 2))
        self.assertEqual({v["job"] for v in verdicts if v["certainty"] != "note"}, {"alpha"})
        self.assertEqual([(j["job"], j["restart"], j["ranks"], j["findings"]) for j in summary["jobs"]],
                         [("alpha", 0, 4, 1), ("beta", 0, 4, 0)])
        self.assertEqual(sum(j["calls"] for j in summary["jobs"]), summary["calls"])

    def test_one_job_alone(self):
        for name, code in (("alpha", 1), ("alpha.0", 1), ("beta", 0), ("beta.0", 0)):
            r, verdicts, summary = self.objects(self.traces, "--job", name)
            self.assertEqual((r.returncode, r.stderr), (code, ""), name)
            self.assertEqual([j["job"] for j in summary["jobs"]], [name.split(".")[0]])
            self.assertLessEqual({v["job"] for v in verdicts}, {name.split(".")[0]})
        r = self.rollcall("analyze", "--job", "beta", self.traces)
        self.assertRegex(r.stdout, r"^4 ranks, [\d,]+ calls on 1 communicator: 0 findings, nothing lost\n$")

    def test_what_is_missing_of_another_job_is_not_this_ones(self):
        with open(os.path.join(self.traces, "alpha.0.00000001.rtrc"), "ab") as f:
            f.write(bytes(64))
        for name, cut in (("beta", False), ("alpha", True)):
            r, verdicts, summary = self.objects("--job", name, self.traces)
            self.assertEqual(summary["cut"], cut, name)
        self.assertEqual(self.rollcall("analyze", "--job", "beta", self.traces).returncode, 0)

    def test_a_job_that_is_not_there_is_one_line(self):
        for command in (("analyze",), ("digest", "-o", self.path("none.rdig"))):
            for name in ("gamma", "alpha.1"):
                r = self.rollcall(*command, "--job", name, self.traces)
                self.assertEqual((r.returncode, r.stdout), (3, ""))
                self.assert_one_line(r.stderr, f"no record of job {name} in the given places; they hold alpha.0, beta")
        self.assertFalse(os.path.exists(self.path("none.rdig")))

    def test_digests(self):
        both, one = self.path("both.rdig"), self.path("one.rdig")
        self.assertEqual(self.rollcall("digest", "-o", both, self.traces).returncode, 0)
        self.assertEqual(self.rollcall("digest", "-o", one, "--job", "beta", self.traces).returncode, 0)
        r, verdicts, summary = self.objects(both)
        self.assertEqual((r.returncode, [(j["job"], j["findings"]) for j in summary["jobs"]]),
                         (1, [("alpha", 1), ("beta", 0)]))
        for given in ((both, "--job", "beta"), (one,)):
            r, verdicts, summary = self.objects(*given)
            self.assertEqual((r.returncode, [j["job"] for j in summary["jobs"]], verdicts), (0, ["beta"], []))


if __name__ == "__main__":
    unittest.main(verbosity=2)
