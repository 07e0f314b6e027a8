// field.js: all ranks as cells of one canvas, grouped by node. An element for each rank was rejected: 16,384 of them
// take seconds to lay out. Only cells that have changed are painted again; `figures` counts them.
import {STATE_OF, STATES, expand, has, layout, pairs, tally} from "./ranks.js";

const HEIGHT = 560;

export class Field {
    constructor(canvas, {picked, pointed}) {
        this.canvas = canvas;
        this.figures = {painted: 0, whole: 0};
        this.states = "";
        this.marks = [];
        this.rank = [];
        this.hosts = [];
        this.at = -1; // the place that the keyboard has come to
        this.width = 0; // for which it was drawn
        this.watch = new ResizeObserver(() => canvas.parentElement.clientWidth !== this.width && this.draw());
        this.watch.observe(canvas.parentElement);
        this.scheme = matchMedia("(prefers-color-scheme: dark)");
        this.redraw = () => this.draw();
        this.scheme.addEventListener("change", this.redraw);
        canvas.addEventListener("click", (event) => this.pick(this.placeAt(event), picked));
        canvas.addEventListener("mousemove", (event) => this.pick(this.placeAt(event), pointed));
        canvas.addEventListener("keydown", (event) => this.key(event, picked, pointed));
    }

    close() {
        this.watch.disconnect();
        this.scheme.removeEventListener("change", this.redraw);
    }

    setPlaces(places) {
        Object.assign(this, expand(places));
        this.states = "";
    }

    // Paints what differs from what is there.
    setStates(states) {
        const old = this.states;
        this.states = states;
        if (old.length !== states.length || !this.plan) {
            this.draw();
        } else {
            for (let i = 0; i < states.length; i++) {
                if (states[i] !== old[i]) {
                    this.paint(i);
                }
            }
        }
        this.canvas.setAttribute("aria-label", this.summary());
    }

    // The ranks that findings name, as texts of sets.
    setMarks(texts) {
        const marks = texts.flatMap(pairs);
        if (JSON.stringify(marks) !== JSON.stringify(this.marks)) {
            this.marks = marks;
            this.draw();
        }
    }

    summary() {
        const n = tally(this.states);
        const parts = STATES.filter(({letter}) => n[letter]).map(({letter, name}) => `${n[letter]} ${name}`);
        return `${this.rank.length} ranks on ${this.hosts.length} nodes: ${parts.join(", ")}`;
    }

    draw() {
        const width = this.canvas.parentElement.clientWidth, scale = devicePixelRatio || 1;
        if (width <= 0 || this.states.length === 0) {
            return;
        }
        this.width = width;
        this.plan = layout(this.hosts, width, HEIGHT);
        this.block = new Uint32Array(this.rank.length);
        this.plan.blocks.forEach((b, i) => this.block.fill(i, b.begin, b.end));
        this.canvas.width = width * scale;
        this.canvas.height = Math.ceil((this.plan.height + 2) * scale);
        const pixels = this.canvas.style;
        pixels.width = `${width}px`;
        pixels.height = `${Math.ceil(this.plan.height + 2)}px`;
        const look = getComputedStyle(this.canvas), of = (name) => look.getPropertyValue(name);
        // Custom properties keep their light-dark(): a real one tells which half of it is meant.
        const probe = document.createElement("i");
        this.canvas.parentElement.append(probe);
        const colour = (name) => {
            probe.style.color = of(name);
            return getComputedStyle(probe).color;
        };
        this.colour = Object.fromEntries(STATES.map(({letter, name}) => [letter, colour(`--${name}`)]));
        this.colour.mark = colour("--mark");
        this.colour.text = colour("--faint");
        probe.remove();
        this.ink = this.canvas.getContext("2d");
        this.ink.setTransform(scale, 0, 0, scale, 0, 0);
        this.ink.clearRect(0, 0, width, this.plan.height + 2);
        this.marked = new Uint8Array(this.rank.length);
        this.rank.forEach((r, i) => { this.marked[i] = this.marks.length > 0 && has(this.marks, r) ? 1 : 0; });
        this.labels();
        for (let i = 0; i < this.states.length; i++) {
            this.paint(i);
        }
        this.figures.whole++;
    }

    labels() {
        if (!this.plan.label) {
            return;
        }
        this.ink.fillStyle = this.colour.text;
        this.ink.font = "11px system-ui, sans-serif";
        for (const b of this.plan.blocks) {
            const room = Math.max(64, b.wide * this.plan.cell), most = Math.floor(room / 6);
            this.ink.fillText(b.host.length > most ? b.host.slice(0, most - 1) + "\u2026" : b.host, b.x, b.y - 4);
        }
    }

    box(i) {
        const b = this.plan.blocks[this.block[i]], k = i - b.begin, cell = this.plan.cell;
        return [b.x + (k % b.wide) * cell, b.y + Math.floor(k / b.wide) * cell, cell];
    }

    paint(i) {
        const [x, y, cell] = this.box(i), gap = cell > 3 ? 1 : 0;
        this.ink.fillStyle = this.colour[this.states[i]] ?? this.colour.n;
        this.ink.fillRect(x, y, cell - gap, cell - gap);
        if (this.marked[i]) {
            const thick = cell >= 11 ? 2 : 1;
            this.ink.strokeStyle = this.colour.mark;
            this.ink.lineWidth = thick;
            this.ink.strokeRect(x + thick / 2, y + thick / 2, cell - gap - thick, cell - gap - thick);
        }
        this.figures.painted++;
    }

    // The place under the pointer; -1: there is none.
    placeAt(event) {
        const {left, top} = this.canvas.getBoundingClientRect(), cell = this.plan?.cell;
        const x = event.clientX - left, y = event.clientY - top;
        for (const b of this.plan?.blocks ?? []) {
            const column = Math.floor((x - b.x) / cell), row = Math.floor((y - b.y) / cell);
            const i = b.begin + row * b.wide + column;
            if (column >= 0 && column < b.wide && row >= 0 && i >= b.begin && i < b.end) {
                return i;
            }
        }
        return -1;
    }

    pick(i, told) {
        const state = STATE_OF[this.states[i]];
        told(i < 0 ? null : {rank: this.rank[i], host: this.hosts[this.block[i]].host, state});
    }

    key(event, picked, pointed) {
        const wide = this.plan?.blocks[this.block[Math.max(this.at, 0)]]?.wide ?? 1;
        const step = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -wide, ArrowDown: wide, Home: -1e9, End: 1e9}[event.key];
        if (step !== undefined && this.rank.length > 0) {
            this.at = Math.min(Math.max(this.at + step, 0), this.rank.length - 1);
            this.pick(this.at, pointed);
            event.preventDefault();
        } else if (event.key === "Enter" && this.at >= 0) {
            this.pick(this.at, picked);
        }
    }
}
