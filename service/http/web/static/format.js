// How numbers, times and values are written, everywhere the same.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

const known = (value) => value !== null && value !== undefined && Number.isFinite(Number(value));

export const whole = (value) => (known(value) ? WHOLE.format(value) : "–");

// 1,234 and 12.3k and 4.5M
export function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${TENTHS.format(value / 1e9)}G`;
  if (size >= 1e6) return `${TENTHS.format(value / 1e6)}M`;
  if (size >= 1e4) return `${TENTHS.format(value / 1e3)}k`;
  return size >= 100 || Number.isInteger(value) ? WHOLE.format(value) : TENTHS.format(value);
}

export function bytes(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) [value, at] = [value / 1024, at + 1];
  return `${at ? TENTHS.format(value) : WHOLE.format(value)} ${units[at]}`;
}

// 850 ms, 4.2 s, 3 min, 2 h 5 min, 3 d
export function span(ms) {
  if (!known(ms)) return "–";
  const sign = ms < 0 ? "−" : "";
  const size = Math.abs(ms);
  if (size < SECOND) return `${sign}${Math.round(size)} ms`;
  if (size < MINUTE) return `${sign}${TENTHS.format(size / SECOND)} s`;
  if (size < HOUR) return `${sign}${parts(size, MINUTE, "min", SECOND, "s")}`;
  if (size < 2 * DAY) return `${sign}${parts(size, HOUR, "h", MINUTE, "min")}`;
  return `${sign}${parts(size, DAY, "d", HOUR, "h")}`;
}

function parts(size, unit, name, below, belowName) {
  const first = Math.floor(size / unit);
  const rest = Math.floor((size - first * unit) / below);
  return rest ? `${first} ${name} ${rest} ${belowName}` : `${first} ${name}`;
}

export const seconds = (value) => (known(value) ? span(value * SECOND) : "–");

const two = (value) => String(value).padStart(2, "0");
const three = (value) => String(value).padStart(3, "0");

// Times are UTC, as in the logs and on the command line.
export function clock(ms, millis = false) {
  if (!known(ms)) return "–";
  const at = new Date(Number(ms));
  const rest = millis ? `.${three(at.getUTCMilliseconds())}` : "";
  return `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}:${two(at.getUTCSeconds())}${rest}`;
}

export function day(ms) {
  if (!known(ms)) return "–";
  const at = new Date(Number(ms));
  return `${at.getUTCFullYear()}-${two(at.getUTCMonth() + 1)}-${two(at.getUTCDate())}`;
}

export const moment = (ms, millis = false) => (known(ms) ? `${day(ms)} ${clock(ms, millis)}` : "–");

export function ago(ms, now = Date.now()) {
  if (!known(ms)) return "–";
  const past = now - ms;
  if (Math.abs(past) < 2 * SECOND) return "now";
  const size = Math.abs(past);
  const text =
    size < MINUTE ? `${Math.round(size / SECOND)} s` : size < HOUR ? `${Math.round(size / MINUTE)} min` : size < 2 * DAY ? `${Math.round(size / HOUR)} h` : `${Math.round(size / DAY)} d`;
  return past >= 0 ? `${text} ago` : `in ${text}`;
}

export function value(given) {
  if (given === null || given === undefined) return "null";
  if (typeof given === "number") return Number.isInteger(given) ? String(given) : String(Math.round(given * 1e6) / 1e6);
  if (typeof given === "string") return given;
  return JSON.stringify(given);
}

// {card: "c1", user: "u2"} as `c1, u2`; a list likewise
export const keyText = (key) =>
  key === null || key === undefined ? "" : typeof key === "object" ? Object.values(key).map(value).join(", ") : value(key);

export const keyNames = (key) => (key && typeof key === "object" && !Array.isArray(key) ? Object.keys(key).join(", ") : "");

export const percent = (part) => (known(part) ? `${TENTHS.format(part * 100)} %` : "–");

export const counted = (count, name, many = `${name}s`) => `${whole(count)} ${count === 1 ? name : many}`;

export const hash = (version) => (version ? String(version).slice(0, 8) : "–");
