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
        out.push("", `| |${verdict.evidence.map((_, i) => ` side ${i + 1} |`).join("")}`,
            `|---|${verdict.evidence.map(() => "---|").join("")}`);
        for (const [name, values, differs] of rows(verdict.evidence)) {
            const cells = values.map((value) => (value === null ? "-" : plain(value)));
            out.push(`| ${name} | ${cells.map((cell) => (differs ? `**${cell}**` : cell)).join(" | ")} |`);
        }
    }
    verdict.callsites.forEach((site, i) => {
        const frames = site.frames.map((frame) => frameText(frame) + (frame.text ? `\n    ${frame.text}` : ""));
        out.push("", `Call site ${i + 1}:`, "", block(frames.join("\n")));
        for (const frame of site.frames) {
            const lines = linesOf(answers, frame.file, frame.line);
            if (lines) {
                out.push("", `${plain(frame.file)}:`, "", block(around(lines)));
            }
        }
    });
    out.push(...(address ? ["", `<${address}>`] : []), "");
    return out.join("\n");
}
