// One view: its rows picked and ordered, its versions, what it is made of. An operator makes it again or goes back.

import { del, get, part, post } from "/api.js";
import { h, put } from "/dom.js";
import { counted, moment, percent, seconds, short, value, whole } from "/format.js";
import { badge, button, card, dialog, empty, failed, field, loading, problem, select, table, tabs, time, toast } from "/parts.js";
import { may } from "/store.js";

const ROWS = 200;
const ASK_MS = 700;
const OPS = ["==", "!=", "<", "<=", ">", ">="];
const NUMBERS = /int|long|short|byte|float|double|decimal/;

export function mount(root, { name, go }) {
  const state = { over: false, name, go };
  load();

  async function load() {
    put(root, head(name), loading());
    try {
      const view = await get(`/views/${part(name)}`);
      if (!state.over) show(view);
    } catch (fault) {
      if (!state.over) put(root, head(name), card(null, problem(fault, load)), h("p", {}, h("a", { href: "/views" }, "All views")));
    }
  }

  function show(view) {
    const body = h("div", {});
    const work = h("div", { id: "view-work", class: "stack" });
    const parts = { rows: rowsPart, versions: (place) => versionsPart(place, view, state), made: (place) => put(place, madePart(view)) };
    const bar = tabs(
      [
        { id: "rows", name: "Rows" },
        { id: "versions", name: "Versions" },
        { id: "made", name: "How it is made" },
      ],
      "rows",
      (id) => {
        const place = h("div", { class: "stack" });
        put(body, place);
        parts[id](place, view, state);
      },
      "View",
    );
    bar.count("versions", String(view.kept.length));
    put(
      root,
      head(name, may("operate") ? [button("Refresh…", () => refresh(view, state, work), "main", { id: "refresh" })] : []),
      view.title ? h("p", { class: "muted" }, view.title) : null,
      figures(view),
      work,
      h("section", { class: "card", "aria-label": "View" }, bar, body),
    );
  }

  return () => {
    state.over = true;
  };
}

const head = (name, actions = []) => h("div", { class: "page-head" }, h("div", {}, h("p", { class: "crumb" }, h("a", { href: "/views" }, "Views"), " /"), h("h1", {}, name)), h("div", { class: "actions" }, actions));

function figures(view) {
  if (view.version === null) return null;
  return h(
    "p",
    { class: "figures muted" },
    badge(`version ${view.version}`, "accent"),
    h("span", {}, counted(view.rows, "row")),
    h("span", {}, "made ", time(view.made, "ago")),
    view.lag ? h("span", {}, `${counted(view.lag, "record")} behind, ${seconds(view.behind_s)}`) : null,
    view.changed ? badge("its file changed since: refresh it", "warn") : null,
  );
}

// ---------------------------------------------------------------- rows

function rowsPart(place, view, state) {
  const columns = Object.keys(view.columns).filter((each) => !view.hidden.includes(each)); // others cannot be compared
  if (view.version === null) {
    put(place, empty("Never made", may("operate") ? "Refresh makes its first version, on Spark." : "An operator makes its first version: samovar views refresh, or here."));
    return;
  }
  const conditions = h("div", { class: "stack" });
  const result = h("div", { id: "rows" }, loading());
  const asked = { order: null, desc: false };
  const doAsk = h("button", { type: "submit", class: "button main", id: "ask", hidden: true }, "Show");
  const tell = () => {
    doAsk.hidden = !conditions.children.length;
  };
  put(
    place,
    h("form", { class: "card-body toolbar", onsubmit: (event) => { event.preventDefault(); ask(); } }, conditions, !columns.length ? null : button("Add a condition", () => { conditions.append(condition()); tell(); }, "", { id: "add-condition" }), doAsk),
    result,
  );
  ask();

  function condition() {
    const column = select(columns.map((each) => [each, each]), columns[0], () => {}, "Column");
    const op = select(OPS.map((each) => [each, each === "==" ? "=" : each]), "==", () => {}, "Compare");
    const given = h("input", { type: "text", "aria-label": "Value", placeholder: "value; empty: null", spellcheck: "false", autocomplete: "off" });
    const row = h("div", { class: "toolbar condition" }, column, op, given, button("×", () => { row.remove(); tell(); ask(); }, "low", { "aria-label": "Remove the condition" }));
    row.read = () => ({ column: column.value, op: op.value, value: read(given.value, view.columns[column.value]) });
    return row;
  }

  async function ask() {
    const where = [...conditions.children].map((row) => row.read());
    try {
      const found = await post(`/views/${part(view.view)}/query`, { where, order: asked.order, desc: asked.desc, limit: ROWS });
      if (!state.over) put(result, shown(found));
    } catch (fault) {
      if (!state.over) put(result, problem(fault));
    }
  }

  function shown(found) {
    if (!found.rows.length) return empty("No row fits");
    const sort = (column) => {
      asked.desc = asked.order === column ? !asked.desc : false;
      asked.order = column;
      ask();
    };
    const isNumber = (at) => found.rows.some((row) => typeof row[at] === "number");
    const heading = (column) => view.hidden.includes(column) ? h("span", { title: "Marked pii: pseudonyms, and what is computed is hidden" }, column) : button([column, asked.order === column ? h("span", { "aria-hidden": "true" }, asked.desc ? " ↓" : " ↑") : null], () => sort(column), "sorts", { title: `Order by ${column}` });
    return [
      table(
        found.columns.map((column, at) => ({ head: heading(column), class: isNumber(at) ? "tight num" : "tight", cell: (row) => cell(row[at]) })).concat([{ head: "", class: "grow", cell: () => "" }]),
        found.rows,
        { label: `Rows of ${view.view}` },
      ),
      h("p", { class: "card-body faint small" }, found.rows.length < ROWS ? counted(found.rows.length, "row") : `The first ${whole(ROWS)}: add conditions, or order by a column.`),
    ];
  }
}

const isPlain = (given) => Array.isArray(given) && given.every((each) => typeof each !== "object");

const cell = (given) => (isPlain(given) ? given.join(", ") : given === null || given === undefined ? h("span", { class: "faint" }, "null") : typeof given === "number" && Number.isInteger(given) && Math.abs(given) < 1e15 ? whole(given) : value(given));

function read(text, kind) {
  if (text === "") return null;
  if (kind === "boolean") return text === "true";
  return NUMBERS.test(kind || "") && Number.isFinite(Number(text)) ? Number(text) : text;
}

// ---------------------------------------------------------------- versions

function versionsPart(place, view, state) {
  put(
    place,
    view.kept.length
      ? table(
          [
            { head: "Version", class: "tight num", cell: (each) => String(each.version) },
            { head: "", class: "tight", cell: (each) => (each.version === view.version ? badge("readers see this", "good") : "") },
            { head: "Made", class: "tight num", cell: (each) => time(each.made) },
            { head: "Rows", class: "tight num", cell: (each) => whole(each.rows) },
            { head: "How", class: "grow", cell: (each) => (each.kind === "full" ? "all rows rewritten" : `a part again, the rest as in version ${each.base}`) },
            { head: "", class: "tight", cell: (each) => (each.version === view.version || !may("operate") ? "" : button("Show this one", () => back(view, each, state), "low")) },
          ],
          view.kept,
          { label: "Versions" },
        )
      : empty("No version was made yet"),
  );
}

function back(view, to, state) {
  const doIt = button(`Show version ${to.version}`, async () => {
    try {
      const done = await post(`/views/${part(view.view)}/rollback`, { to: to.version });
      box.close();
      toast(`Readers see version ${done.version}`);
      state.go(`/views/${part(view.view)}`, true);
    } catch (fault) {
      failed(fault);
    }
  }, "main", { id: "do-back" });
  const box = dialog(
    `Back to version ${to.version}`,
    h("p", {}, `Readers see the ${counted(to.rows, "row")} of ${moment(to.made)} instead of version ${view.version}. No version is deleted; the next refresh makes a new one.`),
    [button("Cancel", () => box.close()), doIt],
  );
}

// ---------------------------------------------------------------- how it is made

function madePart(view) {
  const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  const offsets = Object.entries(view.sources).map(([source, places]) => h("div", {}, h("span", { class: "mono" }, source), h("span", { class: "faint" }, ` ${Object.entries(places).map(([at, [start, end]]) => `${at} ${whole(start)}–${whole(end)}`).join(", ")}`)));
  return h(
    "div",
    { class: "card-body stack" },
    h(
      "dl",
      { class: "facts" },
      row("Refresh", view.refresh),
      view.key.length ? row("Key", h("span", { class: "mono" }, view.key.join(", "))) : null,
      view.partitioning.length ? row("Folders by", h("span", { class: "mono" }, view.partitioning.join(", "))) : null,
      offsets.length ? row("Made of", offsets) : null,
      Object.keys(view.columns).length ? row("Columns", Object.entries(view.columns).map(([column, kind]) => h("span", { class: "column-name" }, h("span", { class: "mono" }, column), h("span", { class: "faint" }, ` ${kind} `)))) : null,
    ),
    view.sql ? h("pre", { class: "raw mono sql", tabindex: "0", "aria-label": "Its SQL" }, view.sql.trim()) : null,
  );
}

// ---------------------------------------------------------------- a new version, as a job

function refresh(view, state, place) {
  const again = h("input", { type: "checkbox" });
  const doIt = button("Refresh", begin, "main", { id: "do-refresh" });
  const box = dialog(
    `Refresh ${view.view}`,
    [h("p", {}, "Spark starts in this process and makes a new version; readers see the old one until it is whole. It takes a core or two while it works."), h("label", { class: "check" }, again, "Rewrite all rows")],
    [button("Cancel", () => box.close()), doIt],
  );

  async function begin() {
    doIt.disabled = true;
    try {
      const { job } = await post(`/views/${part(view.view)}/refresh`, { rebuild: again.checked });
      box.close();
      await follow(job);
    } catch (fault) {
      box.close();
      put(place, card(null, problem(fault)));
    }
  }

  async function follow(job) {
    while (!state.over) {
      const now = await get(`/jobs/${job}`);
      if (now.state === "done") {
        toast(now.result.made ? `Version ${now.result.made.version}: ${counted(now.result.made.rows, "row")}, ${seconds(now.result.seconds)}` : "Nothing new since the version that is published");
        state.go(`/views/${part(view.view)}`, true);
        return;
      }
      if (now.state !== "running") {
        put(place, now.state === "cancelled" ? h("p", { class: "note" }, "Cancelled: readers see what they saw before.") : card(null, problem({ ...(now.problem || {}), message: (now.problem || {}).title || "It could not be made" })));
        return;
      }
      put(place, h("div", { class: "note" }, h("span", { class: "progress" }, h("progress", { max: "1", value: now.progress || 0, "aria-label": "made" }), now.progress ? `${percent(now.progress)}${now.rate ? ` · ${short(now.rate)} rows/s` : ""}${now.left_s ? ` · ${seconds(now.left_s)} left` : ""}` : "Spark starts", button("Cancel", () => del(`/jobs/${job}`).catch(failed), "low"))));
      await new Promise((done) => setTimeout(done, ASK_MS));
    }
  }
}
