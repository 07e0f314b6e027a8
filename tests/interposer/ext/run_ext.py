#!/usr/bin/env python3
"""MoE seen from outside: a job on stubs of Transformer Engine and cuBLAS, live under rollcall run and again by rollcall
analyze.

usage: run_ext.py ROLLCALL EXT_JOB STUB_DIR
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time

ROLLCALL, JOB, STUBS = sys.argv[1:4]
failures = []
LIMIT_S = 280  # so late that only a hang reaches it


def check(condition, what, more=""):
    if not condition:
        failures.append(what)
        print("FAILED:", what, more)


def verdicts(path):
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [v for v in map(json.loads, (line for line in f if line.endswith("\n"))) if v["certainty"] != "note"]


def run(mode, ranks, tmp):
    out, trace = os.path.join(tmp, "verdicts.json"), os.path.join(tmp, "trace")
    env = dict(os.environ, LD_LIBRARY_PATH=STUBS + ":" + os.environ.get("LD_LIBRARY_PATH", ""))
    with tempfile.TemporaryFile("w+") as err:
        job = subprocess.Popen([ROLLCALL, "run", "-n", str(ranks), "--hostnccl", "--json", out, "--trace", trace,
                                "--grace", "1", "--", JOB, mode], env=env, stdout=subprocess.DEVNULL, stderr=err,
                               text=True)
        # A sick job hangs: it is ended once it has been named, and a moment later, for one finding too many. The others
        # end by themselves.
        end, named = time.monotonic() + LIMIT_S, None
        while job.poll() is None and time.monotonic() < end and (named is None or time.monotonic() < named + 0.7):
            named = named or (time.monotonic() if verdicts(out) else None)
            time.sleep(0.02)
        job.terminate()
        job.wait()
        err.seek(0)
        job.stderr = err.read()
    return job, verdicts(out), trace


def case(ranks, mode):
    with tempfile.TemporaryDirectory() as tmp:
        job, found, trace = run(mode, ranks, tmp)
        what = f"{mode}, {ranks} ranks"
        if not mode.startswith("sick"):
            check(job.returncode == 0 and not found, what, f"{job.returncode} {found} {job.stderr[-500:]}")
            return
        codes = [(v["code"], v["certainty"], v["culprits"]) for v in found]
        check(codes == [("moe-gemm-missing", "suspected", [ranks - 1])], what, f"{found} {job.stderr[-500:]}")
        for v in found[:1]:
            where = "two exchanges (groups of sends and receives)" if mode == "sick-v" else "#16 and #17"
            check(f"made no expert product between {where}" in v["text"] and "made a grouped gemm" in v["text"], what,
                  v["text"])
            check(f"for rank {ranks - 1}: experts" in v["text"] and f"Now rank {ranks - 1} " not in v["text"], what,
                  v["text"])
            peers = [side for side in v["evidence"] if side["op"] == "grouped gemm"]
            check(len(peers) == 1 and peers[0]["groups"] in (2, 3) and peers[0]["empty"] == 1
                  and peers[0]["peer"] is None, what, peers)
        again = subprocess.run([ROLLCALL, "analyze", "--json", trace], capture_output=True, text=True,
                               timeout=LIMIT_S).stdout
        later = [(v["code"], v["certainty"], v["culprits"]) for v in map(json.loads, again.splitlines())
                 if v.get("certainty", "note") != "note"]
        check(later == codes, f"{what}: analyze", later)


MODES = ("sick", "healthy", "empty", "sick-v", "empty-v")
with concurrent.futures.ThreadPoolExecutor(4) as pool:  # a sick job is waited for, so others may run beside it
    for one in [pool.submit(case, ranks, mode) for ranks in (8, 4, 3, 2) for mode in MODES]:
        one.result()

with tempfile.TemporaryDirectory() as tmp:
    job, found, trace = run("calls", 1, tmp)
    check(job.returncode == 0 and not found, "calls", job.stderr[-500:])
    dump = ""
    for name in sorted(os.listdir(trace)):
        dump += subprocess.run([ROLLCALL, "dump", "--json", os.path.join(trace, name)], capture_output=True,
                               text=True).stdout
    # By ticket: a call that the agent met under way stands there twice, the second time as it returned.
    rows = {r["fields"]["seal"]["ticket"]: r["fields"] for r in map(json.loads, dump.splitlines())
            if r["kind"] == "record"}
    seen = [(r["op"]["name"], r["count"], r["aux"], r["peer"], r["dtype"]["name"], r["result"], r["seq"])
            for _, r in sorted(rows.items()) if 80 <= r["op"]["value"] <= 86]
    wanted = [("grouped gemm", 20, 4, 2, "bfloat16", 0, 0), ("grouped gemm", 10, 1, 0, "bfloat16", 0, 0),
              ("grouped gemm", 0, 9, -1, "none", 0, 0), ("permute", 11, 1, 0, "none", 0, 0),
              ("router", 0, 0, -1, "none", 0, 0), ("ep exchange", 0, 0, -1, "none", 0, 0),
              ("grouped gemm", 17, 3, 1, "float32", 13, 0), ("gemm", 5, 1, -1, "bfloat16", 0, 0),
              ("gemm", 10, 1, 0, "bfloat16", 0, 9)]
    check(seen == wanted, "the records of each call", seen)

print(f"seen from outside: {len(failures)} failures")
sys.exit(1 if failures else 0)
