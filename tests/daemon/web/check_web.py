#!/usr/bin/env python3
"""The page of rollcalld in a real browser, in front of a real root.

usage: check_web.py CHECK ROLLCALLD ROLLCALL SYNTH_RANK MANY_RANKS

What it costs is counted in cells and updates, which no machine changes; times are printed and never judged.
"""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from browser import Browser, Missing
from streams import Streams

check, rollcalld, rollcall, synth_rank, many_ranks = sys.argv[1:6]
SKIP = 77


def expect(holds, what):
    if not holds:
        raise AssertionError(what)


class Job:
    """A root with a page, and ranks of one kind or the other; all of it goes with the object."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.tmp = self.folder.name
        os.chmod(self.tmp, 0o700)
        self.endpoint = f"ipc://{self.tmp}/page.sock"
        self.env = {**os.environ, "ROLLCALL_COOKIE": f"{self.tmp}/cookie"}
        self.processes, self.port = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()
            for pipe in (p.stdin, p.stdout, p.stderr):
                if pipe:
                    pipe.close()
        self.folder.cleanup()

    def spawn(self, *command, **options):
        self.processes.append(subprocess.Popen(command, env=self.env, **options))
        return self.processes[-1]

    def serve(self, mode, *arguments):
        """A root that is ready, with its page where it was before, if there was one."""
        ready, write = os.pipe()
        p = self.spawn(rollcalld, mode, "--no-supervise", "--dir", self.tmp, "--listen", self.endpoint, "--http",
                       f"127.0.0.1:{self.port}", "--ready-fd", str(write), *arguments, pass_fds=[write],
                       stdout=subprocess.DEVNULL, stderr=open(f"{self.tmp}/root.err", "a"))
        os.close(write)
        expect(os.read(ready, 1), f"the root was never ready: {open(f'{self.tmp}/root.err').read()}")
        os.close(ready)
        self.port, self.word = self.page()
        self.operator = self.page("--operator")[1]
        return p

    def page(self, *options):
        """The port and the password, as the console tells them."""
        said = subprocess.run([rollcall, "page", "--daemon", self.endpoint, *options], env=self.env,
                              capture_output=True, text=True, check=True).stdout
        return (int(re.search(r"^page +http://127\.0\.0\.1:(\d+)/$", said, re.M)[1]),
                re.search(r"^password +([0-9a-f]{32})$", said, re.M)[1])

    def url(self, user="viewer"):
        return f"http://{user}:{self.word if user == 'viewer' else self.operator}@127.0.0.1:{self.port}/"

    def ranks(self, n, *ends, name="job", label="", site=()):
        """Ranks of a job, of which each ends as told; label: what the job calls its communicator; site: the
        file and the line that call."""
        return [self.spawn(synth_rank, self.tmp, name, str(r), str(n), "200", "40", "1024", ends[r % len(ends)], label,
                           *map(str, site)) for r in range(n)]

    def many(self, job, n, per_host, host):
        p = self.spawn(many_ranks, self.endpoint, job, str(n), str(per_host), host, stdin=subprocess.PIPE,
                       stdout=subprocess.PIPE, text=True)
        expect(p.stdout.readline() == "ok\n", "the ranks were never announced")
        return p


def tell(many, line):
    many.stdin.write(line + "\n")
    many.stdin.flush()
    expect(many.stdout.readline() == "ok\n", f"not done: {line}")


def letters(b):
    """How many ranks the legend says are in which state."""
    return b.run("return Object.fromEntries([...document.querySelectorAll('.legend b')].map("
                 "(b) => [b.parentElement.children[1].textContent, Number(b.textContent.replaceAll(',', ''))])"
                 ".filter(([, n]) => n > 0))")


def agree(job, b):
    """`rollcall top` says of as many ranks as the field that they are in each state."""
    def told():
        asked = subprocess.run([rollcall, "top", "--json", "--daemon", job.endpoint, "--job", "job"], env=job.env,
                               capture_output=True, text=True, check=True)
        stands = [rank["stands"] for rank in json.loads(asked.stdout)["ranks"]]
        return {name: stands.count(name) for name in stands}
    b.wait_for("what top says", lambda: told() == letters(b))


def key(b, name):
    b.run("document.activeElement.blur(); "
          "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))", name)


def search(b, text):
    b.run("const form = document.querySelector('#search'); form.elements.text.value = arguments[0]; "
          "form.requestSubmit()", text)


def figures(b):
    return b.run("return structuredClone(globalThis.rollcall.figures)")


def lanes(b):
    return figures(b)["lanes"]


def press(b, selector, name):
    b.run("document.querySelector(arguments[0]).dispatchEvent(new KeyboardEvent('keydown', {key: arguments[1], "
          "bubbles: true}))", selector, name)


def in_page(b, body):
    """What the body of an asynchronous function returns in the page, which may import the page's modules."""
    said = b.call("POST", "/execute/async", {"script": "const done = arguments[0]; (async () => {" + body + "})()"
                                             ".then(done, (error) => done(String(error)));", "args": []})
    return said


def no_complaint(b, but=None):
    said = [line for line in b.complaints() if "401" not in line and not (but and re.search(but, line))]
    expect(not said, f"the page complains: {said}")


def look(b, name):
    """A picture, where somebody wants it."""
    if os.environ.get("ROLL_WEB_SCREENSHOTS"):
        b.screenshot(f"{os.environ['ROLL_WEB_SCREENSHOTS']}/{name}.png")


def looks(b):
    """A healthy job of two ranks: all of them stand in the field, and nothing is found."""
    with Job() as job:
        job.serve("--standalone")
        b.open(job.url())
        b.wait_for("a page without a job", lambda: "No rank has been seen yet" in b.text())
        job.ranks(2, "wait")
        b.wait_for("both ranks", lambda: letters(b) == {"running": 2})
        agree(job, b)
        b.wait_for("their calls", lambda: re.search(r"\b80\s+calls\b", b.text()))
        expect("Nothing was found." in b.text() and "No finding says that anybody waits." in b.text(), b.text())
        expect(b.text("#heard").startswith("heard at "), b.text("#heard"))
        look(b, "healthy")
        b.run("location.hash = '#/remedies'")
        b.wait_for("the remedies", lambda: "rollcall remedy on" in b.text() and "policy:" in b.text())
        enabled = "return document.querySelectorAll('main button:not(:disabled)').length"
        expect(b.run(enabled) == 0, "a viewer has switches")
        no_complaint(b)


def hang(b):
    """One rank makes a wrong call: the finding comes by itself, and its page says all of it."""
    with Job() as job:
        job.serve("--standalone", "--suspect-ms", "500")
        b.open(job.url())
        job.ranks(4, "hang", "hang", "hang", "wrong")
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.wait_for("who waits", lambda: b.run("return document.querySelector('svg.waits') !== null"))
        agree(job, b)
        expect(b.run("return document.querySelector('svg.waits .who').textContent").find("rank 3") >= 0, "who is named")
        look(b, "hang")
        # Ranks that wait for two have a line to each; sets that are not told whole are not taken apart.
        said = in_page(b, """const {waiting} = await import("/js/waits.js");
            const of = (...texts) => waiting(texts.map((waiting_text, i) => ({waiting_text, waiting: i + 1})));
            return [of("0-2", "1-2,4"), of("0-2", "0-2"), of("0-2,\u2026", "1")];""")
        one = {"count": 1, "text": "0", "edges": [0]}
        expect(said == [[one, {"count": 2, "text": "1-2", "edges": [0, 1]}, {"count": 1, "text": "4", "edges": [1]}],
                        [{"count": 3, "text": "0-2", "edges": [0, 1]}],
                        [{"count": 1, "text": "0-2,\u2026", "edges": [0]},
                         {"count": 2, "text": "1", "edges": [1]}]], said)
        b.click(".findings a")
        b.wait_for("its page", lambda: "side 2" in b.text())
        expect(re.search(r"#/finding/job/0/\d+$", b.run("return location.href")), b.run("return location.href"))
        differs = b.run("return [...document.querySelectorAll('.sides tr.differs')].map((row) => row.innerText)")
        expect(any("1024" in row and "999" in row for row in differs), f"the argument that differs: {differs}")
        expect("who waits" in b.text() and "Evidence" in b.text(), b.text())
        look(b, "finding")
        b.click("#copy")
        made = b.wait_for("the Markdown", lambda: b.run(
            "const area = document.querySelector('textarea'); "
            "return area ? area.value : document.querySelector('[role=status].faint')?.textContent"))
        expect(made == "copied" or made.startswith("## count-mismatch"), made)
        link = b.run("return document.querySelector('#permanent').href")
        b.open("about:blank")
        b.open(link)  # the link alone is enough for who has signed in
        b.wait_for("the page again", lambda: "side 2" in b.text())
        b.open(re.sub(r"\d+$", "77", link))
        b.wait_for("the lack of it", lambda: "There is no verdict 77" in b.text())
        b.open(link.replace("/finding/", "/rank/").rsplit("/", 1)[0] + "/3")
        b.wait_for("the rank", lambda: "Rank 3" in b.text("h1") and "count-mismatch" in b.text(".findings"))
        no_complaint(b)


def nodes(b):
    """Who is busy while others wait, who is stopped, and what is known of the nodes; hosts may be called anything."""
    tag = "<img src=x onerror=owned=1>"
    with Job() as job:
        job.serve("--standalone", "--suspect-ms", "600000")
        b.open(job.url())
        ranks = job.ranks(4, "hang", "hang", "hang", "wait")
        b.wait_for("who is busy", lambda: letters(b) == {"waiting": 3, "busy": 1})
        agree(job, b)
        expect("Nothing was found." in b.text(), "long before anybody is suspected")
        ranks[0].send_signal(signal.SIGSTOP)
        b.wait_for("who is stopped", lambda: letters(b) == {"waiting": 2, "busy": 1, "stopped": 1})
        agree(job, b)
        key(b, "n")
        b.wait_for("the node", lambda: re.search(r"4 \(0-3\)\s.*2 waiting.*1 busy.*pid \d+\s.*ago", b.text("table")))
        expect("Nothing was lost." in b.text(), b.text())
        look(b, "nodes")
        ranks[0].send_signal(signal.SIGCONT)
        b.run("location.hash = '#/nodes/other/0'")  # before there is one
        b.wait_for("that there is none", lambda: "No rank of other has been seen yet" in b.text("#absent h1") and
                   b.text("#absent li") == "job")
        look(b, "absent")
        job.many("other", 32, 8, tag)
        b.wait_for("its nodes", lambda: f"{tag}3" in b.text("table") and "4 nodes;" in b.text() and
                   re.search(r"8 \(24-31\)\s+8 running\s", b.text("table")))
        expect(b.run("return typeof globalThis.owned") == "undefined" and
               b.run("return document.querySelectorAll('main img').length") == 0, "a name became an element")
        no_complaint(b)


def source(b):
    """The lines around the one that called, as they stand in its file; nothing of what is no Python, or was changed."""
    tag = "<img src=x onerror=owned=1>"
    with Job() as job:
        with open(f"{job.tmp}/train.py", "w") as f:
            f.write("import torch\n\ndef train():\n    for x in data:\n" + f"        all_reduce(x)  # {tag}\n" +
                    "        step(x)\n\ntrain()\nno line of the finding\n")
        with open(f"{job.tmp}/secret", "w") as f:
            f.write("one\ntwo\nthree\nfour\nsecret word\n")
        job.serve("--standalone", "--suspect-ms", "500")
        b.open(job.url())
        ranks = job.ranks(4, "hang", "hang", "hang", "wrong", site=(f"{job.tmp}/train.py", 5))
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.click(".findings a")
        b.wait_for("its lines", lambda: b.run("return document.querySelectorAll('.source .line').length") > 0)
        lines = b.run("return [...document.querySelectorAll('.source')].map((pre) => pre.textContent)")
        expect(lines == ["    2  \n    3  def train():\n    4      for x in data:\n"
                         f"    5          all_reduce(x)  # {tag}\n    6          step(x)\n    7  \n    8  train()\n"],
               f"the lines: {lines}")
        expect(tag in b.text(".source .here"), "the line that called")
        b.run("Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => { globalThis.taken = text; "
              "return Promise.resolve(); }}})")
        b.click("#copy")
        made = b.wait_for("the Markdown", lambda: b.run("return globalThis.taken"))
        expect(f">    5          all_reduce(x)  # {tag}\n" in made and "\n     4      for x in data:\n" in made, made)
        look(b, "finding")
        number = b.run("return location.hash").rsplit("/", 1)[1]
        site = f"http://127.0.0.1:{job.port}/api/ask/source?job=job&number={number}"
        body = b.wait_for("that the root has kept them", lambda: (lambda said: '"answers"' in said and said)(
            ask(f"{site}&file={job.tmp}/secret&line=5", "viewer", job.word)[1]))  # a question names no file
        expect("secret" not in body and "def train" in body, body)
        expect(b.run("return typeof globalThis.owned") == "undefined" and
               b.run("return document.querySelectorAll('main img').length") == 0, "a name became an element")
        search(b, "TRAIN.py")  # who called is found as well, by the function or the file, in findings and in calls
        b.wait_for("who called", lambda: "called in train train.py:5" in b.text() and "Ranks inside calls" in b.text())
        for p in ranks:  # in the morning the job is over, and its files are others
            p.kill()
            p.wait()
        os.unlink(f"{job.tmp}/train.py")
        b.run("location.hash = '#/overview/job/0'")
        b.wait_for("that they are dead", lambda: letters(b) == {"dead": 4})
        b.open("about:blank")
        b.open(job.url() + f"#/finding/job/0/{number}")
        b.wait_for("its lines", lambda: b.run("return document.querySelectorAll('.source .line').length") > 0)
        expect(b.run("return [...document.querySelectorAll('.source')].map((pre) => pre.textContent)") == lines,
               "the lines as they were")
        no_complaint(b)
    # A ring may name any file as the place of its calls; and the files of a job change while it runs.
    with Job() as job:
        with open(f"{job.tmp}/secret", "w") as f:
            f.write("one\ntwo\nthree\nfour\nsecret word\nsix\n")
        job.serve("--standalone", "--suspect-ms", "500")
        b.open(job.url())
        job.ranks(4, "hang", "hang", "hang", "wrong", site=(f"{job.tmp}/secret", 4))
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.click(".findings a")
        b.wait_for("the lack of lines", lambda: "cannot be read" in b.text("#source"))
        expect("secret word" not in b.text(), "what is no Python was read")


def pages(b):
    """The other pages, and what the operator switches on one of them; all of it by keys and addresses."""
    with Job() as job:
        job.serve("--standalone", "--suspect-ms", "500")
        job.ranks(4, "hang", "hang", "hang", "wrong", label="ring")
        job.many("other", 32, 8, "node")
        b.open(job.url("operator") + "#/comms/job/0")
        b.wait_for("the communicator", lambda: "ring" in b.text("table") and "1 communicator;" in b.text())
        expect("behind" in b.text("table") and "made at" not in b.text("table"), "a column in which nothing stands")
        look(b, "communicators")
        key(b, "n")
        b.wait_for("the node", lambda: re.search(r"4 \(0.3\)\s+\d \w+", b.text("table")))
        key(b, "/")
        expect(b.run("return document.activeElement.name") == "text", "the search box")
        search(b, "count-mis")
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        expect(b.run("return location.hash") == "#/search/job/0/count-mis", b.run("return location.hash"))
        search(b, "ring")
        b.wait_for("the communicator", lambda: re.search(r"Communicators\s+name.*\s+ring\s+world\s+4", b.text("main")))
        search(b, "no such thing")
        b.wait_for("that there is none", lambda: "Nothing here has that in its name" in b.text("main"))
        search(b, "3")
        b.wait_for("the rank", lambda: b.run("return location.hash") == "#/rank/job/0/3" and "Rank 3" in b.text("h1"))
        b.run("location.hash = '#/search/other/0/node1'")
        b.wait_for("the node's ranks", lambda: "Nodes" in b.text() and re.search(r"node1\s+8 9 10", b.text("table")))
        b.run("location.hash = '#/overview/job/0'")
        key(b, "r")
        b.wait_for("the switch", lambda: b.run("return document.querySelector('#on-fill') !== null"))
        b.click("#on-fill")
        b.wait_for("that it is on", lambda: re.search(r"^fill\b.*\bthe job", b.text("main table"), re.M))
        b.click("#policy-auto")
        b.wait_for("the policy", lambda: b.run(
            "return document.querySelector('#policy-auto').getAttribute('aria-pressed')") == "true")
        look(b, "remedies")
        key(b, "s")
        b.wait_for("the button", lambda: b.run("return document.querySelector('#take')?.disabled") is False)
        b.click("#take")
        b.wait_for("the stacks", lambda: re.search(r"of 4 ranks were looked at", b.text()))
        if "0 of 4" not in b.text():  # where the kernel lets nobody look, that is what the page says
            expect("idle" in b.text(".icicle") and "stuck" in b.text(".icicle"), b.text())
        look(b, "stacks")
        b.click("#take")
        b.wait_for("the second time", lambda: "Take them again" not in b.text("#since") and
                   b.run("return document.querySelector('#take').disabled") is False)
        if "0 of 4" not in b.text():
            since = b.text("#since")
            expect(re.search(r"^ranks 0.3 stand where they stood since the stacks of \d", since), since)
        # A rank that has moved, and one of which a taking saw nothing: by stacks that nobody could take at will.
        said = in_page(b, """const of = (rank, fn) => ({rank, stack: fn === null ? {error: "gone"} : {pid: 1,
                frames: [{fn: "main"}, {fn}], stacks: [[0, 1]], threads: [{tid: 1, samples: [0, null]}]}});
            const {compare} = await import("/js/stacks.js");
            return compare([of(0, "wait"), of(1, "wait"), of(2, null)],
                [of(1, "copy"), of(0, "wait"), of(2, "wait"), of(3, "wait")]);""")
        expect(said == {"stuck": [0], "moved": [1]}, said)
        asked = subprocess.run([rollcall, "remedy", "list", "--daemon", job.endpoint, "--job", "job"], env=job.env,
                               capture_output=True, text=True, check=True).stdout
        expect(re.search(r"^fill +on ", asked, re.M), f"the daemon knows of no switch: {asked}")
        no_complaint(b)


def timeline(b):
    """The calls of chosen ranks around a finding: what is drawn, zoomed and moved, and said of one call."""
    tag = "<img src=x onerror=owned=1>"
    with Job() as job:
        job.serve("--standalone", "--suspect-ms", "500")
        job.ranks(4, "hang", "hang", "hang", "wrong", label=tag)
        b.open(job.url())
        b.wait_for("the finding", lambda: "count-mismatch" in b.text(".findings"))
        b.click(".findings a")
        b.wait_for("its page", lambda: b.run("return document.querySelector('#timeline') !== null"))
        b.click("#timeline")
        b.wait_for("its calls", lambda: "164 calls of 4 ranks" in b.text() and lanes(b)["bars"] > 0)
        expect(re.search(r"#/timeline/job/0/\d+$", b.run("return location.href")), b.run("return location.href"))
        expect(b.run("return document.querySelector('input[name=ranks]').value") == "0-3", "the ranks of the finding")
        expect(tag in b.text(".legend"), "the communicator's name")
        look(b, "timeline")
        first = lanes(b)
        press(b, "canvas.lanes", "+")
        closer = lanes(b)
        expect(closer["draws"] == first["draws"] + 1 and 0 < closer["bars"] < first["bars"], f"{first}, then {closer}")
        press(b, "canvas.lanes", "0")
        whole = lanes(b)  # calls that are thinner than a pixel share their bars
        expect(closer["seen_ms"] < first["seen_ms"] and closer["seen_ms"] < whole["seen_ms"],
               f"{first}, {closer}, then all of them: {whole}")
        for key_name in ("ArrowDown", "ArrowDown", "ArrowDown"):
            press(b, "canvas.lanes", key_name)
        for _ in range(41):
            press(b, "canvas.lanes", "Enter")
        said = b.text("#call")
        expect("rank 3: AllReduce on" in said and tag in said and "999 float32 sum" in said and
               "entered, and not returned" in said, said)
        b.run("const form = document.querySelector('form.row');"
              "form.elements.ranks.value = '1,3'; form.requestSubmit()")
        b.wait_for("two lanes", lambda: "82 calls of 2 ranks" in b.text())
        at = b.run("return location.href")
        expect(re.search(r"#/timeline/job/0/\d+/1%2C3/256$", at), at)
        # What is seen stands in the address, and is seen again by who opens it.
        press(b, "canvas.lanes", "+")
        press(b, "canvas.lanes", "ArrowLeft")
        seen = lanes(b)["seen_ms"]
        at = b.wait_for("the window in the address", lambda: (lambda href: re.search(
            r"#/timeline/job/0/\d+/1%2C3/256/-\d+/-?\d+$", href) and href)(b.run("return location.href")))
        b.open("about:blank")
        b.open(at)
        b.wait_for("two lanes", lambda: "82 calls of 2 ranks" in b.text())
        expect(abs(lanes(b)["seen_ms"] - seen) < 0.01, f"{seen} ms were seen, and now {lanes(b)['seen_ms']}")
        press(b, "canvas.lanes", "0")
        expect(lanes(b)["moment"], "the moment of the finding is not to be seen")
        said = in_page(b, """const {firstWindow} = await import("/js/lanes.js");
            const calls = [{from: 1e6, to: 2e6}, {from: 3e6, to: 4e6}];
            return [5e6, 0, 1e12].map((at) => [at, ...firstWindow([{calls}], at)])
                .map(([at, from, to]) => from < at && at < to);""")
        expect(said == [True, True, False], f"a moment behind all calls, one before them, one far off: {said}")
        b.run("location.hash = '#/timeline/job/0/0/0-40'")
        b.wait_for("the bound", lambda: "at most 32" in b.text())
        b.run("location.hash = '#/timeline/job/0/0/77'")
        b.wait_for("the lack of it", lambda: "no such rank" in b.text())
        expect(b.run("return typeof globalThis.owned") == "undefined" and
               b.run("return document.querySelectorAll('main img').length") == 0, "a name became an element")
        no_complaint(b, but="400")


def answered(b, said):
    """A look whether this is said of the ranks that were asked. Whose answer was late, on a busy machine, says so: all
    are asked once more."""
    asked = time.monotonic()

    def look():
        nonlocal asked
        if said in b.text():
            return True
        if time.monotonic() - asked > 15:
            asked = time.monotonic()
            b.run("document.querySelector('#show').click()")
        return False
    return look


def large(b):
    """16,384 ranks on 2,048 nodes: what has changed is painted, and nothing else."""
    with Job() as job:
        job.serve("--root", "--digest")
        many = job.many("large", 16384, 8, "node")
        b.open(job.url())
        b.wait_for("all ranks", lambda: letters(b) == {"running": 16384})
        first = b.wait_for("the first paint", lambda: figures(b)["painted_ms"] and figures(b))
        b.open(job.url() + "#/overview/large/0")  # and once more, with all of them there
        b.run("location.reload()")
        first = b.wait_for("the first paint", lambda: figures(b)["painted_ms"] and figures(b)["field"]["painted"] and
                           figures(b))
        expect(first["field"]["painted"] == 16384 and first["field"]["whole"] == 1, f"painted once: {first}")
        tell(many, "stopped 100 199")
        b.wait_for("those that stopped", lambda: letters(b) == {"running": 16284, "stopped": 100})
        then = figures(b)
        expect(then["field"]["painted"] - first["field"]["painted"] == 100, f"painted what changed: {then}")
        expect(then["field"]["whole"] == 1, f"the whole again: {then}")
        tell(many, "running 100 199")
        b.wait_for("all as before", lambda: letters(b) == {"running": 16384})
        look(b, "large")
        tell(many, "stopped 0 16383")
        b.wait_for("all stopped", lambda: letters(b) == {"stopped": 16384})
        last = figures(b)
        expect(last["field"]["painted"] - then["field"]["painted"] == 16484, f"painted what changed: {last}")
        print(f"16,384 ranks: first paint after {last['painted_ms']:.0f} ms; the longest of {last['updates']} updates "
              f"{last['longest_ms']:.1f} ms")
        # Of 16,384 ranks those are asked that were chosen, and what they tell is drawn; agents may tell anything.
        b.run("location.hash = '#/timeline/large/0/0/100-115,16368-16383/256'")
        b.wait_for("all answers", answered(b, "8,192 calls of 32 ranks"))
        b.wait_for("the lanes", lambda: lanes(b)["bars"] > 0)
        press(b, "canvas.lanes", "Enter")
        expect("32 float32 sum" in b.text("#call"), f"how many rings were asked for: {b.text('#call')}")
        press(b, "canvas.lanes", "0")
        drawn = lanes(b)
        print(f"32 lanes of 256 calls: drawn {drawn['draws']} times, the longest time {drawn['longest_ms']:.1f} ms")
        for line, said in (("lie 0 0", "its answer cannot be read"), ("swell 0 0", "its answer is too large")):
            tell(many, line)
            b.run("document.querySelector('#show').click()")
            b.wait_for(said, lambda: said in b.text() and "0 calls of 0 ranks" in b.text())
        key(b, "n")
        rows = "return document.querySelectorAll('main tbody tr').length"
        b.wait_for("the nodes", lambda: "2,048 nodes, of which 1,024 are listed" in b.text() and b.run(rows) > 0)
        expect(b.run(rows) < 256, f"{b.run(rows)} rows are made for one screen")
        b.run("globalThis.first = document.querySelector('main tbody tr')")

        def further():
            b.run("scrollTo(0, document.body.scrollHeight)")
            return b.run(rows) == 1024
        b.wait_for("those further down", further)
        last, begin = "main tbody:last-of-type tr:last-child", "main tbody tr"
        expect("8 stopped" in b.text(last), b.text(last))
        tell(many, "running 0 16383")  # what is near is told again, the rest when it comes near
        b.wait_for("that the last one runs", lambda: "8 running" in b.text(last))
        expect("8 stopped" in b.text(begin), "rows far from what is seen are made again")
        b.run("scrollTo(0, 0)")
        b.wait_for("that the first one runs", lambda: "8 running" in b.text(begin))
        expect(b.run("return globalThis.first === document.querySelector('main tbody tr')"), "a row was made anew")
        tasks = b.call("POST", "/execute/async", {"script": """
            const done = arguments[0], list = [];
            new PerformanceObserver((entries) => list.push(...entries.getEntries().map((task) =>
                `${Math.round(task.duration)} ms at ${Math.round(task.startTime)}`)))
                .observe({type: "longtask", buffered: true});
            setTimeout(() => done(list), 100);""", "args": []})
        print(f"tasks of the main thread beyond 50 ms, of {b.run('return Math.round(performance.now())')} ms: {tasks}")
        # On a busy machine a page asks for the rest of an answer that the root keeps no more, and then asks anew.
        no_complaint(b, r"/ask/calls\?\S*&id=\d+&from=\d+ .*\b400\b")


def gone(b):
    """The root is killed: the page says since when it has heard nothing; it is back: so is the page, by itself."""
    with Job() as job:
        root = job.serve("--root", "--digest")
        many = job.many("large", 16, 8, "node")
        b.open(job.url())
        b.wait_for("all ranks", lambda: letters(b) == {"running": 16})
        no_complaint(b)
        root.kill()
        root.wait()
        b.wait_for("the loss", lambda: re.search(r"the daemon is gone: not heard since \d\d:\d\d:\d\d",
                                                 b.text("#heard")))
        expect(letters(b) == {"running": 16}, "what was known stays")
        look(b, "gone")
        b.run("location.hash = '#/timeline/large/0/0/0-3'")
        b.wait_for("that nobody answers",
                   lambda: "Failed to fetch" in b.text() or "not heard since" in b.text("#heard"))
        b.run("location.hash = '#/nodes/large/0'")
        many.send_signal(signal.SIGSTOP)  # a root that knows nothing of the run yet is asked nothing about it
        root = job.serve("--root", "--digest")
        b.wait_for("that the run is not there", lambda: "No rank of large has been seen yet" in b.text("#absent h1"))
        many.send_signal(signal.SIGCONT)
        tell(many, "stopped 0 2")
        b.wait_for("the nodes again", lambda: re.search(r"node0\s+8 \(0-7\)\s.*3 stopped", b.text("table")))
        b.run("location.hash = '#/timeline/large/0/0/0-3'")
        b.wait_for("the lanes again", lambda: "1,024 calls of 4 ranks" in b.text())
        b.run("location.hash = '#/'")
        b.wait_for("the new root", lambda: b.text("#heard").startswith("heard at ") and
                   letters(b) == {"running": 13, "stopped": 3})
        # Once more, and what a page has shown stays there meanwhile.
        b.run("location.hash = '#/nodes/large/0'")
        b.wait_for("the nodes", lambda: "3 stopped" in b.text("table"))
        many.send_signal(signal.SIGSTOP)
        root.kill()
        root.wait()
        job.serve("--root", "--digest")
        b.wait_for("that the run is not there", lambda: "No rank of large has been seen yet" in b.text("#absent h1"))
        expect("3 stopped" in b.text("table"), "what was known stays")
        many.send_signal(signal.SIGCONT)
        b.wait_for("that it is there", lambda: b.text("#absent") == "" and "2 nodes;" in b.text())
        no_complaint(b, but="ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_EMPTY_RESPONSE|"
                            "ERR_CONNECTION_RESET")


def hostile(b):
    """Names that are scripts are shown as what they are, and no script of theirs runs."""
    tag = "<img src=x onerror=owned=1>"
    with Job() as job:
        job.serve("--standalone", "--suspect-ms", "500")
        job.many("hosts", 32, 8, tag)
        b.open(job.url() + "#/overview/hosts/0")
        b.wait_for("all ranks", lambda: letters(b) == {"running": 32})
        b.run("document.querySelector('canvas').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))")
        expect(f"on {tag}0" in b.text(), "the node's name is shown")
        job.ranks(4, "hang", "hang", "hang", "wrong", label=tag)
        b.run("location.hash = '#/overview/job/0'")
        b.wait_for("the finding", lambda: tag in b.text(".findings"))
        b.wait_for("who waits", lambda: tag[:9] in b.run("return document.querySelector('svg.waits')?.textContent"))
        b.click(".findings a")
        b.wait_for("its page", lambda: "Copy as Markdown" in b.text() and tag in b.text(".said"))
        expect(b.run("return typeof globalThis.owned") == "undefined", "a script has run")
        expect(b.run("return document.querySelectorAll('main img').length") == 0, "a name became an element")
        no_complaint(b)
        # And if one of us made the mistake, the browser would refuse.
        made = b.run("try { document.querySelector('main').innerHTML = arguments[0]; return 'taken' } "
                     "catch (error) { return error.name }", tag)
        expect(made == "TypeError", f"HTML out of a text is {made}")
        made = b.run("try { document.createElement('a').setAttribute('onclick', 'owned=1'); return 'taken' } "
                     "catch (error) { return error.name }")
        expect(made == "TypeError", f"a script out of a text is {made}")


def ask(url, user=None, word=None, method="GET", **headers):
    """The status and the body of a request; with the password through HTTP Digest as curl does it."""
    command = ["curl", "-s", "-m", "60", "-X", method, "-w", "\n%{http_code}", url]
    if user:
        command += ["--digest", "-u", f"{user}:{word}"]
    for name, value in headers.items():
        command += ["-H", f"{name}: {value}"]
    body, _, status = subprocess.run(command, capture_output=True, text=True, check=True).stdout.rpartition("\n")
    return int(status), body


def strangers(b):
    """Who has no password is told nothing but metrics, and who may look may not switch."""
    with Job() as job:
        job.serve("--standalone")
        job.ranks(2, "wait")
        site = f"http://127.0.0.1:{job.port}"
        for path in ["/", "/js/main.js", "/api/ask/status", "/api/listen"]:
            for user, word in [(None, None), ("viewer", "0" * 32), ("operator", job.word), ("root", job.word)]:
                status, body = ask(site + path, user, word)
                expect(status == 401 and "job" not in body, f"{path} as {user}: {status} {body}")
        expect(ask(site + "/metrics")[0] == 200, "the metrics need no password")
        b.wait_for("the job", lambda: ask(f"{site}/api/ask/status", "viewer", job.word)[0] == 200)
        switch = f"{site}/api/ask/policy?policy=auto"
        operator = job.operator
        expect(ask(switch, "viewer", job.word)[0] == 403, "a viewer switches")
        for question in (switch, f"{site}/api/ask/stacks?ranks=0"):  # by GET nothing is switched and nobody stopped
            refused = ask(question, "operator", operator)
            expect(refused[0] == 403 and "POST" in str(refused), f"a question by GET: {refused}")
        expect(ask(switch, "viewer", job.word, "POST", Origin=site)[0] == 403, "a viewer switches")
        expect(ask(switch, "operator", operator, "POST", Origin="http://evil.example")[0] == 403, "another site")
        expect(ask(switch, "operator", operator, "POST")[0] == 403, "without an origin")
        expect(ask(f"{site}/api/ask/status", "viewer", job.word, Host="evil.example")[0] == 403, "another name")
        expect(ask(switch, "operator", operator, "POST", Origin=site)[0] == 200, "the operator switches")


def resident_kib(p):
    with open(f"/proc/{p.pid}/status") as f:
        return int(re.search(r"^VmRSS:\s+(\d+)", f.read(), re.M)[1])


def hundred(b):
    """A hundred pages listen, half of them without ever reading: the others are told all, and one more is refused."""
    with Job() as job:
        root = job.serve("--root", "--digest")
        many = job.many("large", 16384, 8, "node")
        b.open(job.url() + "#/overview/large/0")
        b.wait_for("all ranks", lambda: letters(b) == {"running": 16384})
        with Streams(job.port, job.word, "/api/listen?job=large&restart=0") as streams:
            before = resident_kib(root)
            said = [streams.add(reads=i % 2 == 0)[0] for i in range(99)]
            expect(said == [200] * 99, f"with the browser's a hundred are let in: {said}")
            for _ in range(4):
                status, why = streams.add(reads=True)
                expect(status == 503 and "too many pages listen" in why, f"the 101st: {status} {why}")
            site = f"http://127.0.0.1:{job.port}"
            for last in range(8):  # each time all of the field is told anew, until those that do not read hold it up
                streams.forget()
                tell(many, f"stopped 0 {last}")
                told = ("s" * (last + 1) + "r" * 8).encode()
                b.wait_for("that all who read are told", lambda: streams.all_told(told))
                expect(ask(f"{site}/metrics")[0] == 200 and ask(f"{site}/api/ask/status", "viewer", job.word)[0] == 200,
                       "a scraper, or a question, is not answered")
            b.wait_for("that the page is told", lambda: letters(b) == {"running": 16376, "stopped": 8})
            grown = resident_kib(root) - before
            print(f"a hundred listeners, of whom 49 never read: {grown} KiB more of the root, after 8 fields of 16 KiB")
            expect(grown < 64 << 10, f"{grown} KiB more: texts are kept for those that do not read")

            def place():  # who takes nothing is let go, so there is room again
                tell(many, f"stopped 0 {int(time.monotonic() * 10) % 1000}")
                return streams.add(reads=False)[0] == 200
            b.wait_for("a place", place)
        # A browser that is one too many says so, and goes on when there is a place.
        b.open("about:blank")
        with Streams(job.port, job.word, "/api/listen?job=large&restart=0") as streams:
            b.wait_for("all places", lambda: streams.fill() == 100)
            b.open(job.url() + "#/overview/large/0")
            b.wait_for("the line that too many listen", lambda: "too many pages listen" in b.text("#heard"))
            expect("This one tries again" in b.text("#absent"), b.text())
            look(b, "full")
            b.run("location.hash = '#/nodes/large/0'")  # what is asked for is answered all the same
            b.wait_for("the nodes", lambda: "2,048 nodes" in b.text())
        b.wait_for("a place", lambda: b.text("#heard").startswith("heard at "))


def give_up(*_):
    raise AssertionError("the test was ended")


if __name__ == "__main__":
    # Whoever ends the test, and a test that hangs, end what it has started.
    signal.signal(signal.SIGTERM, give_up)
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(500)
    try:
        with Browser() as browser:
            globals()[check](browser)
    except Missing as why:
        print(f"SKIPPED: integration.web.{check}: {why}; the page was looked at by nobody")
        sys.exit(SKIP)
    print(f"{check}: ok")
