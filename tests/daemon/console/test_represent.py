"""test_represent.py: `rollcall rehearse --represent`: of a job on the CUDA runtime and NCCL some ranks run, and the
others are stood in for."""
import json
import os
import unittest

from support import Case

JOB = os.environ["ROLL_TEST_REPRESENT_JOB"]


class Represent(Case):
    def rehearse(self, *args, **kwargs):
        """The report and what came of the command."""
        out = self.path("report.json")
        r = self.rollcall("rehearse", "--json", out, "--timeout", "120", *args, **kwargs)
        with open(out) as f:
            text = f.read()
        return json.loads(text) if text else None, r

    def test_some_ranks_run_and_the_job_believes_in_all(self):
        for represent, ranks, columns in ((("--represent", "8:64"), [*range(8)], ["0,4", "1,5", "2,6", "3,7"]),
                                          (("-n", "64", "--represent", "8"), [*range(8)], ["0,4", "1,5", "2,6", "3,7"]),
                                          (("--represent", "3,17-18,21:64"), [3, 17, 18, 21], ["17,21", "3", "18"]),
                                          (("--represent", "63-63:64"), [63], ["63"])):
            with self.subTest(represent=represent):
                report, r = self.rehearse(*represent, "--", JOB)
                self.assertEqual(r.returncode, 0, r.stderr)
                text = ",".join(map(str, ranks)).replace("0,1,2,3,4,5,6,7", "0-7").replace("17,18", "17-18")
                self.assertEqual(sorted(r.stdout.splitlines()),
                                 sorted(f"rank {k} of 64, local {k} of 64" for k in ranks))
                self.assertEqual((report["ranks"], report["findings_count"], report["lost"]), (len(ranks), 0, 0))
                self.assertEqual(report["represent"], {"ranks": text, "of": 64})
                self.assertEqual([(c["label"], c["ranks"], c.get("of")) for c in report["communicators"]],
                                 [("world", text, 64), *(("column", c, 16) for c in columns)])
                calls = {c["op"]: (c["calls"], c["bytes_per_step"]) for c in report["communicators"][0]["calls"]}
                # Bytes are those of the whole job, and messages with ranks that do not run count like others.
                self.assertEqual(calls, {"AllReduce": (4, 4), "Broadcast": (4, 32 << 20), "Send": (4, 4096),
                                         "Recv": (4, 4096)})
                self.assertEqual([m["rank"] for m in report["memory"]], ranks)
                self.assertIn(f"\n{len(ranks)} of 64 ranks run ({text}), the others are stood in for", r.stderr)
                self.assertIn(f"  {text} of 64  ", r.stderr)

    def test_ranks_have_their_places_on_nodes(self):
        _, r = self.rehearse("--nodes", "8", "--represent", "7-9:64", "--", JOB)
        self.assertEqual(sorted(r.stdout.splitlines()), ["rank 7 of 64, local 7 of 8", "rank 8 of 64, local 0 of 8",
                                                         "rank 9 of 64, local 1 of 8"], r.stderr)

    def test_of_a_sick_rank_nobody_else_is_accused(self):
        for represent, culprit in (("8:64", 7), ("2,10,14,18:64", 10)):
            with self.subTest(represent=represent):
                out = self.path("sick.json")
                r = self.rollcall("rehearse", "--represent", represent, "--timeout", "5", "--json", out, "--", JOB,
                                  "sick", env={"CULPRIT": str(culprit)})
                with open(out) as f:
                    report = json.load(f)
                self.assertEqual(report["findings_count"], 1, r.stderr)
                found = report["findings"][0]
                known = {m["rank"] for m in report["memory"]}
                named = set(found["culprits"]) | set(found["waiting"])
                self.assertTrue(named <= known, found)
                if represent != "8:64":  # of two ranks in a circle nobody can say which was first
                    self.assertEqual(found["culprits"], [culprit], found)
                self.assertIn("ranks run)", r.stderr)

    def test_what_nobody_knows_is_refused(self):
        _, r = self.rehearse("--represent", "4:16", "--", JOB, "untold")
        self.assertEqual(r.returncode, 1, r.stderr)
        self.assertIn("hostnccl: HOSTNCCL_PRESENT: ncclCommInitRankConfig: rank 0 of a communicator of 4 ranks named "
                      "column: nobody has told which of the job's 16 ranks these are", r.stderr)

    def test_values_that_are_none(self):
        for args, part in ((("--represent", "8"), "wants -n, or the number of the job's ranks: 8:64"),
                           (("--represent", "0:64"), "wants how many ranks run"),
                           (("--represent", "3-1:64"), "wants how many ranks run"),
                           (("--represent", ":64"), "wants how many ranks run"),
                           (("--represent", "8:"), "behind the colon"),
                           (("--represent", "8:5000"), "at most 4096"),
                           (("--represent", "65:64"), "names ranks that the job does not have"),
                           (("--represent", "0,64:64"), "names ranks that the job does not have"),
                           (("-n", "32", "--represent", "8:64"), "another number of ranks than -n"),
                           (("--represent", "8:64", "--nodes", "5"), "--nodes 5"),
                           (("--represent", "8:64", "--save", "x"), "--represent and --save"),
                           (("--represent", "8:64", "--against", "x"), "--represent and --against")):
            with self.subTest(args=args):
                r = self.rollcall("rehearse", *args, "--", JOB)
                self.assertEqual(r.returncode, 2, r.stderr)
                self.assertIn(part, r.stderr)


if __name__ == "__main__":
    unittest.main()
