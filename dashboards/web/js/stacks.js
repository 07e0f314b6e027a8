// stacks.js: where in their code ranks are: the stacks of their main threads, merged, as an icicle: outermost frames on
// top, as wide as there are ranks in them. Taking stacks stops a thread for a moment, so it takes the operator.
import {el, replace, say} from "./dom.js";
import {count, fold, named, span} from "./words.js";

const POLL_MS = 500, MOST_MS = 60000;

// The path of the main thread in each look, outermost first; null where a look did not see it.
function looks(stack) {
    const thread = stack.threads?.find(({tid}) => tid === stack.pid) ?? stack.threads?.[0];
    return (thread?.samples ?? []).map((n) => (n === null || n === undefined ? null
        : stack.stacks[n].map((k) => stack.frames[k])));
}

function text(frame) {
    const file = frame.file ? `${frame.file}${frame.line ? `:${frame.line}` : ""}` : frame.module ?? "";
    return `${frame.fn || "?"}  ${file}`.trim();
}

// What of a frame is shown: of its path the file alone. The whole of it stands behind.
function shown(name) {
    return name.replace(/  .*\//, "  ");
}

// Merges answers [{rank, stack}] into a tree: {name, ranks, seen, of, below}. `seen` of `of` looks found these ranks
// there. No page is needed for it.
export function merge(answers) {
    const top = {name: "", ranks: new Set(), seen: 0, of: 0, below: new Map()};
    for (const {rank, stack} of answers) {
        const paths = looks(stack ?? {}).filter(Boolean);
        const touched = new Set();
        for (const path of paths) {
            let at = top;
            for (const frame of [null, ...path]) {
                if (frame) {
                    const name = text(frame);
                    if (!at.below.has(name)) {
                        at.below.set(name, {name, ranks: new Set(), seen: 0, of: 0, below: new Map()});
                    }
                    at = at.below.get(name);
                }
                at.ranks.add(rank);
                at.seen++;
                touched.add(at);
            }
        }
        touched.forEach((node) => { node.of += paths.length; });
    }
    return top;
}

// Which ranks' main threads stand in a later taking where they stood in the one before, and which do not; of others
// nothing is known. No page is needed for it.
export function compare(before, after) {
    const paths = (answers) => new Map(answers.map(({rank, stack}) =>
        [rank, looks(stack ?? {}).filter(Boolean).map((path) => path.map(text).join("\n"))]));
    const was = paths(before), stuck = [], moved = [];
    for (const [rank, now] of paths(after)) {
        const then = was.get(rank) ?? [];
        if (then.length > 0 && now.length > 0) {
            (new Set([...then, ...now]).size === 1 ? stuck : moved).push(rank);
        }
    }
    return {stuck: stuck.sort((a, b) => a - b), moved: moved.sort((a, b) => a - b)};
}

function state(node) {
    return node.seen === node.of ? "stuck" : `moving: here in ${node.seen} of ${node.of} looks`;
}

// Frames that have one below with the same ranks are lines of one box.
function box(node) {
    const lines = [node];
    while (lines.at(-1).below.size === 1) {
        const [next] = lines.at(-1).below.values();
        if (next.ranks.size !== node.ranks.size || next.seen !== node.seen) {
            break;
        }
        lines.push(next);
    }
    const below = [...lines.at(-1).below.values()].sort((a, b) => b.ranks.size - a.ranks.size);
    const ranks = fold([...node.ranks].sort((a, b) => a - b));
    const made = el("div", {class: `frame ${node.seen === node.of ? "stuck" : "moving"}`},
        el("div", {class: "faint"}, `${named(ranks)} (${count(node.ranks.size)}), ${state(node)}`),
        lines.filter(({name}) => name).map(({name}) => el("code", {title: name}, shown(name))),
        below.length > 0 ? el("div", {class: "below"}, below.map(box)) : null);
    made.style.flexGrow = String(node.ranks.size);
    return made;
}

export class Stacks {
    constructor(context) {
        this.context = context;
        this.ranks = el("input", {name: "ranks", placeholder: "ranks, as 0-3,7; none: those that matter",
                                  "aria-label": "ranks", size: 42});
        this.take = el("button", {id: "take", disabled: true, click: () => this.look()}, "Take stacks");
        this.said = el("p", {class: "faint", role: "status"});
        this.since = el("p", {id: "since"});
        this.before = null; // what was taken before: {answers, at}
        this.body = el("div", {class: "icicle"});
        this.node = [el("section", {}, el("h1", {}, "Stacks"), el("div", {class: "row"}, this.ranks, this.take),
                                this.said, this.since, this.body)];
    }

    async opened() {
        const user = await this.context.ask("who").then((answer) => answer.user, () => "nobody");
        this.take.disabled = user !== "operator";
        say(this.said, user === "operator" ? "A thread stands still for a moment while its stack is read."
            : "Who came as the operator (rollcall page --operator) takes stacks here. In a terminal: rollcall stacks");
    }

    update() {}

    close() {
        this.closed = true;
    }

    async look() {
        const {job, restart} = this.context.run(), run = job ? {job, restart} : {};
        const text = this.ranks.value.trim(), end = Date.now() + MOST_MS, answers = [];
        this.take.disabled = true;
        try {
            const {id, count: n, ranks} = await this.context.ask("stacks", {...run, ranks: text || undefined}, true);
            for (let done = false; !done && !this.closed && Date.now() < end;) {
                say(this.said, `${answers.length} of ${n} ranks (${ranks}) have answered`);
                await new Promise((resolve) => setTimeout(resolve, POLL_MS));
                const more = await this.context.ask("stacks", {...run, id, from: answers.length});
                answers.push(...more.answers);
                done = more.done;
            }
            this.show(answers, n);
        } catch (error) {
            say(this.said, error.message);
        }
        this.take.disabled = false;
    }

    show(answers, n) {
        const top = merge(answers), lacking = answers.filter(({stack}) => !stack || stack.error);
        say(this.said, `${count(top.ranks.size)} of ${count(n)} ranks were looked at, their main threads` +
            (lacking.length > 0 ? `; ${lacking[0].stack?.error ?? "no answer"}` : ""));
        replace(this.body, top.ranks.size > 0 ? box(top) : null);
        this.tell(answers);
    }
    // Within a taking 0.4 s are seen; a second one says more.
    tell(answers) {
        const now = Date.now();
        if (this.before) {
            const {stuck, moved} = compare(this.before.answers, answers), s = span((now - this.before.at) * 1e6);
            const part = (ranks, one, many) => (ranks.length > 0 ? `${named(fold(ranks))} ${ranks.length > 1 ? many : one}` : null);
            say(this.since, [part(stuck, "stands where it stood", "stand where they stood"), part(moved, "has moved", "have moved")]
                .filter(Boolean).join("; ") + ` since the stacks of ${s} ago.`);
        } else {
            say(this.since, "Take them again to see who has moved since.");
        }
        this.before = {answers, at: now};
    }
}
