// words.js: numbers, times and addresses as people read them.

// Nanoseconds of the daemon's wall clock. They are beyond what a number holds exactly; milliseconds are enough here.
export function clock(ns) {
    return ns ? new Date(ns / 1e6).toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z") : "-";
}

export function timeOfDay(ms) {
    return new Date(ms).toTimeString().slice(0, 8);
}

export function span(ns) {
    const s = ns / 1e9;
    return s < 1 ? `${Math.round(s * 1000)} ms`
        : s < 120 ? `${s.toFixed(1)} s`
        : s < 7200 ? `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`
        : `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
}

const digits = new Intl.NumberFormat("en-US");

export function count(n) {
    return n === null || n === undefined ? "-" : digits.format(Math.round(n));
}

// "1 rank", "2,048 nodes".
export function some(n, noun) {
    return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

// "rank 3", "ranks 0-2".
export function named(text) {
    return `${/^\d+$/.test(text) ? "rank" : "ranks"} ${text}`;
}

// The address of a page of this run: link("finding", run, 3). Job names may hold any character.
export function link(page, run, ...rest) {
    return "#/" + [page, run.job, run.restart, ...rest].map(encodeURIComponent).join("/");
}

// A list of ranks, folded.
export function fold(ranks) {
    const list = [];
    for (const rank of ranks ?? []) {
        const last = list.at(-1);
        if (last && last[1] === rank - 1) {
            last[1] = rank;
        } else {
            list.push([rank, rank]);
        }
    }
    const text = list.slice(0, 20).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
    return list.length > 20 ? `${text},\u2026` : text || null;
}
