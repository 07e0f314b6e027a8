// recorded.js: what stands in a report for live.js of the page: nothing happens any more, and every question is answered
// out of the file itself. With the same names, so that the page's own modules show both.
import {el} from "./dom.js";
import {has, pairs} from "./ranks.js";
import {clock} from "./words.js";

// [about, run, run, ..., what is left out of the whole].
const data = JSON.parse(document.getElementById("recorded").textContent);
const about = data[0], runs = data.slice(1, -1), leftOut = data.at(-1);

// Pages of which a recording has nothing: stacks are taken, and remedies switched, where a job runs.
export const LACKS = ["stacks", "remedies"];

// The run that is meant; of none, the newest that has a finding.
function runOf(run) {
    return runs.find(({job, restart}) => run?.job === job && run.restart === restart)
        ?? (run?.job ? null : runs.findLast(({findings}) => findings.findings.some(({stands}) => stands)) ?? runs.at(-1) ?? null);
}

function verdict(run, number) {
    const found = run.verdicts.find((one) => one.number === number);
    if (!found && run.findings.findings.some((one) => one.number === number)) {
        throw new Error("This report has no room for all of this finding: rollcall analyze says it.");
    }
    return {verdicts: found ? [found] : []};
}

function why(run, rank) {
    const group = run.why?.find((one) => has(pairs(one.all_text), rank));
    return {text: group?.text ?? "The recording says nothing about where this rank stood at its end."};
}

// What a page that asks in two steps has begun to ask. A finding's moment is the nearest one to its time, else the end.
let asked = null;
function calls(run, {ranks, around_ms: around, id}) {
    if (id === undefined) {
        const list = [];
        for (const [first, last] of pairs(ranks)) {
            for (let rank = first; rank <= last && list.length < 64; rank++) {
                list.push(rank);
            }
        }
        asked = {run, around, list};
        return {id: 1, count: list.length};
    }
    const moments = [...asked.run.calls ?? []].sort((a, b) => far(a, asked.around) - far(b, asked.around));
    const lanes = moments.flatMap(({answers}) => answers);
    const answers = asked.list.map((rank) => lanes.find((lane) => lane.rank === rank)
        ?? {rank, host: "", calls: {schema: "rollcall.calls/1", error: "the report holds none of its calls"}});
    return {answers, done: true};
}

// The lines around the calls of a finding, as they were on the machine where the report was made.
function source(run, number) {
    const sites = run.verdicts.find((one) => one.number === number)?.callsites ?? [], seen = new Set();
    return sites.flatMap(({ranks, frames}) => frames.filter(({file, line, context}) => {
        const again = seen.has(`${file}\n${line}`);
        seen.add(`${file}\n${line}`);
        return context && !again;
    }).map(({file, line, context}) => ({rank: ranks[0] ?? "?", host: "read here",
        source: {lines: [{file, line, ...context}]}})));
}

// The nodes by their ranks, with what their rings lost; no agent is there any more.
function nodes(run, rows) {
    const pieces = (ranks) => ranks.flatMap((first, i) => (i % 2 > 0 ? [] : first === ranks[i + 1] ? `${first}` : `${first}-${ranks[i + 1]}`));
    const size = (ranks) => ranks.reduce((sum, last, i) => (i % 2 > 0 ? sum + last - ranks[i - 1] + 1 : sum), 0);
    const losses = new Map((run.losses ?? []).map((one) => [one.host, one]));
    const list = (run.places?.hosts ?? []).map(({host, ranks}) => {
        const text = pieces(ranks);
        return {host, ranks: size(ranks), ranks_text: text.slice(0, 20).join(",") + (text.length > 20 ? ",\u2026" : ""),
                silent: 0, lost: 0, unrecorded: 0, starved: 0, ...losses.get(host)};
    });
    list.sort((a, b) => b.lost + b.unrecorded - a.lost - a.unrecorded); // else as they are
    return {count: list.length, nodes: list.slice(0, rows), losses: statusOf(run).losses, eyes: []};
}

function far({number, time_ns: ns}, around) {
    return around === undefined ? (number === 0 ? 0 : 1) : number === 0 ? Infinity : Math.abs(ns / 1e6 - around);
}

export async function ask(op, members = {}) {
    if (op === "runs") {
        return {runs};
    }
    const run = members.id !== undefined ? asked.run : runOf(members);
    if (!run) {
        throw new Error("This report holds nothing of such a job.");
    }
    switch (op) {
    case "status": return statusOf(run);
    case "nodes": return nodes(run, members.rows);
    case "verdicts": return verdict(run, Number(members.number));
    case "why": return why(run, Number(members.rank));
    case "calls": return calls(run, members);
    case "source": return members.id === undefined ? {id: (asked = {run, number: members.number}) && 1, count: 1}
        : {answers: source(run, asked.number), done: true};
    default: throw new Error("A report holds nothing of that.");
    }
}

// Verdicts of other tools' reports are of no run of which ranks are known.
function statusOf(run) {
    return run.status ?? {run: {job: run.job, restart: run.restart, policy: "-"}, summary: {}, comms: [], families: [],
                          agents: [], losses: {}, time_ns: 0};
}

export class Live {
    constructor(told, changed) {
        Object.assign(this, {told, changed, state: "new"});
    }

    listen(run) {
        this.state = "recorded";
        this.run = runOf(run);
        this.changed();
        if (!this.run) {
            this.told("status", {run: null});
            return;
        }
        this.told("status", statusOf(this.run));
        if (this.run.places) {
            this.told("places", this.run.places);
            this.show(this.moments()[0]);
        }
        this.told("findings", this.run.findings);
        this.told("waits", this.run.waits);
        this.fill();
    }

    // The newest finding that stands has the moment that is shown at first: at the end of a job all its ranks are dead.
    moments() {
        const standing = new Set(this.run.findings.findings.filter(({stands}) => stands).map(({number}) => number));
        const rank = ({number}) => (standing.has(number) ? 0 : number === 0 ? 1 : 2);
        return [...this.run.moments].sort((a, b) => rank(a) - rank(b) || b.number - a.number);
    }

    show(moment) {
        this.moment = moment;
        if (moment) {
            this.told("field", {states: moment.states});
        }
    }

    // What the head of the page says in the place of when something was heard last.
    words() {
        return "recorded";
    }

    // What stands on the overview besides; of which run is not known before somebody listens.
    beside(page) {
        this.judged = el("section", {id: "judged"});
        this.choice = el("section", {id: "choice"});
        this.fill();
        return page === "overview" ? [this.judged, this.choice] : [];
    }

    fill() {
        if (!this.run || !this.judged) {
            return;
        }
        const list = (title, texts) => texts.length > 0
            && [el("h2", {}, title), el("ul", {}, texts.map((text) => el("li", {}, text)))];
        this.judged.replaceChildren(el("h2", {}, "What was judged"),
            el("p", {}, `${about.summary}.`, about.findings === 0 ? el("b", {}, " No finding.") : ""),
            el("div", {class: "missing"}, list("What could not be judged", about.unjudged)),
            el("div", {}, list("What this report leaves out", [...this.run.left_out, ...leftOut])),
            el("p", {class: "faint"}, `Made ${clock(about.made_ns)} by rollcall ${about.version}.`));
        const moments = this.run.places ? this.moments() : [];
        const words = ({number, time_ns: ns}) => (number === 0 ? `at the end of the recording, ${clock(ns)}`
            : `when finding ${number} was said, ${clock(ns)}`);
        const select = el("select", {id: "moment", change: () => this.show(moments[Number(select.value)])},
            moments.map((moment, i) => el("option", {value: i}, words(moment))));
        select.value = String(Math.max(0, moments.indexOf(this.moment)));
        this.choice.replaceChildren(el("label", {}, "How the ranks stood ", select));
        this.choice.hidden = moments.length === 0;
    }
}
