// Lists: what rules compare with (`in $risky`), changed without publishing a rule again; who changed what.

import { get, part, post } from "/api.js";
import { debounced, h, put } from "/dom.js";
import { counted, value, whole } from "/format.js";
import { button, card, dialog, empty, field, loading, problem, rowLink, ruleLink, table, time, toast } from "/parts.js";
import { may } from "/store.js";

const SHOWN = 400; // items at once; the filter finds the others
const LOOK_MS = 350;

export function mount(root, { query, go }) {
  let over = false;
  const side = h("div", {}, card("Shared lists", loading()));
  const place = h("div", { class: "stack" });
  put(root, h("h1", {}, "Lists"), h("div", { class: "grid narrow-left" }, side, place));
  load();

  async function load() {
    try {
      const { lists } = await get("/lists");
      if (over) return;
      const names = Object.keys(lists);
      if (!names.length) {
        put(root, h("h1", {}, "Lists"), card(null, empty("No rule has a list", "A rule declares one (lists: {risky: [a, b]}) and compares with it (merchant in $risky). Its items are changed here, or with samovar lists.")));
        return;
      }
      const chosen = names.includes(query.get("list")) ? query.get("list") : names[0];
      put(
        side,
        card(
          "Shared lists",
          { flush: true },
          table(
            [
              { head: "List", class: "grow mono", cell: (name) => rowLink(`/lists?list=${part(name)}`, name) },
              { head: "Items", class: "tight num", cell: (name) => whole(lists[name].length) },
            ],
            names,
            { label: "Shared lists", href: (name) => `/lists?list=${part(name)}`, rowClass: (name) => (name === chosen ? "chosen" : null) },
          ),
        ),
      );
      await show(chosen);
    } catch (fault) {
      if (!over) put(root, h("h1", {}, "Lists"), card(null, problem(fault, () => go("/lists", true))));
    }
  }

  async function show(name) {
    put(place, card(name, loading()));
    try {
      const found = await get(`/lists/${part(name)}`);
      if (!over) put(place, itemsPart(found, () => go(`/lists?list=${part(name)}`, true)), changesPart(found));
    } catch (fault) {
      if (!over) put(place, card(name, problem(fault, () => show(name))));
    }
  }

  return () => {
    over = true;
  };
}

// ---------------------------------------------------------------- items

function itemsPart(found, after) {
  const chosen = new Set();
  const shown = h("div", { class: "chips", id: "items" });
  const told = h("p", { class: "muted small" });
  const filter = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter items", oninput: fill });
  const remove = button("Remove…", () => change(found, "remove", [...chosen], after), "danger", { id: "remove-items", disabled: true });
  const add = button("Add items…", () => change(found, "add", [], after), "main", { id: "add-items" });

  function tell() {
    remove.disabled = !chosen.size;
    remove.textContent = chosen.size ? `Remove ${counted(chosen.size, "item")}…` : "Remove…";
  }

  function chip(item) {
    const text = value(item);
    if (!may("rules")) return h("span", { class: "item mono" }, text);
    const made = button(text, () => {
      if (!chosen.delete(item)) chosen.add(item);
      made.setAttribute("aria-pressed", String(chosen.has(item)));
      tell();
    }, "item mono", { "aria-pressed": String(chosen.has(item)) });
    return made;
  }

  function fill() {
    const words = filter.value.toLowerCase();
    const fit = found.items.filter((item) => value(item).toLowerCase().includes(words));
    put(shown, fit.slice(0, SHOWN).map(chip));
    told.textContent = fit.length > SHOWN ? `The first ${whole(SHOWN)} of ${whole(fit.length)}: the filter finds the others.` : fit.length ? "" : words ? "No item fits the filter." : "The list is empty: `in` is true of nothing.";
    told.hidden = !told.textContent;
  }

  fill();
  return card(
    h("span", { class: "mono" }, found.list),
    { aside: [counted(found.items.length, "item"), found.items.length > 12 ? filter : null], label: `The list ${found.list}` },
    h(
      "div",
      { class: "stack" },
      h("p", { class: "muted" }, "Rules that compare with it: ", found.rules.length ? found.rules.map((rule, at) => [at ? ", " : "", ruleLink(rule)]) : "none that runs"),
      shown,
      told,
      may("rules") ? h("div", { class: "toolbar" }, found.hidden ? null : add, remove, h("span", { class: "faint small" }, [found.hidden ? "Fields that are marked pii are looked for in it: an operator adds to it. " : "", found.items.length ? "Choose items by a click to take them from the list." : ""])) : h("p", { class: "note" }, "Your role may look, not change."),
    ),
  );
}

// ---------------------------------------------------------------- a change, with its plan in sight

const WORDS = {
  add: { title: (name) => `Add to ${name}`, act: "Add", done: "added", counted: "added" },
  remove: { title: (name) => `Remove from ${name}`, act: "Remove", done: "removed", counted: "removed" },
};

// As the list's other items are: a number where those are numbers.
const read = (text, kind) => (kind === "number" && text !== "" && Number.isFinite(Number(text)) ? Number(text) : text);

function change(found, act, given, after) {
  const words = WORDS[act];
  const plan = h("div", { id: "list-plan" });
  const box = h("textarea", { rows: "6", class: "mono", "aria-label": "Items, one per line", placeholder: "one per line", spellcheck: "false", oninput: debounced(look, LOOK_MS) });
  const note = h("input", { type: "text", placeholder: "Why, in a line", "aria-label": "Note", maxlength: "500" });
  const doIt = button(words.act, write, act === "remove" ? "danger" : "main", { disabled: true, id: "do-list" });
  const shown = dialog(
    words.title(found.list),
    [act === "add" ? field("Items, one per line", box) : h("div", { class: "chips" }, given.slice(0, 60).map((item) => h("span", { class: "item mono" }, value(item))), given.length > 60 ? h("span", { class: "muted" }, `and ${whole(given.length - 60)} more`) : null), plan, field("Note", note)],
    [button("Cancel", () => shown.close()), doIt],
  );
  let asked = 0;
  const items = () => (act === "add" ? [...new Set(box.value.split("\n").map((line) => line.trim()).filter(Boolean))].map((text) => read(text, found.kind)) : given);
  if (act === "remove") look();
  else box.focus();

  async function look() {
    const mine = ++asked;
    doIt.disabled = true;
    if (!items().length) {
      put(plan);
      return;
    }
    put(plan, loading("Making the plan: counting the partial matches that it would touch"));
    try {
      const told = await post(`/lists/${part(found.list)}/plan`, { [act]: items() });
      if (mine !== asked) return;
      put(plan, planShown(told, words));
      doIt.disabled = false;
    } catch (fault) {
      if (mine === asked) put(plan, problem(fault));
    }
  }

  async function write() {
    doIt.disabled = true;
    doIt.textContent = "Writing…";
    try {
      await post(`/lists/${part(found.list)}/${act}`, { items: items(), note: note.value });
      shown.close();
      toast(`${counted(items().length, "item")} ${words.done}`);
      after();
    } catch (fault) {
      doIt.textContent = words.act;
      put(plan, problem(fault, look));
    }
  }
}

function planShown(told, words) {
  const row = (name, ...content) => [h("dt", {}, name), h("dd", {}, content)];
  return h(
    "dl",
    { class: "facts" },
    row("Change", `number ${told.change}: ${counted(told[words.counted], "item")} ${words.done}, then it has ${whole(told.items)}`),
    told.rules.map((rule) => row(h("span", { class: "mono" }, rule.rule), `Partial matches: ${rule.told}.`)),
    row("When", "Containers take it between two batches, without a restart."),
  );
}

// ---------------------------------------------------------------- who changed what

function changesPart(found) {
  const some = (sign, items, count, kind) => (count ? h("div", { class: ["mono", kind] }, `${sign} ${items.map(value).join(", ")}${count > items.length ? ` and ${whole(count - items.length)} more` : ""}`) : null);
  return card(
    "Changes",
    { flush: true, aside: found.changes_total > found.changes.length ? `the newest ${whole(found.changes.length)} of ${whole(found.changes_total)}` : null },
    found.changes.length
      ? table(
          [
            { head: "When", class: "tight num", cell: (each) => time(each.at) },
            { head: "Who", class: "tight", cell: (each) => each.author || "–" },
            { head: "What", class: "grow", cell: (each) => [some("+", each.add, each.added, "good-text"), some("−", each.remove, each.removed, "bad-text"), each.note ? h("div", { class: "muted" }, each.note) : null] },
            { head: "Then", class: "tight num", cell: (each) => counted(each.items, "item") },
            { head: "Change", class: "tight num", cell: (each) => String(each.change) },
          ],
          found.changes,
          { label: "Changes of the list" },
        )
      : empty("Never changed", "It is as the rules or the service file declare it."),
  );
}
