// timeline.js: the page of swim lanes: which ranks, the calls around which finding, and what is seen of them. All of it
// stands in the address: the window as two times in microseconds, after the moment of the finding or else by the wall
// clock. It is written there when somebody has moved it, without a new entry in the browser's history.
import {el, replace, say} from "./dom.js";
import {Lanes, callText, lanesOf} from "./lanes.js";
import {pairs} from "./ranks.js";
import {clock, count, fold, link, named, some} from "./words.js";

const NOTE_MS = 300, POLL_MS = 250, MOST_MS = 30000, OF_EACH = 4, COUNTS = [64, 256, 512];

// The ranks to look at for a finding: some of those that are named, some that wait, and one of each side.
export function chosen(finding) {
    const list = [];
    const take = (text, most) => {
        let n = 0;
        for (const [first, last] of pairs(text)) {
            for (let rank = first; rank <= last && n < most; rank++, n++) {
                list.push(rank);
            }
        }
    };
    take(finding.culprits_text, OF_EACH);
    (finding.evidence ?? []).forEach((side) => take(side.ranks_text, 2));
    take(finding.waiting_text, OF_EACH);
    return fold([...new Set(list)].sort((a, b) => a - b)) ?? "";
}

// Who is looked at where nobody chose: the ranks of the newest finding that stands, else the first ones.
function otherwise(findings, places) {
    const standing = findings?.findings.find((finding) => finding.stands);
    const first = places?.hosts.flatMap(({ranks}) => ranks) ?? [];
    return standing ? {number: standing.number, ranks: chosen(standing)}
        : {number: 0, ranks: first.length > 1 ? `${first[0]}-${Math.min(first[1], first[0] + 2 * OF_EACH - 1)}` : ""};
}

export class Timeline {
    constructor(context, number, ranks, most, from, to) {
        Object.assign(this, {context, number: Number(number) || 0, asked: ranks ?? "", known: {}, timer: 0});
        this.window = /^-?\d{1,17}$/.test(from ?? "") && /^-?\d{1,17}$/.test(to ?? "") && Number(from) < Number(to)
            ? [Number(from), Number(to)] : null;
        this.title = el("p", {class: "faint"});
        this.ranks = el("input", {name: "ranks", "aria-label": "ranks", size: 24, placeholder: "ranks, as 0-3,7",
                                  autocomplete: "off"});
        this.ranks.value = this.asked;
        this.most = el("select", {"aria-label": "calls of each rank"}, COUNTS.map((n) => el("option", {value: n}, `${n} calls`)));
        this.most.value = COUNTS.includes(Number(most)) ? most : COUNTS[1];
        this.said = el("p", {class: "faint", role: "status"});
        this.point = el("p", {id: "call"}, "\u00a0");
        this.canvas = el("canvas", {tabindex: 0, role: "img", class: "lanes"});
        this.colours = el("ul", {class: "legend"});
        const button = (id, text, title, click) => el("button", {id, title, type: "button", click}, text);
        this.form = el("form", {class: "row", submit: (event) => this.choose(event)}, this.ranks, this.most,
            el("button", {id: "show"}, "Show"),
            button("all", "All", "0", () => this.view.all()), button("in", "+", "zoom in", () => this.view.zoom(0.5)),
            button("out", "\u2212", "zoom out", () => this.view.zoom(2)),
            button("left", "\u2190", "earlier", () => this.view.pan(-0.4)),
            button("right", "\u2192", "later", () => this.view.pan(0.4)));
        this.node = [el("section", {}, el("h1", {}, "Timeline"), this.title, this.form, this.said,
            el("div", {}, this.canvas), this.point, this.colours)];
    }

    opened() {
        this.view = new Lanes(this.canvas, {
            pointed: (lane, call) => say(this.point, call ? callText(lane, call, this.view.base) : "\u00a0"),
            picked: (lane, call) => say(this.point, callText(lane, call, this.view.base)),
            changed: (from, to) => this.moved(from, to),
        });
        this.context.figures.lanes = this.view.figures;
    }

    // Where nobody has chosen, what is told chooses, once.
    begins() {
        if (!this.number && !this.asked && this.known.findings && this.known.places) {
            const found = otherwise(this.known.findings, this.known.places);
            Object.assign(this, {number: found.number, asked: found.ranks});
        }
        if ((this.number > 0 || this.asked) && this.view.lanes.length === 0) {
            this.look();
        }
    }

    close() {
        this.closed = true;
        clearTimeout(this.timer);
        this.view?.close();
    }

    // What is seen is another: a browser takes an address only now and then.
    moved(from, to) {
        if (!Number.isFinite(this.zero)) {
            return; // nothing has come yet
        }
        this.window = [from, to].map((ns) => Math.round((ns - this.zero) / 1e3));
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.context.note(link("timeline", this.context.run(), this.number, this.asked,
            this.most.value, ...this.window)), NOTE_MS);
    }

    update(part, data) {
        this.known[part] = data;
        if (this.may && !this.number && !this.asked) {
            this.begins();
        }
    }

    choose(event) {
        event.preventDefault();
        const to = link("timeline", this.context.run(), this.number, this.ranks.value.trim(), this.most.value);
        if (location.hash === to) {
            this.look();
        } else {
            this.context.go(to);
        }
    }

    members() {
        const {job, restart} = this.context.run();
        return job ? {job, restart} : {};
    }

    async look() {
        try {
            this.finding = this.number > 0 ? (await this.context.ask("verdicts", {...this.members(), number: this.number}))
                .verdicts[0] ?? null : null;
            this.asked ||= this.finding ? chosen(this.finding) : "";
            this.ranks.value = this.asked;
            this.about();
            this.show(await this.collect());
        } catch (error) {
            say(this.said, error.message);
        }
    }

    async collect() {
        const {finding} = this, answers = [], end = Date.now() + MOST_MS;
        const moment = finding ? (finding.event_ns ?? finding.time_ns) / 1e6 : this.window ? (this.window[0] + this.window[1]) / 2e3 : 0;
        const around = moment > 0 ? Math.floor(moment) : undefined;
        const {id, count: n} = await this.context.ask("calls", {...this.members(), ranks: this.asked,
                                                                calls: this.most.value, around_ms: around});
        for (let done = false; !done && !this.closed && Date.now() < end;) {
            const more = await this.context.ask("calls", {...this.members(), id, from: answers.length});
            answers.push(...more.answers);
            done = more.done;
            say(this.said, `${answers.length} of ${n} ranks have answered`);
            if (!done) {
                await new Promise((resolve) => setTimeout(resolve, POLL_MS));
            }
        }
        return answers;
    }

    about() {
        const {finding} = this;
        replace(this.title, finding ? ["around ", el("a", {href: link("finding", finding, finding.number)},
            `finding ${finding.number}, ${finding.code}`), `, ${clock(finding.event_ns ?? finding.time_ns)}, which is 0`]
            : "the last calls of each rank; the newest moment is at the right");
    }

    show(answers) {
        if (this.closed) {
            return;
        }
        const {base, lanes} = lanesOf(answers), {finding} = this;
        const mark = finding ? {ns: (finding.event_ns ?? finding.time_ns) - base * 1e6, comm: finding.comm?.key,
                                seq: finding.seq} : null;
        this.zero = mark ? mark.ns : -base * 1e6; // of the times in the address
        const lacking = lanes.filter(({error}) => error), calls = lanes.reduce((sum, lane) => sum + lane.calls.length, 0);
        say(this.said, [`${some(calls, "call")} of ${some(lanes.length - lacking.length, "rank")}`,
            lacking.length > 0 ? `${named(fold(lacking.map(({rank}) => rank)))}: ${lacking[0].error}` : null]
            .filter(Boolean).join("; "));
        this.view.set({base, lanes}, mark, this.window?.map((us) => us * 1e3 + this.zero));
        const comms = new Map(lanes.flatMap((lane) => lane.calls).filter(({comm}) => comm).map(({comm}) => [comm.key, comm]));
        replace(this.colours, [...comms.values()].slice(0, 12).map((comm) => {
            const box = el("i", {});
            box.style.background = this.view.hue(comm);
            return el("li", {}, box, `${comm.name} (${count(comm.size)})`);
        }), el("li", {}, el("i", {class: "waiting"}), "inside now"),
        finding ? el("li", {}, el("i", {class: "marked"}), "the call of the finding") : null,
        finding ? el("li", {}, el("i", {class: "moment"}), "its moment, 0") : null);
    }
}
