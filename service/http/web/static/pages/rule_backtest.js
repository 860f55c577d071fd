// A backtest: the rule over history, held against what the service found by the rule of that name.

import { del, get, post } from "/api.js";
import { h, put, s } from "/dom.js";
import { counted, day, keyText, moment, percent, seconds, short, value, whole } from "/format.js";
import { ticks } from "/charts.js";
import { button, empty, field, loading, problem, stat } from "/parts.js";

const ASK_MS = 700;

export function backtestPanel(state) {
  const from = h("input", { type: "datetime-local", "aria-label": "From (UTC)" });
  const to = h("input", { type: "datetime-local", "aria-label": "To (UTC)" });
  const result = h("div", { id: "backtest" }, empty("What would it have found?", "The rule runs over history with the live matcher and is held against the alerts that were raised. Without times: all that the inputs still hold."));
  const runButton = button("Run the backtest", run, "", { id: "run-backtest" });
  const element = h("div", { class: "stack" }, h("div", { class: "toolbar" }, field("From (UTC)", from), field("To (UTC)", to), runButton), result);
  let job = null;

  const ms = (input) => (input.value ? Date.parse(`${input.value}Z`) : null);

  async function run() {
    runButton.disabled = true;
    put(result, loading("Starting"));
    try {
      job = (await post("/rules/backtest", { text: state.editor.text(), from: ms(from), to: ms(to) })).job;
      await follow(job);
    } catch (fault) {
      put(result, problem(fault, run));
    }
    runButton.disabled = false;
  }

  async function follow(mine) {
    while (!state.over && job === mine) {
      const now = await get(`/jobs/${mine}`);
      if (now.state === "done") return put(result, shown(now.result));
      if (now.state === "failed") return put(result, problem({ message: "The backtest failed", ...(now.problem || {}), ...(now.problem ? { message: now.problem.title } : {}) }, run));
      put(
        result,
        h(
          "div",
          { class: "state" },
          h("span", { class: "progress" }, h("progress", { max: "1", value: now.progress || 0, "aria-label": "read" }), `${percent(now.progress || 0)}${now.rate ? ` · ${short(now.rate)} events/s` : ""}${now.left_s ? ` · ${seconds(now.left_s)} left` : ""}`),
          button("Cancel", async () => {
            job = null;
            await del(`/jobs/${mine}`).catch(() => {});
            put(result, empty("Cancelled"));
          }),
        ),
      );
      await new Promise((done) => setTimeout(done, ASK_MS));
    }
  }

  return { element, open: () => {} };
}

function shown(result) {
  const rule = (result.rules || [])[0];
  if (!rule) return empty("The backtest says nothing of this rule");
  const labels = rule.labels;
  return h(
    "div",
    { class: "stack" },
    h(
      "dl",
      { class: "stats" },
      stat("Found", whole(rule.found), `in ${counted(result.events, "event")}`),
      rule.current === null ? stat("Before", "–", "no such rule") : stat("Before", whole(rule.current), "alerts that were raised"),
      rule.current === null ? null : stat("New", whole(rule.new), "not raised before"),
      rule.current === null ? null : stat("Gone", whole(rule.gone), "would not be raised"),
      labels && labels.precision !== null && labels.precision !== undefined ? stat("Precision", percent(labels.precision), `before ${percent(labels.precision_before)}`) : null,
    ),
    rule.days && rule.days.length ? dayChart(rule.days, rule.current !== null) : null,
    (result.notes || []).map((note) => h("p", { class: "note" }, note)),
    examples(rule.examples || {}),
    h("p", { class: "faint small" }, `${counted(result.events, "event")} in ${seconds(result.seconds)}, ${short(result.events_per_s)} events/s${result.from ? `, from ${day(result.from)}` : ""}`),
  );
}

// Two columns a day: what this text finds, and what was raised.
function dayChart(days, compared) {
  const width = 560, height = 170, left = 36, bottom = 34, top = 8;
  const scale = ticks(Math.max(1, ...days.map((each) => Math.max(each.found, each.current || 0))), 3);
  const y = (count) => top + (1 - count / scale.at(-1)) * (height - top - bottom);
  const wide = Math.min(60, (width - left) / days.length);
  const every = Math.max(1, Math.ceil(44 / wide));
  const column = (x, count, kind, text) => {
    const bar = s("rect", { class: `column ${kind}`, x, y: y(count), width: Math.max(1, wide * 0.38), height: Math.max(0, y(0) - y(count)), rx: 1.5 });
    bar.append(s("title", {}, text));
    return bar;
  };
  const name = (each) => each.day.slice(5) + (each.hour === undefined ? "" : ` ${each.hour}h`);
  return h(
    "figure",
    { class: "chart", role: "img", "aria-label": `Alerts per day: ${days.map((each) => `${each.day} ${each.found}${compared ? `, before ${each.current}` : ""}`).join("; ")}` },
    s(
      "svg",
      { width: "100%", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      scale.map((count) => [s("line", { class: "grid", x1: left, x2: width, y1: y(count), y2: y(count) }), s("text", { class: "tick", x: left - 6, y: y(count) + 4, "text-anchor": "end" }, short(count))]),
      days.map((each, at) => [
        column(left + at * wide + wide * 0.1, each.found, "", `${each.day}: ${each.found} found`),
        compared ? column(left + at * wide + wide * 0.52, each.current, "second", `${each.day}: ${each.current} raised`) : null,
        at % every === 0 ? s("text", { class: "tick", x: left + at * wide + wide / 2, y: height - 18, "text-anchor": "middle" }, name(each)) : null,
      ]),
      s("rect", { class: "column", x: left, y: height - 9, width: 9, height: 9, rx: 2 }),
      s("text", { class: "tick", x: left + 14, y: height - 1 }, "this text"),
      compared ? [s("rect", { class: "column second", x: left + 84, y: height - 9, width: 9, height: 9, rx: 2 }), s("text", { class: "tick", x: left + 98, y: height - 1 }, "as it was")] : null,
    ),
  );
}

function examples(found) {
  const names = { new: "New ones", gone: "Gone ones", same: "As before" };
  return Object.entries(found)
    .filter(([, some]) => some && some.length)
    .map(([kind, some]) => h("details", { class: "note", open: kind === "new" }, h("summary", {}, `${names[kind] || kind}: ${some.length} of them`), some.map(oneExample)));
}

function oneExample(each) {
  const match = each.match || {};
  return h(
    "div",
    { class: "stack" },
    h("p", {}, h("span", { class: "mono small" }, moment(match.at)), " ", h("b", {}, keyText(match.key)), " ", match.message || ""),
    h("div", { class: "values" }, (each.events || []).map((event) => h("span", {}, `${event.step} `, h("b", {}, value(event.value))))),
  );
}
