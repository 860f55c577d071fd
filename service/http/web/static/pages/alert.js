// One alert: every matched event on a time axis, which step it filled, the values that mattered, and what lies around.

import { get, part } from "/api.js";
import { timeline } from "/charts.js";
import { h, put } from "/dom.js";
import { clock, counted, hash, keyNames, moment, span, value } from "/format.js";
import { badge, card, empty, keyLink, label, loading, problem, ruleLink, severity, standing, table, time } from "/parts.js";
import { labelButtons } from "/pages/alerts.js";

export function mount(root, { name }) {
  let over = false;
  put(root, loading());
  load();

  async function load() {
    try {
      const alert = await get(`/alerts/${part(name)}`);
      if (!over) draw(root, alert, load);
    } catch (fault) {
      if (!over) put(root, problem(fault, load), fault.status === 404 ? h("p", { class: "state" }, h("a", { href: "/alerts" }, "All alerts")) : null);
    }
  }

  return () => {
    over = true;
  };
}

// An alarm has no key and no events: it says what the storm guard does with its rule.
function drawAlarm(root, alert) {
  put(
    root,
    h("p", { class: "crumb" }, h("a", { href: "/alerts" }, "Alerts"), " / ", alert.rule),
    h("div", { class: "page-head" }, h("h1", {}, alert.alarm === "storm" ? `${alert.rule} passed its alert rate` : `The storm of ${alert.rule} is over`), standing(alert)),
    h("p", { class: "message" }, alert.message || ""),
    card(
      "What the storm guard did",
      { class: "alarm" },
      h(
        "dl",
        { class: "facts" },
        h("dt", {}, "Rule"), h("dd", {}, ruleLink(alert.rule)),
        h("dt", {}, "Limit"), h("dd", {}, `${counted(alert.emit.alerts, "alert")} in ${span(alert.emit.per_ms)}, in each partition`),
        h("dt", {}, "Since"), h("dd", {}, time(alert.start)),
        h("dt", {}, "Kept back"), h("dd", {}, alert.alarm === "storm" ? "counted on the pages Overview and Rules while it lasts" : counted(alert.emit.kept_back, "alert")),
      ),
      h("p", { class: "note" }, "What was kept back is in no list and no sink, but its events are all in the log. Is the rule's condition too wide? Try it on recent traffic, or backtest it."),
    ),
  );
}

function draw(root, alert, reload) {
  if (alert.alarm) {
    drawAlarm(root, alert);
    return;
  }
  document.title = `${alert.rule} · ${alert.key_ref}`;
  const events = alert.timeline || [];
  const rows = eventTable(events, stepNames(alert), Object.keys(alert.key || {}));
  put(
    root,
    h("p", { class: "crumb" }, h("a", { href: "/alerts" }, "Alerts"), " / ", alert.rule),
    h("div", { class: "page-head" }, h("h1", {}, alert.title || alert.rule), severity(alert.severity), h("div", { class: "actions" }, labelButtons(alert, reload))),
    h("p", { class: "message" }, alert.message || ""),
    card("Timeline", { aside: `${counted(alert.events, "matched event")}, ${span(alert.end - alert.start)}` }, picture(alert, events, rows), alert.timeline_complete === false ? h("p", { class: "note" }, "Not all events of this time are shown: some are no longer in the log, or there are too many.") : null),
    h(
      "div",
      { class: "grid wide-left" },
      card("Events", { flush: true, aside: "what the rule reads comes first" }, events.length ? rows.element : empty("The events are no longer in the log", "The input topic keeps them for as long as its retention says.")),
      h("div", { class: "stack" }, facts(alert), why(alert), history(alert)),
    ),
  );
}

const stepNames = (alert) => Object.keys(alert.steps || {});

function picture(alert, events, rows) {
  const steps = stepNames(alert);
  const others = events.some((each) => !each.step);
  const lanes = [...steps.map((step) => ({ name: step })), ...(others ? [{ name: "other events", kind: "other" }] : [])];
  if (!events.length || !lanes.length) return empty("Nothing to draw");
  const times = [...events.map((each) => each.time), alert.start, alert.at];
  const from = Math.min(...times), to = Math.max(...times);
  const margin = Math.max(500, (to - from) * 0.04);
  const marks = events.map((each, at) => ({
    at: each.time,
    lane: each.step ? Math.max(0, steps.indexOf(each.step)) : lanes.length - 1,
    kind: each.step ? "" : "other",
    text: `${clock(each.time, true)} ${each.type}${each.step ? `, taken as ${each.step}` : ""}: ${Object.entries(each.values || {}).map(([field, given]) => `${field} ${value(given)}`).join(", ")}`,
    id: String(at),
  }));
  // The matched ones are drawn last, above what lies around them.
  marks.sort((one, other) => (one.kind === "other" ? 0 : 1) - (other.kind === "other" ? 0 : 1));
  return timeline({
    lanes,
    marks,
    bands: [{ from: alert.start, to: Math.max(alert.end, alert.start), text: span(alert.end - alert.start) }],
    from: from - margin,
    to: to + margin,
    now: alert.at > alert.end ? alert.at : null,
    label: `Timeline of ${alert.events} matched events`,
    onpick: rows.pick,
  });
}

// What a rule reads is marked, but for the key itself, which is the same everywhere.
export function eventTable(events, steps, keys = []) {
  const read = (each) => Object.keys(each.values || {}).filter((name) => !keys.includes(name));
  const columns = [
    { head: "Time", class: "tight num", cell: (each) => h("time", { title: moment(each.time, true) }, clock(each.time, true)) },
    { head: "Step", class: "tight", cell: (each) => (each.step ? badge(each.step, "accent") : "") },
    { head: "Event", class: "tight", cell: (each) => [each.type || "", placeOf(each)] },
    { head: "Values", class: "grow", cell: (each) => (each.event ? values(each.event, read(each), keys) : h("span", { class: "faint" }, "no longer in the log")) },
  ];
  const element = table(columns, events, { label: "Events of the alert", rowClass: (each) => (each.step || !steps.length ? null : "other") });
  const rows = [...element.querySelectorAll("tbody tr")];
  return {
    element,
    pick(id) {
      for (const row of rows) row.classList.remove("chosen");
      rows[Number(id)].classList.add("chosen");
      rows[Number(id)].scrollIntoView({ block: "nearest", behavior: "smooth" });
    },
  };
}

// Where an event stands in the log
export const placeOf = (each) => h("div", { class: "faint place" }, `${each.stream}/${each.partition}/${each.offset}`);

const HIDDEN = new Set(["type", "ts"]);

export function values(event, mattered = [], hidden = []) {
  const entries = Object.entries(event).filter(([name]) => !HIDDEN.has(name) && !hidden.includes(name));
  const first = entries.filter(([name]) => mattered.includes(name));
  const rest = entries.filter(([name]) => !mattered.includes(name));
  const shown = (kind) => ([name, given]) => h("span", { class: kind }, `${name} `, h("b", {}, value(given)));
  if (!first.length) return h("div", { class: "values" }, rest.map(shown(null)));
  return h("div", {}, h("div", { class: "values" }, first.map(shown("mattered"))), rest.length ? h("div", { class: "values rest" }, rest.map(shown(null))) : null);
}

function facts(alert) {
  const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  const emitted = Object.entries(alert.emit || {});
  return card(
    "Facts",
    h(
      "dl",
      { class: "facts" },
      row("Rule", ruleLink(alert.rule)),
      row("Version", alert.number ? `number ${alert.number}, ` : "", h("code", {}, hash(alert.version)), alert.rule_current === false ? [" ", badge("not the current one", "warn")] : alert.rule_current ? [" ", badge("current", "good")] : ""),
      row(keyNames(alert.key) || "Key", keyLink(alert)),
      row("Status", label(alert.label)),
      row("From", time(alert.start)),
      row("To", time(alert.end)),
      row("Detected", time(alert.at)),
      row("Raised", time(alert.logged)),
      emitted.map(([name, given]) => row(name, h("code", {}, value(given)))),
      row("Id", h("code", {}, alert.id)),
    ),
    alert.rule_text ? h("details", {}, h("summary", { class: "small muted" }, "The rule as it was"), h("pre", { class: "raw" }, alert.rule_text)) : null,
  );
}

function why(alert) {
  if (!alert.why) return null;
  const told = alert.why.events || [];
  return card(
    "Why it fired",
    h("ul", { class: "told" }, (alert.why.conclusion || []).map((line) => h("li", {}, line))),
    told.length
      ? h("details", {}, h("summary", { class: "small muted" }, "Event by event"), h("ul", { class: "told" }, told.slice(0, 100).map((each) => h("li", {}, h("span", { class: "mono faint" }, clock(each.time, true)), ` ${each.type}: ${(each.told || []).join("; ")}`))))
      : null,
  );
}

function history(alert) {
  const labels = alert.labels || [];
  if (!labels.length) return null;
  return card("Judged", h("ul", { class: "told" }, labels.map((each) => h("li", {}, label(each.label), ` by ${each.by}, `, time(each.at, "ago"), each.note ? `: ${each.note}` : ""))));
}
