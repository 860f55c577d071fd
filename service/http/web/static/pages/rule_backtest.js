// A backtest: the rule over history, held against what the service found by the rule of that name.

import { del, get, post } from "/api.js";
import { debounced, h, put, s } from "/dom.js";
import { ago, counted, day, keyText, moment, percent, seconds, short, value, whole } from "/format.js";
import { ticks } from "/charts.js";
import { button, empty, field, loading, problem, stat } from "/parts.js";

const ASK_MS = 700;
const TYPED_MS = 400;
const OLDER_MS = 5000;
const SAMPLING_MS = 10000; // while a sample is made, until the next look

export function backtestPanel(state) {
  const from = h("input", { type: "datetime-local", "aria-label": "From (UTC)" });
  const to = h("input", { type: "datetime-local", "aria-label": "To (UTC)" });
  const result = h("div", { id: "backtest" }, empty("What would it have found?", "The rule runs over history with the live matcher and is held against the alerts that were raised. Without times: all that the inputs still hold."));
  const runButton = button("Run the backtest", run, "", { id: "run-backtest" });
  const preview = previewPart(state);
  const element = h("div", { class: "stack" }, preview.element, h("div", { class: "toolbar" }, field("From (UTC)", from), field("To (UTC)", to), runButton), result);
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

  return { element, open: preview.ask, changed: preview.ask };
}

// What the text finds while it is written. The last answer stays until the next one is there, so that nothing moves.
function previewPart(state) {
  const found = h("div", { class: "preview-found", "aria-live": "polite" });
  const told = h("p", { class: "faint small preview-told", role: "status" });
  const element = h("section", { class: "preview", id: "preview", "aria-label": "Preview" }, found, told);
  let last = null; // the answer, the text that it is of, and when it came
  let asking = null;
  let asked = "";
  let timer = 0;

  const ask = debounced(() => request(state.editor.text()), TYPED_MS);

  async function request(text) {
    if (state.over || !element.isConnected || (asked === text && asking)) return;
    if (last?.text === text) {
      asking?.abort();
      asking = null;
      return tell();
    }
    if (!state.checked?.ok || state.checked.text !== text) return tell(); // it is asked again when it is checked
    asking?.abort();
    const mine = (asking = new AbortController());
    asked = text;
    tell();
    try {
      const answer = await post("/rules/preview", { text }, mine.signal);
      if (mine !== asking || state.over) return;
      last = { answer, text, at: Date.now() };
      asking = null;
      put(found, previewShown(answer));
      tell();
      if (answer.sampling !== null) later();
    } catch (fault) {
      if (mine !== asking || state.over) return;
      asking = null;
      asked = "";
      if (!last) put(found, problem(fault, () => request(state.editor.text())));
      tell(fault);
    }
  }

  function later() {
    clearTimeout(timer);
    timer = setTimeout(() => {
      asked = "";
      if (last) last.text = "";
      if (!state.over) request(state.editor.text());
    }, SAMPLING_MS);
  }

  function tell(fault = null) {
    if (state.over) return;
    const now = state.editor ? state.editor.text() : "";
    const isOld = last && last.text && last.text !== now;
    found.classList.toggle("is-old", Boolean(isOld || asking));
    element.setAttribute("aria-busy", asking ? "true" : "false");
    const words = [
      fault && last ? `No newer preview: ${fault.message.replace(/\.?$/, ".")}` : null,
      state.checked && !state.checked.ok ? (last ? "The text has errors; this is of the text before." : "The text has errors: a preview comes when it has none.") : null,
      asking ? "Looking at what it finds…" : null,
      last ? `${lookedAt(last.answer)}. Asked ${ago(last.at)}.` : null,
    ];
    put(told, words.filter(Boolean).join(" "));
  }

  const older = setInterval(() => (state.over ? clearInterval(older) : element.isConnected && last && tell()), OLDER_MS);
  put(found, h("p", { class: "faint" }, "What this text would have found appears here as you type."));
  return { element, ask };
}

function lookedAt(answer) {
  const keys = answer.share < 1 ? `Of one key in ${whole(Math.round(1 / answer.share))} (${counted(answer.keys, "key")}` : `Of all keys (${whole(answer.keys)}`;
  const [first, until] = [day(answer.from), day(answer.to)];
  const past = answer.from === null ? "" : first === until ? `, ${first}` : `, ${first} to ${until}`;
  const rest = answer.complete ? "" : answer.sampling !== null ? `, not all there is: a sample of all is being made, ${percent(answer.sampling)}` : ", not all there is";
  return `${keys}, ${counted(answer.events, "event")}${past}${rest}), in ${seconds(answer.seconds)}`;
}

function previewShown(answer) {
  const total = answer.found, exact = answer.share === 1;
  const sure = exact ? (answer.complete ? "exactly" : "in that time") : `${short(total.low)} to ${short(total.high)} with 95 % confidence`;
  return [
    h("dl", { class: "stats" }, stat(exact ? "It finds" : "It finds about", counted(total.count, "alert"), sure)),
    answer.days.length ? dayChart(answer.days.map((each) => ({ ...each, found: each.count })), false) : h("p", { class: "faint" }, "No alert in that time."),
  ];
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
  const scale = ticks(Math.max(1, ...days.map((each) => Math.max(each.found, each.current || 0, each.high || 0))), 3);
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
        each.high > each.low ? s("line", { class: "whisker", x1: left + at * wide + wide * 0.29, x2: left + at * wide + wide * 0.29, y1: y(each.low), y2: y(each.high) }, s("title", {}, `${each.day}: ${each.low} to ${each.high}`)) : null,
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
