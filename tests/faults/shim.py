"""shim.py: two ranks of a real job, of which rank 0 has a fault in the preloaded library: both end as without it.

The job checks its own results. Nothing is printed but the one line that says that the job runs on without recording;
what is recorded tells of no finding.
"""
import os
import subprocess

import trial

# How a job may be started: what the library then does more.
MANNERS = {
    "plain": {},
    "agent": {"ROLLCALL_DAEMON": "ipc:///nonexistent/root", "ROLLCALL_BIN": "/bin/true"},
    "compare": {"ROLLCALL_ON_MISMATCH": "error"},
    "graphs": {"ROLLCALL_COMPLETION": "write"},
}


def run(programs, manner, fault, place):
    """The outcome of rank 0; its `code` is the word of what went wrong with rank 1, if anything did."""
    work, meet, state = trial.fresh(place, "ranks"), trial.fresh(place, "meet"), trial.settings(place, fault)
    ranks = []
    for rank in range(2):
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "RANK": str(rank), "WORLD_SIZE": "2",
               "LD_LIBRARY_PATH": programs.hostnccl, "ROLLCALL_DIR": os.path.join(work, "rings"),
               "HOSTNCCL_DIR": meet, "ROLLCALL_RING_RECORDS": "64",
               "LD_PRELOAD": programs.preload, **MANNERS[manner]}
        if rank == 0:
            env.update(LD_PRELOAD=programs.library + ":" + programs.preload, ROLL_FAIL_STATE=state.path)
        argv = [programs.ranks, "graphs" if manner == "graphs" else "all", str(rank), "2", meet]
        ranks.append(subprocess.Popen(argv, env=env, cwd=work, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE))
    said = []
    code = None
    for process in ranks:
        try:
            said.append(process.communicate(timeout=trial.HANG_S))
        except subprocess.TimeoutExpired:
            code = "hang"
            for other in ranks:
                other.kill()
            said.append(process.communicate())
    if code is None:
        code = ranks[0].returncode or (ranks[1].returncode and "rank 1 ended with %d" % ranks[1].returncode)
    rings = os.path.join(work, "rings")
    return trial.Outcome(code, said[0][0] + said[1][0], (said[0][1] + said[1][1]).decode(errors="replace"),
                         state.read(), trial.contents(rings) if os.path.isdir(rings) else {})


def judge(programs, outcome, place):
    if outcome.code != 0 or outcome.out:
        return "the job ended by %s: %r %r" % (outcome.code, outcome.out, outcome.err[-300:])
    lines = outcome.err.splitlines()
    if len(lines) > 1 or any(not line.startswith("rollcall: ") or "the job runs on" not in line for line in lines):
        return "printed: %r" % outcome.err[-300:]
    odd = [name for name in outcome.files if not name.endswith((".ring", ".ctl", ".cmp"))]
    if odd:
        return "left behind: %s" % ", ".join(odd)
    if not outcome.files:
        return None
    got = subprocess.run([programs.rollcall, "analyze", "--json", os.path.join(place, "ranks", "rings")],
                         capture_output=True, timeout=trial.HANG_S, check=False)
    found = [line for line in got.stdout.splitlines() if b"rollcall.verdict/1" in line and b'"note"' not in line]
    if found or got.returncode == 1:
        return "a finding: %d %r %r" % (got.returncode, found[:1], got.stderr[-200:])
    return None
