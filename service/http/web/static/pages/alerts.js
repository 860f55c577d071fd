// Alerts: a list that grows at its top, filters that stand in the address, and labels without leaving the list.

import { get, put as send, query as queryOf, refOf } from "/api.js";
import { h, put } from "/dom.js";
import { counted, day, percent, whole } from "/format.js";
import { button, empty, failed, keyLink, labelText, loading, problem, rowLink, ruleLink, select, severity, standing, table, tableRow, time, toast } from "/parts.js";
import { alertNews, may } from "/store.js";

const PAGE = 50;
const SPANS = [["", "Any time"], ["900000", "Last 15 minutes"], ["3600000", "Last hour"], ["86400000", "Last day"], ["604800000", "Last 7 days"]];
const SEVERITIES = [["", "Any severity"], ["critical", "Critical"], ["high", "High"], ["medium", "Medium"], ["low", "Low"], ["info", "Info"]];
const LABELS = [["", "All"], ["open", "Open"], ["confirmed", "Confirmed"], ["false_alarm", "False alarms"]];

export function mount(root, { query, go }) {
  const filter = { rule: query.get("rule") || "", key: query.get("key") || "", severity: query.get("severity") || "", label: query.get("label") || "", span: query.get("span") || "" };
  const list = h("div", {}, loading());
  const count = h("span", { class: "muted small", role: "status" });
  const more = h("div", { class: "state" });
  const precision = h("div", {}, loading());
  const ruleBox = h("select", { "aria-label": "Rule", onchange: (event) => change("rule", event.target.value) }, h("option", { value: "" }, "Any rule"));
  const keyBox = h("input", { type: "search", value: filter.key, placeholder: "Key, as c0000042", "aria-label": "Key", onchange: (event) => changeKey(event.target.value.trim()) });
  const pauseButton = button("Pause", pause, "", { "aria-pressed": "false", title: "Hold the list still while you read" });
  let body = null;
  let held = [];
  let paused = false;
  let over = false;
  let sum = 0;

  put(
    root,
    h("div", { class: "page-head" }, h("h1", {}, "Alerts"), count, h("div", { class: "actions" }, pauseButton)),
    h(
      "div",
      { class: "toolbar" },
      h("div", { class: "segments", role: "group", "aria-label": "Status" }, LABELS.map(([value, text]) => button(text, () => change("label", value), "", { "aria-pressed": String(filter.label === value) }))),
      ruleBox,
      select(SEVERITIES, filter.severity, (value) => change("severity", value), "Severity"),
      select(SPANS, filter.span, (value) => change("span", value), "Time"),
      keyBox,
      Object.values(filter).some(Boolean) ? button("Clear", () => go("/alerts"), "low") : null,
    ),
    h("div", { class: "grid wide-left" }, h("section", { class: "card", "aria-label": "Alerts" }, list, more), h("section", { class: "card", "aria-label": "Precision by rule" }, h("header", { class: "card-head" }, h("h2", {}, "Precision by rule")), precision)),
  );

  function change(name, value) {
    go(`/alerts${queryOf({ ...filter, [name]: value })}`);
  }

  async function changeKey(key) {
    try {
      change("key", key && (await refOf(key)));
    } catch (fault) {
      failed(fault);
    }
  }

  const asked = (after) => ({
    rule: filter.rule,
    key: filter.key,
    severity: filter.severity,
    label: filter.label,
    from: filter.span ? Date.now() - Number(filter.span) : "",
    limit: PAGE,
    after,
  });

  async function load() {
    try {
      const found = await get("/alerts", asked(""));
      if (over) return;
      sum = found.total ?? found.alerts.length;
      tellCount(found.total_is_exact === false);
      if (!found.alerts.length) {
        put(list, nothing());
        body = null;
        return;
      }
      const made = table(columns(), found.alerts, { label: "Alerts", href: (each) => `/alerts/${each.id}` });
      body = made.querySelector("tbody");
      put(list, made);
      offerMore(found.next);
    } catch (fault) {
      if (!over) put(list, problem(fault, load));
    }
  }

  function offerMore(next) {
    put(
      more,
      next
        ? button("Older alerts", async () => {
            try {
              const found = await get("/alerts", asked(next));
              for (const each of found.alerts) body.append(row(each));
              offerMore(found.next);
            } catch (fault) {
              failed(fault);
            }
          })
        : null,
    );
    more.hidden = !next;
  }

  const nothing = () =>
    Object.values(filter).some(Boolean)
      ? empty("No alert fits these filters", h("a", { href: "/alerts" }, "Show all alerts"))
      : empty("No alerts yet", "Alerts appear here as rules raise them. A rule in shadow mode is counted and raises none.");

  const row = (each) => tableRow(columns(), each, { href: (one) => `/alerts/${one.id}` });

  function columns() {
    return [
      { head: "Event time", class: "tight num", cell: (each) => [time(each.at, "clock"), h("div", { class: "faint small" }, day(each.at))] },
      { head: "What", class: "grow", cell: (each) => [h("div", { class: "inline" }, rowLink(`/alerts/${each.id}`, each.rule), severity(each.severity)), h("span", { class: "one-line muted", title: each.message || each.title }, each.message || each.title)] },
      { head: "Key", class: "tight", cell: (each) => (each.alarm ? h("span", { class: "faint" }, "the rule") : keyLink(each)) },
      { head: "Status", class: "tight", cell: standing },
    ];
  }

  function fits(alert) {
    return (
      (!filter.rule || alert.rule === filter.rule) &&
      (!filter.key || alert.key_ref === filter.key) &&
      (!filter.severity || alert.severity === filter.severity) &&
      (!filter.label || (alert.label || "open") === filter.label)
    );
  }

  function arrive(alert) {
    if (!fits(alert)) return;
    if (paused) {
      held.push(alert);
      pauseButton.textContent = `Go on (${counted(held.length, "new alert")})`;
      return;
    }
    sum += 1;
    tellCount(false);
    if (!body) {
      load();
      return;
    }
    const made = row(alert);
    made.classList.add("arrived");
    body.prepend(made);
    while (body.children.length > 500) body.lastChild.remove();
  }

  function pause() {
    paused = !paused;
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.textContent = paused ? "Go on" : "Pause";
    if (!paused) {
      const waiting = held;
      held = [];
      waiting.forEach(arrive);
    }
  }

  function tellCount(about) {
    put(count, `${about ? "about " : ""}${counted(sum, "alert")}`);
  }

  async function loadPrecision() {
    try {
      const [rules, found] = await Promise.all([get("/rules"), get("/alerts/precision")]);
      if (over) return;
      for (const each of rules.rules) ruleBox.append(h("option", { value: each.rule, selected: each.rule === filter.rule }, each.rule));
      put(precision, precisionTable(found.rules));
    } catch (fault) {
      if (!over) put(precision, problem(fault));
    }
  }

  load();
  loadPrecision();
  const stop = alertNews.hear(arrive);
  return () => {
    over = true;
    stop();
  };
}

function precisionTable(rules) {
  if (!rules.length) return empty("No alert was judged yet", "Open an alert and say whether it was right: the share of confirmed ones is shown here.");
  const sorted = [...rules].sort((one, other) => other.confirmed + other.false_alarm - (one.confirmed + one.false_alarm) || other.open - one.open);
  return table(
    [
      { head: "Rule", class: "grow", cell: (each) => h("span", { class: "one-line" }, ruleLink(each.rule)) },
      { head: "Judged", class: "tight num", cell: (each) => [whole(each.confirmed), h("span", { class: "faint" }, ` of ${whole(each.confirmed + each.false_alarm)}`)] },
      { head: "Precision", class: "tight num", cell: (each) => h("b", {}, percent(each.precision)) },
    ],
    sorted,
    { label: "Precision by rule" },
  );
}

// The three buttons of an alert; `after(label)` is called when the service has it.
export function labelButtons(alert, after) {
  const allowed = may("label");
  const bar = h("div", { class: "segments", role: "group", "aria-label": "Status of this alert" });
  const show = (chosen) => {
    for (const each of bar.children) each.setAttribute("aria-pressed", String(each.dataset.label === chosen));
  };
  for (const name of ["open", "confirmed", "false_alarm"]) {
    bar.append(
      button(
        labelText(name),
        async () => {
          try {
            await send(`/alerts/${encodeURIComponent(alert.id)}/label`, { label: name, note: "" });
            show(name);
            toast(`Marked as ${labelText(name).toLowerCase()}`);
            after(name);
          } catch (fault) {
            failed(fault);
          }
        },
        "",
        { "data-label": name, disabled: !allowed, title: allowed ? null : "Your role may not label alerts" },
      ),
    );
  }
  show(alert.label || "open");
  return bar;
}
