// Which theme: the reader's choice where there is one, else the system's. Loaded first, so that nothing flashes.

const KEY = "samovar.theme";
const ORDER = ["auto", "light", "dark"];

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}

export function setTheme(next) {
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // A browser that keeps nothing still gets the theme for this visit.
  }
  apply(next);
}

export const nextTheme = () => ORDER[(ORDER.indexOf(document.documentElement.dataset.theme) + 1) % ORDER.length];

function apply(name) {
  document.documentElement.dataset.theme = name;
}

apply(theme());
