// tables.js: the pages that are tables: communicators, nodes, and what a search finds.
//
// What they show is asked for when they are opened and every few seconds after that, and not told as it happens: a
// thousand communicators a second would be work for the root and for the browser, and nobody reads so fast.
import {el, replace, say} from "./dom.js";
import {item} from "./overview.js";
import {expand, has, pairs, STATE_OF, tally} from "./ranks.js";
import {Table} from "./table.js";
import {count, fold, link, named, some, span} from "./words.js";

const AGAIN_MS = 5000, ROWS = 1024;

function table(heads, rows) {
    return el("div", {class: "sides"}, el("table", {class: "list"},
        el("thead", {}, el("tr", {}, heads.map((head) => el("th", {scope: "col"}, head)))),
        el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell ?? "-")))))));
}

function commName(comm) {
    return comm.name || comm.label || comm.key;
}

// A page that asks the same question again and again while it is open.
class Asked {
    constructor(context, title, op = "status", members = {rows: ROWS}) {
        Object.assign(this, {context, op, members});
        this.line = el("p", {class: "faint"});
        this.body = el("div", {});
        this.tables = [];
        this.node = [el("section", {}, el("h1", {}, title), this.line, this.body)];
    }

    begins() {
        clearInterval(this.timer);
        this.timer = setInterval(() => this.may && !document.hidden && this.look(), AGAIN_MS);
        this.look();
    }

    table(heads) {
        this.tables.push(new Table(heads));
        return this.tables.at(-1);
    }

    close() {
        clearInterval(this.timer);
        this.tables.forEach((one) => one.close());
        this.closed = true;
    }

    async look() {
        const run = this.context.run();
        try {
            const status = await this.context.ask(this.op, {job: run.job || undefined,
                                                            restart: run.job ? run.restart : undefined, ...this.members});
            if (!this.closed) {
                this.asked = status;
                this.show(status);
            }
        } catch (error) {
            say(this.line, error.message);
        }
    }

    // Where ranks are, and what was found, is told; the rest of the page is made again with it.
    update(part, data) {
        const first = this[part] === undefined; // who waits is told every second: nobody could take a text from here
        this[part] = data;
        if (this.asked && (part === "places" || part === "findings" || (part === "waits" && first))) {
            this.show(this.asked);
        }
    }
}

const OF_FAMILY = [["name", "name"], ["groups", "groups"], ["size", "size"], ["text", "they are"], ["done", "called by all"],
                   ["ahead", "furthest"], ["made_at", "made at"]];

export class Communicators extends Asked {
    constructor(context) {
        super(context, "Communicators");
        this.list = this.table(["name", "role", "size", "seen", "called by all", "furthest", "behind", "made at"]);
        this.families = this.table(OF_FAMILY.map(([, head]) => head));
        this.kin = el("div", {class: "kin", hidden: true}, el("h2", {}, "By families"), this.families.node);
        replace(this.body, this.list.node, this.kin);
    }

    show({comms, families, summary}) {
        const apart = [...comms].sort((a, b) => (b.ahead - b.done) - (a.ahead - a.done));
        say(this.line, summary.comms === 0 ? "No communicator has been seen yet." : `${some(summary.comms, "communicator")}${
            comms.length < summary.comms ? `, of which ${count(comms.length)} are listed` : ""}; those that are furthest apart first`);
        this.list.node.hidden = comms.length === 0;
        this.list.set(apart.length, (i) => [commName(apart[i]), apart[i].role || null, count(apart[i].size), count(apart[i].seen),
            count(apart[i].done), count(apart[i].ahead), fold(apart[i].behind), apart[i].made_at]);
        this.list.last(apart.some(({made_at: at}) => at)); // where a line is known
        this.kin.hidden = !families?.length;
        this.families.last(families?.some(({made_at: at}) => at));
        this.families.set(families?.length ?? 0, (i) => OF_FAMILY.map(([name]) => plain(families[i][name])));
    }
}

function plain(value) {
    return value === null || value === undefined || value === "" ? null : typeof value === "number" ? count(value)
        : typeof value === "object" ? JSON.stringify(value) : String(value);
}

export class Nodes extends Asked {
    constructor(context) {
        super(context, "Nodes", "nodes");
        this.eyes = el("ul", {class: "eyes"});
        this.list = this.table(["node", "ranks", "they are", "not heard", "lost", "without a CPU", "agent", "heard", "late"]);
        this.lost = this.table(["cause", "records"]);
        this.lossless = el("p", {class: "faint"}, "Nothing was lost.");
        replace(this.body, this.eyes, this.list.node, el("h2", {}, "Losses"), this.lost.node, this.lossless);
    }

    // The page is made of what is told of ranks, and of what was asked: which of the two has changed does not matter.
    show({count: n, nodes, losses, eyes}) {
        const hosts = new Map(expand(this.places ?? {hosts: []}).hosts.map((one) => [one.host, one]));
        const lost = Object.entries(losses).filter(([, k]) => k > 0);
        say(this.line, `${some(n, "node")}${nodes.length < n ? `, of which ${count(nodes.length)} are listed` : ""}; those in need first`);
        replace(this.eyes, eyes.map(({text}) => el("li", {}, text)));
        this.eyes.hidden = eyes.length === 0;
        this.list.set(nodes.length, (i) => this.cells(nodes[i], hosts.get(nodes[i].host)));
        this.lost.node.hidden = lost.length === 0;
        this.lossless.hidden = lost.length > 0;
        this.lost.set(lost.length, (i) => [lost[i][0], count(lost[i][1])]);
    }

    cells(node, host) {
        const states = tally(host ? this.field?.states.slice(host.begin, host.end) ?? "" : "");
        return [node.host, `${count(node.ranks)} (${node.ranks_text})`,
            Object.entries(states).map(([letter, k]) => `${k} ${STATE_OF[letter]?.name}`).join(", "),
            node.silent ? count(node.silent) : null, node.lost + node.unrecorded ? count(node.lost + node.unrecorded) : null,
            node.starved ? `${(node.starved / 10).toFixed(1)} %` : null, ...agentCells(node.agent, node.host)];
    }
}

// Who speaks for a node, when it was heard, and what of it was late: the agent, the way to it, what it reads.
function agentCells(agent, host) {
    if (agent === undefined) { // a recording does not say
        return [null, null, null];
    }
    if (!agent) {
        return ["nobody", null, null];
    }
    const late = [["agent", agent.late_ns], ["of it without a CPU", agent.waited_ns], ["link", agent.link_late_ns],
        ["behind it", agent.below_late_ns], ["rings", agent.unread > 0 ? agent.unread_ns : 0]].filter(([, ns]) => ns >= 1e8);
    const who = agent.relay ? `relay ${agent.host}, pid ${agent.pid}` : agent.host === host ? `pid ${agent.pid}` : `${agent.host}, pid ${agent.pid}`;
    return [agent.gone ? `${who}, gone` : who, agent.age_ns < 1e9 ? "under 1 s ago" : `${span(agent.age_ns)} ago`,
        late.map(([name, ns]) => `${name} ${span(ns)}`).join(", ") || null];
}

// What is found for a text: a rank by its number, nodes and communicators by their names, findings by their words and by
// the functions that called, and which ranks are inside calls that such a function made.
export class Search extends Asked {
    constructor(context, text) {
        super(context, `Search: ${text ?? ""}`);
        this.text = (text ?? "").toLowerCase();
        this.body.className = "found";
    }

    fits(...texts) {
        return this.text !== "" && texts.some((text) => String(text ?? "").toLowerCase().includes(this.text));
    }

    show({comms}) {
        const run = this.context.run(), rank = /^\d+$/.test(this.text) ? Number(this.text) : null;
        const {rank: ranks, hosts} = expand(this.places ?? {hosts: []});
        const nodes = hosts.filter(({host}) => this.fits(host));
        const groups = comms.filter((comm) => this.fits(comm.name, comm.label, comm.key, comm.role, comm.made_at));
        const made = groups.some(({made_at: at}) => at); // where a line is known
        const inside = (this.waits?.groups ?? []).filter(({text}) => this.fits(text));
        const found = (this.findings?.findings ?? []).filter((one) =>
            this.fits(one.code, one.title, one.gist, one.comm, one.culprits_text, ...one.places ?? []) ||
            (rank !== null && [one.culprits_text, one.waiting_text].some((text) => has(pairs(text), rank))));
        const links = (list) => list.map((r) => [el("a", {href: link("rank", run, r)}, String(r)), " "]);
        const sections = [
            rank !== null && ranks.includes(rank) && [el("h2", {}, "Rank"), el("a", {href: link("rank", run, rank)}, named(String(rank)))],
            found.length > 0 && [el("h2", {}, "Findings"), el("ol", {class: "findings"}, found.slice(0, 50).map((one) => {
                const places = (one.places ?? []).filter((place) => this.fits(place));
                return [item(one, run), places.length > 0 ? el("li", {class: "called faint"}, `called in ${places.join(", ")}`) : null];
            }))],
            inside.length > 0 && [el("h2", {}, "Ranks inside calls"), inside.slice(0, 20).map(({ranks_text: text, count: n, text: why}) =>
                el("div", {}, el("b", {}, `${named(text)} (${count(n)})`), el("p", {class: "said"}, why)))],
            groups.length > 0 && [el("h2", {}, "Communicators"), table(["name", "role", "size", made && "made at"].filter(Boolean),
                groups.slice(0, 50).map((comm) => [commName(comm), comm.role || null, count(comm.size), comm.made_at]
                    .slice(0, made ? 4 : 3)))],
            nodes.length > 0 && [el("h2", {}, "Nodes"), table(["node", "ranks"], nodes.slice(0, 50).map(({host, begin, end}) =>
                [host, links(ranks.slice(begin, Math.min(end, begin + 16)))]))],
        ].filter(Boolean);
        say(this.line, sections.length > 0 ? "" : "Nothing here has that in its name: no rank, node, communicator, finding, or " +
            "function that a finding or a waiting rank names.");
        this.line.hidden = sections.length > 0;
        replace(this.body, sections);
    }
}
