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

// The same pairs in order, those that touch as one; and whether one of them has the rank, in few steps.
export function merged(list) {
    const made = [];
    for (const [first, last] of [...list].sort((a, b) => a[0] - b[0])) {
        if (made.length > 0 && first <= made.at(-1)[1] + 1) {
            made.at(-1)[1] = Math.max(made.at(-1)[1], last);
        } else {
            made.push([first, last]);
        }
    }
    return made;
}

export function within(made, rank) {
    let low = 0, high = made.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (made[middle][1] < rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < made.length && made[low][0] <= rank;
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

// How high all hosts are with cells of this size; told(host, x, y, wide) has the place of each.
function flow(hosts, width, cell, told) {
    const gap = cell >= 11 ? 10 : cell >= 6 ? 5 : 3, label = cell >= 13 ? 16 : 0, most = Math.floor(width / cell);
    let x = 0, y = 0, high = 0;
    for (const host of hosts) {
        const n = host.end - host.begin, wide = Math.max(1, Math.min(columns(n), most));
        const w = Math.max(wide * cell, label ? 64 : 0), h = label + Math.ceil(n / wide) * cell;
        if (x > 0 && x + w > width) {
            x = 0;
            y += high + gap;
            high = 0;
        }
        told?.(host, x, y + label, wide);
        x += w + gap;
        high = Math.max(high, h);
    }
    return {height: y + high, label};
}

// The largest cells with which all hosts fit into width times height, in pixels.
export function layout(hosts, width, height) {
    let low = 0, high = CELLS.length - 1; // smaller ones never need more room, so few have to be tried
    while (low < high) {
        const middle = (low + high) >> 1;
        if (flow(hosts, width, CELLS[middle]).height <= height) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    const cell = CELLS[low], blocks = [];
    const found = flow(hosts, width, cell, (host, x, y, wide) => blocks.push({...host, x, y, wide}));
    return {...found, blocks, cell};
}
