// A rule's life: published with its plan in sight, switched off and on, and taken back.

import { get, part, post } from "/api.js";
import { h, put } from "/dom.js";
import { hash, span, whole } from "/format.js";
import { badge, button, dialog, empty, failed, field, loading, problem, toast, time } from "/parts.js";
import { may } from "/store.js";

// ---------------------------------------------------------------- publish

export function publishDialog(state, go) {
  const text = state.editor.text();
  const place = h("div", { class: "stack", id: "plan" }, loading("Making the plan"));
  const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note", maxlength: "500" });
  const shadow = h("input", { type: "checkbox", onchange: () => plan() });
  const warm = h("input", { type: "datetime-local", "aria-label": "Warm from (UTC)", onchange: () => plan() });
  const doIt = button("Publish", publish, "main", { disabled: true, id: "do-publish" });
  const box = dialog(
    `Publish ${state.checked && state.checked.rule ? state.checked.rule : "the rule"}`,
    [
      place,
      h("div", { class: "toolbar" }, h("label", { class: "check" }, shadow, "In shadow: counted, no alerts"), field("Warm from (UTC)", warm, "folds history into its state first")),
      field("Note", note),
    ],
    [button("Cancel", () => box.close()), doIt],
    "wide",
  );
  let digest = null;

  const warmMs = () => (warm.value ? Date.parse(`${warm.value}Z`) : null);

  async function plan() {
    doIt.disabled = true;
    put(place, loading("Making the plan"));
    try {
      const found = await post("/rules/plan", { text, shadow: shadow.checked, warm_from: warmMs() });
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
      const done = await post("/rules/publish", { text, note: note.value, shadow: shadow.checked, warm_from: warmMs(), digest });
      box.close();
      toast(`Published ${done.rule || done.name} as number ${done.number}`);
      go(`/rules/${part(done.rule || done.name)}`);
    } catch (fault) {
      put(place, problem(fault, plan));
    }
  }

  plan();
}

const WORDS = { kept: "are kept", drained: "finish under the old rule", dropped: "are dropped", keep: "are kept", drain: "finish under the old rule", drop: "are dropped" };

export function planShown(plan) {
  const state = plan.state || {};
  const cold = plan.cold_start ?? plan.cold;
  return [
    plan.summary ? h("p", {}, plan.summary) : null,
    stateShown(state),
    cold ? h("p", { class: "note warn" }, coldText(cold)) : null,
    (plan.findings || []).map((each) => h("p", { class: `note ${each.level === "error" ? "bad" : "warn"}` }, `line ${each.line}: ${each.message}${each.hint ? ` ${each.hint}` : ""}`)),
    (plan.notes || []).map((each) => h("p", { class: "note" }, each)),
    plan.diff ? diffShown(plan.diff) : h("p", { class: "note" }, "A new rule: there is nothing to compare it with."),
  ];
}

function stateShown(state) {
  if (typeof state === "string") return h("p", { class: "note" }, `Partial matches ${WORDS[state] || state}.`);
  const counts = Object.entries(state).filter(([, count]) => typeof count === "number");
  const texts = Object.entries(state).filter(([, text]) => typeof text === "string" && text);
  return h(
    "div",
    { class: "stack", id: "state-plan" },
    counts.length ? h("p", { class: "note" }, "Partial matches: ", counts.map(([name, count]) => `${whole(count)} ${WORDS[name] || name.replaceAll("_", " ")}`).join(", ")) : null,
    texts.map(([name, text]) => h("p", { class: "note" }, `${name.replaceAll("_", " ")}: ${WORDS[text] || text}`)),
  );
}

function coldText(cold) {
  if (typeof cold === "string") return cold;
  if (typeof cold === "number") return `The rule stays in shadow for ${span(cold)}: it looks back that far and knows nothing yet.`;
  return cold.text || cold.why || Object.entries(cold).map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join(", ");
}

export function diffShown(text) {
  const kind = (line) => (line.startsWith("@@") ? "place" : line.startsWith("+") ? "added" : line.startsWith("-") ? "gone" : null);
  return h("pre", { class: "diff", tabindex: "0", "aria-label": "What changes" }, text.split("\n").map((line) => h("span", { class: kind(line) }, line || " ")));
}

// ---------------------------------------------------------------- on, off

export function stateButtons(state, go) {
  if (!may("rules")) return null;
  const rule = state.rule;
  const off = rule.status === "disabled";
  const act = off ? "enable" : "disable";
  return button(off ? "Enable" : "Disable", () => ask(), off ? "" : "danger", { id: act });

  function ask() {
    const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note" });
    const doIt = button(off ? "Enable" : "Disable", async () => {
      try {
        await post(`/rules/${part(rule.rule)}/${act}`, { note: note.value });
        box.close();
        toast(off ? "Enabled" : "Disabled");
        go(`/rules/${part(rule.rule)}`, true);
      } catch (fault) {
        failed(fault);
      }
    }, off ? "main" : "danger");
    const words = off ? "It begins again at the next batch." : "It raises no more alerts from the next batch on. Its history stays, and it can be enabled again.";
    const box = dialog(`${off ? "Enable" : "Disable"} ${rule.rule}`, [h("p", {}, words), field("Note", note)], [button("Cancel", () => box.close()), doIt]);
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
