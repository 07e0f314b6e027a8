// dom.js: elements out of names and texts. What a job says becomes text nodes and nothing else: no function here takes
// HTML, and the page's Content-Security-Policy lets none be taken.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes ?? {})) {
        if (typeof value === "function") {
            node.addEventListener(name, value);
        } else if (value !== undefined && value !== null && value !== false) {
            node.setAttribute(name, value === true ? "" : String(value));
        }
    }
    node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
}

// el("a", {href: "#/", click: f}, "text", node, [more]): functions become listeners.
export function el(name, attributes, ...children) {
    return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
    return fill(document.createElementNS(SVG, name), attributes, children);
}

export function replace(node, ...children) {
    node.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined));
}

// Sets a text only where it has changed, which costs no layout where it has not.
export function say(node, text) {
    if (node.textContent !== text) {
        node.textContent = text;
    }
}
