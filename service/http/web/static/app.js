// The frame around the pages: navigation, the way from an address to a page, the keyboard, logging in.

import { del, post, refOf } from "/api.js";
import { byId, h, put, s } from "/dom.js";
import { seconds, short } from "/format.js";
import { button, dialog, failed, field, kbd, loading, problem, toast } from "/parts.js";
import { alertNews, begin, known, liveNews, loadMe, statusNews } from "/store.js";
import { nextTheme, setTheme, theme } from "/theme.js";

const PAGES = [
  { path: "/", name: "Overview", key: "o", load: () => import("/pages/overview.js"), icon: "M4 13h4l2-7 4 12 2-5h4" },
  { path: "/alerts", name: "Alerts", key: "a", load: () => import("/pages/alerts.js"), icon: "M12 4a5 5 0 0 0-5 5v4l-2 3h14l-2-3V9a5 5 0 0 0-5-5zM10 19a2 2 0 0 0 4 0" },
  { path: "/rules", name: "Rules", key: "r", load: () => import("/pages/rules.js"), icon: "M5 6h9M5 12h6M5 18h4M15 13l2.500 2.500L22 11" },
  { path: "/lists", name: "Lists", key: "l", load: () => import("/pages/lists.js"), icon: "M9 6h11M9 12h11M9 18h11M4.500 6h.01M4.500 12h.01M4.500 18h.01" },
  { path: "/keys", name: "Keys", key: "k", load: () => import("/pages/keys.js"), icon: "M10.500 4a6.500 6.500 0 1 0 0 13 6.500 6.500 0 0 0 0-13zM15.500 15.500 20 20" },
  { path: "/sessions", name: "Sessions", key: "s", load: () => import("/pages/sessions.js"), icon: "M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16zM12 8v4.500l3 2" },
  { path: "/views", name: "Views", key: "v", load: () => import("/pages/views.js"), icon: "M4 5h16v14H4zM4 10h16M10 10v9" },
  { path: "/operations", name: "Operations", key: "p", load: () => import("/pages/operations.js"), icon: "M4 6h16M4 12h16M4 18h16M8 4v4M16 10v4M10 16v4" },
];
const DETAILS = [
  { pattern: /^\/alerts\/([^/]+)$/, page: "/alerts", load: () => import("/pages/alert.js") },
  { pattern: /^\/rules\/([^/]+)$/, page: "/rules", load: () => import("/pages/rule.js") },
  { pattern: /^\/views\/([^/]+)$/, page: "/views", load: () => import("/pages/view.js") },
];

let leave = null; // how the page that is shown ends
let visit = 0;

// ---------------------------------------------------------------- ways

function found(path) {
  for (const detail of DETAILS) {
    const match = path.match(detail.pattern);
    if (match) return { page: PAGES.find((each) => each.path === detail.page), load: detail.load, name: decodeURIComponent(match[1]) };
  }
  const page = PAGES.find((each) => each.path === path);
  return page ? { page, load: page.load, name: "" } : null;
}

async function show() {
  const mine = ++visit;
  const main = byId("main");
  if (leave) leave();
  leave = null;
  const way = found(location.pathname);
  mark(way && way.page);
  if (!way) {
    put(main, problem({ message: "There is no such page", hint: "The pages are in the list at the side." }));
    return;
  }
  document.title = `${way.name || way.page.name} · ${known.me ? known.me.service : "Samovar"}`;
  put(main, loading());
  main.scrollTop = 0;
  scrollTo(0, 0);
  try {
    const { mount } = await way.load();
    if (mine !== visit) return;
    const root = h("div", { class: "page" });
    put(main, root);
    leave = mount(root, { name: way.name, query: new URLSearchParams(location.search), go }) || null;
  } catch (fault) {
    if (mine === visit) put(main, problem({ message: "The page could not be loaded", hint: "Is the service still running? Try again in a moment.", detail: fault.message }, show));
  }
}

export function go(path, replace = false) {
  if (replace) history.replaceState(null, "", path);
  else history.pushState(null, "", path);
  show();
}

function mark(page) {
  for (const link of document.querySelectorAll(".nav a")) {
    if (page && link.getAttribute("href") === page.path) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page && page.path === "/alerts") known.unseen = 0;
  countUnseen();
}

// Links inside the pages change the address without a new load; all others, and those with a key held, are the browser's.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || link.target || link.hasAttribute("download") || url.pathname.startsWith("/api/")) return;
  if (url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
});
addEventListener("popstate", show);

// ---------------------------------------------------------------- frame

const icon = (way) => s("svg", { class: "icon", viewBox: "0 0 24 24", width: 18, height: 18, "aria-hidden": "true" }, s("path", { d: way }));

function frame() {
  const me = known.me;
  put(
    byId("side"),
    h("a", { class: "brand", href: "/" }, h("img", { src: "/icon.svg", width: 26, height: 26, alt: "" }), h("span", {}, h("b", {}, "Samovar"), h("small", {}, me.service))),
    h(
      "nav",
      { class: "nav", "aria-label": "Pages" },
      PAGES.map((page) => h("a", { href: page.path, title: `g then ${page.key}` }, icon(page.icon), h("span", {}, page.name), page.path === "/alerts" ? h("span", { class: "unseen-count", id: "unseen" }) : null)),
    ),
    h(
      "div",
      { class: "side-foot" },
      h("div", { class: "live", id: "live", role: "status" }),
      h("button", { type: "button", class: "side-button", id: "theme", onclick: turnTheme }),
      h("button", { type: "button", class: "side-button", onclick: help }, icon("M9.500 9.500a2.500 2.500 0 1 1 3.500 2.300c-.8.4-1 .9-1 1.700M12 17h.01M12 4a8 8 0 1 0 0 16 8 8 0 0 0 0-16z"), h("span", {}, "Keyboard"), h("kbd", {}, "?")),
      me.access === "tokens" ? h("button", { type: "button", class: "side-button", onclick: logOut }, icon("M14 5h5v14h-5M4 12h11M11 8l4 4-4 4"), h("span", {}, `${me.name} · ${me.role}`)) : null,
      h("p", { class: "faint small" }, `version ${me.version}`),
    ),
  );
  put(
    byId("top"),
    h("div", { class: "health", id: "health" }),
    h(
      "form",
      { class: "find", role: "search", onsubmit: lookUp },
      h("input", { id: "find", type: "search", name: "key", placeholder: "Look a key up", "aria-label": "Look a key up", autocomplete: "off", spellcheck: "false" }),
      h("kbd", {}, "/"),
    ),
  );
  tellTheme();
  tellLive(known.live);
}

async function lookUp(event) {
  event.preventDefault();
  const key = byId("find").value.trim();
  if (!key) return;
  try {
    go(`/keys?key=${encodeURIComponent(await refOf(key))}`);
  } catch (fault) {
    failed(fault);
  }
}

function turnTheme() {
  setTheme(nextTheme());
  tellTheme();
}

function tellTheme() {
  const names = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  put(byId("theme"), icon("M12 4a8 8 0 1 0 0 16zM12 4v16a8 8 0 0 0 0-16z"), h("span", {}, names[theme()]), h("kbd", {}, "t"));
}

function tellLive(state) {
  const place = byId("live");
  if (place) put(place, h("i", { class: `dot ${state === "live" ? "good pulse" : "warn"}`, "aria-hidden": "true" }), state === "live" ? "Live" : "Reconnecting");
}

function countUnseen() {
  const place = byId("unseen");
  if (place) place.textContent = known.unseen ? short(known.unseen) : "";
}

function tellHealth(status, fault) {
  const place = byId("health");
  if (!place) return;
  if (fault) {
    put(place, h("span", { class: "chip bad" }, h("i", { class: "dot bad" }), fault.message), h("span", { class: "faint" }, fault.hint));
    return;
  }
  const restoring = status.tasks.filter((task) => task.restore || task.life === "restoring").length;
  const [kind, text] = restoring
    ? ["warn", `Restoring ${restoring} of ${status.tasks.length} tasks`]
    : status.running
      ? status.caught_up === false
        ? ["warn", "Catching up"]
        : ["good", "Running"]
      : ["bad", stopped(status.containers)];
  put(
    place,
    h("span", { class: `chip ${kind}`, id: "health-chip" }, h("i", { class: `dot ${kind}`, "aria-hidden": "true" }), text),
    h("span", { class: "figure" }, h("b", {}, short(status.rates ? status.rates.events_per_s : null)), " events/s"),
    h("span", { class: "figure" }, "lag ", h("b", {}, short(status.lag)), status.behind_s >= 1 ? ` (${seconds(status.behind_s)})` : ""),
  );
}

function stopped(containers) {
  if (containers.some((each) => each.state === "silent")) return "A container is silent";
  return containers.some((each) => each.state === "running") ? "Starting" : "No container runs";
}

// ---------------------------------------------------------------- keyboard

let going = 0;

function help() {
  const row = (keys, text) => [h("dt", {}, keys), h("dd", {}, text)];
  dialog(
    "Keyboard",
    h(
      "dl",
      { class: "keys" },
      PAGES.map((page) => row(kbd("g", page.key), page.name)),
      row(kbd("/"), "Look a key up"),
      row(kbd("j", "k"), "Next and previous row of a list"),
      row(kbd("Enter"), "Open the row"),
      row(kbd("n"), "New rule, on the page Rules"),
      row(kbd("Ctrl", "Enter"), "Run the rule's tests, in the editor"),
      row(kbd("t"), "Theme: system, light, dark"),
      row(kbd("Esc"), "Close a dialog, leave a field"),
      row(kbd("?"), "This list"),
    ),
  );
}

function typing(target) {
  return target.closest && (target.closest("input, textarea, select, [contenteditable], dialog") || target.shadowRoot);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && event.target.id === "find") event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const page = Date.now() - going < 1200 ? PAGES.find((each) => each.key === event.key) : null;
  going = 0;
  const act = page
    ? () => go(page.path)
    : { g: () => (going = Date.now()), "/": () => byId("find").focus(), t: turnTheme, "?": help, j: () => move(1), k: () => move(-1), n: () => location.pathname === "/rules" && go("/rules/new") }[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// The row's own link is focused, so that Enter opens it and a reader's software names it.
function move(step) {
  const links = [...document.querySelectorAll("main a[data-row]")];
  if (!links.length) return;
  const at = links.indexOf(document.activeElement);
  const next = links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.max(0, Math.min(links.length - 1, at + step))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// ---------------------------------------------------------------- logging in

function logIn(after) {
  const given = h("input", { type: "password", name: "token", autocomplete: "off", required: true, spellcheck: "false" });
  const word = h("p", { class: "bad-text", role: "alert" });
  const form = h(
    "form",
    {
      class: "login card",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          known.me = await post("/session", { token: given.value.trim() });
          after();
        } catch (fault) {
          put(word, [fault.message, fault.hint].filter(Boolean).join(". "));
          given.select();
        }
      },
    },
    h("h1", {}, "Log in"),
    h("p", {}, "This service asks for a token. Ask the operator of the service for one."),
    field("Token", given),
    word,
    h("button", { class: "button main", type: "submit" }, "Log in"),
  );
  document.body.classList.add("alone");
  put(byId("main"), form);
  given.focus();
}

async function logOut() {
  try {
    await del("/session");
    location.assign("/");
  } catch (fault) {
    failed(fault);
  }
}

// ---------------------------------------------------------------- beginning

// The session has ended, or its token was removed: nothing of what was shown stays, and the page asks for a token.
addEventListener("samovar-locked", () => location.reload(), { once: true });

function enter() {
  document.body.classList.remove("alone");
  frame();
  statusNews.hear(tellHealth);
  liveNews.hear((state, more) => (state === "gap" ? toast(`${more ? more.skipped : "Some"} alerts were left out of the live list: they are older than what is kept.`, "warn") : tellLive(state)));
  alertNews.hear(() => {
    if (location.pathname === "/alerts") known.unseen = 0;
    countUnseen();
  });
  begin();
  show();
}

async function start() {
  try {
    const me = await loadMe();
    if (me.role === null) logIn(enter);
    else enter();
  } catch (fault) {
    put(byId("main"), problem(fault, start));
  }
}

start();
