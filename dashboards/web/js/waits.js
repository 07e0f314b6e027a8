// waits.js: who waits for whom, as a small graph: those who wait on the left, those that they wait for on the right.
import {svg} from "./dom.js";
import {named, some} from "./words.js";

const ROW = 34, WIDE = 260, SPACE = 260, MOST = 12;

function short(text, most) {
    return text.length > most ? text.slice(0, most - 1) + "\u2026" : text;
}

function column(names) {
    return new Map([...new Set(names)].map((name, i) => [name, i]));
}

function box(name, n, x, row, kind) {
    return svg("g", {class: kind, transform: `translate(${x},${row * ROW + 4})`},
        svg("title", {}, `${named(name)} (${some(n, "rank")})`),
        svg("rect", {width: WIDE, height: ROW - 10, rx: 4}),
        svg("text", {x: 8, y: 16}, short(`${named(name)}${n > 1 ? ` (${n})` : ""}`, 40)));
}

// edges: as the daemon tells them. Returns null where nobody waits.
export function waitGraph(edges) {
    const shown = edges.filter((edge) => edge.waiting > 0).slice(0, MOST);
    if (shown.length === 0) {
        return null;
    }
    const who = (edge) => (edge.culprits > 0 ? edge.culprits_text : "?");
    const left = column(shown.map((edge) => edge.waiting_text)), right = column(shown.map(who));
    const x = WIDE + SPACE, parts = [], sizes = new Map();
    for (const edge of shown) {
        sizes.set(`l${edge.waiting_text}`, edge.waiting);
        sizes.set(`r${who(edge)}`, edge.culprits);
        const from = left.get(edge.waiting_text) * ROW + ROW / 2 - 1, to = right.get(who(edge)) * ROW + ROW / 2 - 1;
        parts.push(svg("path", {d: `M${WIDE} ${from}C${WIDE + 60} ${from} ${x - 60} ${to} ${x - 6} ${to}`,
                                "marker-end": "url(#tip)"}));
        parts.push(svg("text", {class: "via", x: WIDE + SPACE / 2, y: (from + to) / 2 - 4, "text-anchor": "middle"},
            short(`${edge.code}${edge.comm ? `, ${edge.comm}` : ""}`, 42)));
    }
    left.forEach((row, name) => parts.push(box(name, sizes.get(`l${name}`), 0, row, "waits")));
    right.forEach((row, name) => parts.push(name === "?"
        ? svg("text", {x, y: row * ROW + 20}, "nobody is named")
        : box(name, sizes.get(`r${name}`), x, row, "who")));
    const rows = Math.max(left.size, right.size);
    return svg("svg", {class: "waits", viewBox: `0 0 ${x + WIDE} ${rows * ROW + 4}`, role: "img",
                       "aria-label": `${shown.length} findings say who waits for whom`},
        svg("defs", {}, svg("marker", {id: "tip", viewBox: "0 0 8 8", refX: 4, refY: 4, markerWidth: 8,
                                       markerHeight: 8, orient: "auto"}, svg("path", {d: "M0 0L8 4L0 8z"}))),
        parts);
}
