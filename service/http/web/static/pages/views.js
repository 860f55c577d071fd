// Views: tables that are made of streams, alerts and labels, and what is published of each.

import { get, part } from "/api.js";
import { h, put } from "/dom.js";
import { seconds, whole } from "/format.js";
import { badge, card, empty, loading, problem, rowLink, table, time } from "/parts.js";

export function mount(root) {
  let over = false;
  const place = h("div", {}, loading());
  put(root, h("h1", {}, "Views"), place);
  load();

  async function load() {
    try {
      const { views, problems } = await get("/views");
      const notes = problems.map((each) => h("pre", { class: "note bad" }, each));
      if (!over) put(place, notes, views.length ? card(null, { flush: true, label: "Views" }, list(views)) : card(null, empty("No views", "A view is a file of the service's views folder: SQL over its streams, alerts and labels. docs/views.md says how.")));
    } catch (fault) {
      if (!over) put(place, problem(fault, load));
    }
  }

  return () => {
    over = true;
  };
}

const list = (views) =>
  table(
    [
      { head: "View", class: "tight", cell: (each) => rowLink(`/views/${part(each.view)}`, each.view) },
      { head: "What it tells", class: "grow", cell: (each) => each.title || "" },
      { head: "State", class: "tight", cell: (each) => (each.version === null ? badge("never made", "warn") : each.changed ? badge("file changed since", "warn") : each.lag ? badge(`${whole(each.lag)} behind, ${seconds(each.behind_s)}`, "warn") : badge("published", "good")) },
      { head: "Rows", class: "tight num", cell: (each) => whole(each.rows) },
      { head: "Version", class: "tight num", cell: (each) => (each.version === null ? "–" : String(each.version)) },
      { head: "Made", class: "tight", cell: (each) => (each.made ? time(each.made, "ago") : "–") },
      { head: "Refresh", class: "tight muted", cell: (each) => each.refresh },
    ],
    views,
    { label: "Views", href: (each) => `/views/${part(each.view)}` },
  );
