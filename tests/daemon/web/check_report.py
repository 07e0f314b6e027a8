#!/usr/bin/env python3
"""rollcall report: one file over recorded traces, opened in a real browser from the disk; what it says in Markdown; its
bounds; and what it says of traces that are damaged, or none.

usage: check_report.py CHECK ROLLCALL MAKE_TRACE [CATALOGUE]
"""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

from browser import Browser, Missing

check, rollcall, make = sys.argv[1], os.path.abspath(sys.argv[2]), os.path.abspath(sys.argv[3])
catalogue = os.path.abspath(sys.argv[4]) if len(sys.argv) > 4 else None
SKIP = 77
MOST_BYTES = 10 << 20  # docs/REPORT.md: 8 MiB of lists, and what stands around them


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


def made(folder, nodes, per_node, calls, *how, name="trace"):
    path = os.path.join(folder, name)
    subprocess.run([make, path, str(nodes), str(per_node), str(calls), *how], check=True)
    return path


def run(command, *arguments):
    return subprocess.run([rollcall, command, *arguments], capture_output=True, text=True, timeout=600)


def report(folder, *arguments, name="out.html"):
    """The file, and the exit code, which is that of analyze."""
    out = os.path.join(folder, name)
    said = run("report", *arguments, "--force", "-o", out)
    judged = run("analyze", *[a for a in arguments if a != "--no-source"])
    expect(said.returncode == judged.returncode, f"{said} beside {judged.returncode}")
    expect(not os.path.exists(out + ".part"), "an unfinished file is left")
    return out, said


def island(path):
    with open(path, encoding="utf-8") as f:
        html = f.read()
    found = re.findall(r'<script type="application/json" id="recorded">(.*?)</script>', html, re.S)
    expect(len(found) == 1, f"{len(found)} islands")
    return json.loads(found[0])


def opened(b, path, hash=""):
    b.open("about:blank")
    b.open(f"file://{path}{hash}")


def clean(b):
    said = b.complaints()
    expect(not said, f"the report complains: {said}")
    loaded = b.run("return performance.getEntriesByType('resource').map(({name}) => name)")
    expect(loaded == [], f"it fetches {loaded}")
    expect(b.run("return typeof bad") == "undefined", "a script of the job has run")


def go(b, where):
    b.run("location.hash = arguments[0]", where)


def whole(folder):
    """All views of a sick job, and the Markdown, which is that of the page."""
    out, _ = report(folder, made(folder, 3, 4, 400, "sick"))
    said = run("report", "--md", os.path.join(folder, "trace"))
    with Browser() as b:
        opened(b, out)
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        expect("12 ranks, 3,598 calls on 4 communicators: 1 finding" in b.text("#judged"), b.text("#judged"))
        expect("3 nodes" in b.run("return document.querySelector('canvas').getAttribute('aria-label')"), "the field")
        options = b.run("return [...document.querySelectorAll('#moment option')].map((o) => o.textContent)")
        expect(len(options) == 2 and options[0].startswith("when finding 1") and "end" in options[1], options)
        expect("Remedies" not in b.text("#pages") and "Timeline" in b.text("#pages"), b.text("#pages"))
        if os.environ.get("ROLL_WEB_SCREENSHOTS"):
            b.screenshot(f"{os.environ['ROLL_WEB_SCREENSHOTS']}/report.png")
        b.click(".findings a")
        b.wait_for("both sides", lambda: "side 2" in b.text() and "1033" in b.text() and "1028" in b.text())
        b.run("const clipboard = {writeText: (text) => { globalThis.copied = text; }};"
              "Object.defineProperty(navigator, 'clipboard', {value: clipboard})")
        b.click("#copy")
        copied = b.wait_for("the Markdown", lambda: b.run("return globalThis.copied"))
        expect(copied in said.stdout, f"the page copies\n{copied}\nand the command says\n{said.stdout}")
        go(b, "#/timeline/made/0/1")
        b.wait_for("the calls", lambda: re.search(r"320 calls of 5 ranks", b.text()))
        expect(b.run("return rollcall.figures.lanes.bars") > 0, "no call is drawn")
        go(b, "#/comms/made/0")
        b.wait_for("the communicators", lambda: "4 communicators" in b.text() and "world" in b.text("table"))
        go(b, "#/nodes/made/0")
        b.wait_for("the nodes", lambda: "node2" in b.text("table") and "Nothing was lost" in b.text())
        go(b, "#/rank/made/0/11")
        b.wait_for("the rank", lambda: "Rank 11" in b.text("h1") and "count-mismatch" in b.text(".findings")
                   and "last NCCL call" in b.text())
        go(b, "#/search/made/0/count-mis")
        b.wait_for("what is searched", lambda: "count-mismatch" in b.text(".findings"))
        go(b, "#/finding/made/0/77")
        b.wait_for("the lack of it", lambda: "There is no verdict 77" in b.text())
        clean(b)


def hostile(folder):
    """Names that are HTML, Markdown or a terminal's: nothing of them runs, and nothing gets out of where it stands."""
    for how in ("markup", "hostile"):
        trace = made(folder, 2, 2, 40, "sick", how, name=how)
        out, _ = report(folder, trace, name=f"{how}.html")
        with open(out, "rb") as f:
            html = f.read()
        expect(html.count(b"</script") == 2 and html.count(b"<script") == 2 and b"<!--" not in html, "markup got out")
        expect(b"\xe2\x80\xa8" not in html.split(b'id="recorded">')[1].split(b"</script>")[0], "U+2028 in the island")
        expect(b"<img" not in html, "an element of the job's")
        island(out)
        text = run("report", "--md", trace).stdout
        outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.S | re.M)
        expect("count-mismatch" in outside and not re.search(r"(?<!\\)[<`]", outside), outside)
        with Browser() as b:
            opened(b, out)
            for page in ("overview/made/0", "finding/made/0/1", "timeline/made/0/1", "comms/made/0", "nodes/made/0",
                         "search/made/0/s"):
                go(b, f"#/{page}")
                b.wait_for(page, lambda: b.text("main").strip() != "" and "\u2026" not in b.text("main .said"))
                clean(b)
                expect(b.run("return document.querySelectorAll('main img, main script').length") == 0, page)


def large(folder):
    """16,384 ranks: bounded in bytes, and it opens; and memory does not grow with how much was called."""
    peak = {}
    for calls in (40, 400):
        trace = made(folder, 2, 8, 1000 * calls // 4, "sick", name=f"long{calls}")
        before = os.fork()
        if before == 0:  # a process of its own, whose children's peak is that of one report
            done = subprocess.run([rollcall, "report", trace, "--force", "-o", os.path.join(folder, "long.html")],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            kib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
            with open(os.path.join(folder, f"peak{calls}"), "w", encoding="ascii") as f:
                f.write(f"{kib} {done.returncode}")
            os._exit(0)
        os.waitpid(before, 0)
        with open(os.path.join(folder, f"peak{calls}"), encoding="ascii") as f:
            peak[calls], code = map(int, f.read().split())
        expect(code == 1, f"exit code {code}")
        shutil.rmtree(trace)
    print(f"peak: {peak} KiB")
    expect(peak[400] < peak[40] + (32 << 10), f"memory grows with the calls: {peak} KiB")
    out, _ = report(folder, made(folder, 32, 512, 8, "sick"))
    size = os.path.getsize(out)
    print(f"16,384 ranks: {size} bytes")
    expect(size < MOST_BYTES, f"{size} bytes")
    runs = island(out)[1:-1]
    expect(runs[0]["places"]["ranks"] == 16384 and len(runs[0]["moments"][0]["states"]) == 16384, "the field")
    expect(all(len(v["waiting"]) <= 64 for v in runs[0]["verdicts"]), "lists of ranks")
    with Browser() as b:
        opened(b, out)
        b.wait_for("the field", lambda: "16384 ranks on 32 nodes" in b.run(
            "return document.querySelector('canvas').getAttribute('aria-label') ?? ''"))
        clean(b)


def damaged(folder):
    """A trace that was cut, one of another version, none, and what cannot be written: each its line and its code."""
    trace = made(folder, 1, 2, 400)
    segment = sorted(os.path.join(top, name) for top, _, names in os.walk(trace) for name in names)[0]
    with open(segment, "rb") as f:
        data = f.read()
    with open(segment, "wb") as f:
        f.write(data[:len(data) * 2 // 3 + 5])
    out, said = report(folder, trace)
    about = island(out)[0]
    expect(said.returncode in (1, 4) and any("cut short" in text for text in about["unjudged"]), about)
    expect("cut short" in run("report", "--md", trace).stdout, "Markdown does not say it")
    other = os.path.join(folder, "other.rtrc")
    with open(other, "wb") as f:
        f.write(data[:8] + b"\xff\xff\xff\x7f" + data[12:])
    _, said = report(folder, other, name="none.html")
    expect(said.returncode == 3 and "version" in said.stderr, said)
    empty = os.path.join(folder, "empty")
    os.mkdir(empty)
    _, said = report(folder, empty, name="none.html")
    expect(said.returncode == 3 and "no trace" in said.stderr, said)
    expect(not os.path.exists(os.path.join(folder, "none.html")), said)
    said = run("report", made(folder, 1, 2, 40, name="well"), "-o", os.path.join(folder, "lacks", "x.html"))
    expect(said.returncode == 3 and "lacks" in said.stderr, said)
    expect(run("report", "well", "-o", "x.rtrc").returncode == 2, "a trace may be written over")


def standing(*paths):
    """Codes that analyze says of these files and that stand."""
    lines = [json.loads(line) for line in run("analyze", "--json", *paths).stdout.splitlines()]
    verdicts = [v for v in lines if v["schema"] == "rollcall.verdict/1"]
    gone = {(v["job"], v[k]) for v in verdicts for k in ("supersedes", "confirms", "withdraws") if v.get(k)}
    return sorted(v["code"] for v in verdicts if v["certainty"] != "note" and (v["job"], v["number"]) not in gone)


def others(folder):
    """Folders of what ncclras says, twice, of a rank that is four operations behind; and of Inspector's lines, of sizes
    that differ."""
    ras, inspector = os.path.join(folder, "ras"), os.path.join(folder, "inspector")
    os.mkdir(ras)
    os.mkdir(inspector)
    for second in (10, 40):
        ranks = [{"rank": i, "host": "10.0.0.1", "pid": 1000 + i, "cuda_dev": i, "nvml_dev": i,
                  "status": {"init_state": 0, "async_error": 0, "abort_flag": False},
                  "collective_counts": {"AllReduce": 60 if i == 3 else 64}} for i in range(4)]
        comm = {"hash": "0xa1", "secondary_hash": "0x7c:0x83", "size": 4, "ranks_count": 4, "missing_ranks_count": 0,
                "ranks": ranks, "missing_ranks": []}
        with open(os.path.join(ras, f"{second}.json"), "w", encoding="utf-8") as f:
            json.dump({"nccl_version": "2.28.9", "timestamp": f"2026-06-19 06:55:{second}", "communicators_count": 1,
                       "communicators": [comm], "ras": {"collection_time_sec": 0.0, "timeouts_count": 0}}, f)
    for rank in range(4):
        with open(os.path.join(inspector, f"host-{rank}.log"), "w", encoding="utf-8") as f:
            for number in range(80):
                size = 99 if rank == 1 and number == 79 else 65536
                json.dump({"header": {"id": "0x9e7a", "rank": rank, "n_ranks": 4, "nnodes": 1},
                           "metadata": {"inspector_output_format_version": "v4.0", "dump_timestamp_us": 1, "pid": 7},
                           "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": size,
                                         "coll_exec_time_us": 20000, "coll_timing_source": "kernel_gpu"}}, f)
                f.write("\n")
    return ras, inspector


def inputs(folder):
    """Digests, dumps of the Flight Recorder, and what ncclras and Inspector say: the report has the findings of
    analyze, and what is none of these is one line."""
    trace = made(folder, 2, 4, 400, "sick")
    digest, dumps = os.path.join(folder, "a.rdig"), os.path.join(folder, "dumps")
    expect(run("digest", "-o", digest, trace).returncode in (0, 1, 4), "no digest")
    expect(run("export", "--flight-recorder", "-o", dumps, trace).returncode in (0, 4), "no dumps")
    ras, inspector = others(folder)
    for name, path in (("digest", digest), ("dumps", dumps), ("ncclras", ras), ("inspector", inspector)):
        out, said = report(folder, path, name=f"{name}.html")
        want = standing(path)
        found = sorted(v["code"] for one in island(out)[1:-1] for v in one["findings"]["findings"] if v["stands"])
        expect(found == want, f"{name}: analyze says {want}, the report {found}")
        text = run("report", "--md", path).stdout
        expect(all(f"## {code.replace('_', chr(92) + '_')}" in text for code in want), f"{name}: {text}")
        expect(want, f"{name}: there is nothing to compare")
        print(f"{name}: {want}, exit code {said.returncode}")
    out, _ = report(folder, trace, digest, dumps, name="all.html")
    expect(island(out)[0]["findings"] > 0, "what is there in three forms is judged")
    for name, content in (("x.rdig", b"no digest at all"), ("x.json", b"{}"), ("x.pickle", b"\x80\x02}q\x00.")):
        path = os.path.join(folder, name)
        with open(path, "wb") as f:
            f.write(content)
        said = run("report", path, "-o", os.path.join(folder, "none.html"))
        expect(said.returncode == 3 and not os.path.exists(os.path.join(folder, "none.html")), said)
        expect(1 <= len(said.stderr.splitlines()) <= 2 and "Traceback" not in said.stderr, said)


def there(folder):
    """A file that is there stays as it is, unless it is said otherwise; nor is a device replaced by a file."""
    trace, out = made(folder, 1, 2, 40), os.path.join(folder, "out")
    with open(out, "w", encoding="utf-8") as f:
        f.write("from before")
    link = os.path.join(folder, "null")
    os.symlink("/dev/null", link)
    for command in (["report"], ["report", "--md"], ["export", "--perfetto"], ["export", "--sqlite"]):
        said = run(*command, trace, "-o", out)
        if "built without" in said.stderr:
            continue
        expect(said.returncode == 3 and "--force" in said.stderr and len(said.stderr.splitlines()) == 1, said)
        with open(out, encoding="utf-8") as f:
            expect(f.read() == "from before", command)
        said = run(*command, trace, "--force", "-o", link)
        expect(said.returncode == 3 and "not an ordinary file" in said.stderr and os.path.islink(link), said)
    expect(run("report", trace, "--force", "-o", out).returncode == 0 and island(out), "with --force it is replaced")
    dumps = os.path.join(folder, "dumps")
    expect(run("export", "--flight-recorder", trace, "-o", dumps).returncode in (0, 4), "dumps")
    said = run("export", "--flight-recorder", trace, "-o", dumps)
    expect(said.returncode == 3 and "not empty" in said.stderr, said)
    expect(run("export", "--flight-recorder", trace, "--force", "-o", dumps).returncode in (0, 4), "dumps again")


def healthy(folder):
    """A run with no finding has a report that says so."""
    out, said = report(folder, made(folder, 2, 2, 40))
    expect(said.returncode == 0 and "0 findings of 4 ranks" in said.stdout, said)
    expect("No finding." in run("report", "--md", os.path.join(folder, "trace")).stdout, "Markdown")
    with Browser() as b:
        opened(b, out)
        b.wait_for("the word for it", lambda: "No finding." in b.text("#judged") and "Nothing was found." in b.text())
        clean(b)


def jobs(folder):
    """Real jobs of the catalogue, sick and healthy, in one directory; --job chooses."""
    trace = os.path.join(folder, "trace")
    for job, twin in (("well", "healthy"), ("ill", "sick")):
        run("run", "-n", "4", "--hostnccl", "--quiet", "--timeout", "3", "--grace", "1", "--trace",
            os.path.join(folder, job), "--", catalogue, "wrong-count", twin)
    ill, well = os.path.join(folder, "ill"), os.path.join(folder, "well")
    names = {path: [v["job"] for v in island(report(folder, path, name=f"{os.path.basename(path)}.html")[0])[1:-1]]
             for path in (ill, well)}
    expect(len(names[ill]) == 1 and len(names[well]) == 1, names)
    os.mkdir(trace)
    shutil.copytree(ill, os.path.join(trace, "ill"))
    shutil.copytree(well, os.path.join(trace, "well"))
    out, said = report(folder, trace)
    both = island(out)
    expect(said.returncode == 1 and both[0]["findings"] == 1, both[0])
    _, said = report(folder, "--job", "nobody", trace, name="none.html")
    expect(said.returncode == 3 and "nobody" in said.stderr, said)
    out, said = report(folder, "--job", names[ill][0], trace, name="one.html")
    expect(said.returncode == 1, said)
    with Browser() as b:
        opened(b, out)
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.click(".findings a[href$='/1']")  # behind it may stand a note that the job has ended
        b.wait_for("both sides", lambda: "side 2" in b.text())
        b.click("#timeline")
        b.wait_for("the calls", lambda: re.search(r"\d+ calls of 4 ranks", b.text()))
        clean(b)


with tempfile.TemporaryDirectory() as folder:
    try:
        globals()[check](folder)
    except Missing as missing:
        print(f"SKIPPED: {missing}")
        sys.exit(SKIP)
