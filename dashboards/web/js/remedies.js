// remedies.js: the policy and the remedies of a run, and their switches, for who came as the operator.
import {el, replace, say} from "./dom.js";
import {item} from "./overview.js";

const POLICIES = [["observe", "say what is wrong"], ["advise", "and name the command that helps"],
                  ["auto", "and do it"]];

export class Remedies {
    constructor(context) {
        this.context = context;
        this.said = el("p", {class: "faint", role: "status"});
        this.policy = el("div", {class: "row", id: "policy"});
        this.body = el("div", {});
        this.acted = el("ol", {class: "findings"});
        this.node = [el("section", {}, el("h1", {}, "Remedies"), this.policy, this.body, this.said),
                     el("section", {}, el("h2", {}, "Findings that have a remedy"), this.acted)];
        this.now = "";
    }

    async begins() {
        try {
            this.operates = (await this.context.ask("who")).user === "operator";
            this.show(this.policyNow);
            await this.look();
        } catch (error) {
            say(this.said, error.message);
        }
    }

    run() {
        const {job, restart} = this.context.run();
        return job ? {job, restart} : {};
    }

    async look() {
        const {remedies, known} = await this.context.ask("remedy", {...this.run(), action: "list"});
        const places = [["the job", remedies.on, remedies.off ?? []],
            ...remedies.layers.map((one) => [`layer ${one.layer}`, one.on, one.off]),
            ...remedies.groups.map((one) => [`communicator ${one.comm}`, one.on, one.off])];
        replace(this.body, el("table", {class: "list switches"}, el("tr", {}, ["remedy", "does", "on for", "off for", ""].map((head) => el("th", {}, head))),
            known.map(({name, text}) => el("tr", {}, el("td", {}, el("b", {}, name)), el("td", {}, text),
                [1, 2].map((i) => el("td", {}, places.filter((place) => place[i].includes(name)).map(([place]) => place).join(", ") || "-")),
                el("td", {}, this.operates ? ["on", "off", "clear"].map((action) => el("button", {
                    id: `${action}-${name}`, click: () => this.switch("remedy", {action, remedy: name})}, action)) : null)))),
            this.operates ? null : el("p", {class: "faint"},
                "Who came as the operator (rollcall page --operator) switches here. In a terminal: rollcall remedy on NAME"));
    }

    async switch(op, members) {
        say(this.said, "\u2026");
        try {
            await this.context.ask(op, {...this.run(), ...members}, true);
            say(this.said, `done: ${op} ${Object.values(members).join(" ")}`);
            await this.look();
        } catch (error) {
            say(this.said, error.message);
        }
    }

    // Made again only when it is another one, so that a button is not taken away under the pointer.
    show(policy) {
        const made = `${policy} ${this.operates}`;
        this.policyNow = policy;
        if (!policy || made === this.now) {
            return;
        }
        this.now = made;
        replace(this.policy, "policy: ", POLICIES.map(([name, means]) => el("button", {
            title: means, id: `policy-${name}`, "aria-pressed": String(name === policy), disabled: !this.operates,
            click: () => this.switch("policy", {policy: name})}, name)));
    }

    update(part, data) {
        if (part === "status" && data.run) {
            this.show(data.run.policy);
        } else if (part === "findings") {
            const ours = data.findings.filter((finding) => finding.remedy);
            replace(this.acted, ours.map((finding) => item(finding, this.context.run())),
                ours.length === 0 ? el("li", {class: "faint"}, "None.") : null);
        }
    }
}
