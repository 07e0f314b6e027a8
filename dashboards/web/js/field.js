// field.js: all ranks as cells of one canvas, grouped by node. An element for each rank was rejected: 16,384 of them
// take seconds to lay out. Only cells that have changed are painted again; `figures` counts them. They are written into
// an image, and what has changed of it is put on the canvas at once: a rectangle of the canvas for each took ten times
// as long.
import {STATE_OF, STATES, expand, layout, merged, pairs, tally, within} from "./ranks.js";

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
            this.put();
        }
        this.canvas.setAttribute("aria-label", this.summary());
    }

    // The ranks that findings name, as texts of sets.
    setMarks(texts) {
        const marks = merged(texts.flatMap(pairs));
        if (JSON.stringify(marks) === JSON.stringify(this.marks)) {
            return;
        }
        this.marks = marks;
        for (let i = 0; this.plan && i < this.marked.length && this.states.length === this.marked.length; i++) {
            const marked = within(marks, this.rank[i]) ? 1 : 0;
            if (marked !== this.marked[i]) {
                this.marked[i] = marked;
                this.paint(i);
            }
        }
        this.put();
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
        this.colours();
        this.ink = this.canvas.getContext("2d", {willReadFrequently: true});
        this.ink.setTransform(scale, 0, 0, scale, 0, 0);
        this.ink.clearRect(0, 0, width, this.plan.height + 2);
        this.scale = scale;
        this.labels();
        this.image = this.ink.getImageData(0, 0, this.canvas.width, this.canvas.height);
        this.pixels = new Uint32Array(this.image.data.buffer);
        this.top = Infinity; // the rows of pixels that have been painted, and are not put on the canvas yet
        this.bottom = 0;
        this.marked = Uint8Array.from(this.rank, (rank) => (within(this.marks, rank) ? 1 : 0));
        for (let i = 0; i < this.states.length; i++) {
            this.paint(i);
        }
        this.put();
        this.figures.whole++;
    }

    // Custom properties keep their light-dark(): a real one tells which half of it is meant. Those of cells as pixels.
    colours() {
        const look = getComputedStyle(this.canvas), probe = document.createElement("i");
        this.canvas.parentElement.append(probe);
        const of = (name) => {
            probe.style.color = look.getPropertyValue(`--${name}`);
            return getComputedStyle(probe).color;
        };
        const pixel = (name) => {
            const [red, green, blue] = of(name).match(/\d+/g).map(Number);
            return new Uint32Array(Uint8Array.of(red, green, blue, 255).buffer)[0];
        };
        this.colour = [];
        STATES.forEach(({letter, name}) => { this.colour[letter.charCodeAt(0)] = pixel(name); });
        this.silent = pixel("silent");
        this.mark = pixel("mark");
        this.text = of("faint");
        probe.remove();
    }

    labels() {
        if (!this.plan.label) {
            return;
        }
        this.ink.fillStyle = this.text;
        this.ink.font = "11px system-ui, sans-serif";
        for (const b of this.plan.blocks) {
            const room = Math.max(64, b.wide * this.plan.cell), most = Math.floor(room / 6);
            this.ink.fillText(b.host.length > most ? b.host.slice(0, most - 1) + "\u2026" : b.host, b.x, b.y - 4);
        }
    }

    paint(i) {
        const b = this.plan.blocks[this.block[i]], k = i - b.begin, row = Math.floor(k / b.wide), {scale} = this;
        const {cell} = this.plan, gap = cell > 3 ? 1 : 0, x = b.x + (k - row * b.wide) * cell, y = b.y + row * cell;
        const left = Math.round(x * scale), right = Math.round((x + cell - gap) * scale);
        const top = Math.round(y * scale), bottom = Math.round((y + cell - gap) * scale);
        const inside = this.colour[this.states.charCodeAt(i)] ?? this.silent;
        if (this.marked[i]) {
            const edge = Math.round((cell >= 11 ? 2 : 1) * scale);
            this.rectangle(left, top, right, bottom, this.mark);
            this.rectangle(left + edge, top + edge, right - edge, bottom - edge, inside);
        } else {
            this.rectangle(left, top, right, bottom, inside);
        }
        this.top = Math.min(this.top, top);
        this.bottom = Math.max(this.bottom, bottom);
        this.figures.painted++;
    }

    rectangle(left, top, right, bottom, colour) {
        for (let y = top, row = top * this.image.width; y < bottom; y++, row += this.image.width) {
            for (let x = left; x < right; x++) {
                this.pixels[row + x] = colour;
            }
        }
    }

    // What has been painted is seen from here on.
    put() {
        if (this.bottom > this.top) {
            this.ink.putImageData(this.image, 0, 0, 0, this.top, this.image.width, this.bottom - this.top);
        }
        this.top = Infinity;
        this.bottom = 0;
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
