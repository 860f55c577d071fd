// Pieces that every page uses: tables, states, badges, tabs, dialogs, words that pass.

import { byId, h } from "/dom.js";
import { ago, clock, moment, whole } from "/format.js";

// ---------------------------------------------------------------- states

export const loading = (text = "Loading") => h("div", { class: "state quiet", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), text);

export function empty(title, ...more) {
  return h("div", { class: "state" }, h("h3", {}, title), more.map((each) => (typeof each === "string" ? h("p", {}, each) : each)));
}

// An error says what happened and what to do; `again` is offered where trying again can help.
export function problem(fault, again = null) {
  return h(
    "div",
    { class: "state bad", role: "alert" },
    h("h3", {}, fault.message || "Something went wrong"),
    fault.detail ? h("p", {}, fault.detail) : null,
    fault.hint ? h("p", { class: "hint" }, fault.hint) : null,
    (fault.errors || []).slice(0, 5).map((each) => h("p", { class: "mono small" }, `${each.where}: ${each.what}`)),
    fault.code ? h("p", { class: "faint small" }, "code ", h("code", {}, fault.code)) : null,
    again ? h("button", { class: "button", type: "button", onclick: again }, "Try again") : null,
  );
}

// ---------------------------------------------------------------- words

const SEVERITIES = ["info", "low", "medium", "high", "critical"];

export const severity = (name) =>
  h("span", { class: ["severity", `severity-${SEVERITIES.includes(name) ? name : "info"}`] }, h("i", { "aria-hidden": "true" }), name || "info");

const LABELS = { open: "Open", confirmed: "Confirmed", false_alarm: "False alarm" };

export const labelText = (label) => LABELS[label] || label;

export const label = (name) => h("span", { class: ["label", `label-${name || "open"}`] }, labelText(name || "open"));

// An alarm is a record about a rule, not a key: nobody judges it.
const ALARMS = { storm: ["storm", "bad"], "storm-over": ["storm is over", "good"] };

export const standing = (alert) => (alert.alarm ? badge(...(ALARMS[alert.alarm] || [alert.alarm, "warn"])) : label(alert.label));

export const badge = (text, kind = "") => h("span", { class: ["badge", kind] }, text);

export const time = (ms, kind = "moment") =>
  h(
    "time",
    { datetime: Number.isFinite(ms) ? new Date(ms).toISOString() : null, title: Number.isFinite(ms) ? `${moment(ms, true)} UTC` : null },
    kind === "ago" ? ago(ms) : kind === "clock" ? clock(ms) : moment(ms),
  );

export const keyHref = (of) => `/keys?key=${encodeURIComponent(of.key_ref)}`;

export const keyLink = (of) => h("a", { href: keyHref(of), class: "mono" }, of.key_text);

export const ruleLink = (rule) => h("a", { href: `/rules/${encodeURIComponent(rule)}` }, rule);

export const kbd = (...keys) => keys.map((key) => h("kbd", {}, key));

// ---------------------------------------------------------------- layout

export function card(title, ...content) {
  const options = content.length && content[0] && content[0].constructor === Object ? content.shift() : {};
  return h(
    "section",
    { class: ["card", options.class], "aria-label": typeof title === "string" ? title : options.label },
    title ? h("header", { class: "card-head" }, h("h2", {}, title), options.aside ? h("div", { class: "card-aside" }, options.aside) : null) : null,
    h("div", { class: ["card-body", options.flush && "flush"] }, content),
  );
}

export const stat = (name, shown, more = null, kind = "") =>
  h("div", { class: ["stat", kind] }, h("dt", {}, name), h("dd", {}, shown), more ? h("p", { class: "stat-more", title: typeof more === "string" ? more : null }, more) : null);

// columns: {head, cell: row -> content, class, sort?}. `onrow` makes a row a link: by mouse, and by its first cell.
export function table(columns, rows, options = {}) {
  const body = h("tbody", {}, rows.map((row) => tableRow(columns, row, options)));
  return h(
    "div",
    { class: "table-wrap", tabindex: "0", role: "region", "aria-label": options.label || "Table" },
    h(
      "table",
      { class: ["data", options.class] },
      options.label ? h("caption", { class: "unseen" }, options.label) : null,
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.class }, column.head)))),
      body,
    ),
  );
}

export function tableRow(columns, row, options = {}) {
  const made = h("tr", { class: options.rowClass ? options.rowClass(row) : null }, columns.map((column) => h("td", { class: column.class }, column.cell(row))));
  if (options.href) {
    made.classList.add("goes");
    made.dataset.href = options.href(row);
    made.addEventListener("click", (event) => {
      if (event.target.closest("a, button, input, select")) return;
      const link = made.querySelector("a[data-row]");
      if (link) link.click();
    });
  }
  return made;
}

export const rowLink = (href, ...content) => h("a", { href, "data-row": "" }, content);

// tabs: [{id, name, count?}]; calls `show(id)`. Arrow keys move, as the pattern for tabs has it.
export function tabs(list, chosen, show, name) {
  const bar = h("div", { class: "tabs", role: "tablist", "aria-label": name });
  const choose = (id, focus) => {
    for (const each of bar.children) {
      const on = each.dataset.tab === id;
      each.setAttribute("aria-selected", String(on));
      each.tabIndex = on ? 0 : -1;
      if (on && focus) each.focus();
    }
    show(id);
  };
  for (const each of list) {
    bar.append(
      h("button", { type: "button", role: "tab", "data-tab": each.id, onclick: () => choose(each.id, false) }, each.name, h("span", { class: "tab-count" })),
    );
  }
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const at = list.findIndex((each) => each.id === event.target.dataset.tab);
    choose(list[(at + step + list.length) % list.length].id, true);
  });
  choose(chosen, false);
  bar.choose = (id) => choose(id, false);
  bar.count = (id, text, kind = "") => {
    const found = bar.querySelector(`[data-tab="${id}"] .tab-count`);
    if (found) {
      found.textContent = text;
      found.className = `tab-count ${kind}`;
    }
  };
  return bar;
}

export const field = (name, input, hint = "") =>
  h("label", { class: "field" }, h("span", { class: "field-name" }, name), input, hint ? h("span", { class: "field-hint" }, hint) : null);

export const select = (options, chosen, onchange, name) =>
  h(
    "select",
    { onchange: (event) => onchange(event.target.value), "aria-label": name },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );

export const button = (text, onclick, kind = "", more = {}) => h("button", { type: "button", class: ["button", kind], onclick, ...more }, text);

// ---------------------------------------------------------------- dialogs and passing words

// The browser's own dialog: it keeps the focus inside, closes on Escape, and gives the focus back.
export function dialog(title, content, actions = [], kind = "") {
  const box = h(
    "dialog",
    { class: ["dialog", kind], "aria-label": title },
    h("header", { class: "dialog-head" }, h("h2", {}, title), h("button", { type: "button", class: "icon-button", "aria-label": "Close", onclick: () => box.close() }, "×")),
    h("div", { class: "dialog-body" }, content),
    actions.length ? h("footer", { class: "dialog-foot" }, actions) : null,
  );
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => event.target === box && box.close());
  document.body.append(box);
  box.showModal();
  return box;
}

export function toast(text, kind = "") {
  const shown = h("div", { class: ["toast", kind] }, text);
  byId("toasts").append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 9000 : 4500);
}

export const failed = (fault) => toast([fault.message, fault.hint].filter(Boolean).join(" "), "bad");

export const total = (count, shown, name) => (count > shown ? `${whole(shown)} of ${whole(count)} ${name}` : `${whole(count)} ${name}`);
