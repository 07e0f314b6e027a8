#!/usr/bin/env python3
"""rollcall export --perfetto and --sqlite, on traces of several nodes: what is in them, hostile names, damage, signals,
memory; and what tools from PyPI say of them.

usage: check_export.py ROLLCALL MAKE_TRACE NAME

`..._wheel` want ROLL_EXPORT_PYTHON, an interpreter with the packages perfetto, duckdb and
duckdb-extension-sqlite-scanner (ROLL_REHEARSE_PYTHON counts as well), and are skipped without.
"""
import json
import os
import re
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import perfetto_reader

ROLLCALL, MAKE = (os.path.abspath(a) for a in sys.argv[1:3])
HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = os.path.join(HERE, "..", "..", "..", "docs")
SKIPPED = 77
NODES, PER_NODE, CALLS = 3, 4, 400
RANKS = NODES * PER_NODE
PLAIN = re.compile(r"^[^\x00-\x09\x0b-\x1f\x7f\u0080-\u009f\u200b-\u200f\u2028-\u202e]*$")


def made(folder, *how, nodes=NODES, per_node=PER_NODE, calls=CALLS, name="trace"):
    path = os.path.join(folder, name)
    subprocess.run([MAKE, path, str(nodes), str(per_node), str(calls), *how], check=True)
    return path


def export(form, out, *paths, code=0):
    run = subprocess.run([ROLLCALL, "export", "--" + form, *paths, "--force", "-o", out], capture_output=True,
                         text=True, timeout=300)
    assert run.returncode == code, (run.returncode, run.stdout, run.stderr)
    assert not os.path.exists(out + ".part")
    return run


def analyzed(*paths):
    run = subprocess.run([ROLLCALL, "analyze", "--json", *paths], capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    verdicts = [v for v in lines if v["schema"] == "rollcall.verdict/1"]
    gone = {v[k] for v in verdicts for k in ("supersedes", "confirms", "withdraws") if v.get(k)}
    return verdicts, {v["number"] for v in verdicts if v["certainty"] != "note" and v["number"] not in gone}


def segments(trace):
    return sorted(os.path.join(top, name) for top, _, names in os.walk(trace) for name in names)


def database(path):
    return sqlite3.connect(f"file:{path}?mode=ro", uri=True)


def ask(path, sql):
    with database(path) as db:
        return db.execute(sql).fetchall()


def queries():
    with open(os.path.join(DOCS, "EXPORT.md"), encoding="utf-8") as f:
        return re.findall(r"```sql\n(.*?)```", f.read(), re.S)


def interpreter(*modules):
    python = os.environ.get("ROLL_EXPORT_PYTHON") or os.environ.get("ROLL_REHEARSE_PYTHON")
    found = python and subprocess.run([python, "-c", "import " + ", ".join(modules)], capture_output=True)
    if not found or found.returncode != 0:
        print(f"SKIPPED: neither ROLL_EXPORT_PYTHON nor ROLL_REHEARSE_PYTHON names an interpreter with "
              f"{' and '.join(modules)} (pip install perfetto duckdb==1.5.5 duckdb-extension-sqlite-scanner==1.5.5)")
        sys.exit(SKIPPED)
    return python


def perfetto_whole(folder):
    """A process a rank, a track a communicator, a slice a call, flows between all members and both ends, marks."""
    trace, out = made(folder, "sick"), os.path.join(folder, "out")
    run = export("perfetto", out, trace)
    verdicts, standing = analyzed(trace)
    assert standing and f"{len(standing)} finding" in run.stdout, run.stdout
    t = perfetto_reader.Trace(out)
    processes = [x["process"] for x in t.tracks.values() if "process" in x]
    assert len({p["pid"] for p in processes}) == len(processes) == RANKS, "pids of several nodes stay apart"
    for rank in range(RANKS):
        assert f"rank {rank} on node{rank // PER_NODE} (pid {4000 + rank % PER_NODE})" in [p["process_name"]
                                                                                           for p in processes]
    names = sorted(x["name"] for x in t.tracks.values() if "parent_uuid" in x)
    assert names == sorted(["host", "node", "world"] * RANKS), names
    assert sorted(c["clock_id"] for c in t.clocks) == [1, 6] and len({c["timestamp"] for c in t.clocks}) == 1
    # Slices: every call of every rank, with its end, but for rank 0's last.
    assert len(t.slices) == RANKS * CALLS - 3, len(t.slices)
    unended = [s for s in t.slices if s["end"] is None]
    assert len(unended) == 1 and t.process(unended[0]["track"]).startswith("rank 0 "), unended
    for s in t.slices:
        assert s["end"] is None or s["end"] - s["time"] == 9000 + (s["args"]["call"] * 31 + int(
            t.process(s["track"]).split()[1])) % 800, s
    # What members have in common: one flow for a collective of all, and for the two ends of a message.
    flows = {}
    for s in t.slices:
        rank = int(t.process(s["track"]).split()[1])
        assert len(s["flows"]) == (0 if s["name"] == "cudaStreamSynchronize" else 1), s
        for flow in s["flows"]:
            flows.setdefault(flow, []).append((s["name"], s["args"]["sequence number"], rank))
    by = {}
    for ends in flows.values():
        assert len({seq for _, seq, _ in ends}) == 1, ends
        by.setdefault("/".join(sorted({name for name, _, _ in ends})), []).append(sorted(r for _, _, r in ends))
    last, n = RANKS - 1, CALLS // 4
    assert by["AllReduce"] == [list(range(RANKS))] * n, by["AllReduce"]
    gathers = [list(range(i * PER_NODE, (i + 1) * PER_NODE)) for i in range(NODES)]
    short = [r for r in gathers[-1] if r != last]
    assert sorted(by["AllGather"]) == sorted(gathers * n)[:-1] + [short] or \
        sorted(by["AllGather"]) == sorted(gathers * (n - 1) + gathers[:-1] + [short]), by["AllGather"]
    assert sorted(by["Recv/Send"]) == sorted([[r, r + 1] for r in range(0, RANKS, 2)] * n)[:-1], by["Recv/Send"]
    assert by["Send"] == [[last - 1]], by["Send"]
    one = next(s for s in t.slices if s["name"] == "AllReduce")
    assert one["args"]["datatype"] == "float32" and one["args"]["reduction"] == "sum" and one["category"] == [
        "collective"] and one["args"]["called at"] == "train.py:88 step" and one["args"]["bytes"] == 4 * one["args"][
            "count"], one
    # Marks: what analyze says, with its text; and one on the track of each culprit.
    top = [u for u, x in t.tracks.items() if x.get("name") == "findings" and "parent_uuid" not in x]
    marks = [e for e in t.events if e["type"] == perfetto_reader.INSTANT and [e["track"]] == top]
    assert [m["args"]["number"] for m in marks] == [v["number"] for v in verdicts], marks
    for mark, verdict in zip(marks, verdicts):
        assert mark["args"]["text"] == verdict["text"] and mark["args"]["code"] == verdict["code"]
        assert mark["category"] == ["note" if verdict["certainty"] == "note" else "finding"]
        ended = mark["name"].startswith(("replaced: ", "confirmed: ", "withdrawn: "))
        assert ended != (verdict["number"] in standing or mark["category"] == ["note"])
        at = [t.process(e["track"]) for e in t.events if e["type"] == perfetto_reader.INSTANT and
              e["flows"] == mark["flows"] != [] and e["track"] != mark["track"]]
        assert verdict["certainty"] == "note" or sorted(int(p.split()[1]) for p in at) == verdict["culprits"], at


def perfetto_wheel(folder):
    """The schema of the package perfetto knows every field, says the same, and would write the same bytes."""
    python = interpreter("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    trace, out = made(folder, "sick", "hostile"), os.path.join(folder, "out")
    export("perfetto", out, trace)
    run = subprocess.run([python, os.path.join(HERE, "read_with_wheel.py"), out], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    ours = perfetto_reader.Trace(out)
    assert told["begins"] == len(ours.slices) and told["tracks"] == len(ours.tracks), told
    assert told["flows"] == len({f for e in ours.events for f in e["flows"]}), told
    print(told)


def sqlite_whole(folder):
    """Every rank, communicator, call and verdict is a row, once, and the views join them."""
    trace, out = made(folder, "sick"), os.path.join(folder, "out")
    export("sqlite", out, trace)
    verdicts, standing = analyzed(trace)
    assert ask(out, "PRAGMA integrity_check") == [("ok",)]
    assert ask(out, "SELECT rank, host, pid, calls FROM ranks ORDER BY rank") == [
        (r, f"node{r // PER_NODE}", 4000 + r % PER_NODE, CALLS * 3 // 4 - (2 if r == RANKS - 1 else 0))
        for r in range(RANKS)]
    nodes = [("node", PER_NODE, f"{n * PER_NODE}-{(n + 1) * PER_NODE - 1}") for n in range(NODES)]
    comms = ask(out, "SELECT name, size, ranks FROM communicators ORDER BY key")
    assert comms == [("world", RANKS, f"0-{RANKS - 1}"), *nodes], comms
    calls = RANKS * CALLS - 3
    assert ask(out, "SELECT COUNT(*), COUNT(DISTINCT process || '.' || ticket) FROM calls") == [(calls, calls)]
    # Updates came later than the calls: complete, and the last one back; but for rank 0's.
    assert ask(out, "SELECT rank, ticket FROM inside") == [(0, CALLS - 1)]
    assert ask(out, "SELECT COUNT(*) FROM call_list WHERE state = 'complete' AND ticket < 8") == [(8 * RANKS,)]
    assert ask(out, "SELECT COUNT(*) FROM call_list WHERE state <> 'complete'") == [((CALLS - 8) * RANKS - 3,)]
    worlds = ask(out, "SELECT COUNT(*), MIN(arrived) FROM collectives WHERE communicator = 'world'")
    assert worlds == [(CALLS // 4, RANKS)], worlds
    assert ask(out, "SELECT COUNT(*) FROM collectives WHERE missing <> 0") == [(1,)]
    assert ask(out, "SELECT COUNT(*), SUM(receive IS NULL) FROM messages") == [(RANKS // 2 * CALLS // 4, 1)]
    assert ask(out, "SELECT DISTINCT received_bytes - sent_bytes, destination - source FROM messages "
               "WHERE receive IS NOT NULL") == [(0, 1)]
    assert ask(out, "SELECT DISTINCT place FROM call_list") == [("train.py:88 step",)]
    rows = ask(out, "SELECT json, stands, culprits, number FROM verdicts ORDER BY verdict")
    assert [json.loads(r[0]) for r in rows] == verdicts
    assert {r[3] for r in rows if r[1]} == standing and standing
    for (_, _, _, number), verdict in zip(rows, verdicts):
        got = ask(out, f"SELECT rank FROM verdict_ranks AS r JOIN verdicts AS v ON v.verdict = r.verdict "
                  f"WHERE v.number = {number} AND role = 'culprit' ORDER BY rank")
        assert [r for r, in got] == verdict["culprits"]
    about = dict(ask(out, "SELECT name, value FROM about"))
    assert about["cut"] == "no" and about["schema"] == "2", about  # a column that changes its name changes the number
    assert [name for _, name, *_ in ask(out, "PRAGMA table_info(ranks)")][-3:] == ["pending", "last_ns", "step"]
    # One file at a time says nothing of the others, and a file twice is there once.
    files = segments(trace)
    export("sqlite", out, files[0], files[0])
    assert ask(out, "SELECT COUNT(*) FROM calls") == [(PER_NODE * CALLS,)]
    with open(os.path.join(DOCS, "EXPORT.md"), encoding="utf-8") as f:
        page = f.read()
    for table, columns in ((n, [c[1] for c in ask(out, f"PRAGMA table_info({n})")])
                           for n, in ask(out, "SELECT name FROM sqlite_master WHERE type = 'table'")):
        line = next(x for x in page.splitlines() if x.startswith("|") and f"`{table}`" in x.split("|")[1])
        alike = table in ("redops", "phases", "states", "results")
        missing = [c for c in columns if f"`{c}`" not in line and not alike]
        assert not missing, (table, missing)
    for view, in ask(out, "SELECT name FROM sqlite_master WHERE type = 'view'"):
        assert f"| `{view}` |" in page, view


def results(folder):
    """The queries of the page and what they give."""
    trace, out = made(folder, "sick"), os.path.join(folder, "out")
    export("sqlite", out, trace)
    asked = queries()
    assert len(asked) == 10, len(asked)
    return out, asked, [ask(out, q) for q in asked]


def sqlite_queries(folder):
    """Each of the ten queries of docs/EXPORT.md finds what is wrong with a job."""
    out, asked, got = results(folder)
    assert all(r[0] == 0 for rows in got for r in rows), got
    got = [[r[1:] for r in rows] for rows in got]
    last = RANKS - 1
    assert all(got), [len(rows) for rows in got]
    assert any(r[1] == "count-mismatch" and r[2] == str(last) for r in got[0]), got[0]
    assert [r[0] for r in got[1]] == list(range(RANKS)) and got[1][last][4] == "AllReduce", got[1]
    assert got[2] == [("node", CALLS // 4 - 1, "AllGather", last)], got[2]
    assert [r[:4] for r in got[3]] == [("world", CALLS // 4 - 1, "AllReduce", "AllReduce")], got[3]
    assert {r[1] for r in got[4] if r[0] == "count-mismatch"} == set(range(RANKS)), got[4]
    assert sum(r[1] for r in got[5]) >= CALLS // 4 * (NODES + 1) - 1, got[5]
    assert {(r[0], r[1]) for r in got[6]} == {("world", "AllReduce"), ("node", "AllGather"), ("node", "Send"),
                                              ("node", "Recv")}, got[6]
    assert all(r[3] == CALLS // 4 for r in got[7] if r[0] not in (0, last)), got[7]
    assert [(r[1], r[2], r[5]) for r in got[8]] == [(PER_NODE - 2, PER_NODE - 1, None)], got[8]
    assert [r[0] for r in got[9]] == list(range((CALLS + 63) // 64)) and got[9][0][3] == 64 * RANKS, got[9]
    # Its restart in the same database changes nothing of what is said of this one.
    both = os.path.join(folder, "both")
    export("sqlite", both, os.path.join(folder, "trace"), made(folder, "sick", "hostile", "again", name="other"))
    number, = [run for run, restart in ask(both, "SELECT run, restart FROM runs") if restart == 0]
    for query, want in zip(asked, got):
        rows = ask(both, query)
        assert {r[0] for r in rows} == {0, 1}, (query, rows[:3])
        assert [r[1:] for r in rows if r[0] == number] == want, query


def sqlite_wheel(folder):
    """DuckDB, which attaches the file, gives the same rows for each of the ten queries."""
    python = interpreter("duckdb", "duckdb_extension_sqlite_scanner")
    out, asked, wanted = results(folder)
    run = subprocess.run([python, os.path.join(HERE, "read_with_duckdb.py"), out], input=json.dumps(asked),
                         capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    for query, got, want in zip(asked, json.loads(run.stdout), wanted):
        want = json.loads(json.dumps(want))
        same = len(got) == len(want) and all(
            a == b or (isinstance(a, float) and abs(a - b) < 1e-6 * max(1, abs(b)))
            for x, y in zip(got, want) for a, b in zip(x, y))
        assert same, (query, got[:3], want[:3])
    print(f"DuckDB: the same for {len(asked)} queries")


def texts_of(form, out):
    if form == "sqlite":
        with database(out) as db:
            for table, in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                for row in db.execute(f"SELECT * FROM {table}"):
                    yield from (v for v in row if isinstance(v, str))
        return
    t = perfetto_reader.Trace(out)
    for x in t.tracks.values():
        yield from (v for v in [x.get("name"), x.get("description"), x.get("process", {}).get("process_name")] if v)
    for e in t.events:
        yield from (v for v in [e["name"], *e["args"].values()] if isinstance(v, str))


def hostile(form, folder):
    """Names with quotes, SQL, sequences of a terminal and bytes that are no UTF-8 are names, and steer nothing."""
    trace, out = made(folder, "sick", "hostile"), os.path.join(folder, "it's; a \"name\" %s \x1b[1m")
    run = export(form, out, trace)
    assert run.stderr == "", run.stderr
    texts = set(texts_of(form, out))
    odd = [x for x in texts if not PLAIN.match(x)]
    assert odd == [], odd[:3]
    assert any("DROP TABLE calls" in x and "?" in x for x in texts)
    if form == "sqlite":
        assert ask(out, "SELECT COUNT(*) FROM calls") == [(RANKS * CALLS - 3,)]


def one_line(said, *words):
    """One line says this, and but for it nothing is said but whose calls are not there."""
    lines = [x for x in said.splitlines() if ": no record of ranks " not in x]
    assert len(lines) == 1 and lines[0].startswith("rollcall: ") and all(w in lines[0] for w in words), said


def damaged(form, folder):
    """A cut file, another version, something else, nothing: one clear line each, and the rest is written."""
    trace, out = made(folder), os.path.join(folder, "out")
    files = segments(trace)
    with open(files[1], "rb") as f:
        whole = f.read()
    with open(files[1], "wb") as f:
        f.write(whole[:len(whole) * 2 // 3])
    run = export(form, out, trace, code=4)
    one_line(run.stderr, "cut short", files[1])
    texts = list(texts_of(form, out))
    assert any(x.startswith("not all is here") for x in texts) if form == "perfetto" else dict(
        ask(out, "SELECT name, value FROM about"))["cut"] == "yes"
    for data, word in ((whole[:8] + b"\x63\x00\x63\x00" + whole[12:], "incompatible version"), (b"", "empty"),
                       (b"nothing of the kind\n" * 9, "not a file of rollcall's")):
        with open(files[1], "wb") as f:
            f.write(data)
        run = export(form, out, trace, code=3)
        one_line(run.stderr, word, files[1])
        assert f"{RANKS - PER_NODE} ranks" in run.stdout, run.stdout
        os.unlink(out)
        run = export(form, out, files[1], code=3)
        one_line(run.stderr, word, files[1])
        assert not os.path.exists(out) and run.stdout == "", run
    os.mkdir(os.path.join(folder, "empty"))
    for path, word in ((os.path.join(folder, "empty"), "no trace"), (os.path.join(folder, "gone"), "not found")):
        run = export(form, out, path, code=3)
        one_line(run.stderr, word)
        assert not os.path.exists(out)
    for place, word in ((folder, "Is a directory"),
                        (os.path.join(folder, "no", "such"), f"cannot be made: {folder}/no is not there"),
                        ("/dev/full/x", "cannot be made: /dev/full is not a directory")):
        one_line(export(form, place, files[0], code=3).stderr, word)
    export(form, os.path.join(folder, "x.rtrc"), files[0], code=2)
    # A file that may grow no larger, as on a full disk: nothing half stays.
    run = subprocess.run([ROLLCALL, "export", "--" + form, files[0], "-o", out], capture_output=True, text=True,
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384)))
    assert run.returncode == 3 and not os.path.exists(out) and not os.path.exists(out + ".part"), run
    one_line(run.stderr, out + ": ")
    # A library that cannot be loaded.
    name = {"perfetto": "libprotobuf-c.so.1", "sqlite": "libsqlite3.so.0"}[form]
    with open(os.path.join(folder, "empty", name), "wb"):
        pass
    env = {**os.environ, "LD_LIBRARY_PATH": os.path.join(folder, "empty")}
    run = subprocess.run([ROLLCALL, "export", "--" + form, files[0], "-o", out], capture_output=True, text=True,
                         env=env)
    assert run.returncode == 3 and not os.path.exists(out) and not os.path.exists(out + ".part"), run
    one_line(run.stderr, name)


def interrupted(form, folder):
    """A signal leaves what was there before, and no half file."""
    out, calls = os.path.join(folder, "out"), 10000
    with open(out, "w", encoding="utf-8") as f:
        f.write("from before")
    for number in (signal.SIGINT, signal.SIGTERM):
        while True:  # a machine may be so fast that it is done before it is interrupted
            trace = made(folder, name=f"t{calls}", calls=calls) if not os.path.exists(f"{folder}/t{calls}") else trace
            with subprocess.Popen([ROLLCALL, "export", "--" + form, trace, "--force", "-o", out],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
                while p.poll() is None and not (os.path.exists(out + ".part") and os.path.getsize(out + ".part") > 0):
                    time.sleep(0.001)
                p.send_signal(number)
                said = p.communicate()[1]
            if p.returncode != 0:
                break
            calls *= 4
            with open(out, "w", encoding="utf-8") as f:
                f.write("from before")
        assert p.returncode == -number, (p.returncode, said)
        assert said == "rollcall: interrupted: no file is written\n", said
        with open(out, encoding="utf-8") as f:
            assert f.read() == "from before"
        assert not os.path.exists(out + ".part")


def peak_kib(form, trace, out):
    """At least what this interpreter has: a process begins with its parent's peak."""
    p = subprocess.Popen([ROLLCALL, "export", "--" + form, "-j", "1", trace, "--force", "-o", out],
                         stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    assert p.returncode == 0
    return used.ru_maxrss


def memory(form, folder):
    """Sixteen times as many calls take no more memory, but for SQLite's own, which has a bound."""
    small, large = (peak_kib(form, made(folder, nodes=2, calls=n, name=str(n)), os.path.join(folder, "out"))
                    for n in (4000, 64000))
    print(f"{form}: {small} KiB for 32,000 calls, {large} KiB for 512,000")
    assert large - small < (8 if form == "perfetto" else 80) * 1024, (small, large)


def jobs(folder):
    """Real jobs on hostnccl: graphs, threads, refused calls, messages; in both forms analyze's verdicts."""
    program = os.environ.get("ROLL_CATALOGUE")
    if not program:
        print("SKIPPED: ROLL_CATALOGUE names no program: hostnccl is not built")
        sys.exit(SKIPPED)
    for name, twin in (("unmatched", "sick"), ("replay-less", "sick"), ("two-threads", "sick"), ("refused", "sick"),
                       ("skip-then-split", "sick"), ("p2p-graph", "healthy")):
        trace, out = os.path.join(folder, name), os.path.join(folder, name + ".out")
        subprocess.run([ROLLCALL, "run", "-n", "4", "--hostnccl", "--quiet", "--timeout", "3", "--grace", "1",
                        "--trace", trace, "--", program, name, twin], capture_output=True, timeout=300)
        verdicts, standing = analyzed(trace)
        assert bool(standing) == (twin == "sick"), (name, verdicts)
        export("sqlite", out, trace)
        assert [json.loads(j) for j, in ask(out, "SELECT json FROM verdicts ORDER BY verdict")] == verdicts
        counted = ask(out, "SELECT SUM(calls), COUNT(*) FROM ranks")[0]
        assert ask(out, "SELECT COUNT(*) FROM call_list WHERE class NOT IN ('wait', 'poll', 'moe', 'compute', "
                   "'stream order', 'group')")[0][0] <= counted[0] and counted[1] == 4, counted
        rows = ask(out, "SELECT COUNT(*) FROM calls JOIN ops USING (op) WHERE class <> 'moe'")[0][0]
        export("perfetto", out, trace)
        t = perfetto_reader.Trace(out)
        assert len(t.slices) == rows, (name, len(t.slices), rows)
        marks = [e["args"]["text"] for e in t.events if t.tracks[e["track"]].get("name") == "findings"]
        assert marks == [v["text"] for v in verdicts], (name, marks)
        for s in t.slices:  # slices of one track lie in each other or beside each other
            assert s["end"] is None or s["end"] >= s["time"], s
        flows = {}
        for s in t.slices:
            for flow in s["flows"]:
                flows.setdefault(flow, []).append(s)
        assert all(len({s["name"] for s in ends} - {"Send", "Recv"}) <= 1 for ends in flows.values()
                   if twin == "healthy"), name
        whole = [len(ends) for ends in flows.values() if ends[0]["name"] == "AllReduce"]
        assert max(whole, default=4) == 4, (name, whole)
        print(f"{name} {twin}: {rows} slices, {len(flows)} flows, {len(verdicts)} verdicts")
    one_of_several(folder)


def one_of_several(folder):
    """Of the traces of several jobs --job takes one: what it alone would give; --jobs is another option."""
    both = [os.path.join(folder, "unmatched"), os.path.join(folder, "two-threads")]
    alone, out = os.path.join(folder, "alone"), os.path.join(folder, "one")
    for path in both:
        export("sqlite", alone, path)
        (name,), = ask(alone, "SELECT DISTINCT job FROM runs")
        for form in ("sqlite", "perfetto"):
            run = subprocess.run([ROLLCALL, "export", "--" + form, "--job", name, "--force", "-o", out, *both],
                                 capture_output=True, text=True)
            assert run.returncode == 0 and " of 4 ranks" in run.stdout, run
            if form == "sqlite":
                calls = "SELECT COUNT(*) FROM calls"
                assert ask(out, calls) == ask(alone, calls) and ask(out, "SELECT DISTINCT job FROM runs") == [(name,)]
    os.unlink(out)
    run = subprocess.run([ROLLCALL, "export", "--sqlite", "--job", "4242", "--force", "-o", out, *both],
                         capture_output=True,
                         text=True)
    assert run.returncode == 3 and "4242" in run.stderr and not os.path.exists(out), run
    run = subprocess.run([ROLLCALL, "export", "--flight-recorder", "--job", "4242", "--force", "-o", out, *both],
                         capture_output=True, text=True)
    assert run.returncode == 2, run


def absent(folder):
    """A form that this build lacks is one line, and so is a command without one form; other inputs are left out."""
    trace = made(folder, calls=40)
    built = [form for form in os.environ["ROLL_EXPORT_FORMS"].split(",") if form]
    for form in ("perfetto", "sqlite"):
        if form not in built:
            run = export(form, os.path.join(folder, "out"), trace, code=3)
            one_line(run.stderr, "built without it")
    for wrong in ([], ["--perfetto", "--sqlite"], ["--perfetto"] if built else []):
        run = subprocess.run([ROLLCALL, "export", *wrong, *([trace] if len(wrong) != 1 else [])], capture_output=True,
                             text=True)
        assert run.returncode == 2 and len(run.stderr.splitlines()) <= 2, run
    if built:
        with open(os.path.join(trace, "node000", "dump.json"), "w", encoding="utf-8") as f:
            f.write('{"version": "2.10", "pg_config": {}, "entries": []}')
        run = export(built[0], os.path.join(folder, "out"), trace)
        assert "dump.json: left out" in run.stderr, run.stderr


def main(name):
    with tempfile.TemporaryDirectory() as folder:
        form, _, what = name.partition("_")
        if what in ("hostile", "damaged", "interrupted", "memory"):
            globals()[what](form, folder)
        else:
            globals()[name](folder)
    print("good")


main(sys.argv[3])
