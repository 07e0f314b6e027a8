// overview.js: the first page: the field of ranks, the findings, who waits for whom, and rates.
import {el, replace, say, svg} from "./dom.js";
import {Field} from "./field.js";
import {STATES, tally} from "./ranks.js";
import {waitGraph} from "./waits.js";
import {clock, count, link, named, some} from "./words.js";

const SAMPLES = 120, SHOWN = 50, RATE = 3; // the figure that has a curve

// Calls a second, of two looks at how many there were.
class Rate {
    constructor() {
        this.list = [];
        this.last = null;
    }

    add(calls, ns) {
        if (this.last && ns > this.last.ns && calls >= this.last.calls) {
            this.list.push((calls - this.last.calls) / ((ns - this.last.ns) / 1e9));
            this.list.splice(0, this.list.length - SAMPLES);
        }
        this.last = {calls, ns};
        return this.list.at(-1);
    }

    line() {
        if (this.list.length < 5) {
            return "";
        }
        const top = Math.max(...this.list, 1e-9);
        return this.list.map((v, i) => `${(i / (SAMPLES - 1) * 100).toFixed(1)},${(19 - v / top * 18).toFixed(1)}`)
            .join(" ");
    }
}

export function item(finding, run) {
    const over = finding.ended_by ? `${finding.ended_how} by verdict ${finding.ended_by}` : null;
    return el("li", {class: over ? "over" : null},
        el("span", {class: `badge ${finding.certainty}`}, finding.certainty),
        el("a", {href: link("finding", run, finding.number)}, `${finding.number} ${finding.code}: ${finding.title}`),
        finding.culprits_text ? ` \u2013 ${named(finding.culprits_text)}` : null,
        finding.comm ? el("span", {class: "faint"}, ` on ${finding.comm}`) : null,
        el("div", {}, finding.gist),
        el("div", {class: "faint"}, [clock(finding.event_ns ?? finding.time_ns), over,
            finding.remedy ? `remedy ${finding.remedy}${finding.remedied ? ", applied" : ""}` : null]
            .filter(Boolean).join(" \u00b7 ")));
}

export class Overview {
    constructor(context) {
        this.context = context;
        this.rate = new Rate();
        this.listens = true; // nothing here is asked for: who is told nothing has nothing to show
        const part = (title, ...children) => el("section", {}, el("h2", {}, title), children);
        this.about = el("h1", {});
        this.figures = el("ul", {class: "figures"});
        this.line = svg("polyline", {});
        this.canvas = el("canvas", {tabindex: 0, role: "img"});
        this.point = el("p", {class: "point faint"}, "\u00a0");
        this.legend = el("ul", {class: "legend"}, STATES.map(({name, means}) =>
            el("li", {title: means}, el("i", {class: name}), el("span", {}, name), " ", el("b", {}, "0"))),
            el("li", {title: "a finding that stands names the rank"}, el("i", {class: "mark"}), "named by a finding"));
        this.findings = el("ol", {class: "findings"});
        this.waits = el("div", {});
        this.curve = svg("svg", {class: "rate", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img",
                                 "aria-label": "calls a second, lately"}, this.line);
        this.node = [
            el("section", {}, this.about, this.figures),
            part("Ranks, by node", el("div", {}, this.canvas), this.point, this.legend),
            part("Findings, newest first", this.findings),
            part("Who waits for whom", this.waits)];
        this.empty("Nothing has been heard yet.");
    }

    opened() {
        this.field = new Field(this.canvas, {
            picked: (at) => at && this.context.go(link("rank", this.context.run(), at.rank)),
            pointed: (at) => say(this.point, at ? `rank ${at.rank} on ${at.host}: ${at.state?.means ?? "?"}` : "\u00a0"),
        });
        this.context.figures.field = this.field.figures;
    }

    close() {
        this.field?.close();
    }

    empty(text) {
        say(this.about, text);
    }

    update(part, data) {
        ({places: () => this.field.setPlaces(data), field: () => this.stand(data), findings: () => this.list(data),
          waits: () => this.graph(data), status: () => this.status(data)})[part]();
    }

    stand({states}) {
        const n = tally(states);
        this.field.setStates(states);
        STATES.forEach(({letter}, i) => {
            const row = this.legend.children[i];
            say(row.lastChild, count(n[letter] ?? 0));
            row.classList.toggle("zero", !n[letter]);
        });
    }

    status(status) {
        if (!status.run) {
            return; // which the page around it says
        }
        const {run, summary} = status;
        say(this.about, `${run.job}${run.restart ? `, restart ${run.restart}` : ""}`);
        const told = status.digests?.calls_per_s, rate = this.rate.add(summary.calls, status.time_ns);
        const rows = [
            [count(summary.ranks_live), `of ${some(summary.ranks, "rank")} live`],
            [count(summary.findings), summary.findings === 1 ? "finding stands" : "findings stand", summary.findings > 0],
            [summary.step ?? "-", summary.step_source === "learned" ? "step (learned)" : "step"],
            [count(typeof told === "number" ? told : rate), "calls a second"], [count(summary.calls), "calls"],
            [count(summary.comms), summary.comms === 1 ? "communicator" : "communicators"],
            [count(summary.incomplete), "calls not made by all"], [count(summary.lost), "records lost", summary.lost > 0],
            [run.policy, !status.remedies ? "policy" : `policy, ${status.remedies.on.length > 0
                ? `remedies on: ${status.remedies.on.join(", ")}` : "no remedy on"}`]];
        if (this.figures.children.length !== rows.length) {
            replace(this.figures, rows.map((_, i) => el("li", {}, el("b", {}), " ", el("span", {}), i === RATE ? this.curve : null)));
        }
        rows.forEach(([value, name, bad], i) => {
            const [number, means] = this.figures.children[i].children;
            say(number, String(value));
            say(means, name);
            number.classList.toggle("bad", Boolean(bad));
        });
        this.line.setAttribute("points", this.rate.line());
    }

    list({findings, verdicts}) {
        const run = this.context.run();
        const more = verdicts - Math.min(findings.length, SHOWN);
        this.field.setMarks(findings.filter((f) => f.stands).map((f) => f.culprits_text));
        replace(this.findings, findings.slice(0, SHOWN).map((finding) => item(finding, run)),
            findings.length === 0 ? el("li", {class: "faint"}, "Nothing was found.") : null,
            more > 0 ? el("li", {class: "faint"}, `and ${count(more)} older ones: rollcall ${this.context.lacks.length > 0 ? "analyze" : "verdicts"}`) : null);
    }

    graph({edges, groups}) {
        const graph = waitGraph(edges, this.context.run());
        const calls = groups.map((group) => el("details", {},
            el("summary", {}, `${named(group.ranks_text)} (${group.count})`),
            el("p", {class: "said"}, group.text)));
        const open = [...this.waits.querySelectorAll("details[open] summary")].map((node) => node.textContent);
        replace(this.waits, graph ?? el("p", {class: "faint"}, "No finding says that anybody waits."),
            calls.length > 0 ? el("p", {class: "faint"}, this.context.lacks.length > 0 ? "At the end of the recording:" : "Inside calls now:") : null, calls);
        for (const node of this.waits.querySelectorAll("details")) {
            node.open = open.includes(node.firstChild.textContent);
        }
    }
}
