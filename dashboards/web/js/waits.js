// waits.js: who waits for whom, as a small graph: on the left those who wait, on the right those that they wait for, a
// box for each finding that says so. Ranks that wait for the same have one box: who waits for two has two lines.
import {el, svg} from "./dom.js";
import {pairs} from "./ranks.js";
import {count, link, named} from "./words.js";

const LEFT = 240, SPACE = 160, RIGHT = 400, HIGH = 26, TALL = 42, GAP = 10, MOST = 12, MOST_WAITING = 24;

function short(text, most) {
    return text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
}

// Ranks by the edges of which they are: [{text, count, edges: [index, ...]}]. A text that is too long ends in an
// ellipsis: whom it leaves out is not known, and then each edge has a box of its own. No page is needed for it.
export function waiting(edges) {
    const whole = edges.every(({waiting_text: text}) => /^[\d,-]+$/.test(text)), groups = new Map();
    const sets = edges.map(({waiting_text: text}) => pairs(text));
    const ends = [...new Set(sets.flat().flatMap(([first, last]) => [first, last + 1]))].sort((a, b) => a - b);
    for (let i = 0; whole && i + 1 < ends.length; i++) {
        const [first, last] = [ends[i], ends[i + 1] - 1];
        const of = edges.map((_, k) => k).filter((k) => sets[k].some(([a, b]) => a <= first && last <= b));
        const group = groups.get(String(of)) ?? {list: [], count: 0, edges: of};
        if (group.list.at(-1)?.[1] === first - 1) {
            group.list.at(-1)[1] = last;
        } else {
            group.list.push([first, last]);
        }
        group.count += last - first + 1;
        groups.set(String(of), group);
    }
    groups.delete("");
    if (!whole || groups.size > MOST_WAITING) {
        return edges.map(({waiting_text: text, waiting: n}, k) => ({text, count: n, edges: [k]}));
    }
    return [...groups.values()].map(({list, ...group}) =>
        ({...group, text: list.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",")}));
}

function box(x, y, wide, high, kind, title, lines) {
    return svg("g", {class: kind, transform: `translate(${x},${y})`}, svg("title", {}, title),
        svg("rect", {x: 0.5, y: 0.5, width: wide - 1, height: high - 1, rx: 4}),
        lines.map(([text, look], i) => svg("text", {class: look, x: 10, y: 17 + 16 * i}, short(text, Math.floor(wide / 7.2)))));
}

function many(text, n) {
    return `${named(text)}${n > 1 ? ` (${count(n)})` : ""}`;
}

// edges: as the daemon tells them, of this run. Returns null where nobody waits.
export function waitGraph(edges, run) {
    const all = edges.filter((edge) => edge.waiting > 0), shown = all.slice(0, MOST);
    if (shown.length === 0) {
        return null;
    }
    const left = waiting(shown), tall = [left.length * (HIGH + GAP) - GAP, shown.length * (TALL + GAP) - GAP];
    const high = Math.max(...tall), [down, up] = tall.map((one) => (high - one) / 2), x = LEFT + SPACE;
    const parts = left.flatMap((group, i) => group.edges.map((k) => {
        const from = down + i * (HIGH + GAP) + HIGH / 2, to = up + k * (TALL + GAP) + TALL / 2;
        return svg("path", {d: `M${LEFT} ${from}C${LEFT + 70} ${from} ${x - 70} ${to} ${x - 8} ${to}`, "marker-end": "url(#tip)"});
    }));
    left.forEach(({text, count: n}, i) => parts.push(box(0, down + i * (HIGH + GAP), LEFT, HIGH, "waits", many(text, n),
        [[many(text, n)]])));
    shown.forEach((edge, k) => {
        const who = edge.culprits > 0 ? many(edge.culprits_text, edge.culprits) : "nobody is named";
        const why = `${edge.code}${edge.comm ? ` on ${edge.comm}` : ""}`;
        parts.push(svg("a", {href: link("finding", run, edge.number)}, box(x, up + k * (TALL + GAP), RIGHT, TALL,
            edge.culprits > 0 ? "who" : "nobody", `${who}: ${why}`, [[who], [why, "via"]])));
    });
    const more = all.length - shown.length;
    return [svg("svg", {class: "waits", viewBox: `0 0 ${x + RIGHT} ${high}`, role: "img",
                        "aria-label": `${shown.length} findings say who waits for whom`},
        svg("defs", {}, svg("marker", {id: "tip", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 8,
                                       markerHeight: 8, orient: "auto"}, svg("path", {d: "M0 0L8 4L0 8z"}))),
        parts), more > 0 ? el("p", {class: "faint"}, `and ${count(more)} more findings`) : null];
}
