// Keys: one card, user or visitor: what it did, what is held of it, what each partial match waits for, and why not.

import { get, part, refOf } from "/api.js";
import { timeline } from "/charts.js";
import { h, put } from "/dom.js";
import { clock, counted, day, moment, value, whole } from "/format.js";
import { placeOf, values } from "/pages/alert.js";
import { badge, button, card, empty, failed, keyHref, label, loading, problem, rowLink, ruleLink, severity, table, time, toast } from "/parts.js";

const EVENTS = 200;

export function mount(root, { query, go }) {
  const key = query.get("key") || "";
  const rule = query.get("rule") || "";
  let over = false;
  const input = h("input", { type: "search", value: key, placeholder: "c0000042, or card=c1, or [\"c1\", 7]", "aria-label": "Key", autocomplete: "off", spellcheck: "false", id: "key" });
  const called = h("span", { class: "mono" }, key);
  const place = h("div", { class: "stack" });
  put(
    root,
    h("div", { class: "page-head" }, h("h1", {}, key ? h("span", {}, "Key ", called) : "Keys")),
    h(
      "form",
      {
        class: "lookup",
        onsubmit: (event) => {
          event.preventDefault();
          if (input.value.trim()) find(input.value.trim());
        },
      },
      input,
      h("button", { class: "button main", type: "submit" }, "Look up"),
    ),
    place,
  );
  if (key) begin();
  else suggest();

  async function find(text) {
    try {
      go(`/keys?key=${encodeURIComponent(await refOf(text))}`);
    } catch (fault) {
      put(place, card(null, problem(fault)));
    }
  }

  // An address that somebody wrote by hand may have the key itself in it: it does not stay there.
  async function begin() {
    try {
      const ref = await refOf(key);
      if (over) return;
      if (ref === key) look();
      else go(`/keys?key=${encodeURIComponent(ref)}${rule ? `&rule=${encodeURIComponent(rule)}` : ""}`, true);
    } catch (fault) {
      if (!over) put(place, card(null, problem(fault, begin)));
    }
  }

  async function suggest() {
    put(place, loading());
    try {
      const found = await get("/keys", { limit: 60 });
      if (over) return;
      put(
        place,
        found.keys.length
          ? card("Keys that have state now", { flush: true, aside: found.more ? "the first of many" : null }, keyTable(found.keys))
          : card(null, empty("No key has state now", "State is kept while a rule waits for something. Look any key up above: its events and alerts are there all the same.")),
      );
    } catch (fault) {
      if (!over) put(place, problem(fault, suggest));
    }
  }

  async function look() {
    const held = h("div", { class: "stack" }, card("Partial matches", loading()));
    const events = h("div", {}, card("Events", loading("Looking for its events in the log")));
    const why = h("div", {});
    const alerts = h("div", {}, card("Alerts", loading()));
    put(place, events, h("div", { class: "grid wide-left" }, h("div", { class: "stack" }, held, why), alerts));
    whyPart(why, key, rule, () => over);
    const [state, past, rules] = await Promise.allSettled([get(`/keys/${part(key)}`), get(`/keys/${part(key)}/events`, { limit: EVENTS }), get("/rules")]);
    if (over) return;
    if (state.status === "rejected") put(held, card("What is held", problem(state.reason, look)));
    else {
      called.textContent = state.value.key_text;
      input.value = state.value.key_text;
      put(held, heldPart(state.value));
      put(alerts, alertsPart(state.value));
    }
    if (past.status === "rejected") {
      put(events, card("Events", problem(past.reason, look)));
      return;
    }
    const raised = state.status === "fulfilled" ? state.value.alerts || [] : [];
    const bands = sessionsOf(state.value, rules.value);
    let known = together(past.value.events, boundOf(state.value));
    showEvents(past.value.scanned || {});

    function showEvents(scanned, listed = false) {
      put(events, eventsPart(known, scanned, raised, bands, scanned.older ? further(scanned.older) : null, listed));
    }

    // Each look reads a bounded part of the log: it may find no event, and still come further.
    function further(older) {
      const act = button("Further back", look, "", { id: "further" });
      return act;

      async function look() {
        act.disabled = true;
        act.textContent = "Looking…";
        try {
          const page = await get(`/keys/${part(key)}/events`, { limit: EVENTS, before: older });
          if (over) return;
          const open = Boolean(events.querySelector("details[open]"));
          known = together(known, page.events);
          showEvents(page.scanned, open);
          const next = document.getElementById("further");
          if (next) next.focus();
          toast(page.events.length ? `${counted(page.events.length, "older event")} found` : "No older event in this part of the log");
        } catch (fault) {
          failed(fault);
          act.disabled = false;
          act.textContent = "Further back";
        }
      }
    }
  }

  return () => {
    over = true;
  };
}

function keyTable(keys) {
  return table(
    [
      { head: "Key", class: "tight mono", cell: (each) => rowLink(keyHref(each), each.key_text) },
      { head: "Rules", class: "grow", cell: (each) => h("span", { class: "one-line" }, each.rules.join(", ")) },
      { head: "Next deadline", class: "tight num", cell: (each) => (each.due ? time(each.due) : "–") },
      { head: "Bytes", class: "tight num", cell: (each) => whole(each.bytes) },
      { head: "Task", class: "tight mono", cell: (each) => (each.stage ? `${each.stage}/${each.partition}` : String(each.partition)) },
    ],
    keys,
    { label: "Keys that have state", href: keyHref },
  );
}

// ---------------------------------------------------------------- events

// Each event once, the oldest first
function together(...lists) {
  const found = new Map(lists.flat().map((each) => [`${each.stream}/${each.partition}/${each.offset}`, each]));
  return [...found.values()].sort((one, other) => one.time - other.time);
}

// What partial matches have bound is known wherever it stands in the log.
function boundOf(state) {
  const partials = ((state && state.held) || []).flatMap((each) => each.rules || []).flatMap((each) => each.partials || []);
  return partials.flatMap((each) => each.bound || []).filter((each) => each.event).map((each) => ({ ...each, type: each.event.type || each.stream }));
}

function eventsPart(events, scanned, alerts, sessions, further, listed) {
  const past = scanned.complete === false ? `looked back to ${scanned.since ? moment(scanned.since) : "the limit"}` : "";
  if (!events.length) return card("Events", { aside: past }, empty(further ? "No event of this key was found yet" : "No event of this key was found", "Is it written as in the events? A key of two fields is card=c1,user=7.", further));
  const types = [...new Set(events.map((each) => each.type))];
  const near = alerts.filter((each) => each.at >= events[0].time && each.at <= events.at(-1).time + 864e5);
  const bands = sessions.filter((each) => each.to >= events[0].time).map((each) => ({ ...each, to: Math.min(each.to, events.at(-1).time) }));
  const lanes = [...types.map((type) => ({ name: type })), ...(near.length ? [{ name: "alerts" }] : [])];
  const from = events[0].time, to = Math.max(events.at(-1).time, ...near.map((each) => each.at));
  const margin = Math.max(1000, (to - from) * 0.03);
  const list = eventList([...events].reverse());
  const marks = [
    ...events.map((each, at) => ({ at: each.time, lane: types.indexOf(each.type), kind: "plain", id: String(events.length - 1 - at), text: `${moment(each.time, true)} ${each.type} ${JSON.stringify(each.event)}` })),
    ...near.map((each) => ({ at: each.at, lane: lanes.length - 1, kind: "alert", id: `alert:${each.id}`, text: `${moment(each.at)} ${each.rule}: ${each.message || each.title}` })),
  ];
  return card(
    "Events",
    { aside: [`${counted(events.length, "event")}${past ? `, ${past}` : ""}`, further] },
    timeline({ lanes, marks, bands, from: from - margin, to: to + margin, label: `Events of the key by type`, onpick: (id) => list.pick(id) }),
    h("details", { open: listed || events.length <= 12 }, h("summary", { class: "small muted" }, "As a list, newest first"), list.element),
  );
}

function eventList(events) {
  const element = table(
    [
      { head: "Time", class: "tight num", cell: (each) => [clock(each.time, true), h("div", { class: "faint small" }, day(each.time))] },
      { head: "Event", class: "tight", cell: (each) => [each.type, placeOf(each)] },
      { head: "Values", class: "grow", cell: (each) => values(each.event || {}) },
    ],
    events,
    { label: "Events of the key" },
  );
  const rows = [...element.querySelectorAll("tbody tr")];
  return {
    element,
    pick(id) {
      if (id.startsWith("alert:")) {
        const link = document.querySelector(`a[href="/alerts/${CSS.escape(id.slice(6))}"]`);
        if (link) link.click();
        return;
      }
      element.closest("details").open = true;
      for (const row of rows) row.classList.remove("chosen");
      rows[Number(id)].classList.add("chosen");
      rows[Number(id)].scrollIntoView({ block: "nearest" });
    },
  };
}

// Sessions as bands over the time line: those that ended are in the alerts of one session rule, a live one in its state.
function sessionsOf(state, known) {
  const rules = ((known && known.rules) || []).filter((each) => each.form === "session").map((each) => each.rule);
  const rule = rules.find((each) => /summary/.test(each)) || rules[0];
  if (!state || !rule) return [];
  const ended = (state.alerts || []).filter((each) => each.rule === rule).map((each) => ({ from: each.start, to: each.end, text: "session" }));
  const live = (state.held || [])
    .flatMap((each) => each.rules || [])
    .filter((each) => each.rule === rule)
    .flatMap((each) => each.partials || [])
    .map((each) => ({ from: each.since, to: Infinity, text: "live session" }));
  return [...ended, ...live];
}

// ---------------------------------------------------------------- what is held

function heldPart(found) {
  const missing = (found.missing || []).map((each) => h("p", { class: "note warn" }, `Partition ${each.partition} did not answer: ${each.why}`));
  const held = found.held || [];
  const rules = held.flatMap((each) => (each.rules || []).map((rule) => ({ ...rule, place: each })));
  const partials = rules.filter((rule) => (rule.partials || []).length);
  const others = rules.filter((rule) => !(rule.partials || []).length);
  const histories = held.flatMap((each) => each.histories || []);
  const stores = held.flatMap((each) => each.stores || []);
  return [
    missing,
    card(
      "Partial matches",
      { flush: true, aside: held.length ? `event time ${held[0].watermark ? moment(held[0].watermark) : "not yet known"}` : null },
      partials.length ? partials.flatMap((rule) => rule.partials.map((partial) => partialPart(rule, partial))) : empty("No rule waits for anything of this key", "A partial match appears here when a rule has some, but not all, of what it needs."),
    ),
    others.length || histories.length || stores.length ? card("Also held", others.length ? otherTable(others) : null, histories.length ? historyTable(histories) : null, stores.length ? storeTable(stores) : null) : null,
  ];
}

const WINDOWS = { aggregate: "in the window", session: "in the session", window: "in the window" };

function partialPart(rule, partial) {
  const bound = partial.bound || [];
  const waits = partial.waits_for || [];
  const steps = [...new Set(bound.map((each) => each.as))];
  const counts = (step) => bound.filter((each) => each.as === step).length;
  return h(
    "div",
    { class: "partial" },
    h(
      "div",
      { class: "partial-head" },
      ruleLink(rule.rule),
      h("span", { class: "muted" }, counted(partial.events ?? bound.length, "event")),
      partial.since ? h("span", { class: "muted" }, "since ", time(partial.since)) : null,
      partial.expires ? h("span", { class: "muted" }, "until ", time(partial.expires)) : null,
      partial.fires_at ? badge(["fires at ", clock(partial.fires_at)].join(""), "warn") : null,
    ),
    h(
      "div",
      { class: "steps-line" },
      WINDOWS[partial.step]
        ? h("span", { class: "step-chip" }, `${WINDOWS[partial.step]}: ${counted(partial.events ?? bound.length, "event")}`)
        : steps.length
          ? steps.map((step) => h("span", { class: "step-chip" }, `${step}${counts(step) > 1 ? ` × ${counts(step)}` : ""}`))
          : h("span", { class: "step-chip" }, partial.step || "begun"),
      waits.length ? h("span", { class: "muted small" }, "waits for") : null,
      waits.map((step) => h("span", { class: "step-chip waits" }, step)),
    ),
    bound.length
      ? h("details", {}, h("summary", { class: "small muted" }, "Its events"), bound.map((each) => h("div", { class: "values" }, h("span", {}, clock(each.time, true)), h("span", { class: "step" }, each.as), each.event ? values(each.event) : h("span", {}, `${each.stream}/${each.partition}/${each.offset}`))))
      : null,
  );
}

const KNOWN = new Set(["rule", "version", "title", "partials", "place", "form"]);

function otherTable(rules) {
  const told = (rule) =>
    Object.entries(rule)
      .filter(([name, given]) => !KNOWN.has(name) && given !== null && given !== undefined)
      .map(([name, given]) => h("span", {}, `${name.replaceAll("_", " ")} `, h("b", {}, /since|last|due|until|alerted|closes|start|end|at$/.test(name) && Number.isFinite(given) && given > 1e11 ? moment(given) : value(given))));
  return table([{ head: "Rule", class: "tight", cell: (rule) => ruleLink(rule.rule) }, { head: "What", class: "grow", cell: (rule) => h("div", { class: "values" }, told(rule)) }], rules, { label: "Other state" });
}

function historyTable(histories) {
  return table(
    [
      { head: "History", class: "tight mono", cell: (each) => each.call },
      { head: "Of", class: "tight", cell: (each) => each.of },
      { head: "Events", class: "tight num", cell: (each) => whole((each.events || []).length) },
      { head: "Newest", class: "grow", cell: (each) => h("div", { class: "values" }, (each.events || []).slice(-5).map((event) => h("span", {}, `${clock(event.time)} `, h("b", {}, value(event.value))))) },
    ],
    histories,
    { label: "Histories" },
  );
}

const storeTable = (stores) =>
  table([{ head: "Store", class: "tight", cell: (each) => each.store }, { head: "Value", class: "grow mono", cell: (each) => value(each.value) }], stores, { label: "State of user-defined tasks" });

function alertsPart(found) {
  const alerts = found.alerts || [];
  return card(
    "Alerts",
    { flush: true },
    alerts.length
      ? table(
          [
            { head: "Rule", class: "grow", cell: (each) => [rowLink(`/alerts/${each.id}`, each.rule), h("br"), h("div", { class: "muted small inline" }, severity(each.severity), time(each.at))] },
            { head: "Status", class: "tight", cell: (each) => label(each.label) },
          ],
          alerts,
          { label: "Alerts of the key", href: (each) => `/alerts/${each.id}` },
        )
      : empty("No alert of this key"),
  );
}

// ---------------------------------------------------------------- why not

function whyPart(place, key, chosen, over) {
  const answer = h("div", {}, h("p", { class: "muted small" }, "Choose a rule to see its run over this key's events, event by event."));
  const box = h("select", { "aria-label": "Rule", id: "why-rule" }, h("option", { value: "" }, "Choose a rule"));
  put(place, card("Why did a rule not fire?", { aside: box }, answer));
  get("/rules").then((found) => {
    for (const each of found.rules) box.append(h("option", { value: each.rule, selected: each.rule === chosen }, each.rule));
    if (chosen) ask(chosen);
  }, () => {});
  box.addEventListener("change", () => box.value && ask(box.value));

  async function ask(rule) {
    put(answer, loading("Running the rule over this key's events"));
    try {
      const found = await get(`/keys/${part(key)}/why`, { rule });
      if (!over()) put(answer, whyShown(found));
    } catch (fault) {
      if (!over()) put(answer, problem(fault, () => ask(rule)));
    }
  }
}

function whyShown(found) {
  return h(
    "div",
    { class: "stack", id: "why" },
    h("div", { class: `note ${found.matches ? "good" : ""}` }, (found.conclusion || []).map((line) => h("p", {}, line))),
    found.events && found.events.length
      ? table(
          [
            { head: "Time", class: "tight num", cell: (each) => clock(each.time, true) },
            { head: "Event", class: "tight", cell: (each) => each.type },
            { head: "Values", class: "grow", cell: (each) => values(each.fields || each.event || {}) },
            { head: "What the rule did with it", class: "grow", cell: (each) => (each.told || []).map((line) => h("div", {}, line)) },
          ],
          found.events,
          { label: "Event by event" },
        )
      : empty("No event of this key came by"),
  );
}

