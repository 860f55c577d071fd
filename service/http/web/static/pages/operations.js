// Operations: where every partition stands, what was late or could not be read, snapshots, and restores on their way.

import { get, post } from "/api.js";
import { bars } from "/charts.js";
import { h, put } from "/dom.js";
import { ago, bytes, counted, moment, percent, seconds, short, span, value, whole } from "/format.js";
import { behind, restoreBar, tasksOf } from "/pages/overview.js";
import { badge, button, card, dialog, empty, failed, loading, problem, stat, table, tabs, time, toast } from "/parts.js";
import { known, may, statusNews } from "/store.js";

const STATES = { running: "good", silent: "warn", joining: "warn", gone: "bad" };

export function mount(root) {
  let over = false;
  const figures = h("dl", { class: "stats" });
  const body = h("div", { class: "stack" });
  const parts = { partitions, dead, late, snapshots, restore, audit };
  let stop = () => {};
  const bar = tabs(
    [
      { id: "partitions", name: "Partitions" },
      { id: "dead", name: "Dead letters" },
      { id: "late", name: "Late events" },
      { id: "snapshots", name: "Snapshots" },
      { id: "restore", name: "Restore" },
      { id: "audit", name: "Audit" },
    ],
    "partitions",
    (id) => {
      stop();
      const place = h("div", { class: "stack" }, loading());
      put(body, place);
      stop = parts[id](place) || (() => {});
    },
    "Operations",
  );
  put(root, h("h1", {}, "Operations"), figures, h("section", { class: "card", "aria-label": "Operations" }, bar, body));

  const unhear = statusNews.hear((status) => status && tell(status));
  if (known.status) tell(known.status);

  function tell(status) {
    const counts = status.counts || {};
    const slow = status.blocked_by;
    put(
      figures,
      stat("Containers", [whole(status.containers.filter((each) => each.state === "running").length), h("small", {}, ` of ${status.containers.length}`)], status.containers.map((each) => each.host).filter(Boolean)[0] || "none told of itself"),
      stat("Lag", [short(status.lag), h("small", {}, " events")], status.lag ? behind(status.behind_s) : "caught up"),
      stat("Slowest", slow ? (slow.stage ? `${slow.stage}/${slow.partition}` : `partition ${slow.partition}`) : "–", slow && slow.input ? `held by ${slow.input.join("/")}` : "nothing holds event time back", "text"),
      stat("Late", short(counts.late || 0), "events since start", counts.late ? "warn" : ""),
      stat("Dead", short(counts.dead || 0), "events since start", counts.dead ? "warn" : ""),
      stat("Dropped", short(counts.dropped || 0), "partials since start", counts.dropped ? "warn" : ""),
    );
  }

  // ---------------------------------------------------------------- partitions

  function partitions(place) {
    const show = (status) => put(place, named("Containers", containerTable(status.containers)), named("Tasks", tasksOf(status)), named("Inputs", inputTable(status.tasks)));
    if (known.status) show(known.status);
    return statusNews.hear((status, fault) => (status ? show(status) : fault && put(place, problem(fault))));
  }

  // ---------------------------------------------------------------- dead letters

  function dead(place) {
    const chosen = new Set();
    load();

    async function load() {
      try {
        const found = await get("/dead-letters", { limit: 100 });
        if (!over) show(found);
      } catch (fault) {
        if (!over) put(place, problem(fault, load));
      }
    }

    function show(found) {
      bar.count("dead", found.total ? short(found.total) : "", "bad");
      if (!found.total) {
        put(place, empty("No dead letters", "An event that cannot be read is kept here with its bytes, its place and the reason. None was."));
        return;
      }
      chosen.clear();
      const act = button("Redrive…", () => redrive([...chosen], load), "main", { disabled: true, id: "redrive" });
      const tellAct = () => {
        act.disabled = !may("operate") || chosen.size === 0;
        act.textContent = chosen.size ? `Redrive ${counted(chosen.size, "dead letter")}…` : "Redrive…";
      };
      put(
        place,
        h(
          "div",
          { class: "card-body grid wide-left" },
          h("div", {}, bars((found.summary || []).map((each) => ({ name: `${each.reason}${each.stream ? ` · ${each.stream}` : ""}`, count: each.letters, note: each.redriven ? `${whole(each.redriven)} redriven` : "" })), { label: "Dead letters by reason" })),
          h("div", { class: "stack" }, h("p", { class: "muted small" }, "A redriven dead letter goes back to its stream once more. One that dies again is counted. Fix the cause first."), h("div", { class: "toolbar" }, button("All that are open…", () => redrive([], load), "", { disabled: !may("operate"), id: "redrive-all" }), act), may("operate") ? null : h("p", { class: "note" }, "Your role may look, not redrive.")),
        ),
        letterTable(found.letters, chosen, tellAct),
      );
      tellAct();
    }
  }

  // ---------------------------------------------------------------- late, snapshots, restore, audit

  const plain = (path, given, show) => (place) => {
    load();
    async function load() {
      try {
        const found = await get(path, given);
        if (!over) put(place, show(found));
      } catch (fault) {
        if (!over) put(place, problem(fault, load));
      }
    }
  };

  function late(place) {
    return plain("/late", { limit: 100 }, lateTable)(place);
  }

  function snapshots(place) {
    return plain("/snapshots", {}, snapshotTable)(place);
  }

  function audit(place) {
    return plain("/audit", { limit: 100 }, auditTable)(place);
  }

  function restore(place) {
    const show = (status) => {
      const under = status.tasks.filter((task) => task.restore);
      put(place, under.length ? restoreTable(under) : empty("Nothing is being restored", "A task that starts without its state rebuilds it from the changelog, and its progress is shown here. By hand: samovar restore CONFIG --dry-run says what would be done."));
    };
    if (known.status) show(known.status);
    return statusNews.hear((status) => status && show(status));
  }

  return () => {
    over = true;
    unhear();
    stop();
  };
}

const named = (title, content) => (content ? h("div", {}, h("h2", { class: "sub-head" }, title), content) : null);

function containerTable(containers) {
  if (!containers.length) return empty("No container", "samovar run starts one.");
  return table(
    [
      { head: "Container", class: "tight num", cell: (each) => String(each.slot) },
      { head: "State", class: "tight", cell: (each) => badge(each.state, STATES[each.state] || "") },
      { head: "Host", class: "tight", cell: (each) => each.host || "–" },
      { head: "Process", class: "tight num", cell: (each) => (each.pid ? String(each.pid) : "–") },
      { head: "Tasks", class: "tight num", cell: (each) => whole(each.tasks) },
      { head: "Since", class: "tight num", cell: (each) => time(each.since) },
      { head: "Told of itself", class: "tight", cell: (each) => ago(each.told) },
      { head: "Version", class: "grow", cell: (each) => each.version || "–" },
    ],
    containers,
    { label: "Containers" },
  );
}

function inputTable(tasks) {
  const rows = tasks.flatMap((task) => task.inputs.map((each) => ({ ...each, task: task.stage ? `${task.stage}/${task.partition}` : String(task.partition) })));
  if (!rows.length) return null;
  const most = Math.max(1, ...rows.map((each) => each.lag));
  return table(
    [
      { head: "Input", class: "tight mono", cell: (each) => `${each.topic}/${each.partition}` },
      { head: "Stream", class: "tight", cell: (each) => each.stream },
      { head: "Task", class: "tight mono", cell: (each) => each.task },
      { head: "Committed", class: "tight num", cell: (each) => whole(each.committed) },
      { head: "End", class: "tight num", cell: (each) => whole(each.end) },
      { head: "Lag", class: "tight num", cell: (each) => whole(each.lag) },
      { head: "Behind", class: "tight num", cell: (each) => (each.lag ? seconds(each.behind_s) : "–") },
      { head: "", class: "grow", cell: (each) => (each.lag ? h("span", { class: "bar-track" }, h("i", { css: { width: percent(each.lag / most).replace(" ", "") } })) : "") },
    ],
    rows,
    { label: "Inputs" },
  );
}

function letterTable(letters, chosen, tell) {
  return table(
    [
      {
        head: h("span", { class: "unseen" }, "Choose"),
        class: "tight",
        cell: (each) =>
          h("input", {
            type: "checkbox",
            "aria-label": `Choose dead letter ${each.letter}`,
            disabled: !may("operate") || each.redriven,
            onchange: (event) => {
              if (event.target.checked) chosen.add(each.letter);
              else chosen.delete(each.letter);
              tell();
            },
          }),
      },
      { head: "When", class: "tight num", cell: (each) => time(each.time) },
      { head: "Reason", class: "tight", cell: (each) => [badge(each.reason, "bad"), each.redriven ? [" ", badge("redriven")] : null] },
      { head: "What was wrong", class: "grow", cell: (each) => each.message || "" },
      { head: "From", class: "tight mono faint", cell: (each) => (each.from ? `${each.from.topic}/${each.from.partition}/${each.from.offset}` : "–") },
      { head: "Value", class: "grow mono", cell: (each) => h("span", { class: "one-line", title: each.value ?? each.value_base64 ?? "" }, each.value ?? (each.value_base64 ? `base64 ${each.value_base64}` : "nothing")) },
    ],
    letters,
    { label: "Dead letters" },
  );
}

// First a dry run, whose plan is shown; then the deed.
async function redrive(letters, after) {
  const place = h("div", {}, loading("Making the plan"));
  const doIt = button("Redrive", act, "main", { disabled: true, id: "do-redrive" });
  const box = dialog("Redrive dead letters", place, [button("Cancel", () => box.close()), doIt]);
  try {
    const found = await post("/dead-letters/redrive", { reasons: [], letters, to: null, dry_run: true });
    const plan = found.plan;
    put(
      place,
      h("p", {}, plan.letters ? `${counted(plan.letters, "dead letter")} will go back: ` : "No dead letter would go back.", Object.entries(plan.to || {}).map(([stream, count]) => `${whole(count)} to ${stream}`).join(", ")),
      Object.entries(plan.left_out || {}).map(([reason, count]) => h("p", { class: "note" }, `${whole(count)} left out: ${reason}`)),
      plan.died_again ? h("p", { class: "note warn" }, `${counted(plan.died_again, "dead letter")} died again before: is the cause repaired?`) : null,
    );
    doIt.disabled = !plan.letters;
  } catch (fault) {
    put(place, problem(fault));
  }

  async function act() {
    doIt.disabled = true;
    try {
      const done = await post("/dead-letters/redrive", { reasons: [], letters, to: null, dry_run: false });
      box.close();
      toast(`${counted(done.redriven, "dead letter")} redriven`);
      after();
    } catch (fault) {
      failed(fault);
      doIt.disabled = false;
    }
  }
}

function lateTable(found) {
  if (!found.events.length) return empty("No late events", "An event is late when it is behind its partition's watermark. None was.");
  return table(
    [
      { head: "When", class: "tight num", cell: (each) => time(each.time) },
      { head: "Late by", class: "tight num", cell: (each) => span(each.late_ms) },
      { head: "Stream", class: "tight", cell: (each) => each.stream || "–" },
      { head: "From", class: "tight mono faint", cell: (each) => (each.from ? `${each.from.topic}/${each.from.partition}/${each.from.offset}` : "–") },
      { head: "Key", class: "tight mono", cell: (each) => (each.key === null || each.key === undefined ? "–" : value(each.key)) },
      { head: "Value", class: "grow mono", cell: (each) => h("span", { class: "one-line", title: value(each.value) }, value(each.value)) },
    ],
    found.events,
    { label: "Late events" },
  );
}

function snapshotTable(found) {
  const rows = found.tasks.flatMap((task) => task.snapshots.map((each) => ({ ...each, task: task.stage ? `${task.stage}/${task.partition}` : String(task.partition) })));
  if (!rows.length) return empty("No snapshots on this node", "With snapshots a restore reads less. How often they are made is a setting of the service file.");
  return table(
    [
      { head: "Task", class: "tight mono", cell: (each) => each.task },
      { head: "Number", class: "tight num", cell: (each) => whole(each.number) },
      { head: "Made", class: "tight num", cell: (each) => time(each.created) },
      { head: "Event time", class: "tight num", cell: (each) => (each.watermark ? moment(each.watermark) : "–") },
      { head: "Changelog offset", class: "tight num", cell: (each) => whole(each.offset) },
      { head: "Size", class: "tight num", cell: (each) => bytes(each.bytes) },
      { head: "", class: "grow", cell: () => "" },
    ],
    rows,
    { label: "Snapshots" },
  );
}

function restoreTable(tasks) {
  return table(
    [
      { head: "Task", class: "tight mono", cell: (task) => (task.stage ? `${task.stage}/${task.partition}` : String(task.partition)) },
      { head: "State", class: "tight", cell: (task) => badge(task.life, "warn") },
      { head: "Records", class: "tight num", cell: (task) => `${whole(task.restore.done)} of ${whole(task.restore.todo)}` },
      { head: "Progress", class: "grow", cell: (task) => restoreBar(task.restore) },
    ],
    tasks,
    { label: "Restores" },
  );
}

function auditTable(found) {
  if (!found.entries.length) return empty("Nothing was changed yet", "Changes, labels and redrives are listed here, with their authors.");
  return table(
    [
      { head: "When", class: "tight num", cell: (each) => time(each.at) },
      { head: "Who", class: "tight", cell: (each) => [each.who, each.role ? h("span", { class: "faint" }, ` ${each.role}`) : null] },
      { head: "What", class: "tight", cell: (each) => each.what },
      { head: "Detail", class: "grow", cell: (each) => h("div", { class: "values" }, Object.entries(each.detail || {}).map(([name, given]) => h("span", {}, `${name} `, h("b", {}, value(given))))) },
    ],
    found.entries,
    { label: "Audit" },
  );
}

