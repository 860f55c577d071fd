// The rule's own tests, and the rule tried on the newest events of the log.

import { post } from "/api.js";
import { bars } from "/charts.js";
import { h, put } from "/dom.js";
import { counted, moment, span, value, whole } from "/format.js";
import { eventTable } from "/pages/alert.js";
import { button, empty, field, keyLink, loading, problem, select } from "/parts.js";

// ---------------------------------------------------------------- tests

export function testsPanel(state) {
  const result = h("div", { id: "tests" });
  const element = h("div", { class: "stack" }, h("div", { class: "toolbar" }, button("Run tests", run, "", { id: "run-tests" }), h("span", { class: "muted small" }, h("kbd", {}, "Ctrl"), " ", h("kbd", {}, "Enter"))), result);
  let ranFor = null;

  async function run() {
    const text = state.editor.text();
    ranFor = text;
    put(result, loading("Running the tests"));
    try {
      const found = await post("/rules/test", { text });
      if (state.over || ranFor !== text) return;
      show(found);
    } catch (fault) {
      put(result, problem(fault, run));
    }
  }

  function show(found) {
    const broken = (found.findings || []).some((each) => each.level === "error");
    if (broken) {
      state.bar.count("tests", "");
      put(result, empty("The rule has errors", "Tests run once it has none: they are listed under the text."));
      return;
    }
    if (!found.tests.length) {
      state.bar.count("tests", "");
      put(result, empty("This rule has no tests", "A test is a list of events and the alerts expected of them, under tests: at the end of the text."));
      return;
    }
    state.bar.count("tests", found.failed ? `${found.failed} failed` : `${found.passed} passed`, found.failed ? "bad" : "good");
    put(
      result,
      h("p", { class: `note ${found.failed ? "bad" : "good"}`, id: "tests-sum" }, found.failed ? `${found.failed} of ${counted(found.tests.length, "test")} failed` : `${counted(found.passed, "test")} passed`),
      h("ul", { class: "tests" }, found.tests.map((each) => oneTest(each, state))),
    );
  }

  return { element, open: () => state.editor && state.editor.text() !== ranFor && run() };
}

function oneTest(test, state) {
  return h(
    "li",
    { class: test.passed ? "pass" : "fail" },
    h(
      "div",
      { class: "test-head" },
      h("span", { class: "mark", "aria-hidden": "true" }, test.passed ? "✓" : "✗"),
      h("span", {}, h("span", { class: "unseen" }, test.passed ? "passed: " : "failed: "), test.name),
      h("button", { type: "button", class: "line-link", onclick: () => state.editor.goTo(test.line) }, `line ${test.line}`),
    ),
    (test.differences || []).map((each) =>
      h(
        "dl",
        { class: "difference" },
        h("dt", {}, "expected"),
        h("dd", {}, each.expected && Object.keys(each.expected).length ? value(each.expected) : "no alert"),
        h("dt", {}, "found"),
        h("dd", {}, each.found && Object.keys(each.found).length ? value(each.found) : "no alert"),
        each.differs && each.differs.length ? [h("dt", {}, "differs in"), h("dd", {}, each.differs.join(", "))] : null,
      ),
    ),
    (test.why || []).length ? h("div", { class: "why" }, test.why.map((line) => h("p", {}, line))) : null,
  );
}

// ---------------------------------------------------------------- trials

export function tryPanel(state) {
  const result = h("div", { id: "tried", class: "stack" }, empty("Try it on what just came in", "The rule runs over the newest events of the log, from nothing. No alert is raised and no state is kept."));
  let minutes = "60";
  const runButton = button("Try it", run, "", { id: "run-try" });
  const element = h(
    "div",
    { class: "stack" },
    h("div", { class: "toolbar" }, field("", select([["10", "The last 10 minutes"], ["60", "The last hour"], ["1440", "The last day"], ["10080", "The last 7 days"]], minutes, (next) => (minutes = next), "How far back")), runButton),
    result,
  );

  async function run() {
    runButton.disabled = true;
    put(result, loading("Reading the newest events"));
    try {
      show(await post("/rules/try", { text: state.editor.text(), minutes: Number(minutes), max_events: 200000 }));
    } catch (fault) {
      put(result, problem(fault, run));
    }
    runButton.disabled = false;
  }

  function show(found) {
    const past = found.from ? `from ${moment(found.from)} to ${moment(found.to)}` : "";
    put(
      result,
      h("p", { class: "note" }, h("b", {}, counted(found.matches, "alert")), ` in ${counted(found.events, "event")} ${past}`, found.suppressed ? `, ${whole(found.suppressed)} suppressed` : "", found.bad ? `, ${whole(found.bad)} could not be read` : "", `; took ${span(found.seconds * 1000)}`, found.complete === false ? ". There were more events than are tried at once." : ""),
      found.alerts.length
        ? [
            found.per_key && found.per_key.some((each) => each.count > 1) ? bars(found.per_key.slice(0, 5).map((each) => ({ name: keyLink(each), count: each.count })), { label: "Alerts a key" }) : null,
            h("div", { class: "stack" }, found.alerts.map(oneAlert)),
          ]
        : empty("It would not have fired", "Nothing in these events matches. The page Keys says for one key how far a rule came."),
    );
  }

  return { element, open: () => {} };
}

function oneAlert(alert) {
  return h(
    "details",
    { class: "note" },
    h("summary", {}, h("span", { class: "mono small" }, moment(alert.at)), " ", h("b", {}, alert.key_text), " ", alert.message || ""),
    alert.timeline && alert.timeline.length ? eventTable(alert.timeline, ["any"]).element : null,
  );
}
