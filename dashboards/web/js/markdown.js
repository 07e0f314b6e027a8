// markdown.js: a finding as Markdown for a ticket. What a job says is quoted, so that it cannot become markup.
import {linesOf} from "./source.js";
import {clock, named} from "./words.js";

// Characters that Markdown or HTML would take for its own.
export function plain(text) {
    return String(text).replace(/[\\`*_{}[\]()#+!|<>~&]/g, "\\$&").replace(/\s+/g, " ");
}

// A code block that the text cannot end: its fence is longer than any in the text.
export function block(text) {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map((found) => found[0].length));
    const fence = "`".repeat(longest + 1);
    return `${fence}\n${text}\n${fence}`;
}

// The rows of the table of both sides: [name, values, whether they differ]. Members that no side has are left out.
export function rows(evidence) {
    const names = ["ranks_text", "op", "count", "dtype", "redop", "root", "peer", "bytes", "seq", "groups", "empty",
                   "state", "error", "group", "graph", "phase", "step", "tensors"];
    return names.map((name) => [name === "ranks_text" ? "ranks" : name, evidence.map((side) => side[name] ?? null)])
        .filter(([, values]) => values.some((value) => value !== null))
        .map(([name, values]) => [name, values,
            name !== "ranks" && values.some((value) => value !== null && value !== values[0])]);
}

export function frameText(frame) {
    const where = frame.file ? `${frame.file}${frame.line ? `:${frame.line}` : ""}` : frame.module ?? "?";
    return `${where} ${frame.function ?? ""}`.trim();
}

// What the rows are called in a ticket, and what moe_core's reports say. As in daemon/verdict/verdict_markdown.c.
const TITLES = {op: "call", count: "elements", dtype: "datatype", redop: "reduction", seq: "call number",
                empty: "empty groups", group: "NCCL group", graph: "CUDA graph", tensors: "as many as"};
const TOLD = {"moe route": "routed tokens to experts", "moe counts": "received rows for its experts",
              "moe split": "sends rows to a member", "moe gemm": "expert GEMM", "moe skip": "skipped its experts",
              "moe oblige": "owes a backward collective", "moe oblige end": "owes backward collectives",
              "moe remedy": "a remedy acted", "moe uniform": "a number that all ranks need alike",
              "moe tensor": "report about a tensor"};
// What begins a process or a thread, below the job's own.
const BEGINNING = /^(_start|__libc_start_main|__libc_start_call_main|start_thread|clone3?|__clone3?)(_impl)*([@+].*)?$/;

// Without debug information the C library has no names for it.
const begins = ({function: name, module}) => BEGINNING.test(name ?? "")
    || (!name && /(^|\/)(libc\.so\.|libc-|libpthread)[^/]*$/.test(module ?? ""));

// A path as it was compiled may begin where its build happened to stand.
const pathOf = (file) => file?.replace(/^(\.\.\/)+/, "");

// Who called at a place, which the sides say.
function siteTitle({evidence, comm}, i) {
    const who = evidence.filter(({callsite, ranks_text: ranks}) => callsite === i && ranks)
        .map((side) => plain(named(side.ranks_text)));
    return who.length > 0 ? `Called by ${who.join(" and ")}:`
        : comm?.callsite === i ? "Where the communicator was made:" : "Also:";
}

// The frames that a ticket shows: the job's Python where there is any, and nothing of what begins a process.
function framesOf({frames}) {
    const python = frames.some(({language}) => language === "python");
    return frames.filter((frame, i) => i === 0 || (!begins(frame)
        && !(python && frame.language === "native")));
}

function around({line, first, texts}) {
    return texts.map((text, i) => `${first + i === line ? ">" : " "}${String(first + i).padStart(5)}  ${text}`).join("\n");
}

// answers: the lines around those that called, where they are known (source.js).
export function markdown(verdict, address, answers = []) {
    const out = [`## ${plain(verdict.code)}: ${plain(verdict.title)}`, "",
        `${verdict.certainty}, verdict ${verdict.number} of job ${plain(verdict.job)}, restart ${verdict.restart}, ` +
        `${clock(verdict.event_ns ?? verdict.time_ns)}`, "", block(verdict.text), ""];
    const say = (name, text) => text && out.push(`- ${name}: ${text}`);
    say("named", verdict.culprits_text && named(verdict.culprits_text));
    say("waiting", verdict.waiting_text && named(verdict.waiting_text));
    say("communicator", verdict.comm && plain(verdict.comm.name ?? verdict.comm.label ?? verdict.comm.key));
    say("remedy", verdict.remedy && `${plain(verdict.remedy.name)}: ${plain(verdict.remedy.text)}`);
    if (verdict.evidence.length > 0) {
        const heads = verdict.evidence.map(({ranks_text: ranks}, i) => (ranks ? plain(named(ranks)) : `side ${i + 1}`));
        out.push("", `| |${heads.map((head) => ` ${head} |`).join("")}`,
            `|---|${verdict.evidence.map(() => "---|").join("")}`);
        const report = Object.hasOwn(TOLD, verdict.evidence[0].op ?? "");
        for (const [name, values, differs] of rows(verdict.evidence).filter(([name]) => name !== "ranks")) {
            const said = values.map((value) => (Object.hasOwn(TOLD, value ?? "") ? TOLD[value] : value));
            const cells = said.map((value) => (value === null ? "-" : plain(value)));
            const title = report && name === "count" ? "amount" : TITLES[name] ?? name;
            out.push(`| ${title} | ${cells.map((cell) => (differs ? `**${cell}**` : cell)).join(" | ")} |`);
        }
    }
    verdict.callsites.forEach((site, i) => {
        const frames = framesOf(site).map((frame) => frameText({...frame, file: pathOf(frame.file)})
            + (frame.text ? `\n    ${frame.text}` : ""));
        out.push("", siteTitle(verdict, i), "", block(frames.join("\n")));
        for (const frame of site.frames) {
            const lines = linesOf(answers, frame.file, frame.line);
            if (lines) {
                out.push("", `${plain(pathOf(frame.file))}:`, "", block(around(lines)));
            }
        }
    });
    out.push(...(address ? ["", `<${address}>`] : []), "");
    return out.join("\n");
}
