// lanes.js: the calls of some ranks as swim lanes on one canvas: a lane for each rank, a bar for each call, as long as
// the rank's host was inside of it. Data comes in, pixels go out; nothing is asked for here. SVG was rejected: 32 ranks
// with 512 calls each are 16,384 elements, which no browser pans smoothly.
import {count, span} from "./words.js";

const LANE = 26, GAP = 6, AXIS = 22, LABEL = 120, MOST_ROWS = 4, LEAST_NS = 2000, BEFORE = 40, FAR_OFF = 8;

const FAR_NS = 1e17; // three years: beyond it no time is one, and sums of times are not exact

// One answer {rank, host, calls: rollcall.calls/1} as {rank, host, error, calls: [{from, to, ...}]}: times are ns after
// `base` (ms of the wall clock), `to` is null while the host is inside. An answer is what some agent has sent, and may
// be anything. No page is needed for it.
export function laneOf(answer, base) {
    try {
        return readLane(answer, base);
    } catch {
        return {rank: answer.rank, host: answer.host, error: "its answer cannot be read", more: false, calls: [], rows: 1};
    }
}

function readLane({rank, host, calls}, base) {
    const lane = {rank, host, error: calls.error ?? null, more: Boolean(calls.over), calls: [], rows: 1};
    const comms = new Map((calls.comms ?? []).map((comm) => [comm.id, comm]));
    const sites = new Map((calls.sites ?? []).map((site) => [site.id, site.place]));
    const names = calls.columns ?? [], shift = ((calls.base_ms ?? base) - base) * 1e6;
    for (const row of calls.rows ?? []) {
        const call = Object.fromEntries(names.map((name, i) => [name, row[i]]));
        call.from = shift + call.enter_ns;
        call.to = call.call_ns === null ? null : call.from + call.call_ns;
        call.comm = comms.get(call.comm) ?? null;
        call.place = sites.get(call.site) ?? null;
        if (Math.abs(call.from) < FAR_NS && (call.to === null || (call.to >= call.from && call.to < FAR_NS))) {
            lane.calls.push(call);
        }
    }
    lane.calls.sort((a, b) => a.from - b.from);
    const ends = [];
    for (const call of lane.calls) { // calls of several threads, and those inside a group, stand below each other
        let row = ends.findIndex((end) => end <= call.from);
        row = row >= 0 ? row : Math.min(ends.length, MOST_ROWS - 1);
        ends[row] = Math.max(ends[row] ?? 0, call.to ?? Infinity);
        call.row = row;
    }
    lane.rows = Math.max(1, ends.length);
    return lane;
}

// All lanes, of one base; in the order in which the ranks were asked for.
export function lanesOf(answers) {
    const known = answers.map(({calls}) => calls.base_ms).filter((ms) => Number.isFinite(ms) && ms > 0 && ms < 8.64e15);
    const base = known.length > 0 ? Math.min(...known) : 0;
    return {base, lanes: answers.map((answer) => laneOf(answer, base)).sort((a, b) => a.rank - b.rank)};
}

// What is to be seen at first: the last calls before `at` (ns after the base; null: the last ones), what came then, and
// that moment itself; but where it is so far from all calls that they would be a line beside it, the calls alone.
export function firstWindow(lanes, at) {
    let from = Infinity, to = -Infinity;
    for (const {calls} of lanes) {
        const known = at === null ? calls.length - 1 : calls.findLastIndex((call) => call.from <= at);
        if (calls.length > 0) {
            from = Math.min(from, calls[Math.max(0, known - BEFORE)].from);
            to = Math.max(to, ...calls.slice(-1).map((call) => call.to ?? call.from));
        }
    }
    if (!Number.isFinite(from)) {
        return at === null ? [0, 1e9] : [at - 1e9, at + 1e9];
    }
    const far = FAR_OFF * Math.max(LEAST_NS, to - from);
    if (at !== null && at > from - far && at < to + far) {
        from = Math.min(from, at);
        to = Math.max(to, at);
    }
    const more = Math.max(LEAST_NS, (to - from) * 0.1);
    return [from - more / 4, to + more];
}

// One call in words.
export function callText(lane, call, base) {
    const at = new Date(base + call.from / 1e6).toISOString().slice(11, 23);
    const what = [call.op, call.comm && `on ${call.comm.name}`, call.comm && `call ${call.seq}`].filter(Boolean).join(" ");
    const moved = call.dtype ? `${count(call.count)} ${call.dtype}${call.redop ? ` ${call.redop}` : ""}` : null;
    const held = call.to === null ? "entered, and not returned" : `${call.state}, host inside for ${short(call.to - call.from)}`;
    return [`rank ${lane.rank}: ${what}`, moved, call.peer === null ? null : `peer or root ${call.peer}`, `at ${at}`, held,
        call.step === null ? null : `step ${call.step}`, call.place && `called at ${call.place}`].filter(Boolean).join("; ");
}

function short(ns) {
    return ns < 1e3 ? `${Math.round(ns)} ns` : ns < 1e6 ? `${(ns / 1e3).toFixed(1)} \u00b5s`
        : ns < 1e9 ? `${(ns / 1e6).toFixed(1)} ms` : span(ns);
}

function tickStep(ns) {
    const ten = 10 ** Math.floor(Math.log10(ns));
    return ns / ten > 5 ? 10 * ten : ns / ten > 2 ? 5 * ten : 2 * ten;
}

export class Lanes {
    // told(lane, call): the pointer has come to a call, or to none (null). changed(from, to): what is seen is another.
    constructor(canvas, {pointed, picked, changed}) {
        Object.assign(this, {canvas, pointed, picked, changed, lanes: [], base: 0, mark: null, from: 0, to: 1e9});
        this.figures = {draws: 0, bars: 0, longest_ms: 0, seen_ms: 0, moment: false}; // what a test looks at
        this.at = null; // the call that the keyboard has come to: [lane, index]
        this.watch = new ResizeObserver(() => canvas.parentElement.clientWidth !== this.width && this.draw());
        this.watch.observe(canvas.parentElement);
        this.scheme = matchMedia("(prefers-color-scheme: dark)");
        this.redraw = () => this.draw();
        this.scheme.addEventListener("change", this.redraw);
        canvas.addEventListener("wheel", (event) => {
            event.preventDefault();
            this.zoom(Math.exp(Math.sign(event.deltaY) * 0.25), this.timeAt(event.offsetX), true);
        }, {passive: false});
        canvas.addEventListener("pointerdown", (event) => {
            canvas.setPointerCapture(event.pointerId);
            this.drag = {x: event.offsetX, from: this.from, to: this.to, moved: false};
        });
        canvas.addEventListener("pointermove", (event) => this.move(event));
        canvas.addEventListener("pointerup", (event) => {
            const found = this.drag?.moved ? null : this.find(event);
            this.drag = null;
            if (found) {
                this.picked?.(found.lane, found.call);
            }
        });
        canvas.addEventListener("pointercancel", () => { this.drag = null; });
        canvas.addEventListener("keydown", (event) => this.key(event));
    }

    close() {
        cancelAnimationFrame(this.frame ?? 0);
        this.watch.disconnect();
        this.scheme.removeEventListener("change", this.redraw);
    }

    // mark: {ns, comm, seq} of the finding (ns after the base), or null.
    set({base, lanes}, mark, window) {
        Object.assign(this, {base, lanes, mark, at: null});
        [this.from, this.to] = window ?? firstWindow(lanes, mark?.ns ?? null);
        let y = AXIS;
        for (const lane of lanes) {
            lane.y = y;
            lane.high = Math.max(LANE, lane.rows * 12);
            y += lane.high + GAP;
        }
        this.height = y;
        const n = lanes.reduce((sum, {calls}) => sum + calls.length, 0);
        this.canvas.setAttribute("aria-label", `${n} calls of ${lanes.length} ranks; arrows move, plus and minus zoom`);
        this.draw();
    }

    // later: a wheel or a pointer that is dragged tells more than can be drawn; drawn is what it told last.
    see(from, to, later = false) {
        const least = LEAST_NS / 2;
        this.from = from;
        this.to = Math.max(to, from + least);
        cancelAnimationFrame(this.frame ?? 0);
        if (later) {
            this.frame = requestAnimationFrame(() => this.draw());
        } else {
            this.draw();
        }
        this.changed?.(this.from, this.to);
    }

    zoom(factor, about = (this.from + this.to) / 2, later = false) {
        this.see(about - (about - this.from) * factor, about + (this.to - about) * factor, later);
    }

    pan(share) {
        const by = (this.to - this.from) * share;
        this.see(this.from + by, this.to + by);
    }

    all() {
        const calls = this.lanes.flatMap((lane) => lane.calls);
        const from = Math.min(...calls.map((call) => call.from)), to = Math.max(...calls.map((call) => call.to ?? call.from));
        if (calls.length > 0) {
            const more = Math.max(LEAST_NS, (to - from) * 0.05);
            this.see(from - more, to + more);
        }
    }

    xOf(ns) {
        return LABEL + (ns - this.from) / (this.to - this.from) * (this.width - LABEL);
    }

    timeAt(x) {
        return this.from + (x - LABEL) / (this.width - LABEL) * (this.to - this.from);
    }

    isMarked(call) {
        return Boolean(this.mark?.comm && call.comm?.key === this.mark.comm && call.seq === this.mark.seq);
    }

    colours() {
        const look = getComputedStyle(this.canvas), probe = document.createElement("i");
        this.canvas.parentElement.append(probe);
        const of = (name) => {
            probe.style.color = look.getPropertyValue(name);
            return getComputedStyle(probe).color;
        };
        const made = {text: of("--text"), faint: of("--faint"), line: of("--line"), waiting: of("--waiting"),
                      none: of("--finished"), mark: of("--proven"), back: of("--box"), dark: this.scheme.matches};
        probe.remove();
        return made;
    }

    // A colour for each communicator, in the order in which they are met.
    hue(comm) {
        this.hues ??= new Map();
        if (!this.hues.has(comm.key)) {
            this.hues.set(comm.key, `hsl(${(200 + this.hues.size * 67) % 360} 50% ${this.look.dark ? 55 : 48}%)`);
        }
        return this.hues.get(comm.key);
    }

    draw() {
        const width = this.canvas.parentElement.clientWidth, scale = devicePixelRatio || 1, begin = performance.now();
        if (width <= LABEL || !this.height) {
            return;
        }
        this.width = width;
        this.canvas.width = width * scale;
        this.canvas.height = this.height * scale;
        this.canvas.style.width = `${width}px`;
        this.canvas.style.height = `${this.height}px`;
        this.look = this.colours();
        this.ink = this.canvas.getContext("2d");
        this.ink.setTransform(scale, 0, 0, scale, 0, 0);
        this.ink.clearRect(0, 0, width, this.height);
        this.ink.font = "11px system-ui, sans-serif";
        this.figures.draws++;
        this.figures.bars = 0;
        this.figures.seen_ms = (this.to - this.from) / 1e6;
        this.axis();
        for (const lane of this.lanes) {
            this.lane(lane);
        }
        this.moment();
        this.figures.longest_ms = Math.max(this.figures.longest_ms, performance.now() - begin);
    }

    axis() {
        const zero = this.mark?.ns ?? this.to, step = tickStep((this.to - this.from) / 8);
        for (let t = zero + Math.ceil((this.from - zero) / step) * step; t <= this.to; t += step) {
            const x = this.xOf(t), after = t - zero;
            this.ink.fillStyle = this.look.line;
            this.ink.fillRect(x, AXIS - 6, 1, this.height - AXIS + 6);
            this.ink.fillStyle = this.look.faint;
            this.ink.fillText(Math.abs(after) < step / 2 ? "0" : `${after < 0 ? "\u2212" : "+"}${short(Math.abs(after))}`, x + 3, 12);
        }
    }

    // The moment of the finding, across all lanes.
    moment() {
        const x = this.xOf(this.mark?.ns ?? NaN);
        this.figures.moment = x >= LABEL && x <= this.width;
        if (this.figures.moment) {
            this.ink.fillStyle = this.look.mark;
            this.ink.fillRect(x, AXIS - 6, 1.5, this.height - AXIS + 6);
        }
    }

    lane(lane) {
        this.ink.fillStyle = this.look.back;
        this.ink.fillRect(0, lane.y, LABEL - 4, lane.high);
        this.ink.fillStyle = this.look.text;
        this.ink.fillText(`rank ${lane.rank}`, 2, lane.y + 11, LABEL - 8);
        this.ink.fillStyle = this.look.faint;
        this.ink.fillText(String(lane.host ?? "").slice(0, 40), 2, lane.y + 23, LABEL - 8);
        if (lane.calls.length === 0) {
            this.ink.fillText(lane.error ?? "no calls", LABEL + 4, lane.y + 16, this.width - LABEL - 8);
        }
        this.ink.save();
        this.ink.beginPath();
        this.ink.rect(LABEL, lane.y - 2, this.width - LABEL, lane.high + 4);
        this.ink.clip();
        const last = new Float64Array(MOST_ROWS).fill(-1);
        for (const call of lane.calls) {
            const x = this.xOf(call.from), end = call.to === null ? this.width : this.xOf(call.to);
            if (end < LABEL || x > this.width || (end < last[call.row] && !this.isMarked(call))) {
                continue; // not to be seen, or on pixels that have one
            }
            last[call.row] = Math.floor(Math.max(x, LABEL)) + 1;
            this.bar(lane, call, Math.max(x, LABEL - 2), Math.min(end, this.width + 2));
        }
        this.ink.restore();
    }

    bar(lane, call, x, end) {
        const high = lane.high / lane.rows, y = lane.y + call.row * high, wide = Math.max(1.5, end - x);
        this.ink.fillStyle = call.to === null ? this.look.waiting : call.comm ? this.hue(call.comm) : this.look.none;
        this.ink.fillRect(x, y + 1, wide, high - 2);
        if (this.isMarked(call) || this.at?.call === call) {
            this.ink.strokeStyle = this.at?.call === call ? this.look.text : this.look.mark;
            this.ink.lineWidth = 2;
            this.ink.strokeRect(x, y + 1, Math.max(3, wide), high - 2);
        }
        if (wide > 40) {
            this.ink.fillStyle = this.look.dark && call.to !== null ? "#000" : call.to === null ? "#000" : "#fff";
            const text = `${call.op}${call.comm ? ` ${call.seq}` : ""}`, most = Math.floor((wide - 6) / 6);
            this.ink.fillText(text.length > most ? text.slice(0, most) : text, x + 3, y + high / 2 + 4);
        }
        this.figures.bars++;
    }

    // The call under the pointer, or the nearest one within three pixels.
    find(event) {
        const lane = this.lanes.find(({y, high}) => event.offsetY >= y && event.offsetY < y + high);
        const row = lane && Math.floor((event.offsetY - lane.y) / (lane.high / lane.rows));
        let best = null, least = 4;
        for (const call of lane?.calls ?? []) {
            const x = this.xOf(call.from), end = call.to === null ? this.width : this.xOf(call.to);
            const off = Math.max(x - event.offsetX, event.offsetX - end, 0);
            if (call.row === row && off < least) {
                least = off + 1e-9;
                best = call;
            }
        }
        return best && {lane, call: best};
    }

    move(event) {
        if (this.drag) {
            const by = (event.offsetX - this.drag.x) / (this.width - LABEL) * (this.drag.to - this.drag.from);
            this.drag.moved ||= Math.abs(event.offsetX - this.drag.x) > 3;
            if (this.drag.moved) {
                this.see(this.drag.from - by, this.drag.to - by, true);
            }
            return;
        }
        const found = this.find(event);
        this.pointed?.(found?.lane ?? null, found?.call ?? null);
    }

    // Enter goes through the calls of a lane, one by one, and Shift+Enter back; up and down to another lane.
    key(event) {
        const does = {ArrowLeft: () => this.pan(-0.2), ArrowRight: () => this.pan(0.2), "+": () => this.zoom(0.7),
                      "=": () => this.zoom(0.7), "-": () => this.zoom(1 / 0.7), 0: () => this.all(),
                      Enter: () => this.step(event.shiftKey ? -1 : 1, 0), ArrowUp: () => this.step(0, -1),
                      ArrowDown: () => this.step(0, 1)}[event.key];
        if (does && !event.ctrlKey && !event.metaKey && !event.altKey) {
            does();
            event.preventDefault();
        }
    }

    step(by, lanes) {
        const old = this.at ? this.lanes.indexOf(this.at.lane) : 0;
        const lane = this.lanes[Math.min(Math.max(old + lanes, 0), this.lanes.length - 1)];
        if (!lane || lane.calls.length === 0) {
            return;
        }
        const near = this.at?.call.from ?? this.from;
        let i = this.at?.lane === lane ? lane.calls.indexOf(this.at.call) + by : lane.calls.findIndex((call) => call.from >= near);
        i = Math.min(Math.max(i < 0 && this.at?.lane !== lane ? lane.calls.length - 1 : i, 0), lane.calls.length - 1);
        this.at = {lane, call: lane.calls[i]};
        const {from} = this.at.call, wide = this.to - this.from;
        if (from < this.from || from > this.to) {
            this.see(from - wide / 2, from + wide / 2);
        } else {
            this.draw();
        }
        this.pointed?.(lane, this.at.call);
    }
}
