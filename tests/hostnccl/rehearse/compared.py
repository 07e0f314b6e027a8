#!/usr/bin/env python3
"""What rollcall says of a sick job, and what PyTorch's Flight Recorder says of the same run: docs/COMPARED.md.

usage: compared.py BUILD_DIR --write     runs all jobs of the page and writes it (its words are in compared.md)
       compared.py BUILD_DIR NAME        runs one, and compares what both say with its row of the page

What is compared is what does not depend on the machine: code, ranks, the recorder's words, whether a line is shown.
Seconds do, and so does certainty, which grows while a job hangs: rows.py says which is wanted.

The recorder is used as PyTorch offers it: groups with a timeout of 10 s, dumps at the timeout, and torchfrtrace on the
folder of dumps. Seconds count from the mistake, which the rank tells with the time. What the recorder says is checked
with the release of PyTorch that the page names.
"""
import glob
import os
import re
import subprocess
import sys
import tempfile
import time

import check_rehearse
import rows
from check_rehearse import Failure

PAGE = os.path.join(check_rehearse.HERE, "..", "..", "..", "docs", "COMPARED.md")
GROUP_TIMEOUT_S = 10
RANKS = 4
FIRST_DUMP_S = 300  # only a recorder that says nothing reaches it
HELD_S = 900  # PyTorch ends a job after its dumps: later than our verdict on the slowest machine
QUIET_S = 5  # all dumps are written when no new one has come for so long


def wait_for_dumps(job, prefix):
    """Until the dumps of all ranks that dump are there; the time of the first, or None."""
    seen, moved = [], time.monotonic()
    while job.process.poll() is None:
        there = glob.glob(prefix + "*")
        if len(there) != len(seen):
            seen, moved = there, time.monotonic()
        if time.monotonic() - moved > (QUIET_S if seen else FIRST_DUMP_S):
            break
        time.sleep(0.1)
    return min((os.stat(p).st_mtime for p in seen), default=None)


def folded(ranks):
    """"0-1,3" of the ranks."""
    out = []
    for r in sorted(ranks):
        if out and out[-1][1] == r - 1:
            out[-1][1] = r
        else:
            out.append([r, r])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def named(ranks):
    return f"rank{'s' if len(ranks) > 1 else ''} {folded(ranks)}"


def numbers(text):
    return [int(n) for n in re.findall(r"\d+", text)]


# torchfrtrace takes the file that the folder lists first for right. Here that is always the first rank's.
IN_ORDER = """
import os
from torch.distributed.flight_recorder.fr_trace import main
walk = os.walk
os.walk = lambda *place: ((folder, folders, sorted(files)) for folder, folders, files in walk(*place))
main()
"""


def analysed(python, folder):
    """What torchfrtrace says of the dumps: a text, and whether it shows a line of the job."""
    command = [python, "-c", IN_ORDER, folder, "-p", "rank_"]
    run = subprocess.run(command, capture_output=True, text=True)
    lacking = re.search(r"Missing dump files from ranks \{(.*\d.*)\}", run.stderr)
    if lacking:
        run = subprocess.run([*command, "--allow-incomplete-ranks"], capture_output=True, text=True)
    text = run.stdout + run.stderr
    said = [f"no dump of {named(numbers(lacking.group(1)))}"] if lacking else []
    for block in re.split(r"(?=Not all ranks joining|Collective sequence number)", text)[1:]:
        call = re.search(r"collective: \S*?:(\S+)", block)
        call = call.group(1) if call else "a call"
        missing = re.search(r"missing ranks: \{(.*?)\}", block)
        errors = re.findall(r"Culprit rank (\d+); Error type: (\w+)", block)
        if missing:
            said.append(f"`{call}`: {named(numbers(missing.group(1)))} missing")
        for kind in sorted({kind for _, kind in errors}):
            said.append(f"`{call}`: {kind}, {named([int(r) for r, k in errors if k == kind])}")
    if run.returncode != 0:
        said.append("torchfrtrace fails: `" + run.stderr.strip().splitlines()[-1].split(":")[0] + "`")
    return "; ".join(said) or "nothing", bool(re.search(r"job_\w+\.py:\d+", text))


def run_row(build, python, row):
    """One row of the page: its cells by name."""
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "dumps")
        os.mkdir(folder)
        prefix = os.path.join(folder, "rank_")
        both = {"BUFFER_SIZE": "2000", "DUMP_TEMP_FILE": prefix, "DUMP_ON_TIMEOUT": "1",
                "WAIT_TIMEOUT_DUMP_MILSEC": str(1000 * HELD_S)}
        old = {"TRACE_BUFFER_SIZE": "2000", "DEBUG_INFO_TEMP_FILE": prefix, "DUMP_ON_TIMEOUT": "1",
               "WAIT_TIMEOUT_DUMP_MILSEC": str(1000 * HELD_S)}
        env = {**{f"TORCH_FR_{k}": v for k, v in both.items()}, **{f"TORCH_NCCL_{k}": v for k, v in old.items()},
               "ROLLCALL_REHEARSE_COMPUTE": "off", "GROUP_TIMEOUT": str(GROUP_TIMEOUT_S),
               "OUTLIVED": "1" if row.mistake == "killed" else ""}
        job = check_rehearse.Job(build, python, row, RANKS, work, env=env)
        try:
            first = wait_for_dumps(job, prefix)
            report = job.end_when_said(len(row.says))
            at = [float(line.split()[1]) for line in job.err if line.startswith("mistake ")]
            found = [f for f in (report or {}).get("findings", []) if f["certainty"] != "note"]
            if len(at) != 1 or len(found) != len(row.says):
                raise Failure(f"{len(at)} mistakes, findings: {found}")
            said, line = analysed(python, folder)
        except Failure as e:
            raise Failure(*e.args, job.printed()) from e
    lines = any(re.match(r"job_\w+\.py$", os.path.basename(frame["file"] or "")) and frame["line"]
                for f in found for c in f["callsites"] for frame in c["frames"])
    return {
        "job": f"`{row.name}`",
        "ours": "; ".join(f"{f['certainty']} `{f['code']}`, {named(f['culprits'])}" if f["culprits"] else
                          f"{f['certainty']} `{f['code']}`" for f in found),
        "after": f"{max(0.1, found[0]['time_ns'] / 1e9 - at[0]):.1f} s",
        "line": "yes" if lines else "no",
        "theirs": said,
        "theirs_after": f"{first - at[0]:.0f} s" if first else "-",
        "theirs_line": "yes" if line else "no",
    }


def release(python):
    return check_rehearse.ask(python, "import torch; print(torch.__version__)")


COLUMNS = ["job", "ours", "after", "line", "theirs", "theirs_after", "theirs_line"]
def render(python, cells):
    compared = [r for r in rows.ROWS if r.compared]
    with open(os.path.join(check_rehearse.HERE, "compared.md"), encoding="utf-8") as f:
        text = f.read()
    return text.format(torch=release(python),
                       mistakes="\n".join(f"| `{r.name}` | {r.compared} |" for r in compared),
                       rows="\n".join("| " + " | ".join(c[k] for k in COLUMNS) + " |" for c in cells))


def unsure(text):
    """A cell without the certainty."""
    return re.sub(r"\b(proven|predicted|suspected) ", "", text)


def check(python, row, cells):
    with open(PAGE, encoding="utf-8") as f:
        page = f.read()
    line = next((x for x in page.splitlines() if x.startswith(f"| `{row.name}` |") and x.count("|") == 8), None)
    if line is None:
        raise Failure(f"docs/COMPARED.md has no row of {row.name}")
    there = dict(zip(COLUMNS, (c.strip() for c in line.strip("|").split("|"))))
    same = ["ours", "line"] + (["theirs", "theirs_line"] if f"PyTorch {release(python)}," in page else [])
    wrong = [f"{k}: {cells[k]!r} now, {there[k]!r} on the page" for k in same
             if unsure(cells[k]) != unsure(there[k])]
    if wrong:
        raise Failure("docs/COMPARED.md says something else; compared.py --write makes it anew", *wrong)


def main():
    build, what = os.path.abspath(sys.argv[1]), sys.argv[2]
    compared = [r for r in rows.ROWS if r.compared and what in ("--write", r.name)]
    python = check_rehearse.find_python(compared[0], "ROLL_REHEARSE_PYTHON")
    try:
        cells = []
        for row in compared:
            cells.append(run_row(build, python, row))
            print(cells[-1], flush=True)
        if what == "--write":
            with open(PAGE, "w", encoding="utf-8") as f:
                f.write(render(python, cells))
        else:
            check(python, compared[0], cells[0])
    except Failure as e:
        print("FAILED:", *e.args, sep="\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
