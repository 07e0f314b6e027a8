#!/usr/bin/env python3
"""Pictures of the page, light and dark, as README.md and docs/WEB.md show them.

usage: check_pictures.py CHECK ROLLCALLD ROLLCALL SYNTH_RANK MANY_RANKS

Each view is looked at in both schemes: nothing of it may be wider than the window, and texts must stand out from what
is behind them (WCAG's 4.5). ROLL_WEB_PICTURES=docs/images renews those that the documents show.
"""
import base64
import os
import signal
import sys

from browser import Browser, Missing
from check_web import SKIP, Job, expect, give_up, lanes, letters, press, tell

WIDE, MOST_HIGH, MOST_BYTES = 1200, 1400, 150 << 10
SHOWN = {  # picture: the view, and its scheme
    "overview.png": ("overview", "light"), "finding.png": ("finding", "light"), "timeline.png": ("timeline", "dark"),
    "stacks.png": ("stacks", "light"), "nodes.png": ("nodes", "light"), "large.png": ("large", "dark"),
}
TRAIN = """import torch
import torch.distributed as dist


def train(model, group):
    for bucket in model.buckets:
        # A bucket of the last rank lacks what its empty experts never made.
        dist.all_reduce(bucket.flat, group=group)
        bucket.scatter()


def main():
    for step, batch in enumerate(loader):
        loss = model(batch)
        loss.backward()
        train(model, dp_group)
"""

# What of the page is wider than the window, and which texts do not stand out from what is behind them.
FLAWS = """
const number = (text) => (text.match(/[\\d.]+/g) ?? [0, 0, 0, 0]).map(Number), flaws = [];
const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
        const of = number(getComputedStyle(at).backgroundColor);
        if (of.length < 4 || of[3] > 0) {
            return of;
        }
    }
    return [255, 255, 255];
};
if (document.documentElement.scrollWidth > innerWidth) {
    flaws.push(`the page is ${document.documentElement.scrollWidth} wide`);
}
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, box = node.getBoundingClientRect();
    const text = walker.currentNode.textContent.trim().slice(0, 40), look = getComputedStyle(node);
    if (text && box.width > 0 && node.checkVisibility() && !node.closest("svg, option")) {
        const [a, b] = [light(number(look.color)), light(behind(node))].sort((x, y) => y - x);
        if ((a + 0.05) / (b + 0.05) < 4.5) {
            flaws.push(`"${text}" has a contrast of ${((a + 0.05) / (b + 0.05)).toFixed(1)}`);
        }
        if (node.scrollWidth > node.clientWidth + 1 && look.display !== "inline" && !node.closest(".sides, pre")) {
            flaws.push(`"${text}" is wider than its place`);
        }
        const cell = node.closest(".figures li, .legend li")?.getBoundingClientRect();
        if (cell && box.right > cell.right + 1) {
            flaws.push(`"${text}" reaches into the next one`);
        }
        if (box.right > innerWidth + 1) {
            flaws.push(`"${text}" ends beyond the window`);
        }
    }
}
for (const field of document.querySelectorAll("input[placeholder]")) {
    const ink = document.createElement("canvas").getContext("2d"), look = getComputedStyle(field);
    ink.font = look.font;
    const room = field.clientWidth - parseFloat(look.paddingLeft) - parseFloat(look.paddingRight);
    if (ink.measureText(field.placeholder).width > room) {
        flaws.push(`"${field.placeholder}" does not fit into its ${room} pixels`);
    }
}
return flaws;
"""


def devtools(b, command, **parameters):
    return b.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})


def look(b, view):
    """Both schemes of what is shown now."""
    for scheme in ("light", "dark"):
        devtools(b, "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        devtools(b, "Emulation.setDeviceMetricsOverride", width=WIDE, height=700, deviceScaleFactor=1, mobile=False)
        b.wait_for("the scheme", lambda: b.run(f"return matchMedia('(prefers-color-scheme: {scheme})').matches"))
        high = b.run("const main = document.querySelector('main'), last = main.lastElementChild; "
                     "return Math.ceil(last.getBoundingClientRect().bottom + scrollY) + 16")
        devtools(b, "Emulation.setDeviceMetricsOverride", width=WIDE, height=min(high, MOST_HIGH), deviceScaleFactor=1,
                 mobile=False)
        b.run("document.activeElement.blur(); scrollTo(0, 0)")
        b.call("POST", "/execute/async", {"script": "const done = arguments[0]; requestAnimationFrame(() => "
                                          "requestAnimationFrame(() => done(0)));", "args": []})
        flaws = b.run(FLAWS)
        expect(not flaws, f"{view}, {scheme}: {flaws}")
        taken = base64.b64decode(devtools(b, "Page.captureScreenshot", format="png")["data"])
        for name, what in SHOWN.items():
            if what == (view, scheme):
                expect(len(taken) < MOST_BYTES, f"{name} takes {len(taken)} bytes")
                keep(name, taken)
        if os.environ.get("ROLL_WEB_SCREENSHOTS"):
            with open(f"{os.environ['ROLL_WEB_SCREENSHOTS']}/{view}-{scheme}.png", "wb") as f:
                f.write(taken)


def keep(name, taken):
    if os.environ.get("ROLL_WEB_PICTURES"):
        with open(os.path.join(os.environ["ROLL_WEB_PICTURES"], name), "wb") as f:
            f.write(taken)


def hung(b):
    """A job of eight ranks that hangs, from all sides."""
    with Job() as job:
        with open(f"{job.tmp}/train.py", "w") as f:
            f.write(TRAIN)
        job.serve("--standalone", "--suspect-ms", "500")
        job.ranks(8, *["hang"] * 7, "wrong", name="gpt-moe", label="dp", site=(f"{job.tmp}/train.py", 8))
        b.open(job.url("operator") + "#/overview/gpt-moe/0")
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.wait_for("who waits", lambda: b.run("return document.querySelector('svg.waits') !== null") and
                   letters(b).get("waiting") == 7)
        look(b, "overview")
        b.click(".findings a")
        b.wait_for("its lines", lambda: b.run("return document.querySelectorAll('.source .line').length") > 0)
        look(b, "finding")
        b.click("#timeline")
        b.wait_for("its calls", lambda: " calls of 5 ranks" in b.text() and lanes(b)["bars"] > 0)
        press(b, "canvas.lanes", "Enter")
        look(b, "timeline")
        b.run("location.hash = '#/stacks/gpt-moe/0'")
        b.wait_for("the button", lambda: b.run("return document.querySelector('#take').disabled") is False)
        look(b, "stacks-none")
        b.click("#take")
        b.wait_for("the stacks", lambda: "of 8 ranks were looked at" in b.text())
        look(b, "stacks")
        for page, said in (("comms", "1 communicator;"), ("remedies", "zero-wgrad"), ("rank", "Rank 7"),
                           ("search", "called in")):
            rest = {"rank": "/7", "search": "/train.py"}.get(page, "")
            b.run("location.hash = arguments[0]", f"#/{page}/gpt-moe/0{rest}")
            b.wait_for(page, lambda: said in b.text("main"))
            look(b, page)


def many(b):
    """Nodes by the dozen, and ranks by the thousand; and a page that has nothing to show."""
    with Job() as job:
        job.serve("--root", "--digest")
        b.open(job.url() + "#/overview/pretrain/0")
        b.wait_for("that there is none", lambda: "No rank of pretrain has been seen yet" in b.text())
        look(b, "absent")
        many = job.many("pretrain", 4096, 8, "node")
        b.wait_for("all ranks", lambda: letters(b) == {"running": 4096})
        for line in ("stopped 1112 1119", "dead 2050 2050", "dead 3003 3003"):
            tell(many, line)
        b.wait_for("who is not well", lambda: letters(b) == {"running": 4086, "stopped": 8, "dead": 2})
        look(b, "large")
        job.many("nodes", 96, 8, "gpu-a")
        b.run("location.hash = '#/nodes/nodes/0'")
        b.wait_for("its nodes", lambda: "12 nodes;" in b.text())
        look(b, "nodes")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, give_up)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(500)
    try:
        for part in (hung, many):
            with Browser() as browser:
                part(browser)
    except Missing as why:
        print(f"SKIPPED: integration.web.pictures: {why}; the page was looked at by nobody")
        sys.exit(SKIP)
    print("pictures: ok")
