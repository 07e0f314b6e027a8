#!/usr/bin/env python3
"""Holds the exposition, the rules, the dashboard and docs/METRICS.md together, with the real promtool as the judge."""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

METRIC = re.compile(r"\brollcall_[a-z0-9_]+\b")


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, **options)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def exported(arguments):
    """Name -> set of label names of every series in the exposition."""
    series = {}
    for line in run([arguments.exposition]).splitlines():
        match = re.match(r"(rollcall_\w+)(?:\{(.*)\})? \S+$", line)
        if match:
            labels = re.findall(r'(\w+)="', match.group(2) or "")
            series.setdefault(match.group(1), set()).update(labels)
    assert len(series) >= 15, series
    return series


def check_exposition(arguments):
    text = run([arguments.exposition])
    run([arguments.promtool, "check", "metrics"], input=text)
    assert "rollcall_verdicts_total{code=\"count-mismatch\",certainty=\"proven\"} 2\n" in text
    assert "rollcall_ranks{state=\"dead\"} 1\n" in text
    broken = text.replace("# TYPE rollcall_ranks gauge", "# TYPE rollcall_ranks gouge")
    result = subprocess.run([arguments.promtool, "check", "metrics"], input=broken, capture_output=True, text=True,
                            check=False)
    assert result.returncode != 0, "promtool accepts anything"


def check_openmetrics(arguments):
    lines = run([arguments.exposition, "--openmetrics"]).split("\n")
    assert lines[-2:] == ["# EOF", ""], lines[-3:]
    family = kind = None
    for line in lines[:-2]:
        head = re.match(r"# (HELP|TYPE) (\w+) (.+)$", line)
        if head and head.group(1) == "HELP":
            family = head.group(2)
        elif head:
            assert head.group(2) == family, line
            kind = head.group(3)
            assert not (kind == "counter" and family.endswith("_total")), line
        else:
            name = re.match(r"\w+", line).group(0)
            assert name == family + ("_total" if kind == "counter" else ""), line


def uses(expression, series, where):
    """Every metric and every label in an expression exists."""
    names = [name for name in METRIC.findall(expression) if f"{name}:" not in expression and not name.endswith("_")]
    assert names, f"{where}: no metric of ours in {expression!r}"
    for name in names:
        assert name in series, f"{where}: {name} is not exported"
    for name, selector in re.findall(r"(rollcall_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            assert label in series[name] | {"job", "instance"}, f"{where}: {name} has no label {label}"


def check_rules(arguments):
    folder = arguments.source / "dashboards" / "prometheus"
    run([arguments.promtool, "check", "rules", str(folder / "rollcall.rules.yml")])
    run([arguments.promtool, "test", "rules", "rollcall.rules.test.yml"], cwd=folder)
    series = exported(arguments)
    expressions = re.findall(r"^\s+expr: (.+)$", (folder / "rollcall.rules.yml").read_text(), re.M)
    assert len(expressions) == 8
    for expression in expressions:
        if "up{" not in expression:
            uses(expression, series, "rules")


def check_dashboards(arguments):
    series = exported(arguments)
    board = json.loads((arguments.source / "dashboards" / "grafana" / "rollcall.json").read_text())
    expressions = [(panel["title"], target["expr"]) for panel in board["panels"] for target in panel.get("targets", [])]
    expressions += [(a["name"], a["expr"]) for a in board["annotations"]["list"]]
    assert len(expressions) > 15
    shown = set()
    rules = []
    for number, (title, expression) in enumerate(expressions):
        uses(expression, series, title)
        shown.update(METRIC.findall(expression))
        plain = expression.replace("$__rate_interval", "5m").replace("$__range", "1h")
        plain = plain.replace("$job", ".*").replace("$instance", ".*")
        assert "$" not in plain, expression
        rules.append({"record": f"panel:{number}", "expr": plain})
    assert shown == set(series), f"not on the dashboard: {set(series) - shown}"
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        json.dump({"groups": [{"name": "panels", "rules": rules}]}, file)  # JSON is YAML
        file.flush()
        run([arguments.promtool, "check", "rules", file.name])
    panels = board["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(ids) == len(set(ids))
    cells = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        here = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])}
        assert not here & cells, f"{panel['title']} overlaps"
        cells |= here
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}", panel["title"]


def check_docs(arguments):
    text = (arguments.source / "docs" / "METRICS.md").read_text()
    rows = {}
    for name, kind, labels in re.findall(r"^\| `(rollcall_\w+)` \| (\w+) \| ([^|]*)\|", text, re.M):
        rows[name] = (kind, set(re.findall(r"`(\w+)`", labels)))
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", run([arguments.exposition]), re.M))
    series = exported(arguments)
    assert set(rows) == set(series), set(rows) ^ set(series)
    for name, (kind, labels) in rows.items():
        assert kind == types[name], name
        assert labels == series[name], name


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("check", choices=["exposition", "openmetrics", "rules", "dashboards", "docs"])
    parser.add_argument("--promtool", required=True)
    parser.add_argument("--exposition", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    globals()["check_" + arguments.check](arguments)


if __name__ == "__main__":
    main()
