// One rule: the text on the left, checked as it is typed; next to it its picture, tests, trials and its life.

import { get, part, post } from "/api.js";
import { debounced, drawing, h, put } from "/dom.js";
import { makeEditor } from "/editing.js";
import { bytes, counted, hash, span } from "/format.js";
import { backtestPanel } from "/pages/rule_backtest.js";
import { historyPanel, publishDialog, stateButtons } from "/pages/rule_life.js";
import { testsPanel, tryPanel } from "/pages/rule_trials.js";
import { badge, button, empty, loading, problem, severity, tabs, time } from "/parts.js";
import { may } from "/store.js";

const CHECK_MS = 250;
const TEMPLATE = `rule: new-rule
title: What it is about
severity: medium
match: |
  sequence by KEY with maxspan=10m
    [TYPE where true] as first
    [TYPE where true] as second
message: "what a reader should know"
tests:
  - name: it fires
    events:
      - "+0s TYPE {KEY: k1}"
      - "+5s TYPE {KEY: k1}"
    expect:
      - {key: {KEY: k1}, at: "+5s"}
`;

export function mount(root, { name, go }) {
  const state = { over: false, editor: null, checked: null, saved: "", rule: null, findings: [] };
  put(root, loading());
  load();

  async function load() {
    try {
      const [rule, words] = await Promise.all([name === "new" ? fresh() : get(`/rules/${part(name)}`), get("/completions").catch(() => null)]);
      if (!state.over) await draw(root, state, rule, words, name, go);
    } catch (fault) {
      if (!state.over) put(root, problem(fault, load), h("p", { class: "state" }, h("a", { href: "/rules" }, "All rules")));
    }
  }

  return () => {
    state.over = true;
    if (state.editor) state.editor.destroy();
  };
}

// A new rule begins with a type and a key that the service really has.
async function fresh() {
  const [words, known] = await Promise.all([get("/completions").catch(() => ({})), get("/streams").catch(() => ({ streams: [] }))]);
  const [type, fields] = Object.entries(words.types || {})[0] || ["event", {}];
  const stream = known.streams.find((each) => each.key && each.key in fields);
  const key = stream ? stream.key : Object.keys(fields).find((name) => name !== "ts" && name !== "type") || "key";
  return { rule: "new", fresh: true, text: TEMPLATE.replaceAll("TYPE", type).replaceAll("KEY", key) };
}

const asWords = (found) =>
  found && {
    types: found.types || {},
    functions: [
      ...(found.functions || []),
      ...(found.aggregates || []).map((name) => ({ name, result: "over events taken" })),
      ...(found.history || []).filter((name) => !(found.aggregates || []).includes(name)).map((name) => ({ name, result: "over earlier events" })),
    ],
    keywords: found.keywords || [],
    params: found.params || {},
    lists: Object.fromEntries((Array.isArray(found.lists) ? found.lists : Object.keys(found.lists || {})).map((name) => [name, []])),
    keys: "rule title severity tags match emit message suppress let params lists tests description".split(" "),
  };

async function draw(root, state, rule, words, name, go) {
  state.rule = rule;
  state.saved = rule.fresh ? "" : rule.text;
  const place = h("div", { class: "editor", id: "editor" });
  const findings = h("ul", { class: "findings", "aria-label": "Findings", "aria-live": "polite", hidden: true });
  const verdict = h("span", { class: "small", id: "verdict", role: "status" });
  const title = h("h1", {}, rule.fresh ? "New rule" : rule.rule);
  const facts = h("span", { class: "inline" });
  const panel = h("div", { class: "panel", role: "tabpanel", id: "panel" });
  const publishButton = button("Publish…", () => publishDialog(state, go), "main", { id: "publish", disabled: true });
  const panels = {
    picture: picturePanel(state),
    tests: testsPanel(state),
    try: tryPanel(state),
    backtest: backtestPanel(state),
    history: historyPanel(state, go),
  };
  let shown = "picture";
  const bar = tabs(
    [
      { id: "picture", name: "Picture" },
      { id: "tests", name: "Tests" },
      { id: "try", name: "Try" },
      { id: "backtest", name: "Backtest" },
      ...(rule.fresh ? [] : [{ id: "history", name: "History" }]),
    ],
    shown,
    (id) => {
      shown = id;
      put(panel, panels[id].element);
      panels[id].open();
    },
    "About the rule",
  );
  state.bar = bar;
  state.run = (id) => bar.choose(id);

  put(
    root,
    h("p", { class: "crumb" }, h("a", { href: "/rules" }, "Rules"), " / ", rule.fresh ? "new" : rule.rule),
    h("div", { class: "page-head" }, title, facts, h("div", { class: "actions" }, rule.fresh ? null : stateButtons(state, go), may("rules") ? publishButton : badge("You may read, not publish"))),
    rule.status === "quarantined" ? quarantineShown(rule) : null,
    h(
      "div",
      { class: "workbench" },
      h("section", { class: "card editor-card", "aria-label": "Rule text" }, h("header", { class: "card-head" }, h("h2", {}, "Rule"), h("div", { class: "card-aside" }, verdict)), place, findings),
      h("section", { class: "card editor-card", "aria-label": "About the rule" }, bar, panel),
    ),
  );
  tellFacts(facts, rule);

  const check = debounced(() => checkNow(), CHECK_MS);
  state.editor = await makeEditor({ parent: place, text: rule.text, label: "Rule text", words: asWords(words), onChange: () => check() });
  if (state.editor.kind === "plain") place.before(h("p", { class: "note warn" }, "This is a plain text field: the editor was not bundled with these pages. `make pages` fetches it from the npm registry. Errors are marked all the same."));
  place.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "Enter") {
      event.preventDefault();
      bar.choose("tests");
    }
  });

  let asked = 0;
  async function checkNow() {
    const mine = ++asked;
    const text = state.editor.text();
    try {
      const found = await post("/rules/check", { text });
      if (mine !== asked || state.over) return;
      state.checked = { ...found, text };
      state.findings = found.findings;
      state.editor.setFindings(found.findings);
      tellFindings(findings, verdict, found, state.editor);
      publishButton.disabled = !found.ok || text === state.saved;
      publishButton.title = !found.ok ? "Fix the errors first" : text === state.saved ? "Nothing has changed" : "";
      panels[shown].changed?.();
    } catch (fault) {
      if (mine !== asked || state.over) return;
      put(verdict, h("span", { class: "bad-text" }, fault.message));
    }
  }
  await checkNow();
  panels[shown].open();
  if (rule.fresh) state.editor.goTo(1, 7);
}

function quarantineShown(rule) {
  return h("p", { class: "note bad", id: "quarantine" }, "In quarantine since ", time(rule.at), `: ${rule.note}. The service took the rule out so that the others go on. Enable it to bring it back.`);
}

function tellFacts(place, rule) {
  if (rule.fresh) return;
  put(place, severity(rule.severity), badge(rule.status, { live: "good", shadow: "warn", quarantined: "bad" }[rule.status] || ""), h("span", { class: "muted small" }, rule.number ? `number ${rule.number}, ` : "", "version ", h("code", {}, hash(rule.version))));
}

function tellFindings(list, verdict, found, editor) {
  const errors = found.findings.filter((each) => each.level === "error").length;
  const warnings = found.findings.length - errors;
  put(
    list,
    found.findings.map((each) =>
      h(
        "li",
        { class: `finding-${each.level}`, "data-finding": each.id },
        h("button", { type: "button", class: "where", onclick: () => editor.goTo(each.line, each.column), "aria-label": `Go to line ${each.line}` }, `${each.line}:${each.column}`),
        h("div", {}, h("span", { class: `level-${each.level}` }, each.level), " ", each.message, each.hint ? h("div", { class: "hint" }, each.hint) : null, each.expected ? h("div", { class: "hint small" }, `expected: ${each.expected}`) : null),
      ),
    ),
  );
  list.hidden = found.findings.length === 0;
  const held = found.cost ? `about ${bytes(found.cost.typical_bytes)} per key${found.cost.held_ms ? `, held ${span(found.cost.held_ms)}` : ""}` : "";
  put(
    verdict,
    errors ? h("span", { class: "bad-text" }, counted(errors, "error")) : h("span", { class: "good-text" }, "No errors"),
    warnings ? h("span", { class: "muted" }, `, ${counted(warnings, "remark")}`) : null,
    held && !errors ? h("span", { class: "muted" }, ` · ${held}`) : null,
  );
}

// ---------------------------------------------------------------- the picture

function picturePanel(state) {
  const element = h("div", { id: "picture" }, loading());
  let drawnFor = null;
  const shape = async () => {
    const text = state.editor ? state.editor.text() : state.rule.text;
    if (text === drawnFor) return;
    if (state.checked && !state.checked.ok) {
      if (drawnFor === null) put(element, empty("No picture yet", "It is drawn as soon as the rule has no errors."));
      return;
    }
    drawnFor = text;
    try {
      const found = state.checked && state.checked.svg ? state.checked : await post("/rules/explain", { text });
      const sections = (found.sections || []).filter((each) => each.lines && each.lines.length);
      put(element, drawing(found.svg), h("details", { class: "explain" }, h("summary", { class: "small muted" }, "In words"), sections.map((each) => [h("h3", {}, each.heading), each.lines.map((line) => h("p", {}, line))])));
    } catch (fault) {
      put(element, problem(fault, () => ((drawnFor = null), shape())));
    }
  };
  return { element, open: shape, changed: shape };
}

