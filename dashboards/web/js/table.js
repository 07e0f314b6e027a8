// table.js: a table of many rows, of which there are as many as somebody has come to: a slice at first, one more each
// time its end comes near. Where rows are told again, those near what is seen say what differs, and the others when they
// come near. All rows at once was rejected: a thousand of nine cells take a browser 200 ms to lay out, and as long for
// every new look.
import {el, replace} from "./dom.js";

const SLICE = 32, NEAR = "600px 0px";

export class Table {
    constructor(heads) {
        this.end = el("div", {});
        this.table = el("table", {class: "list"}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {scope: "col"}, head)))));
        this.node = el("div", {}, el("div", {class: "sides"}, this.table), this.end);
        Object.assign(this, {slices: [], n: 0, cells: null, timer: 0});
        this.watch = new IntersectionObserver((entries) => this.met(entries), {rootMargin: NEAR});
        this.watch.observe(this.end);
    }

    close() {
        this.watch.disconnect();
        clearTimeout(this.timer);
    }

    // Whether the last column is there: one in which no row has anything is not.
    last(shown) {
        this.table.classList.toggle("without-last", !shown);
    }

    // There are n rows; cells(i) are those of row i: texts, or nodes, or null.
    set(n, cells) {
        Object.assign(this, {n, cells});
        this.slices.splice(Math.ceil(n / SLICE)).forEach(({part}) => part.remove());
        this.slices.forEach((slice) => { slice.stale = true; });
        if (this.slices.length === 0) {
            this.grow();
        }
        this.renew();
    }

    met(entries) {
        for (const {target, isIntersecting: near} of entries) {
            const slice = this.slices.find(({part}) => part === target);
            if (slice) {
                slice.near = near;
            } else if (target === this.end && near) {
                this.grow();
            }
        }
        this.renew();
    }

    // One slice that is near, and then the next one, so that the browser draws between.
    renew() {
        clearTimeout(this.timer);
        const next = this.slices.findIndex(({near, stale}) => near && stale);
        if (next >= 0) {
            this.write(next);
            this.timer = setTimeout(() => this.renew());
        }
    }

    // Looking anew at the end has it told again, when this slice has been laid out.
    grow() {
        if (this.slices.length * SLICE < this.n) {
            const slice = {part: el("tbody", {}), rows: [], near: true, stale: true};
            this.slices.push(slice);
            this.write(this.slices.length - 1);
            this.table.append(slice.part);
            this.watch.observe(slice.part);
            this.watch.unobserve(this.end);
            this.watch.observe(this.end);
        }
    }

    write(at) {
        const slice = this.slices[at], from = at * SLICE, most = Math.min(SLICE, this.n - from);
        slice.stale = false;
        slice.rows.splice(most).forEach(({row}) => row.remove());
        for (let i = 0; i < most; i++) {
            const cells = this.cells(from + i);
            if (i === slice.rows.length) {
                slice.rows.push({row: el("tr", {}, cells.map(() => el("td", {}))), said: []});
                slice.part.append(slice.rows[i].row);
            }
            fill(slice.rows[i], cells);
        }
    }
}

function fill({row, said}, cells) {
    cells.forEach((cell, i) => {
        if (said[i] !== cell || (typeof cell === "object" && cell !== null)) {
            said[i] = cell;
            replace(row.children[i], cell ?? "-");
        }
    });
}
