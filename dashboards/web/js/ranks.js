// ranks.js: sets of ranks as the daemon folds them ("0-3,7"), the states that a rank can have, and where each rank has
// its place in the field. No page is needed for any of it: tests call it without one.

// The letters of the field (docs/WEB.md), in the order of the legend.
export const STATES = [
    {letter: "r", name: "running", means: "runs, and is inside no call"},
    {letter: "c", name: "inside", means: "inside a call"},
    {letter: "w", name: "waiting", means: "waits in a call for others, as its records or a finding say"},
    {letter: "b", name: "busy", means: "in its own code, while others wait for it"},
    {letter: "s", name: "stopped", means: "the process is stopped"},
    {letter: "d", name: "dead", means: "the process is dead"},
    {letter: "n", name: "silent", means: "not heard: its agent is silent"},
    {letter: "f", name: "finished", means: "the process has finished"},
];

export const STATE_OF = Object.fromEntries(STATES.map((state) => [state.letter, state]));

// "0-3,7" as pairs [[0, 3], [7, 7]]. What is no number is left out: texts that are too long end in an ellipsis.
export function pairs(text) {
    const list = [];
    for (const part of (text ?? "").split(",")) {
        const found = /^(\d+)(?:-(\d+))?$/.exec(part.trim());
        if (found) {
            list.push([Number(found[1]), Number(found[2] ?? found[1])]);
        }
    }
    return list;
}

export function has(list, rank) {
    return list.some(([first, last]) => first <= rank && rank <= last);
}

// The rank at each place, and the hosts with where they begin: from {hosts: [{host, ranks: [first, last, ...]}]}.
export function expand(places) {
    const rank = [], hosts = [];
    for (const {host, ranks} of places.hosts) {
        const begin = rank.length;
        for (let i = 0; i + 1 < ranks.length; i += 2) {
            for (let r = ranks[i]; r <= ranks[i + 1]; r++) {
                rank.push(r);
            }
        }
        hosts.push({host, begin, end: rank.length});
    }
    return {rank, hosts};
}

// How many ranks have each letter.
export function tally(states) {
    const n = {};
    for (let i = 0; i < states.length; i++) {
        n[states[i]] = (n[states[i]] ?? 0) + 1;
    }
    return n;
}

const CELLS = [28, 24, 20, 16, 13, 11, 9, 8, 7, 6, 5, 4, 3, 2];

// Cells in a row of a host with so many ranks: nodes of eight are one row, large ones about as wide as two are high.
function columns(n) {
    return n <= 8 ? n : n <= 16 ? 8 : Math.ceil(Math.sqrt(2 * n));
}

function place(hosts, width, cell) {
    const gap = cell >= 11 ? 10 : cell >= 6 ? 5 : 3, label = cell >= 13 ? 16 : 0, blocks = [];
    let x = 0, y = 0, high = 0;
    for (const host of hosts) {
        const n = host.end - host.begin, wide = Math.max(1, Math.min(columns(n), Math.floor(width / cell)));
        const w = Math.max(wide * cell, label ? 64 : 0), h = label + Math.ceil(n / wide) * cell;
        if (x > 0 && x + w > width) {
            x = 0;
            y += high + gap;
            high = 0;
        }
        blocks.push({...host, x, y: y + label, wide});
        x += w + gap;
        high = Math.max(high, h);
    }
    return {blocks, cell, label, height: y + high};
}

// The largest cells with which all hosts fit into width times height, in pixels.
export function layout(hosts, width, height) {
    let found = null;
    for (const cell of CELLS) {
        found = place(hosts, width, cell);
        if (found.height <= height) {
            break;
        }
    }
    return found;
}
