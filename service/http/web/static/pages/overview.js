// Overview: is it well, how fast, how far behind, what did it raise.

import { get } from "/api.js";
import { bars, lineChart, timeBars } from "/charts.js";
import { h, put } from "/dom.js";
import { bytes, counted, percent, seconds, short, span, whole } from "/format.js";
import { badge, card, empty, keyLink, loading, problem, rowLink, severity, standing, stat, table, time } from "/parts.js";
import { alertNews, known, statusNews } from "/store.js";

const HISTORY_MS = 4000;
const SHOWN = 8;

export function mount(root) {
  const alarms = h("div", { class: "stack", role: "status" });
  const figures = h("dl", { class: "stats" }, loading());
  const charts = h("div", { class: "grid three" });
  const tasks = h("div", {}, loading());
  const newest = h("div", {}, loading());
  const perRule = h("div", {}, loading());
  put(
    root,
    h("h1", {}, "Overview"),
    alarms,
    figures,
    charts,
    h("div", { class: "grid wide-left" }, card("Newest alerts", { flush: true, aside: h("a", { href: "/alerts" }, "All alerts") }, newest), card("Alerts by rule, last hour", perRule)),
    card("Tasks", { flush: true, aside: h("a", { href: "/operations" }, "Operations") }, tasks),
  );

  const stops = [
    statusNews.hear((status, fault) => status && tell(status, fault)),
    alertNews.hear(() => loadAlerts()),
  ];
  let over = false;
  let timer = 0;
  if (known.status) tell(known.status, null);

  function tell(status, fault) {
    put(alarms, alarmsOf(status));
    put(figures, statsOf(status));
    put(tasks, tasksOf(status));
    figures.classList.toggle("stale", Boolean(fault));
  }

  async function loadCharts() {
    try {
      const [history, counts] = await Promise.all([get("/status/history", { minutes: 15 }), get("/alerts/counts", { buckets: 60 })]);
      if (over) return;
      put(charts, chartsOf(history, counts));
      put(perRule, rulesOf(counts));
    } catch (fault) {
      if (!over) put(charts, problem(fault));
    }
    if (!over) timer = setTimeout(loadCharts, HISTORY_MS);
  }

  async function loadAlerts() {
    try {
      const found = await get("/alerts", { limit: SHOWN });
      if (!over) put(newest, alertsOf(found.alerts));
    } catch (fault) {
      if (!over) put(newest, problem(fault, loadAlerts));
    }
  }

  loadCharts();
  loadAlerts();
  return () => {
    over = true;
    clearTimeout(timer);
    for (const stop of stops) stop();
  };
}

// What stands until someone does something about it: rules in a storm, rules that containers could not take.
function alarmsOf(status) {
  const rules = status.rules || [];
  const storms = rules.filter((each) => each.kept_back > 0);
  return [
    storms.map((each) => h("p", { class: "note bad" }, h("a", { href: `/rules/${encodeURIComponent(each.rule)}` }, each.rule), ` passes its alert rate: ${counted(each.kept_back, "alert was", "alerts were")} kept back. Its condition may be too wide; its events are all in the log.`)),
    ...(status.grown || []).map((each) => h("p", { class: "note bad" }, `${each.topic} has ${each.partitions} partitions, and ${each.read} are read: ${each.unread} records in the others wait`)),
    status.rules_refused ? h("p", { class: "note bad" }, `The last change of rules was refused, the ones before go on: ${status.rules_refused}`) : null,
  ];
}

function statsOf(status) {
  const rates = status.rates || {};
  const counts = status.counts || {};
  const running = status.tasks.filter((task) => task.life === "running").length;
  const restoring = status.tasks.filter((task) => task.restore);
  const held = status.blocked_by && status.blocked_by.input;
  return [
    stat("Throughput", [short(rates.events_per_s), h("small", {}, " events/s")], `${short(counts.events)} since start`),
    stat("Lag", [short(status.lag), h("small", {}, " events")], status.lag ? behind(status.behind_s) : "caught up", status.lag > 10000 ? "warn" : ""),
    stat("Watermark", status.watermark === null ? "–" : [time(status.watermark, "clock")], status.watermark === null ? "no event yet" : `${seconds(status.watermark_age_s)} old${held ? `, by ${held.join("/")}` : ""}`),
    stat("Alerts", [short((rates.alerts_per_s || 0) * 60), h("small", {}, " per minute")], `${short(counts.matches)} since start`),
    stat("Tasks", [whole(running), h("small", {}, ` of ${whole(status.tasks.length)} run`)], restoring.length ? restoreText(restoring) : counted(status.containers.filter((each) => each.state === "running").length, "container"), running < status.tasks.length ? "warn" : ""),
    stat("Late and dead", [short((counts.late || 0) + (counts.dead || 0)), h("small", {}, " events")], `${short(counts.late || 0)} late, ${short(counts.dead || 0)} dead`, counts.dead ? "warn" : ""),
  ];
}

export const behind = (value) => (value < 1 ? "under 1 s behind" : `${seconds(value)} behind`);

function restoreText(tasks) {
  const done = tasks.reduce((sum, task) => sum + task.restore.done, 0);
  const todo = tasks.reduce((sum, task) => sum + task.restore.todo, 0);
  const left = Math.max(...tasks.map((task) => task.restore.left_s || 0));
  return `${percent(todo ? done / todo : 0)}${left ? `, ${seconds(left)} left` : " restored"}`;
}

function chartsOf(history, counts) {
  const samples = history.samples || [];
  const series = (name, from) => [{ name, points: samples.map((each) => [each.time, from(each)]) }];
  return [
    card("Events per second", lineChart({ series: series("events/s", (each) => each.events_per_s), label: "Events per second, last 15 minutes" })),
    card("Lag", lineChart({ series: series("lag", (each) => each.lag), label: "Lag in events, last 15 minutes", least: 10 })),
    card("Alerts per minute", timeBars({ from: counts.from, bucket: counts.bucket_ms, counts: counts.total, height: 150, label: "Alerts per minute, last hour" })),
  ];
}

function rulesOf(counts) {
  const sums = Object.entries(counts.rules || {})
    .map(([name, each]) => ({ name: h("a", { href: `/alerts?rule=${encodeURIComponent(name)}` }, name), count: each.reduce((sum, one) => sum + one, 0) }))
    .filter((each) => each.count)
    .sort((one, other) => other.count - one.count);
  return sums.length ? bars(sums.slice(0, 10), { label: "Alerts by rule" }) : empty("No alert in the last hour");
}

function alertsOf(alerts) {
  if (!alerts.length) return empty("No alerts yet", "They appear here as they are raised. Rules are on the page Rules.");
  return table(
    [
      { head: "Raised", class: "tight", cell: (each) => time(each.logged || each.at, "ago") },
      { head: "Severity", class: "tight", cell: (each) => severity(each.severity) },
      { head: "Rule", class: "tight", cell: (each) => rowLink(`/alerts/${each.id}`, each.rule) },
      { head: "Key", class: "tight", cell: (each) => (each.alarm ? standing(each) : keyLink(each)) },
      { head: "What", class: "grow", cell: (each) => h("span", { class: "one-line" }, each.message || each.title) },
    ],
    alerts,
    { label: "Newest alerts", href: (each) => `/alerts/${each.id}` },
  );
}

export function tasksOf(status) {
  if (!status.tasks.length) return empty("No task yet", "A service has tasks once its input topics exist. Is a container running? samovar run starts one.");
  return table(
    [
      { head: "Task", class: "tight mono", cell: (task) => (task.stage ? `${task.stage}/${task.partition}` : String(task.partition)) },
      { head: "State", class: "tight", cell: (task) => badge(task.life, task.life === "running" ? "good" : "warn") },
      { head: "Container", class: "tight num", cell: (task) => (task.container === null ? "–" : String(task.container)) },
      { head: "Watermark", class: "tight num", cell: (task) => (task.watermark === null ? "–" : time(task.watermark)) },
      { head: "Waits for", class: "tight mono", cell: (task) => (task.blocked_by ? task.blocked_by.join("/") : "") },
      { head: "Lag", class: "tight num", cell: (task) => whole(task.lag) },
      { head: "Behind", class: "tight num", cell: (task) => (task.lag ? seconds(task.behind_s) : "") },
      { head: "State size", class: "tight num", cell: (task) => (task.state_bytes ? bytes(task.state_bytes) : "–") },
      { head: "Restore", class: "grow", cell: (task) => restoreBar(task.restore) },
    ],
    status.tasks,
    { label: "Tasks" },
  );
}

export function restoreBar(restore) {
  if (!restore) return "";
  const part = restore.todo ? Math.min(1, restore.done / restore.todo) : 0;
  return h(
    "span",
    { class: "progress" },
    h("progress", { max: "1", value: part, "aria-label": "restored" }),
    h("span", { class: "num" }, [percent(part), restore.per_s ? `${short(restore.per_s)}/s` : null, restore.left_s ? `${span(restore.left_s * 1000)} left` : null].filter(Boolean).join(" · ")),
  );
}

