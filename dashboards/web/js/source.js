// source.js: the lines of Python around those that made the calls of a finding.
import {el} from "./dom.js";

// The answer about one line of a file: {first, texts}; null: nothing is known. No page is needed for it.
export function linesOf(answers, file, line) {
    const all = answers.flatMap(({source}) => source?.lines ?? []);
    return all.find((one) => one.file === file && one.line === line && Array.isArray(one.texts)) ?? null;
}

function block({line, first, texts}) {
    return el("pre", {class: "source"}, texts.map((text, i) => el("span", {class: first + i === line ? "line here" : "line"},
        `${String(first + i).padStart(5)}  ${text}\n`)));
}

// answers: [{rank, host, source: rollcall.source/1}].
export function sourceView(answers) {
    const parts = answers.flatMap(({rank, host, source}) => (source.lines ?? []).map((one) => el("div", {},
        el("div", {class: "faint"}, `rank ${rank}, ${host}: ${one.file}:${one.line}`),
        Array.isArray(one.texts) ? block(one) : el("p", {class: "faint"}, "The lines around it cannot be read: the process has " +
            "ended, the file has been changed since it began, or its agent may not read it (docs/WEB.md)."))));
    const errors = answers.filter(({source}) => source.error).map(({rank, source}) =>
        el("p", {class: "faint"}, `rank ${rank}: ${source.error}`));
    return parts.length + errors.length > 0 ? [el("h2", {}, "Source"), parts, errors] : [];
}
