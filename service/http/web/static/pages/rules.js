// Rules: all of them with what they raise, and the way to a new one.

import { get } from "/api.js";
import { h, put } from "/dom.js";
import { hash, percent, short, whole } from "/format.js";
import { badge, card, empty, loading, problem, rowLink, severity, table, time } from "/parts.js";
import { known, may } from "/store.js";

const STATUS = { live: "good", shadow: "warn", disabled: "", quarantined: "bad" };

// What containers say of a rule at work: one that was published may still be cold, or draining its old matches.
const atWork = (rule) => ((known.status && known.status.rules) || []).find((each) => each.rule === rule.rule && each.version === rule.version);
const stateOf = (rule) => (["disabled", "quarantined"].includes(rule.status) ? rule.status : (atWork(rule) || rule).status);

function keptBack(rule) {
  const count = (atWork(rule) || {}).kept_back;
  return count ? [" ", badge(`${short(count)} kept back`, "bad")] : null;
}

export function mount(root, { query, go }) {
  let over = false;
  const place = h("div", {}, loading());
  const search = h("input", { type: "search", placeholder: "Filter by name, tag or key", "aria-label": "Filter", value: query.get("q") || "", oninput: () => show() });
  let rules = [];
  let work = new Map();
  put(
    root,
    h("div", { class: "page-head" }, h("h1", {}, "Rules"), h("div", { class: "actions" }, search, may("rules") ? h("a", { class: "button main", href: "/rules/new" }, "New rule") : null)),
    place,
  );

  async function load() {
    try {
      const [found, worked] = await Promise.all([get("/rules"), get("/status/rules").catch(() => ({ rules: [] }))]);
      if (over) return;
      rules = found.rules;
      work = new Map(worked.rules.map((each) => [each.rule, each]));
      show(found.problems || []);
    } catch (fault) {
      if (!over) put(place, problem(fault, load));
    }
  }

  function show(problems = []) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = (each) => [each.rule, each.title, each.status, each.form, ...(each.tags || []), ...(each.by || []), ...(each.types || [])].join(" ").toLowerCase();
    const chosen = rules.filter((each) => words.every((word) => text(each).includes(word)));
    put(
      place,
      problems.map((each) => h("p", { class: "note bad" }, typeof each === "string" ? each : each.message || JSON.stringify(each))),
      rules.length === 0
        ? card(null, empty("No rules yet", "A rule says which events make an alert.", may("rules") ? h("a", { class: "button main", href: "/rules/new" }, "Write the first one") : null))
        : chosen.length
          ? card(null, { flush: true, label: "Rules" }, list(chosen))
          : card(null, empty("No rule fits the filter")),
    );
  }

  const list = (chosen) =>
    table(
      [
        {
          head: "Rule",
          class: "grow",
          cell: (each) => [h("div", { class: "inline" }, rowLink(`/rules/${each.rule}`, each.rule), severity(each.severity)), h("span", { class: "one-line muted", title: each.title }, each.title)],
        },
        { head: "Status", class: "tight", cell: (each) => [badge(stateOf(each), STATUS[stateOf(each)] ?? "warn"), keptBack(each)] },
        { head: "Form", class: "tight", cell: (each) => [each.form, h("span", { class: "muted" }, ` by ${(each.by || []).join(", ") || "–"}`), h("div", { class: "faint small" }, (each.types || []).join(", "))] },
        { head: "Alerts", class: "tight num", cell: (each) => h("a", { href: `/alerts?rule=${encodeURIComponent(each.rule)}` }, whole(each.alerts)) },
        { head: "Partials", class: "tight num", cell: (each) => whole((work.get(each.rule) || {}).live_partials) },
        { head: "Precision", class: "tight num", cell: (each) => percent(each.precision) },
        { head: "Tests", class: "tight num", cell: (each) => (each.tests ? whole(each.tests) : h("span", { class: "faint" }, "none")) },
        { head: "Version", class: "tight", cell: (each) => [each.number ? `${each.number} ` : "", h("code", { class: "faint" }, hash(each.version)), each.at ? h("div", { class: "faint small" }, time(each.at, "ago"), each.author ? ` by ${each.author}` : "") : null] },
      ],
      chosen,
      { label: "Rules", href: (each) => `/rules/${each.rule}` },
    );

  load();
  return () => {
    over = true;
    void go;
  };
}
