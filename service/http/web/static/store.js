// What several pages show: who I am, the status every two seconds, and alerts as they come. Asked once, given to all.

import { get, listen } from "/api.js";

const STATUS_MS = 2000;
const KEPT = 200; // newest live alerts, for a page that opens later

function channel() {
  const hearers = new Set();
  return {
    hear(act) {
      hearers.add(act);
      return () => hearers.delete(act);
    },
    tell(...given) {
      for (const act of [...hearers]) act(...given);
    },
  };
}

export const statusNews = channel();
export const alertNews = channel();
export const liveNews = channel();

export const known = { me: null, status: null, fault: null, live: "waiting", fresh: [], unseen: 0 };

export async function loadMe() {
  known.me = await get("/me");
  return known.me;
}

export const may = (what) => Boolean(known.me && (known.me.may || []).includes(what));

async function poll() {
  if (!document.hidden) {
    try {
      known.status = await get("/status");
      known.fault = null;
    } catch (fault) {
      known.fault = fault;
    }
    statusNews.tell(known.status, known.fault);
  }
  setTimeout(poll, STATUS_MS);
}

function alerted(alert) {
  if (!alert || known.fresh.some((each) => each.id === alert.id)) return;
  known.fresh.unshift(alert);
  known.fresh.length = Math.min(known.fresh.length, KEPT);
  known.unseen += 1;
  alertNews.tell(alert);
}

function setLive(state) {
  if (state === known.live) return;
  known.live = state;
  liveNews.tell(state);
}

let begun = false;

export function begin() {
  if (begun) return;
  begun = true;
  poll();
  listen("/alerts/live", { alert: alerted, hello: () => {}, gap: (data) => liveNews.tell("gap", data) }, setLive);
}
