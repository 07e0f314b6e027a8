"""test_report.py: `rollcall analyze` of reports of NCCL's own tools: ncclras (text and JSON), and NCCL Inspector."""
import json
import os
import unittest

from support import Case

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")

TEXT = """NCCL version 2.28.9 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          4            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         4         8         8   RUNNING  {errors}

Errors
======
{wrong}

Warnings
========
{warnings}
"""
MISMATCH = """
#0-0 (78db921d1c117b4a) MISMATCH
  Communicator ranks have different AllReduce operation counts
  7 ranks have launched up to operation 64
  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1
"""
MISSING = """
#0-0 (78db921d1c117b4a) INCOMPLETE
  Missing communicator data from 1 rank
  The missing rank: 5
"""


def rank(number, launched, **more):
    return {"rank": number, "host": "10.0.0.%d" % (number // 4), "pid": 1000 + number, "cuda_dev": number % 4,
            "nvml_dev": number % 4, "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
            "collective_counts": {f: launched if f == "AllReduce" else 0 for f in FUNCTIONS}, **more}


def ras(second, launched, missing=(), size=None):
    """One report: what each rank of one communicator has launched."""
    ranks = [rank(i, n) for i, n in enumerate(launched) if i not in missing]
    comm = {"hash": "0xa1", "secondary_hash": "0x7c:0x83", "size": size or len(launched), "ranks_count": len(ranks),
            "missing_ranks_count": len(missing), "ranks": ranks, "missing_ranks": [rank(i, 0) for i in missing]}
    return {"nccl_version": "2.28.9", "timestamp": "2026-06-19 06:55:%02d" % second, "communicators_count": 1,
            "communicators": [comm], "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}


def completed(number, sn, took_us, ranks=4, size=65536):
    """One line of Inspector."""
    return json.dumps({"header": {"id": "0x9e7a", "rank": number, "n_ranks": ranks, "nnodes": 1},
                       "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1, "pid": 7},
                       "coll_perf": {"coll": "AllReduce", "coll_sn": sn, "coll_msg_size_bytes": size,
                                     "coll_exec_time_us": took_us, "coll_timing_source": "kernel_gpu"}})


class Reports(Case):
    def write(self, name, content):
        path = self.path(name)
        with open(path, "w") as f:
            f.write(content if isinstance(content, str) else json.dumps(content, indent=2))
        return path

    def judge(self, *paths):
        """(exit code, verdicts, standard error)."""
        r = self.rollcall("analyze", "--json", *paths)
        lines = [json.loads(line) for line in r.stdout.splitlines()]
        self.assertEqual(self.rollcall("analyze", *paths).returncode, r.returncode)
        return r.returncode, lines[:-1], r.stderr

    def assert_said(self, verdicts, *wanted):
        self.assertEqual([(v["certainty"], v["code"], v["culprits"]) for v in verdicts], list(wanted))

    def test_a_healthy_job_gives_nothing(self):
        first, second = (self.write(f"{s}.json", ras(s, [n] * 8)) for s, n in ((10, 5), (40, 9)))
        self.assertEqual(self.judge(first, second)[:2], (0, []))
        self.assertEqual(self.judge(self.write("ok.txt", TEXT.format(errors="OK", wrong="", warnings="")))[:2], (0, []))

    def test_one_report_with_unequal_counts_is_a_note(self):
        code, said, _ = self.judge(self.write("one.json", ras(10, [64] * 7 + [60])))
        self.assertEqual(code, 0)
        self.assert_said(said, ("note", "straggler", [7]))
        self.assertIn("make another report", said[0]["text"])
        code, said, _ = self.judge(self.write("one.txt", TEXT.format(errors="MISMATCH", wrong="", warnings=MISMATCH)))
        self.assertEqual(code, 0)
        self.assertEqual([(v["certainty"], v["code"]) for v in said], [("note", "straggler")])
        self.assertIn("Rank 7", said[0]["text"])
        self.assertIn("process 1650386 on node node1", said[0]["text"])

    def test_counts_that_stand_in_two_reports_are_suspected(self):
        code, said, _ = self.judge(*(self.write(f"{s}.json", ras(s, [64] * 7 + [60])) for s in (10, 40)))
        self.assertEqual(code, 1)
        self.assert_said(said, ("suspected", "call-skipped", [7]))
        self.assertIn("nobody has gone on for 30 s", said[0]["text"])
        self.assertIn("process 1007 on 10.0.0.1, GPU 3", said[0]["text"])
        self.assertEqual(said[0]["may_be"], ["rank-busy", "rank-blocked"])
        # A job that goes on is only unequal, however often it is asked.
        code, said, _ = self.judge(*(self.write(f"{s}.json", ras(s, [n] * 7 + [n - 1])) for s, n in ((10, 5), (40, 9))))
        self.assertEqual(code, 0)
        self.assert_said(said, ("note", "straggler", [7]))

    def test_a_text_that_stands_is_suspected_by_the_times_of_its_files(self):
        paths = [self.write(name, TEXT.format(errors="MISMATCH", wrong="", warnings=MISMATCH)) for name in ("a", "b")]
        os.utime(paths[0], (1000000, 1000000))
        code, said, _ = self.judge(*paths)
        self.assertEqual(code, 1)
        self.assertEqual([(v["certainty"], v["code"]) for v in said], [("suspected", "call-skipped")])

    def test_one_rank_ahead_and_a_tie(self):
        said = self.judge(*(self.write(f"{s}.json", ras(s, [60] * 7 + [61])) for s in (10, 40)))[1]
        self.assert_said(said, ("suspected", "call-added", [7]))
        said = self.judge(*(self.write(f"{s}.json", ras(s, [60, 60, 61, 61])) for s in (10, 40)))[1]
        self.assert_said(said, ("suspected", "sequence-tie", []))

    def test_a_rank_that_ras_does_not_reach(self):
        code, said, _ = self.judge(self.write("gone.json", ras(10, [5] * 8, missing=(5,))))
        self.assertEqual(code, 1)
        self.assert_said(said, ("suspected", "rank-dead", [5]))
        code, said, _ = self.judge(self.write("gone.txt", TEXT.format(errors="INCOMPLETE", wrong=MISSING, warnings="")))
        self.assertEqual(code, 1)
        self.assertEqual([(v["certainty"], v["code"]) for v in said], [("suspected", "rank-dead")])
        self.assertIn("Rank 5", said[0]["text"])
        self.assertIsNone(said[0]["seq"])  # RAS tells of no call,
        shown = self.rollcall("analyze", self.path("gone.txt")).stdout
        self.assertRegex(shown, r'(?m)^where +communicator "[0-9a-fx/]+"$')  # nor in a text of how many ranks there are

    def inspected(self, took, **more):
        """A folder of Inspector, a file for each rank; took: a function of rank and number."""
        folder = self.path("inspector")
        os.makedirs(folder, exist_ok=True)
        for i in range(4):
            with open(os.path.join(folder, f"host-{i}.log"), "w") as f:
                f.write("\n".join(completed(i, sn, took(i, sn), **more) for sn in range(80)) + "\n")
        return folder

    def test_inspector_of_a_healthy_job_gives_nothing(self):
        self.assertEqual(self.judge(self.inspected(lambda i, sn: 20000 + 100 * ((i + sn) % 4)))[:2], (0, []))

    def test_inspector_shows_who_comes_last(self):
        code, said, _ = self.judge(self.inspected(lambda i, sn: 300 if i == 2 else 20000))
        self.assertEqual(code, 1)
        self.assert_said(said, ("suspected", "straggler", [2]))
        self.assertIn("by 19.7 ms, in 80 of 80", said[0]["text"])

    def test_inspector_shows_sizes_that_differ_and_ranks_without_a_file(self):
        folder = self.inspected(lambda i, sn: 20000)
        with open(os.path.join(folder, "host-1.log"), "a") as f:
            f.write(completed(1, 80, 20000, size=99) + "\n")
        for i in (0, 2, 3):
            with open(os.path.join(folder, f"host-{i}.log"), "a") as f:
                f.write(completed(i, 80, 20000) + "\n")
        code, said, _ = self.judge(folder)
        self.assertEqual(code, 1)
        self.assert_said(said, ("suspected", "count-mismatch", [1]))
        os.remove(os.path.join(folder, "host-3.log"))
        code, said, _ = self.judge(folder)
        self.assertEqual(code, 0)
        self.assert_said(said, ("note", "data-incomplete", []))
        self.assertIn("rank 3", said[0]["text"])

    def test_a_rank_is_one_of_the_job_only_where_a_report_shows_the_whole_job(self):
        def groups(missing):
            """Two groups of four that have no process in common."""
            report = ras(10, [5] * 4)
            other = ras(10, [5] * 4, missing=missing)["communicators"][0]
            for one in other["ranks"] + other["missing_ranks"]:
                one["host"] = "10.0.9.9"
            return dict(report, communicators=report["communicators"] + [dict(other, hash="0xb2")])
        code, said, _ = self.judge(self.write("groups.json", groups((3,))))
        self.assertEqual(code, 1)
        self.assert_said(said, ("suspected", "rank-dead", []))
        self.assertIn("Rank 3 of communicator 0xb2", said[0]["text"])
        # The same four processes in another order: what is the job's rank, the process says.
        report = ras(10, [5] * 4)
        other = ras(10, [5] * 4, missing=(3,))["communicators"][0]
        for one in other["ranks"] + other["missing_ranks"]:
            one["pid"], one["cuda_dev"] = 1003 - one["rank"], 3 - one["rank"]
        both = dict(report, communicators=[dict(other, hash="0x0b")] + report["communicators"])
        self.assert_said(self.judge(self.write("turned.json", both))[1], ("suspected", "rank-dead", [0]))
        folder = self.inspected(lambda i, sn: 20000)
        for i in range(4):
            with open(os.path.join(folder, f"other-{i}.log"), "w") as f:
                f.write("\n".join(completed(i, sn, 300 if i == 2 else 20000).replace("0x9e7a", "0x9e7b")
                                  for sn in range(80)) + "\n")
        code, said, _ = self.judge(folder)
        self.assert_said(said, ("suspected", "straggler", []))
        self.assertIn("Rank 2 of communicator 0x9e7b", said[0]["text"])

    def test_what_a_file_holds_does_not_steer_a_terminal(self):
        r = self.rollcall("analyze", self.write("odd.json", '{"nccl_version":"1","communicators":1, \x1b[31mX}'))
        self.assert_one_line(r.stderr, "no whole JSON")
        self.assertNotIn("\x1b", r.stderr)

    def test_json_of_others_in_a_folder_is_no_matter(self):
        folder = self.inspected(lambda i, sn: 20000)
        with open(os.path.join(folder, "config.json"), "w") as f:
            f.write('{"lr": 0.1}')
        self.assertEqual(self.judge(folder), (0, [], ""))

    def test_what_is_cut_or_no_report_is_one_line_and_the_rest_is_judged(self):
        whole = json.dumps(ras(10, [64] * 8), indent=2)
        good = self.write("good.json", whole)
        for name, text in (("cut.json", whole[:len(whole) // 2]), ("none.json", '{"nccl_version": 1}'),
                           ("cut.txt", TEXT[:200]), ("deep.json", '{"nccl_version":' + "[" * 100000)):
            with self.subTest(name=name):
                r = self.rollcall("analyze", self.write(name, text), good)
                self.assertEqual(r.returncode, 3, r.stdout)
                self.assert_one_line(r.stderr, name)
                self.assertRegex(r.stdout, r"^Not judged: 1 file that cannot be read\. Of the others: 8 ranks, .*: "
                                 "0 findings")
        odd = ras(10, [64] * 8)
        odd["communicators"].append({"hash": "0xb", "size": -1, "ranks": {}})
        r = self.rollcall("analyze", self.write("odd.json", odd))
        self.assert_one_line(r.stderr, "1 of 2 communicators could not be read")
        folder = self.inspected(lambda i, sn: 20000)
        with open(os.path.join(folder, "host-0.log"), "a") as f:
            f.write('{"header": {"id": "0x9e7a", "rank": 9, "n_ranks": 4}, "coll_perf": {"coll": "x"}}\n{"head')
        r = self.rollcall("analyze", folder)
        self.assert_one_line(r.stderr, "2 of 82 lines could not be read")


if __name__ == "__main__":
    unittest.main(verbosity=2)
