// A rule's life: published with its plan in sight, switched off and on, and taken back.

import { get, part, post } from "/api.js";
import { h, put } from "/dom.js";
import { counted, hash, whole } from "/format.js";
import { badge, button, dialog, empty, failed, field, loading, problem, toast, time } from "/parts.js";
import { may } from "/store.js";

// ---------------------------------------------------------------- publish

export function publishDialog(state, go) {
  const text = state.editor.text();
  const place = h("div", { class: "stack", id: "plan" }, loading("Making the plan: counting the partial matches that it would touch"));
  const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note", maxlength: "500" });
  const shadow = h("input", { type: "checkbox", onchange: () => plan() });
  const drain = h("input", { type: "checkbox", onchange: () => plan() });
  const warm = h("input", { type: "datetime-local", "aria-label": "Warm from (UTC)", onchange: () => plan() });
  const doIt = button("Publish", publish, "main", { disabled: true, id: "do-publish" });
  const box = dialog(
    `Publish ${state.checked && state.checked.rule ? state.checked.rule : "the rule"}`,
    [
      place,
      h("div", { class: "toolbar" }, h("label", { class: "check" }, shadow, "In shadow: counted, no alerts"), state.rule.fresh ? null : h("label", { class: "check" }, drain, "Let matches that have begun finish"), field("Warm from (UTC)", warm, "folds history into its state first")),
      field("Note", note),
    ],
    [button("Cancel", () => box.close()), doIt],
    "wide",
  );
  let digest = null;

  const asked = () => ({ text, shadow: shadow.checked, drain: drain.checked, warm_from: warm.value ? Date.parse(`${warm.value}Z`) : null });

  async function plan() {
    doIt.disabled = true;
    put(place, loading("Making the plan: counting the partial matches that it would touch"));
    try {
      const found = await post("/rules/plan", asked());
      digest = found.digest;
      put(place, planShown(found.plan));
      doIt.disabled = false;
    } catch (fault) {
      put(place, problem(fault, plan));
    }
  }

  async function publish() {
    doIt.disabled = true;
    try {
      const done = await post("/rules/publish", { ...asked(), note: note.value, digest });
      box.close();
      toast(`Published ${done.rule || done.name} as number ${done.number}`);
      go(`/rules/${part(done.rule || done.name)}`);
    } catch (fault) {
      put(place, problem(fault, plan));
    }
  }

  plan();
}

const STATES = {
  new: "There are none yet: the rule is new.",
  kept: "Kept: the version is the same.",
  moved: "Kept. What was collected stays as it was judged; from here on the new list counts.",
  drained: "Drained: matches that have begun go on under the old version, new ones begin under this one.",
  dropped: "Dropped: matches that have begun are given up.",
};

// A change before it happens: what becomes of partial matches, whether it may alert at once, findings, the difference.
function planShown(plan) {
  const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  const stages = plan.stages || {};
  return [
    (plan.rules || []).map((rule) => [
      h(
        "dl",
        { class: "facts", id: "state-plan" },
        row("Becomes", `number ${rule.number}, `, h("code", {}, hash(rule.version)), " ", badge(rule.status, { live: "good", shadow: "warn" }[rule.status] || "")),
        row("Partial matches", STATES[rule.state] || rule.state, rule.states && rule.state !== "new" ? ` ${rule.states_whole === false ? "At least " : ""}${counted(rule.states, "key has", "keys have")} one.` : ""),
        rule.cold_start ? row("Cold start", h("span", { class: rule.cold_start.shadow_ms ? "warn-text" : null }, sentence(rule.cold_start.text))) : null,
        plan.seeds && plan.seeds.length ? row("First change", `The ${counted(plan.seeds.length, "rule")} of the rules folder are written down as number 1; from here on the folder is not read.`) : null,
        stages.new && stages.new.length ? row("New stages", stages.new.join(", ")) : null,
        stages.gone && stages.gone.length ? row("Stages that go", stages.gone.join(", ")) : null,
      ),
      rule.diff ? diffShown(rule.diff) : h("p", { class: "note" }, rule.state === "new" ? "A new rule: there is nothing to compare it with." : "The text is the same."),
    ]),
    (plan.findings || []).map((each) => h("p", { class: `note ${each.level === "error" ? "bad" : "warn"}` }, `line ${each.line}: ${each.message}${each.hint ? ` ${each.hint}` : ""}`)),
  ];
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "");

function diffShown(text) {
  const kind = (line) => (/^(@@|---|\+\+\+) /.test(line) ? "place" : line.startsWith("+") ? "added" : line.startsWith("-") ? "gone" : null);
  return h("pre", { class: "diff", tabindex: "0", "aria-label": "What changes" }, text.split("\n").map((line) => h("span", { class: kind(line) }, line || " ")));
}

// ---------------------------------------------------------------- on, off

const ACTS = {
  enable: { name: "Enable", words: "It begins again at the next batch.", done: "Enabled", kind: "main" },
  live: { name: "Make live", words: "It leaves the shadow: from the next batch on it raises alerts.", done: "Live", kind: "main" },
  disable: { name: "Disable", words: "It raises no more alerts from the next batch on. Its history stays, and it can be enabled again.", done: "Disabled", kind: "danger" },
};

export function stateButtons(state, go) {
  if (!may("rules")) return [];
  const { rule, status } = state.rule;
  const acts = { live: ["disable"], shadow: ["live", "disable"], disabled: ["enable"], quarantined: ["enable", "disable"] }[status] || [];
  return acts.map((name) => button(ACTS[name].name, () => ask(name), name === "disable" ? "danger" : "", { id: name }));

  function ask(name) {
    const act = ACTS[name];
    const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note" });
    const doIt = button(act.name, async () => {
      try {
        await post(`/rules/${part(rule)}/${name === "live" ? "enable" : name}`, { note: note.value });
        box.close();
        toast(act.done);
        go(`/rules/${part(rule)}`, true);
      } catch (fault) {
        failed(fault);
      }
    }, act.kind, { id: `do-${name}` });
    const box = dialog(`${act.name} ${rule}`, [h("p", {}, act.words), field("Note", note)], [button("Cancel", () => box.close()), doIt]);
  }
}

// ---------------------------------------------------------------- history

export function historyPanel(state, go) {
  const element = h("div", { id: "history" }, loading());

  async function open() {
    try {
      const found = await get(`/rules/${part(state.rule.rule)}/history`);
      const entries = [...(found.entries || [])].sort((one, other) => other.number - one.number);
      put(element, entries.length ? h("ul", { class: "tests" }, entries.map((entry, at) => one(entry, at, entries))) : empty("Never published", "This rule comes from the service's folder. Its history begins when it is published for the first time."));
    } catch (fault) {
      put(element, problem(fault, open));
    }
  }

  function one(entry, at, entries) {
    const before = entries[at + 1];
    const place = h("div", {});
    return h(
      "li",
      {},
      h("div", { class: "toolbar" }, h("b", {}, `Number ${entry.number}`), badge(entry.status, { live: "good", shadow: "warn" }[entry.status] || ""), at === 0 ? badge("current", "accent") : null, h("code", { class: "faint" }, hash(entry.version)), h("span", { class: "muted small" }, `${entry.author || "–"}, `, time(entry.at ?? entry.at_ms))),
      entry.note ? h("p", { class: "small" }, entry.note) : null,
      h("p", { class: "faint small" }, effect(entry.took_effect)),
      h(
        "div",
        { class: "toolbar" },
        before ? button(`Compare with ${before.number}`, () => compare(before.number, entry.number, place), "low") : null,
        at > 0 && may("rules") ? button("Roll back to this", () => rollback(entry), "low") : null,
      ),
      place,
    );
  }

  async function compare(a, b, place) {
    try {
      const found = await get(`/rules/${part(state.rule.rule)}/diff`, { a, b });
      put(place, found.diff ? diffShown(found.diff) : h("p", { class: "note" }, "The text is the same."));
    } catch (fault) {
      failed(fault);
    }
  }

  function rollback(entry) {
    const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note" });
    const doIt = button("Roll back", async () => {
      try {
        const done = await post(`/rules/${part(state.rule.rule)}/rollback`, { to: entry.number, note: note.value });
        box.close();
        toast(`Number ${entry.number} is back, as number ${done.number}`);
        go(`/rules/${part(state.rule.rule)}`, true);
      } catch (fault) {
        failed(fault);
      }
    }, "main", { id: "do-rollback" });
    const box = dialog(`Back to number ${entry.number}`, [h("p", {}, "The text of that number is published again, with a new number. Nothing is lost from the history."), field("Note", note)], [button("Cancel", () => box.close()), doIt]);
  }

  return { element, open };
}

function effect(took) {
  if (!took || !Object.keys(took).length) return "Not yet in effect anywhere";
  const places = Object.entries(took).map(([partition, offsets]) => `${partition}: ${typeof offsets === "object" && offsets ? Object.entries(offsets).map(([stream, offset]) => `${stream} ${whole(offset)}`).join(", ") : offsets}`);
  return `In effect from ${places.slice(0, 4).join(" · ")}${places.length > 4 ? ` and ${places.length - 4} more` : ""}`;
}
