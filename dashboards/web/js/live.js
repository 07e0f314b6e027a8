// live.js: what the daemon tells as it happens (server-sent events), and questions.
//
// A browser keeps six connections to one server at most, for all its tabs together: a page that nobody sees closes its
// own. The browser's own reconnecting is not used: it does not say how long nothing was heard, and never comes back
// from an answer like "too many pages".

const PARTS = ["status", "places", "field", "findings", "waits"];
const SOON_MS = 500, LATE_MS = 10000, FULL_MS = 10000, QUIET_MS = 25000;

// Addresses begin with location.origin: a page that was opened with the password in its link has it in the address that
// relative ones are completed with, and browsers refuse to fetch those.

// What stands in its place in a report (dashboards/report/recorded.js) lacks some pages.
export const LACKS = [];

// Asks the daemon: ask("verdicts", {job, restart, number}). Throws an Error with the daemon's own words.
export async function ask(op, members = {}, post = false) {
    const query = new URLSearchParams(Object.entries(members).filter(([, value]) => value !== undefined));
    const answer = await fetch(`${location.origin}/api/ask/${op}?${query}`, {method: post ? "POST" : "GET", cache: "no-store"});
    const json = await answer.json().catch(() => ({error: `the daemon answered ${answer.status}`}));
    if (json.error !== undefined) {
        throw new Error(json.error);
    }
    return json;
}

export class Live {
    // told(part, data) for each event; changed() when `state` or `heard` did.
    constructor(told, changed) {
        Object.assign(this, {told, changed, state: "new", heard: 0, wait: SOON_MS, source: null, timer: 0});
        document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.begin()));
        setInterval(() => this.watch(), 1000);
    }

    // run: {job, restart}, or null for the newest.
    listen(run) {
        this.run = run;
        this.wait = SOON_MS;
        this.begin();
    }

    stop() {
        clearTimeout(this.timer);
        this.source?.close();
        this.source = null;
    }

    pause() {
        this.stop();
        this.set("paused");
    }

    begin() {
        this.stop();
        if (document.hidden) {
            this.set("paused");
            return;
        }
        const query = new URLSearchParams(this.run ? {job: this.run.job, restart: this.run.restart} : {});
        const source = new EventSource(`${location.origin}/api/listen?${query}`);
        this.source = source;
        this.begun = Date.now();
        for (const part of PARTS) {
            source.addEventListener(part, (event) => this.take(part, event.data));
        }
        source.addEventListener("error", () => this.lose(source));
    }

    take(part, data) {
        this.heard = Date.now();
        this.wait = SOON_MS;
        this.told(part, JSON.parse(data));
        this.set("live");
    }

    async lose(source) {
        if (source !== this.source) {
            return;
        }
        const refused = source.readyState === EventSource.CLOSED;
        this.stop();
        this.set("lost");
        this.timer = setTimeout(() => this.begin(), this.wait * (0.75 + Math.random() / 2));
        this.wait = Math.min(2 * this.wait, LATE_MS);
        const runs = refused ? await ask("runs").then((answer) => answer.runs, () => null) : null;
        if (runs) { // the daemon is there: it has too many
            this.runs = runs;
            this.wait = FULL_MS;
            this.set("full");
        }
    }

    // Who is one too many is told nothing: whether there is such a run is known from when it was told so.
    knows(run) {
        return run ? this.runs.some(({job, restart}) => job === run.job && restart === run.restart) : this.runs.length > 0;
    }

    // A connection may be open, and dead: the daemon tells something every second, or every ten where it has much to do.
    watch() {
        if (this.source && Date.now() - Math.max(this.heard, this.begun) > QUIET_MS) {
            this.lose(this.source);
        }
        this.changed();
    }

    set(state) {
        this.state = state;
        this.changed();
    }
}
