// Charts drawn by hand as SVG: lines over time, bars, a time axis with events. All carry a text for those who cannot see.

import { h, s } from "/dom.js";
import { clock, day, short } from "/format.js";

// ---------------------------------------------------------------- scales

// Round steps (1, 2, 2.5, 5 times a power of ten) that reach over `most`.
export function ticks(most, count = 4) {
  if (!(most > 0)) return [0, 1];
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = 0; at < most + step * 0.999; at += step) found.push(Math.round(at * 1e6) / 1e6);
  return found;
}

const STEPS = [1, 5, 10, 50, 100, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 1728e5, 6048e5, 2592e6];

function timeTicks(from, to, count = 6) {
  const step = STEPS.find((each) => (to - from) / each <= count) || STEPS.at(-1) * Math.ceil((to - from) / STEPS.at(-1) / count);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { step, at: found };
}

function tickText(at, step) {
  if (step >= 864e5) return day(at).slice(5);
  if (step < 1000) return clock(at, true).slice(3);
  return step % 6e4 === 0 ? clock(at).slice(0, 5) : clock(at);
}

// A text under the axis that stays inside the picture.
function timeText(x, y, left, width, text) {
  const half = text.length * 3.2;
  return s("text", { class: "tick", x: Math.min(width - half - 2, Math.max(left + half - 4, x)), y, "text-anchor": "middle" }, text);
}

// ---------------------------------------------------------------- a line over time

// series: [{name, points: [[ms, value]], kind}]; the width follows the place it is put into.
export function lineChart({ series, height = 150, format = short, label, from = null, to = null, least = 0 }) {
  const box = h("div", { class: "chart", role: "img", "aria-label": described(label, series, format) });
  draw(box, height, (width) => {
    const points = series.flatMap((each) => each.points);
    if (points.length < 2) return blank(width, height, "gathering");
    const left = 44, right = 8, top = 8, bottom = 20;
    const begin = from ?? Math.min(...points.map(([at]) => at));
    const end = to ?? Math.max(...points.map(([at]) => at));
    const scale = ticks(Math.max(least, ...points.map(([, value]) => value ?? 0)), height < 110 ? 2 : 3);
    const most = scale.at(-1);
    const x = (at) => left + ((at - begin) / Math.max(1, end - begin)) * (width - left - right);
    const y = (value) => top + (1 - value / most) * (height - top - bottom);
    const axis = timeTicks(begin, end, Math.max(2, Math.floor(width / 110)));
    return [
      scale.map((value) => [
        s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        s("text", { class: "tick", x: left - 7, y: y(value) + 3.5, "text-anchor": "end" }, format(value)),
      ]),
      axis.at.map((at) => timeText(x(at), height - 5, left, width, tickText(at, axis.step))),
      series.map((each, index) => plot(each, index, x, y)),
      hover(series, { left, right, top, bottom, width, height, begin, end, x, y, format }),
    ];
  });
  return box;
}

function plot(each, index, x, y) {
  const kind = each.kind || `series-${index + 1}`;
  const runs = runsOf(each.points);
  return runs.map((run) => {
    const way = run.map(([at, value], place) => `${place ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    const area = `${way}L${x(run.at(-1)[0]).toFixed(1)} ${y(0)}L${x(run[0][0]).toFixed(1)} ${y(0)}Z`;
    return [index === 0 ? s("path", { class: `area ${kind}`, d: area }) : null, s("path", { class: `line ${kind}`, d: way })];
  });
}

// Where a value is not known the line is broken, not drawn through.
function runsOf(points) {
  const runs = [];
  let run = [];
  for (const point of points) {
    if (point[1] === null || point[1] === undefined) {
      if (run.length) runs.push(run);
      run = [];
    } else run.push(point);
  }
  if (run.length) runs.push(run);
  return runs;
}

function hover(series, place) {
  const { left, right, top, bottom, width, height, begin, end, x, y, format } = place;
  const rule = s("line", { class: "cursor", y1: top, y2: height - bottom });
  const words = s("text", { class: "cursor-text", y: top + 9 });
  const dot = s("circle", { class: "cursor-dot", r: 3 });
  const group = s("g", { class: "hover", visibility: "hidden" }, rule, dot, words);
  const catcher = s("rect", { class: "catcher", x: left, y: 0, width: Math.max(0, width - left - right), height });
  catcher.addEventListener("pointermove", (event) => {
    const at = begin + ((event.offsetX - left) / (width - left - right)) * (end - begin);
    const near = nearest(series[0].points, at);
    if (!near) return;
    group.setAttribute("visibility", "visible");
    for (const name of ["x1", "x2"]) rule.setAttribute(name, x(near[0]));
    dot.setAttribute("cx", x(near[0]));
    dot.setAttribute("cy", y(near[1]));
    words.textContent = `${clock(near[0])}  ${format(near[1])}`;
    const late = x(near[0]) > width - 130;
    words.setAttribute("text-anchor", late ? "end" : "start");
    words.setAttribute("x", x(near[0]) + (late ? -7 : 7));
  });
  catcher.addEventListener("pointerleave", () => group.setAttribute("visibility", "hidden"));
  return [catcher, group];
}

function nearest(points, at) {
  let found = null;
  for (const point of points) if (point[1] !== null && (!found || Math.abs(point[0] - at) < Math.abs(found[0] - at))) found = point;
  return found;
}

function described(label, series, format) {
  const last = series.map((each) => each.points.at(-1)).filter(Boolean);
  return `${label}${last.length ? `, now ${last.map(([, value]) => format(value)).join(", ")}` : ""}`;
}

function blank(width, height, text) {
  return [s("line", { class: "grid", x1: 0, x2: width, y1: height - 20, y2: height - 20 }), s("text", { class: "tick", x: width / 2, y: height / 2, "text-anchor": "middle" }, text)];
}

// Draws now and again when the place changes its width. A picture in a page that has gone is drawn no more.
function draw(box, height, make) {
  let drawn = 0;
  const again = () => {
    const width = Math.max(120, Math.floor(box.clientWidth || 0));
    if (width === drawn || !box.clientWidth) return;
    drawn = width;
    const parts = make(width);
    box.replaceChildren(s("svg", { width, height: box.dataset.height || height, viewBox: `0 0 ${width} ${box.dataset.height || height}`, "aria-hidden": "true" }, parts));
  };
  new ResizeObserver(again).observe(box);
  queueMicrotask(again);
}

// ---------------------------------------------------------------- small ones

// items: [{name, count, kind, note}] as horizontal bars, in a list that reads well aloud.
export function bars(items, { format = short, most = null, label } = {}) {
  const top = most ?? Math.max(1, ...items.map((item) => item.count));
  return h(
    "ul",
    { class: "bars", "aria-label": label },
    items.map((item) =>
      h(
        "li",
        {},
        h("span", { class: "bar-name" }, item.name),
        h("span", { class: "bar-track" }, h("i", { class: item.kind || "", css: { width: `${Math.max(item.count > 0 ? 1 : 0, (item.count / top) * 100).toFixed(1)}%` } })),
        h("span", { class: "bar-count" }, format(item.count)),
        item.note ? h("span", { class: "bar-note" }, item.note) : null,
      ),
    ),
  );
}

// buckets: [{from, to, count}] as columns
export function histogram(buckets, { height = 150, label, unit = "", format = short } = {}) {
  const box = h("div", { class: "chart", role: "img", "aria-label": `${label}: ${buckets.map((each) => `${format(each.from)} to ${format(each.to)}: ${each.count}`).join("; ")}` });
  draw(box, height, (width) => {
    const left = 40, right = 6, top = 8, bottom = 30;
    const scale = ticks(Math.max(1, ...buckets.map((each) => each.count)), 3);
    const y = (value) => top + (1 - value / scale.at(-1)) * (height - top - bottom);
    const wide = (width - left - right) / Math.max(1, buckets.length);
    const every = Math.max(1, Math.ceil(34 / wide));
    const last = buckets.length - 1;
    const named = (each, at) => each.more || (at % every === 0 && !(buckets[last].more && (last - at) * wide < 44));
    return [
      scale.map((value) => [
        s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        s("text", { class: "tick", x: left - 7, y: y(value) + 3.5, "text-anchor": "end" }, short(value)),
      ]),
      buckets.map((each, at) => {
        const bar = s("rect", { class: "column", x: left + at * wide + 1, y: y(each.count), width: Math.max(1, wide - 2), height: Math.max(0, y(0) - y(each.count)), rx: 1.5 });
        bar.append(s("title", {}, `${format(each.from)} to ${format(each.to)} ${unit}: ${each.count}`));
        return [bar, named(each, at) ? s("text", { class: "tick", x: left + (at + (each.more ? 0.5 : 0)) * wide, y: height - 16, "text-anchor": at ? "middle" : "start" }, `${each.more ? "≥ " : ""}${format(Math.round(each.from * 10) / 10)}`) : null];
      }),
      unit ? s("text", { class: "tick", x: width - right, y: height - 3, "text-anchor": "end" }, unit) : null,
    ];
  });
  return box;
}

// Columns over time: counts in buckets of equal length
export function timeBars({ from, bucket, counts, height = 120, label }) {
  const box = h("div", { class: "chart", role: "img", "aria-label": `${label}: ${counts.reduce((sum, each) => sum + each, 0)} in all` });
  draw(box, height, (width) => {
    const left = 34, right = 6, top = 8, bottom = 20;
    const scale = ticks(Math.max(1, ...counts), 2).filter((value) => Number.isInteger(value));
    const y = (value) => top + (1 - value / scale.at(-1)) * (height - top - bottom);
    const wide = (width - left - right) / Math.max(1, counts.length);
    const axis = timeTicks(from, from + bucket * counts.length, Math.max(2, Math.floor(width / 90)));
    const x = (at) => left + ((at - from) / bucket) * wide;
    return [
      scale.map((value) => [
        s("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        s("text", { class: "tick", x: left - 7, y: y(value) + 3.5, "text-anchor": "end" }, short(value)),
      ]),
      counts.map((count, at) => {
        if (!count) return null;
        const bar = s("rect", { class: "column", x: left + at * wide + 0.5, y: y(count), width: Math.max(1, wide - 1), height: y(0) - y(count), rx: 1 });
        bar.append(s("title", {}, `${clock(from + at * bucket)}: ${count}`));
        return bar;
      }),
      axis.at.map((at) => timeText(x(at), height - 5, left, width, tickText(at, axis.step))),
    ];
  });
  return box;
}

// ---------------------------------------------------------------- events on a time axis

// lanes: [{name, kind}]; marks: [{at, lane, text, kind, id}]; bands: [{from, to, text}]; `onpick(id)` when one is chosen.
export function timeline({ lanes, marks, bands = [], from, to, label, onpick = null, now = null }) {
  const row = 34, top = bands.length ? 24 : 8, bottom = 26;
  const height = top + lanes.length * row + bottom;
  const box = h("div", { class: "chart timeline", role: "group", "aria-label": label });
  box.dataset.height = height;
  draw(box, height, (width) => {
    const left = Math.min(150, Math.max(70, ...lanes.map((lane) => lane.name.length * 7 + 30))), right = 18;
    const spread = Math.max(1, to - from);
    const x = (at) => left + ((at - from) / spread) * (width - left - right);
    const y = (lane) => top + lane * row + row / 2;
    const axis = timeTicks(from, to, Math.max(2, Math.floor(width / 130)));
    return [
      bands.map((band) => {
        const begin = Math.max(left, x(band.from)), end = Math.min(width - right, x(band.to));
        const wide = Math.max(2, end - begin);
        return [
          s("rect", { class: "band", x: begin, y: 4, width: wide, height: height - bottom - 2, rx: 4 }),
          s("text", { class: "band-text", x: begin + wide / 2, y: 17, "text-anchor": "middle" }, band.text),
        ];
      }),
      axis.at.map((at) => [
        s("line", { class: "grid", x1: x(at), x2: x(at), y1: top, y2: height - bottom }),
        s("text", { class: "tick", x: x(at), y: height - 9, "text-anchor": "middle" }, tickText(at, axis.step)),
      ]),
      lanes.map((lane, at) => [
        s("line", { class: "lane", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
        s("text", { class: `lane-name ${lane.kind || ""}`, x: left - 12, y: y(at) + 4, "text-anchor": "end" }, cut(lane.name, Math.floor((left - 20) / 6.6))),
      ]),
      now !== null && now >= from && now <= to ? s("line", { class: "now", x1: x(now), x2: x(now), y1: top - 4, y2: height - bottom }) : null,
      marksOf(marks, x, y, onpick),
    ];
  });
  return box;
}

function marksOf(marks, x, y, onpick) {
  return marks.map((mark) => {
    const dot = s("circle", { class: `mark ${mark.kind || ""}`, cx: x(mark.at), cy: y(mark.lane), r: mark.kind === "other" ? 3.5 : 6.5, "data-mark": mark.id });
    dot.append(s("title", {}, mark.text));
    if (onpick) {
      dot.setAttribute("tabindex", "0");
      dot.setAttribute("role", "button");
      dot.setAttribute("aria-label", mark.text);
      dot.addEventListener("click", () => onpick(mark.id));
      dot.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), onpick(mark.id)));
    }
    return dot;
  });
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);

