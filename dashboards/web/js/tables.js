// tables.js: the pages that are tables: communicators, nodes, and what a search finds.
//
// What they show is asked for when they are opened and every few seconds after that, and not told as it happens: a
// thousand communicators a second would be work for the root and for the browser, and nobody reads so fast.
import {el, replace, say} from "./dom.js";
import {item} from "./overview.js";
import {expand, has, pairs, STATE_OF, tally} from "./ranks.js";
import {count, fold, link, named, some, span} from "./words.js";

const AGAIN_MS = 5000, ROWS = 1024, NODES = 256;

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
        this.node = [el("section", {}, el("h1", {}, title), this.line, this.body)];
    }

    opened() {
        this.look();
        this.timer = setInterval(() => document.hidden || this.look(), AGAIN_MS);
    }

    close() {
        clearInterval(this.timer);
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
        this[part] = data;
        if (this.asked && (part === "places" || part === "findings")) {
            this.show(this.asked);
        }
    }
}

export class Communicators extends Asked {
    constructor(context) {
        super(context, "Communicators");
    }

    show({comms, families, summary}) {
        const apart = [...comms].sort((a, b) => (b.ahead - b.done) - (a.ahead - a.done));
        say(this.line, `${some(summary.comms, "communicator")}${comms.length < summary.comms
            ? `, of which ${comms.length} are listed` : ""}; those that are furthest apart first`);
        replace(this.body, comms.length > 0 ? table(
            ["name", "role", "size", "seen", "called by all", "furthest", "behind", "made at"],
            apart.map((comm) => [commName(comm), comm.role || null, count(comm.size), count(comm.seen),
                count(comm.done), count(comm.ahead), fold(comm.behind), comm.made_at])) : null,
            families?.length > 0 ? [el("h2", {}, "By families"), table(Object.keys(families[0]),
                families.map((family) => Object.values(family).map(plain)))] : null);
    }
}

function plain(value) {
    return value === null || value === "" ? null : typeof value === "object" ? JSON.stringify(value) : String(value);
}

export class Nodes extends Asked {
    constructor(context) {
        super(context, "Nodes", "nodes", {rows: NODES});
    }

    // How many ranks of each host are in which state.
    states() {
        const {hosts} = expand(this.places ?? {hosts: []});
        return new Map(hosts.map(({host, begin, end}) => [host, {
            states: tally(this.field?.states.slice(begin, end) ?? "")}]));
    }

    // The page is made of what is told of ranks, and of what was asked: which of the two has changed does not matter.
    show({count: n, nodes, losses, eyes}) {
        const hosts = this.states(), lost = Object.entries(losses).filter(([, k]) => k > 0);
        say(this.line, `${some(n, "node")}${nodes.length < n ? `, of which ${nodes.length} are listed` : ""}; those in need first`);
        replace(this.body, eyes.length > 0 ? el("ul", {class: "eyes"}, eyes.map(({text}) => el("li", {}, text))) : null,
            table(["node", "ranks", "they are", "not heard", "lost", "without a CPU", "agent", "heard", "late"], nodes.map((node) => {
                const states = hosts.get(node.host)?.states ?? {};
                return [node.host, `${count(node.ranks)} (${node.ranks_text})`,
                    Object.entries(states).map(([letter, k]) => `${k} ${STATE_OF[letter]?.name}`).join(", "),
                    node.silent ? count(node.silent) : null, node.lost + node.unrecorded ? count(node.lost + node.unrecorded) : null,
                    node.starved ? `${(node.starved / 10).toFixed(1)} %` : null, ...agentCells(node.agent, node.host)];
            })), el("h2", {}, "Losses"), lost.length > 0
                ? table(["cause", "records"], lost.map(([cause, k]) => [cause, count(k)]))
                : el("p", {class: "faint"}, "Nothing was lost."));
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
    return [agent.gone ? `${who}, gone` : who, `${span(agent.age_ns)} ago`,
        late.map(([name, ns]) => `${name} ${span(ns)}`).join(", ") || null];
}

// What is found for a text: a rank by its number, nodes and communicators by their names, findings by their words.
export class Search extends Asked {
    constructor(context, text) {
        super(context, `Search: ${text ?? ""}`);
        this.text = (text ?? "").toLowerCase();
    }

    fits(text) {
        return this.text !== "" && String(text ?? "").toLowerCase().includes(this.text);
    }

    show({comms}) {
        const run = this.context.run(), rank = /^\d+$/.test(this.text) ? Number(this.text) : null;
        const {rank: ranks, hosts} = expand(this.places ?? {hosts: []});
        const nodes = hosts.filter(({host}) => this.fits(host));
        const groups = comms.filter((comm) => [comm.name, comm.label, comm.key, comm.role, comm.made_at].some((x) => this.fits(x)));
        const found = (this.findings?.findings ?? []).filter((one) =>
            [one.code, one.title, one.gist, one.comm, one.culprits_text].some((x) => this.fits(x)) ||
            (rank !== null && [one.culprits_text, one.waiting_text].some((text) => has(pairs(text), rank))));
        const sections = [
            rank !== null && ranks.includes(rank) && [el("h2", {}, "Rank"), el("a", {href: link("rank", run, rank)}, named(String(rank)))],
            nodes.length > 0 && [el("h2", {}, "Nodes"), table(["node", "ranks"], nodes.slice(0, 50).map(({host, begin, end}) =>
                [host, ranks.slice(begin, Math.min(end, begin + 16)).map((r) => [el("a", {href: link("rank", run, r)}, String(r)), " "])]))],
            groups.length > 0 && [el("h2", {}, "Communicators"), table(["name", "size", "made at"],
                groups.slice(0, 50).map((comm) => [commName(comm), count(comm.size), comm.made_at]))],
            found.length > 0 && [el("h2", {}, "Findings"), el("ol", {class: "findings"}, found.map((one) => item(one, run)))],
        ].filter(Boolean);
        say(this.line, sections.length > 0 ? "" : "Nothing here has that in its name.");
        replace(this.body, sections);
    }
}
