// finding.js: one finding: what is said, both sides' evidence side by side, where it was called, who waits, and what
// helps; and one rank: why it does not go on.
import {el, replace} from "./dom.js";
import {frameText, markdown, rows} from "./markdown.js";
import {has, pairs} from "./ranks.js";
import {sourceView} from "./source.js";
import {clock, link, named} from "./words.js";
import {item} from "./overview.js";

function frame(one) {
    return el("li", {class: one.library || one.language === "native" ? "library" : null},
        el("code", {}, frameText(one)), one.folded ? ` (${one.folded} more)` : null,
        one.text ? el("pre", {}, one.text) : null);
}

function sides(verdict) {
    const {evidence, callsites} = verdict;
    const sites = evidence.map((side) => (side.callsite === null ? null : callsites[side.callsite]));
    return el("div", {class: "sides"}, el("table", {},
        el("tr", {}, el("th", {}), evidence.map((_, i) => el("th", {scope: "col"}, `side ${i + 1}`))),
        rows(evidence).map(([name, values, differs]) => el("tr", {class: differs ? "differs" : null},
            el("th", {scope: "row"}, name), values.map((value) => el("td", {}, value === null ? "-" : String(value))))),
        sites.some(Boolean) ? el("tr", {}, el("th", {scope: "row"}, "called at"),
            sites.map((site) => el("td", {}, site
                ? el("ul", {class: "frames"}, site.frames.map(frame)) : "-"))) : null));
}

// Puts a text on the clipboard; where the browser does not let us, it is shown to be taken by hand.
async function copy(text, said, place) {
    try {
        await navigator.clipboard.writeText(text);
        replace(said, "copied");
    } catch {
        const area = el("textarea", {rows: 12, cols: 80, readonly: true, "aria-label": "the finding as Markdown"});
        area.value = text;
        replace(place, area);
        area.select();
        replace(said, "copy it from below");
    }
}

const KNOWN = new Set(["schema", "number", "code", "title", "family", "certainty", "culprits", "culprits_text", "comm",
    "seq", "time_ns", "event_ns", "field", "step", "step_source", "microbatch", "layer", "layers", "layers_text",
    "phase", "evidence", "callsites", "waiting", "waiting_text", "remedy", "remedied", "text", "job", "restart",
    "supersedes", "confirms", "withdraws", "may_be"]);

function facts(verdict) {
    const list = [
        ["named", verdict.culprits_text && named(verdict.culprits_text)],
        ["who waits", verdict.waiting_text && named(verdict.waiting_text)],
        ["communicator", verdict.comm && [verdict.comm.name ?? verdict.comm.label ?? verdict.comm.key,
            verdict.comm.made_at && `made at ${verdict.comm.made_at}`].filter(Boolean).join(", ")],
        ["first seen", verdict.event_ns && clock(verdict.event_ns)], ["said", clock(verdict.time_ns)],
        ["step", verdict.step], ["layer", verdict.layers_text || verdict.layer], ["differs in", verdict.field],
        ["may be", verdict.may_be.join(", ")], ["replaces", verdict.supersedes], ["confirms", verdict.confirms],
        ["withdraws", verdict.withdraws]];
    return el("table", {}, list.filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, String(value)))));
}

const POLL_MS = 200, MOST_MS = 10000;

export class Finding {
    constructor(context, number) {
        this.context = context;
        this.number = Number(number);
        this.life = el("p", {class: "faint"});
        this.body = el("div", {});
        this.source = el("div", {id: "source"});
        this.answers = [];
        this.node = [el("section", {}, this.body, this.life)];
    }

    // Once it is there it is not asked for again: a verdict is never changed, and what ends it is told.
    async begins() {
        if (this.verdict || this.asking) {
            return;
        }
        this.asking = true;
        try {
            const run = this.context.run();
            const answer = await this.context.ask("verdicts", {job: run.job, restart: run.restart, number: this.number});
            const verdict = answer.verdicts[0];
            this.show(verdict ?? null);
        } catch (error) {
            replace(this.body, el("h1", {}, "This finding cannot be shown"), el("p", {}, error.message));
        }
        this.asking = false;
        if (this.verdict) {
            await this.read().catch((error) => replace(this.source, el("p", {class: "faint"}, error.message)));
        }
    }

    // The lines around those that called, read where the ranks are: that takes a moment, and the rest is there before.
    async read() {
        const {job, restart} = this.context.run(), end = Date.now() + MOST_MS;
        const {id, count, answers = []} = await this.context.ask("source", {job, restart, number: this.number});
        for (let done = answers.length >= count; !done && !this.closed && Date.now() < end;) {
            const more = await this.context.ask("source", {job, restart, id, from: answers.length});
            answers.push(...more.answers);
            done = more.done;
            if (!done) {
                await new Promise((resolve) => setTimeout(resolve, POLL_MS));
            }
        }
        this.answers = answers;
        replace(this.source, sourceView(answers));
    }

    close() {
        this.closed = true;
    }

    show(verdict) {
        if (!verdict) {
            replace(this.body, el("h1", {}, `There is no verdict ${this.number} of this run`),
                el("p", {}, "The daemon may have been started again without a trace: then numbers begin anew."));
            return;
        }
        const said = el("span", {class: "faint", role: "status"}), place = el("div", {});
        const text = () => markdown(verdict, this.context.address(), this.answers);
        const others = Object.entries(verdict).filter(([name]) => !KNOWN.has(name));
        replace(this.body,
            el("h1", {}, el("span", {class: `badge ${verdict.certainty}`}, verdict.certainty),
                `${verdict.code}: ${verdict.title}`),
            el("p", {class: "said"}, verdict.text),
            el("div", {class: "row"},
                el("button", {id: "copy", click: () => copy(text(), said, place)}, "Copy as Markdown"),
                el("a", {id: "timeline", href: link("timeline", verdict, verdict.number)}, "the calls around it"),
                el("a", {id: "permanent", href: link("finding", verdict, verdict.number)}, "permanent link"), this.life, said),
            place, facts(verdict), el("h2", {}, "Evidence"), sides(verdict), this.source,
            verdict.remedy ? el("div", {id: "remedy"}, el("h2", {}, "Remedy"),
                el("p", {}, el("b", {}, verdict.remedy.name), `: ${verdict.remedy.text}`,
                    verdict.remedied ? " It has been applied." : "",
                    verdict.remedy.instead ? " Too late for this step: start the job again with it." : ""),
                el("pre", {}, verdict.remedy.instead ?? verdict.remedy.command),
                this.context.lacks.includes("remedies") ? null : el("a", {href: link("remedies", verdict)}, "switch it")) : null,
            others.map(([name, value]) => el("details", {}, el("summary", {}, name),
                el("pre", {}, JSON.stringify(value, null, 2)))));
        this.verdict = verdict;
    }

    update(part, data) {
        if (part === "findings") {
            const ours = data.findings.find((finding) => finding.number === this.number);
            replace(this.life, ours?.ended_by ? [`It was ${ours.ended_how} by `, el("a",
                {href: link("finding", this.context.run(), ours.ended_by)}, `verdict ${ours.ended_by}`)]
                : ours?.stands ? "It stands." : "");
            if (ours && this.may) {
                this.begins();
            }
        }
    }
}

export class Rank {
    constructor(context, rank) {
        this.context = context;
        this.rank = Number(rank);
        this.text = el("p", {class: "said"}, "\u2026");
        this.findings = el("ol", {class: "findings"});
        this.node = [
            el("section", {}, el("h1", {}, `Rank ${this.rank}`), this.text,
                context.lacks.length > 0 ? null : el("button", {click: () => this.begins()}, "Ask again")),
            el("section", {}, el("h2", {}, "Findings that name it, or for which it waits"), this.findings)];
    }

    async begins() {
        const run = this.context.run();
        try {
            replace(this.text, (await this.context.ask("why", {job: run.job, restart: run.restart, rank: this.rank})).text);
        } catch (error) {
            replace(this.text, error.message);
        }
    }

    update(part, data) {
        if (part === "findings") {
            const ours = data.findings.filter((finding) =>
                [finding.culprits_text, finding.waiting_text].some((text) => has(pairs(text), this.rank)));
            replace(this.findings, ours.map((finding) => item(finding, this.context.run())),
                ours.length === 0 ? el("li", {class: "faint"}, "None.") : null);
        }
    }
}
