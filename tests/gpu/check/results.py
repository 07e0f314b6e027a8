"""results.py: one results file as JSON, written after every row, and the same as a readable table.

A part that is run again replaces its own rows and leaves the others, so that a check cut off by a time limit goes on
where it stopped.
"""
import datetime
import json
import os
import re

SCHEMA = "rollcall.gpu-check/1"


def file_name(gpu_name, date):
    return f"{date}-{re.sub(r'[^a-z0-9]+', '-', gpu_name.lower()).strip('-')}"


class Results:
    def __init__(self, folder, gpu_name, machine, revision, date=None):
        date = date or datetime.date.today().isoformat()
        os.makedirs(folder, exist_ok=True)
        self.base = os.path.join(folder, file_name(gpu_name, date))
        self.data = {"schema": SCHEMA, "date": date, "revision": revision, "machine": machine, "parts": {}}
        old = self._read()
        if old and old["revision"] == revision:
            self.data["parts"] = old["parts"]

    def _read(self):
        try:
            with open(self.base + ".json") as f:
                old = json.load(f)
        except (OSError, ValueError):
            return None
        return old if old.get("schema") == SCHEMA else None

    def finished(self, part):
        return self.data["parts"].get(part, {}).get("status") in ("done", "failed")

    def begin(self, part, columns):
        """Starts a part, or goes on with one that was cut off; returns the keys of the rows it has."""
        entry = self.data["parts"].get(part)
        if not entry or entry["status"] not in ("running", "broken"):
            entry = {"seconds": 0, "rows": []}
        entry = self.data["parts"][part] = {"status": "running", "columns": columns, "rows": entry["rows"], "notes": [],
                                            "seconds": entry["seconds"]}
        return {row[columns[0]] for row in entry["rows"]}

    def row(self, part, row):
        self.data["parts"][part]["rows"].append(row)
        self.write()

    def note(self, part, text):
        self.data["parts"][part]["notes"].append(text)
        self.write()

    def broken(self, part, text):
        """The part itself failed: what it has so far stays."""
        self.data["parts"].setdefault(part, {"status": "broken", "columns": ["error"], "rows": [], "notes": [],
                                             "seconds": 0})
        self.note(part, text)

    def end(self, part, status, seconds):
        """Status: done (every row as expected), failed (some not), broken (the part itself failed), running (cut
        off)."""
        self.data["parts"][part]["status"] = status
        self.data["parts"][part]["seconds"] = round(self.data["parts"][part]["seconds"] + seconds, 1)
        self.write()

    def write(self):
        for suffix, text in ((".json", json.dumps(self.data, indent=1) + "\n"), (".md", self.table())):
            with open(self.base + suffix + ".new", "w") as f:
                f.write(text)
            os.replace(self.base + suffix + ".new", self.base + suffix)

    def table(self):
        m = self.data["machine"]
        gpu = m["gpu"]["name"] if m.get("gpu") else "no GPU: hostnccl and hostcuda"
        lines = [f"# gpu-check, {self.data['date']}: {gpu}", "", f"Revision {self.data['revision'] or 'unknown'}.", "",
                 "| | |", "|---|---|"]
        lines += [f"| {k} | {cell(v)} |" for k, v in m.items() if k != "gpu"]
        if m.get("gpu"):
            lines += [f"| {k} | {cell(v)} |" for k, v in m["gpu"].items()]
        for name, part in self.data["parts"].items():
            lines += ["", f"## {name}: {part['status']} ({part['seconds']} s)", ""]
            lines += [f"- {note}" for note in part["notes"]] + ([""] if part["notes"] else [])
            if part["rows"]:
                lines += ["| " + " | ".join(part["columns"]) + " |", "|" + "---|" * len(part["columns"])]
                lines += ["| " + " | ".join(cell(row.get(c)) for c in part["columns"]) + " |" for row in part["rows"]]
        return "\n".join(lines) + "\n"


def cell(value):
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")
