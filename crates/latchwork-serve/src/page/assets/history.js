// The past of the locks since the page was opened, and as far back as the service remembers: who held each one
// when, who waited, and how it ended.

const MOST_LOCKS = 2_000;
const MOST_PARTS = 400;
const MOST_EVENTS = 500;

/** Stretches of holding and waiting, and events, by the lock's name. */
const all = new Map();

/** The newest events of all locks, the newest first. */
export const events = [];

function of(name) {
  let past = all.get(name);
  if (past) all.delete(name);
  else past = { parts: [], events: [] };
  // The map is in the order of use: the one that was used longest ago is forgotten first.
  all.set(name, past);
  if (all.size > MOST_LOCKS) all.delete(all.keys().next().value);
  return past;
}

export const pastOf = (name) => all.get(name) ?? { parts: [], events: [] };

function begin(past, part) {
  past.parts.push({ end: null, how: null, reason: null, ...part });
  if (past.parts.length > MOST_PARTS) past.parts.shift();
}

const hold = (past, token) => past.parts.find((part) => part.what === 'held' && part.token === token);

function end(part, at, how, reason = null) {
  if (part && part.end === null) Object.assign(part, { end: Math.max(at, part.start), how, reason });
}

/** Takes an event of the service. */
export function hear(event) {
  events.unshift(event);
  if (events.length > MOST_EVENTS) events.pop();
  if (!event.name) return;
  const past = of(event.name);
  past.events.unshift(event);
  if (past.events.length > MOST_EVENTS) past.events.pop();
  const at = event.at_ms;
  switch (event.event) {
    case 'granted':
      if (!hold(past, event.token)) begin(past, { what: 'held', who: event.holder ?? '', token: event.token, start: at });
      break;
    case 'handed_over': {
      const from = hold(past, event.from);
      end(from, at, 'handed over');
      if (!hold(past, event.token)) begin(past, { what: 'held', who: event.holder ?? from?.who ?? '', token: event.token, start: at });
      break;
    }
    case 'released': end(hold(past, event.token), at, event.by === 'store' ? 'ended' : 'released'); break;
    case 'lost': end(hold(past, event.token), at, 'lost', event.reason ?? null); break;
    default: break;
  }
}

const NEAR = 2_500;

/** Takes a lock as it was read now: who holds it and who waits for it. */
export function look(view, now = Date.now()) {
  const past = of(view.name);
  const tokens = new Set();
  for (const holder of view.holders) {
    tokens.add(holder.token);
    const known = hold(past, holder.token);
    const who = holder.candidate ?? holder.holder;
    if (!known) begin(past, { what: 'held', who, token: holder.token, start: now - (holder.age_ms ?? 0) });
    else if (known.who === '' || holder.candidate) known.who = who;
  }
  const waiting = [];
  for (const waiter of view.waiters) {
    const who = waiter.candidate ?? waiter.holder;
    const start = now - (waiter.age_ms ?? 0);
    const isKnown = (part) => part.what === 'waited' && part.end === null && part.who === who
      && !waiting.includes(part) && (waiter.age_ms === null || Math.abs(part.start - start) < NEAR);
    let part = past.parts.find(isKnown);
    if (!part) {
      begin(past, { what: 'waited', who, token: null, start });
      part = past.parts.at(-1);
    }
    waiting.push(part);
  }
  for (const part of past.parts) {
    if (part.end !== null) continue;
    if (part.what === 'held' && !tokens.has(part.token)) end(part, now, 'ended');
    if (part.what === 'waited' && !waiting.includes(part)) {
      const got = past.parts.find((one) => one.what === 'held' && one.who === part.who && one.start >= part.start && one.start > now - 10_000);
      end(part, got ? got.start : now, got ? 'granted' : 'left');
    }
  }
}

/** Forgets everything, for what another token may see. */
export function forget() {
  all.clear();
  events.length = 0;
}
