// main.js: which page is shown: what stands behind the # in the address says it, so every page can be sent to others.
//
//   #/                               the newest run       #/overview/JOB/RESTART
//   #/comms/JOB/RESTART, nodes, stacks, remedies      #/search/JOB/RESTART/TEXT
//   #/finding/JOB/RESTART/NUMBER     one finding          #/rank/JOB/RESTART/RANK
//   #/timeline/JOB/RESTART/NUMBER/RANKS/COUNT/FROM/TO
//       the calls of these ranks around a finding (number 0: the newest), and which times of them are seen
import {el, replace, say} from "./dom.js";
import {Finding, Rank} from "./finding.js";
import {LACKS, Live, ask} from "./live.js";
import {Overview} from "./overview.js";
import {Remedies} from "./remedies.js";
import {Stacks} from "./stacks.js";
import {Communicators, Nodes, Search} from "./tables.js";
import {Timeline} from "./timeline.js";
import {link, timeOfDay} from "./words.js";

const PAGES = {
    overview: {title: "Overview", make: (context) => new Overview(context)},
    comms: {title: "Communicators", make: (context) => new Communicators(context)},
    timeline: {title: "Timeline", make: (context, ...rest) => new Timeline(context, ...rest)},
    nodes: {title: "Nodes", make: (context) => new Nodes(context)},
    stacks: {title: "Stacks", make: (context) => new Stacks(context)},
    remedies: {title: "Remedies", make: (context) => new Remedies(context)},
    search: {make: (context, text) => new Search(context, text)},
    finding: {make: (context, number) => new Finding(context, number)},
    rank: {make: (context, rank) => new Rank(context, rank)},
};
LACKS.forEach((name) => delete PAGES[name]); // a report has no use for all of them

const RUNS = 8; // that are named where the one that was asked for is not there

const place = document.getElementById("page"), heard = document.getElementById("heard");
const search = document.getElementById("search");
const jobs = document.getElementById("job"), pages = document.getElementById("pages");
let page = null, run = null, known = {};

// What a test looks at: how often, and for how long, the page was busy with what it was told.
const figures = {updates: 0, last_ms: 0, longest_ms: 0, painted_ms: 0, field: null};
globalThis.rollcall = {figures};

const context = {
    figures, ask,
    lacks: LACKS,
    // What a ticket says about where this page is: of a file on somebody's disk nothing.
    address: () => (location.protocol === "file:" ? null : location.href),
    run: () => run ?? known.status?.run ?? {job: "", restart: 0},
    go: (address) => { location.hash = address; },
    // The page that is shown is at this address from here on: nothing is made anew.
    note: (address) => history.replaceState(null, "", address),
};

// A page asks only of a run that the daemon knows, as it said last: of any other one every question would be an error.
// What it has shown stays, and is dimmed, while the daemon is gone or knows the run no more; then it begins once more.
let there = false;
const absent = el("section", {id: "absent", role: "status"});

function meet() {
    const full = live.state === "full", lacks = known.status?.run === null && !full;
    const kind = lacks ? "absent" : full && page.listens && !known.status ? "full" : null;
    place.classList.toggle("absent", kind === "full" || (lacks && !page.met));
    place.classList.toggle("past", lacks && Boolean(page.met));
    if (!kind) {
        absent.remove();
    } else if (!absent.isConnected || absent.dataset.kind !== kind) {
        absent.dataset.kind = kind;
        place.prepend(absent);
        lament(kind);
    }
    const may = full ? live.knows(run) : there;
    if (may && !page.may) {
        page.met = page.may = true;
        page.begins?.();
    }
    page.may = may;
}

// What is said of a run that is not there, and which are; and where too many listen.
async function lament(kind) {
    const name = run && called(run), list = el("ul", {});
    const [title, text] = kind === "full" ? ["Too many pages listen to this daemon",
        "This one tries again every ten seconds. What is asked for is answered all the same: communicators, nodes, remedies, and one rank or finding."]
        : [name ? `No rank of ${name} has been seen yet` : "No rank has been seen yet",
            live.words ? "This report holds nothing of it." : `${name ? "The job has not begun, or this daemon no longer keeps it."
                : "No job runs here so far."} This page goes on by itself as soon as a rank is heard.`];
    replace(absent, el("h1", {}, title), el("p", {}, text), list);
    const {runs} = kind === "full" ? {runs: []} : await ask("runs").catch(() => ({runs: []}));
    replace(list, runs.slice(-RUNS).reverse().map((one) => el("li", {}, el("a", {href: link("overview", one)}, called(one)))));
}

function told(part, data) {
    const begin = performance.now(), before = context.run();
    known[part] = data;
    page?.update(part, data);
    if (part === "status") {
        there = Boolean(data.run);
        meet();
    }
    const {job, restart} = context.run();
    // They may come before it is known of which run they are told: then their links name another one, or none.
    if (part === "status" && known.findings && (job !== before.job || restart !== before.restart)) {
        page?.update("findings", known.findings);
    }
    if (part === "status" && figures.painted_ms === 0) {
        requestAnimationFrame(() => { figures.painted_ms = performance.now(); });
    }
    figures.updates++;
    figures.last_ms = performance.now() - begin;
    figures.longest_ms = Math.max(figures.longest_ms, figures.last_ms);
}

function changed() {
    const lost = live.state === "lost" || live.state === "full";
    there &&= live.state === "live" || Boolean(live.words);
    if (page) {
        meet();
    }
    const since = live.heard ? `not heard since ${timeOfDay(live.heard)}` : "not heard yet";
    say(heard, live.words ? live.words() : live.state === "live" ? `heard at ${timeOfDay(live.heard)}`
        : live.state === "full" ? `too many pages listen to this daemon; ${since}`
        : lost ? `the daemon is gone: ${since}` : live.state === "paused" ? "paused" : since);
    heard.classList.toggle("lost", lost);
    place.classList.toggle("lost", lost);
}

const live = new Live(told, changed);

// "#/finding/JOB/RESTART/3" as its parts; what cannot be read is the overview of the newest run.
function address() {
    try {
        const [name, job, restart, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
        const named = job && /^\d+$/.test(restart ?? "");
        return {name: Object.hasOwn(PAGES, name) ? name : "overview",
                run: named ? {job, restart: Number(restart)} : null, rest};
    } catch {
        return {name: "overview", run: null, rest: []};
    }
}

function show() {
    const to = address(), other = JSON.stringify(to.run) !== JSON.stringify(run);
    page?.close?.();
    run = to.run;
    page = PAGES[to.name].make(context, ...to.rest);
    document.title = `${[to.name, ...to.rest.slice(0, 2)].join(" ")} \u2013 ${run?.job ?? "rollcall"}`;
    replace(place, live.beside?.(to.name), page.node);
    const links = Object.entries(PAGES).filter(([, {title}]) => title).map(([name, {title}]) =>
        el("a", {href: run ? link(name, run) : `#/${name}`, "aria-current": name === to.name ? "page" : null}, title));
    replace(pages, links);
    page.opened?.();
    there &&= !other;
    if (other || live.state === "new") {
        known = {};
        live.listen(run);
    } else {
        for (const [part, data] of Object.entries(known)) {
            page.update(part, data);
        }
    }
    meet();
    choose();
}

function called({job, restart}) {
    return `${job}${restart ? ` (restart ${restart})` : ""}`;
}

// The runs that can be chosen; asked for when somebody is about to.
async function fill() {
    const {runs} = await ask("runs").catch(() => ({runs: []}));
    replace(jobs, el("option", {value: "#/"}, "newest that runs"), runs.map((one) =>
        el("option", {value: link("overview", one)}, called(one))));
    choose();
}

function choose() {
    const wanted = run ? link("overview", run) : "#/";
    if (run && ![...jobs.options].some((option) => option.value === wanted)) {
        jobs.append(el("option", {value: wanted}, run.job));
    }
    jobs.value = wanted;
}

// The run that is shown, or the newest, by its name: what is searched for is searched for there.
search.addEventListener("submit", (event) => {
    const text = search.elements.text.value.trim();
    event.preventDefault();
    if (text) {
        context.go(/^\d+$/.test(text) ? link("rank", context.run(), text) : link("search", context.run(), text));
        search.elements.text.blur();
    }
});

// Keys: / searches, Escape leaves, and the first letter of a page goes there.
addEventListener("keydown", (event) => {
    const typing = event.target.matches("input, textarea, select");
    const to = Object.entries(PAGES).find(([, {title}]) => title && title[0].toLowerCase() === event.key);
    if (event.key === "Escape" && typing) {
        event.target.blur();
    } else if (typing || event.ctrlKey || event.metaKey || event.altKey) {
        return;
    } else if (event.key === "/") {
        search.elements.text.focus();
        event.preventDefault();
    } else if (to) {
        context.go(run ? link(to[0], run) : `#/${to[0]}`);
    }
});

jobs.addEventListener("change", () => context.go(jobs.value));
jobs.addEventListener("focus", fill);
addEventListener("hashchange", show);
show();
fill();
