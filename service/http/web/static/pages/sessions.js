// Sessions: who is here now, how long visits last, how many pages they see, and how far they come.

import { get } from "/api.js";
import { bars, histogram } from "/charts.js";
import { h, put } from "/dom.js";
import { counted, percent, short, span, whole } from "/format.js";
import { card, empty, keyLink, loading, problem, select, stat, table, time } from "/parts.js";

const AGAIN_MS = 4000;
const COUNT_MS = 20000; // all ended sessions are gone through for these
const BUCKETS = 100;
const COLUMNS = 14;
// Which value of a session rule's alerts is its length, and which its pages, in the order in which they are looked for.
const PAGES = ["pages", "views", "count"];

export function mount(root, { query, go }) {
  let over = false;
  const timers = [];
  const place = h("div", { class: "stack" }, loading());
  const choice = h("span", { class: "actions" });
  put(root, h("div", { class: "page-head" }, h("h1", {}, "Sessions"), choice), place);
  begin();

  async function begin() {
    try {
      const { rules } = await get("/rules");
      if (over) return;
      const sessions = rules.filter((each) => each.form === "session" && !["disabled", "quarantined"].includes(each.status));
      if (!sessions.length) {
        put(place, card(null, empty("This service has no session rule", "A rule whose match begins with session by KEY with gap=30m makes sessions. Live ones and their figures are shown here.", h("a", { class: "button", href: "/rules" }, "Rules"))));
        return;
      }
      const chosen = sessions.find((each) => each.rule === query.get("rule")) || sessions.find((each) => /summary/.test(each.rule)) || sessions[0];
      put(choice, select(sessions.map((each) => [each.rule, each.rule]), chosen.rule, (rule) => go(`/sessions?rule=${encodeURIComponent(rule)}`), "Session rule"));
      draw(chosen);
    } catch (fault) {
      if (!over) put(place, problem(fault, begin));
    }
  }

  function draw(rule) {
    const live = h("div", {}, loading());
    const figures = h("dl", { class: "stats" });
    const lengths = h("div", {}, loading());
    const pages = h("div", {}, loading());
    const funnel = h("div", {}, loading());
    put(
      place,
      figures,
      h("div", { class: "grid three" }, card("Length of ended sessions", lengths), card("Pages a session", pages), card("Funnel", funnel)),
      card("Live sessions", { flush: true, aside: h("span", {}, "of ", h("code", {}, rule.rule)) }, live),
    );
    const shown = {};
    const tell = () => put(figures, statsOf(shown.now, shown.length, shown.seen));
    const refresh = async () => {
      try {
        shown.now = await get("/sessions", { rule: rule.rule, limit: 100 });
        if (!over) put(live, liveTable(shown.now));
      } catch (fault) {
        if (!over) put(live, problem(fault));
      }
      if (over) return;
      tell();
      timers[0] = setTimeout(refresh, AGAIN_MS);
    };
    const count = async () => {
      const asked = [get("/alerts/values", { rule: rule.rule, field: "duration_ms", buckets: BUCKETS }), pageValues(rule.rule), funnelOf()];
      const [length, seen, steps] = await Promise.allSettled(asked);
      if (over) return;
      put(lengths, length.status === "fulfilled" ? lengthChart(length.value) : problem(length.reason));
      put(pages, seen.status === "fulfilled" ? pageChart(seen.value) : problem(seen.reason));
      put(funnel, steps.status === "fulfilled" ? funnelChart(steps.value) : problem(steps.reason));
      [shown.length, shown.seen] = [length.value, seen.value];
      tell();
      timers[1] = setTimeout(count, COUNT_MS);
    };
    count();
    refresh();
  }

  return () => {
    over = true;
    timers.forEach(clearTimeout);
  };
}

async function pageValues(rule) {
  for (const field of PAGES) {
    const found = await get("/alerts/values", { rule, field, buckets: BUCKETS }).catch(() => null);
    if (found && found.count) return found;
  }
  return { count: 0, field: "pages" };
}

function statsOf(now, length, seen) {
  const live = now ? (now.total ?? now.sessions.length) : null;
  return [
    stat("Live now", [whole(live), now && now.more && now.total === undefined ? "+" : ""], "sessions that are not over"),
    stat("Ended", whole(length && length.count), "in the alerts that are kept"),
    stat("Median length", length && length.count ? span(length.p50) : "–", length && length.count ? `19 of 20 under ${span(length.p95)}` : "no session has ended"),
    stat("Median pages", seen && seen.count ? short(seen.p50) : "–", seen && seen.count ? `mean ${short(Math.round(seen.mean * 10) / 10)}` : ""),
  ];
}

// Few sessions are very long, and would leave all others in one column: what lies far beyond 19 of 20 goes into the last.
function columns(found, least) {
  const far = Math.max(least, found.p95 * 1.3);
  const near = found.buckets.filter((each) => each.from < far);
  const together = Math.max(1, Math.ceil(near.length / COLUMNS));
  const made = [];
  for (let at = 0; at < near.length; at += together) {
    const some = near.slice(at, at + together);
    made.push({ from: some[0].from, to: some.at(-1).to, count: some.reduce((sum, each) => sum + each.count, 0) });
  }
  const rest = found.buckets.slice(near.length).reduce((sum, each) => sum + each.count, 0);
  if (rest) made.push({ from: made.at(-1).to, to: found.max, count: rest, more: true });
  return made;
}

function lengthChart(found) {
  if (!found.count) return empty("No session has ended yet", "A session ends when its gap has passed without an event.");
  const minutes = (each) => ({ ...each, from: each.from / 60000, to: each.to / 60000 });
  return histogram(columns(found, 60000).map(minutes), { label: "Length of sessions in minutes", unit: "minutes" });
}

// Counts are whole numbers: a column each, where the buckets are narrow enough to tell them apart.
function byNumber(found) {
  if (found.max - found.min > BUCKETS) return found;
  const counts = new Map();
  for (const each of found.buckets) {
    const number = Math.min(Math.ceil(each.from - 1e-9), found.max);
    counts.set(number, (counts.get(number) || 0) + each.count);
  }
  return { ...found, buckets: [...counts].map(([from, count]) => ({ from, to: from + 1, count })) };
}

function pageChart(found) {
  if (!found.count) return empty("No session has ended yet");
  return histogram(columns(byNumber(found), 1), { label: `${found.field} a session`, unit: found.field === "count" ? "events" : found.field });
}

// The steps of a visit are told by the tags of rules: `funnel:3:Filled a cart` adds the rule's alerts to step 3, and
// `funnel:-2` takes them off step 2.
const FUNNEL = /^funnel:(-?)(\d+)(?::(.+))?$/;

async function funnelOf() {
  const { rules } = await get("/rules");
  const steps = new Map();
  for (const { tags = [], alerts = 0 } of rules) {
    for (const [, minus, number, name] of tags.map((tag) => FUNNEL.exec(tag)).filter(Boolean)) {
      const step = steps.get(number) || { name: `Step ${number}`, count: 0 };
      steps.set(number, { name: name || step.name, count: step.count + (minus ? -alerts : alerts) });
    }
  }
  return [...steps].sort(([one], [other]) => one - other).map(([, step]) => ({ ...step, count: Math.max(0, step.count) }));
}

function funnelChart(steps) {
  if (!steps.length) return empty("No funnel", "Rules make one by their tags: funnel:1:Visits, funnel:2:Paid. A step is the number of alerts of its rules.");
  const most = Math.max(1, steps[0].count);
  const note = (step) => `${percent(step.count / most)} of ${steps[0].name.toLowerCase()}`;
  const list = bars(steps.map((step, at) => ({ ...step, kind: at === steps.length - 1 ? "second" : "", note: at ? note(step) : "" })), { most, label: "Funnel" });
  list.classList.add("funnel");
  return list;
}

function liveTable(found) {
  if (!found.sessions.length) return empty("Nobody is here now", "A live session appears with its first event and ends when its gap has passed.");
  return table(
    [
      { head: "Key", class: "tight", cell: (each) => keyLink(each) },
      { head: "Since", class: "tight num", cell: (each) => time(each.since) },
      ...(found.sessions.some((each) => each.last)
        ? [
            { head: "Last event", class: "tight num", cell: (each) => (each.last ? time(each.last, "clock") : "–") },
            { head: "Length", class: "tight num", cell: (each) => (each.last ? span(each.last - each.since) : "–") },
          ]
        : []),
      { head: "Events", class: "tight num", cell: (each) => whole(each.events) },
      { head: "Closes at", class: "tight num", cell: (each) => (each.closes ? time(each.closes, "clock") : "–") },
      { head: "", class: "grow", cell: () => "" },
    ],
    [...found.sessions].sort((one, other) => (other.last || other.since) - (one.last || one.since)),
    { label: `${counted(found.sessions.length, "live session")}` },
  );
}
