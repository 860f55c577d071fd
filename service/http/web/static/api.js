// The one way to the service: JSON both ways, errors as the service words them, and the live stream.

// What went wrong, as problem+json says it: what, and what to do next.
export class Problem extends Error {
  constructor(status, body) {
    super(body.title || body.detail || `The service answered ${status}.`);
    this.status = status;
    this.code = body.code || "";
    this.detail = body.title && body.detail !== body.title ? body.detail || "" : "";
    this.hint = body.hint || "";
    this.errors = body.errors || [];
    this.findings = body.findings || [];
  }
}

const AWAY = {
  title: "The service does not answer",
  code: "no-answer",
  hint: "Is it still running? This page goes on asking, and shows what it knew last.",
};

async function ask(method, path, body, signal) {
  const options = { method, signal, headers: { Accept: "application/json" }, credentials: "same-origin" };
  if (body !== undefined) {
    options.headers["Content-Type"] = typeof body === "string" ? "application/x-ndjson" : "application/json";
    options.body = typeof body === "string" ? body : JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(`/api/v1${path}`, options);
  } catch (fault) {
    if (fault.name === "AbortError") throw fault;
    throw new Problem(0, AWAY);
  }
  const found = parsed(await answer.text());
  if (answer.status === 401 && path !== "/session") dispatchEvent(new Event("samovar-locked"));
  if (!answer.ok) throw new Problem(answer.status, found && typeof found === "object" ? found : { detail: String(found || "").slice(0, 300) });
  return found;
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return text;
  }
}

export function query(given) {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(given)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== "" && each !== null && each !== undefined) found.append(name, each);
    }
  }
  const text = found.toString();
  return text ? `?${text}` : "";
}

export const get = (path, given = {}, signal = undefined) => ask("GET", path + query(given), undefined, signal);
export const post = (path, body = {}, signal = undefined) => ask("POST", path, body, signal);
export const put = (path, body = {}) => ask("PUT", path, body);
export const del = (path) => ask("DELETE", path);

// A key, or any other text, as one part of a path.
export const part = (text) => encodeURIComponent(text);

// What a key is called in addresses, which are kept in histories and logs: its pseudonym where it holds something marked.
export const refOf = async (key) => (await post("/keys/resolve", { key })).key_ref;

// Server-sent events. The browser goes on after a gap by itself, with the place where it stopped; where it has given up,
// as after an answer that is not a stream, a new one begins at that place.
export function listen(path, on, onState) {
  let source = null;
  let last = "";
  let timer = 0;
  let stopped = false;
  const open = () => {
    const from = last ? `${path.includes("?") ? "&" : "?"}from=${encodeURIComponent(last)}` : "";
    source = new EventSource(`/api/v1${path}${from}`);
    source.onopen = () => onState("live");
    source.onerror = () => {
      onState("waiting");
      if (source.readyState === EventSource.CLOSED && !stopped) timer = setTimeout(open, 3000);
    };
    for (const [name, act] of Object.entries(on)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        onState("live");
        act(parsed(event.data));
      });
    }
  };
  open();
  return () => {
    stopped = true;
    clearTimeout(timer);
    source.close();
  };
}
