// What is known of the locks: read once as a list, then kept up to date by events and by reading single locks.

import * as api from './api.js';
import * as history from './history.js';

/** Locks by name. `at` is when one was read, `full` the longest time left that was seen of its hold. */
export const locks = new Map();

/** When the store was last known to be as shown, and whether that is long ago because nobody answers. */
let readAt = 0;
let isSilent = false;
let isWhole = false;

/** Whether all locks were read; until then, an empty table says nothing. */
export const isKnown = () => isWhole;

/** For how long nothing has been learned, or null while all is well. */
export const silence = () => (isSilent ? performance.now() - readAt : null);

/** The clock of what is shown: it stands still while nobody answers. */
export const clock = () => (isSilent ? readAt : performance.now());

/** The store, or the service, does not answer. */
export function fallSilent() {
  if (isSilent) return;
  isSilent = true;
  changed(null);
}

function heard() { readAt = performance.now(); }

/** Those to read again, because an event told less than is shown. */
const dirty = new Set();

let changed = () => {};
/** Calls this after a change, with the name, or with null after all were read. */
export function onChange(call) { changed = call; }

/** The beginning of the names of sessions, which are locks of their own. */
const SESSION = 'latchwork-session/';

export const isSession = (view) => view.name.startsWith(SESSION);

/** The name of a session in a few letters. */
export const shortened = (session) => session.slice(SESSION.length, SESSION.length + 8);

/** The sessions: each with its own lock, if that is shown to this reader, and the locks that it keeps. */
export function sessions() {
  const all = new Map();
  const of = (name) => {
    if (!all.has(name)) all.set(name, { name, lock: null, kept: [] });
    return all.get(name);
  };
  for (const lock of locks.values()) {
    if (isSession(lock.view)) of(lock.view.name).lock = lock;
    for (const name of new Set(lock.view.holders.map((one) => one.session))) if (name) of(name).kept.push(lock);
  }
  return all;
}

/** The hold that ends first. */
export function first(view) {
  let found = null;
  for (const holder of view.holders) {
    if (!found || (holder.remaining_ms ?? Infinity) < (found.remaining_ms ?? Infinity)) found = holder;
  }
  return found;
}

const leftWhenRead = (view) => (view.holders.length > 0 ? first(view).remaining_ms : view.linger_ms);

/** The time left now, and its part of the whole. */
export function left(lock, now = clock()) {
  const ms = leftWhenRead(lock.view);
  if (ms === null || ms === undefined) return { ms: null, part: 0 };
  const rest = Math.max(0, ms - (now - lock.at));
  return { ms: rest, part: lock.full > 0 ? Math.min(1, rest / lock.full) : 0 };
}

/** How long a claim has held or waited now. */
export const age = (lock, party, now = clock()) =>
  (party.age_ms === null || party.age_ms === undefined ? null : party.age_ms + (now - lock.at));

export const heldFor = (lock, now) => {
  const ages = lock.view.holders.map((holder) => age(lock, holder, now)).filter((one) => one !== null);
  return ages.length > 0 ? Math.max(...ages) : null;
};

/** A holder that renews in time has at least half of its time left; a quarter is late. */
export const isLate = (lock) => {
  const { ms, part } = left(lock);
  return lock.view.holders.length > 0 && ms !== null && part < 0.25;
};

/** What stands before the last part of a name, with the mark that ends it; nothing of a name without parts. */
export const prefixOf = (name) => name.slice(0, Math.max(name.lastIndexOf('/'), name.lastIndexOf(':')) + 1);

export const isElection = (view) => [...view.holders, ...view.waiters].some((party) => party.candidate !== null && party.candidate !== undefined);

export function kind(view) {
  if (view.holders.length === 0 && view.linger_ms !== null) return 'done';
  if (isElection(view)) return 'election';
  if (isSession(view)) return 'session';
  if (view.kind === 'semaphore') {
    const taken = view.holders.reduce((sum, holder) => sum + (holder.permits ?? 1), 0);
    return `permits ${taken}/${view.permits}`;
  }
  if (view.kind === 'read-write' && view.holders.length > 0) {
    return view.holders[0].mode === 'write' ? 'write' : `read ×${view.holders.length}`;
  }
  return view.kind ?? '–';
}

export const shownHolder = (party) => (party.candidate ? `${party.candidate} (${party.holder})` : party.holder);

const isFree = (view) => view.holders.length === 0 && view.waiters.length === 0 && view.linger_ms === null;

function keep(view) {
  const before = locks.get(view.name);
  const now = performance.now();
  const ms = leftWhenRead(view) ?? 0;
  const tokens = new Set(view.holders.map((holder) => holder.token));
  const same = before && (view.holders.length === 0 ? before.view.holders.length === 0
    : before.view.holders.some((holder) => tokens.has(holder.token)));
  const lock = {
    view, at: now, tried: now, problem: null, full: same ? Math.max(before.full, ms) : ms, waiting: view.waiters.length,
    text: [view.name, kind(view), ...view.holders.map((one) => `${shownHolder(one)}\n${one.session ?? ''}`)].join('\n').toLowerCase(),
  };
  locks.set(view.name, lock);
  return lock;
}

/** Of a list that is being read: the names in it, and those that events told of meanwhile. They are newer. */
let list = null;

/** Begins to take a list, part by part. */
export function beginList() { list = { names: new Set(), heard: new Set() }; }

/** Takes a part of it: what it shows is there at once. */
export function takePart(part) {
  heard();
  for (const view of part) {
    list.names.add(view.name);
    if (!list.heard.has(view.name)) keep(view);
  }
  changed(null);
}

/** The list is complete: what is not in it is gone. */
export function endList() {
  for (const name of locks.keys()) if (!list.names.has(name) && !list.heard.has(name)) locks.delete(name);
  dirty.clear();
  for (const name of list.heard) dirty.add(name);
  list = null;
  isSilent = false;
  isWhole = true;
  heard();
  changed(null);
}

/** Forgets all. */
export function clear() {
  locks.clear();
  dirty.clear();
  list = null;
  isWhole = false;
  changed(null);
}

/** Takes one lock as it was read. */
export function readOne(view) {
  list?.heard.add(view.name);
  dirty.delete(view.name);
  if (!isSilent) heard();
  history.look(view);
  if (isFree(view)) locks.delete(view.name);
  else keep(view);
  changed(view.name);
}

/** Takes the refusal to read one lock: it concerns this lock alone. */
export function refuse(name, error) {
  const lock = locks.get(name);
  if (!lock) return;
  lock.problem = error;
  lock.tried = performance.now();
  changed(name);
}

const FREE = (name) => ({ name, key: name, held: false, kind: null, permits: null, token: null, holders: [], waiters: [], linger_ms: null, closed_by: null, notes: [] });

/** Takes an event: what it tells is shown at once, and the lock is read for the rest. */
export function hear(event) {
  const { name } = event;
  const lock = locks.get(name) ?? keep(FREE(name));
  const view = { ...lock.view, holders: [...lock.view.holders] };
  const without = (token) => { view.holders = view.holders.filter((holder) => holder.token !== token); };
  const add = () => {
    if (view.holders.some((holder) => holder.token === event.token)) return;
    view.holders.push({
      holder: event.holder ?? '', candidate: null, mode: event.mode ?? 'exclusive', permits: null, token: event.token ?? null,
      age_ms: 0, remaining_ms: event.ttl_ms ?? null, latchwork: true,
    });
    view.kind ??= { exclusive: 'mutex', permits: 'semaphore' }[event.mode] ?? (event.mode ? 'read-write' : null);
    view.token = event.token ?? view.token;
    view.linger_ms = null;
  };
  let { waiting } = lock;
  switch (event.event) {
    case 'granted': add(); break;
    case 'handed_over': without(event.from); add(); break;
    case 'released': case 'lost': without(event.token); break;
    case 'waiting': waiting = event.waiters ?? waiting + 1; break;
    case 'withdrawn': waiting = event.waiters ?? Math.max(0, waiting - 1); break;
    default: break;
  }
  // Holds that were read before have grown older since.
  const passed = performance.now() - lock.at;
  for (const holder of view.holders) {
    const old = lock.view.holders.includes(holder);
    if (!old) continue;
    const at = view.holders.indexOf(holder);
    view.holders[at] = {
      ...holder,
      age_ms: holder.age_ms === null ? null : holder.age_ms + passed,
      remaining_ms: holder.remaining_ms === null ? null : Math.max(0, holder.remaining_ms - passed),
    };
  }
  view.held = view.holders.length > 0;
  const next = keep(view);
  next.waiting = waiting;
  dirty.add(name);
  list?.heard.add(name);
  changed(name);
}

const AT_ONCE = 6;
// At most so many locks are read between two calls of `refresh`, a quarter of a second.
const BUDGET = 25;
const MANY = 1_000;
let reading = 0;
let budget = 0;
let queue = [];

/** Whether so many locks have to be read again that a new list costs less. */
export const isFarBehind = () => dirty.size > MANY;

/** Reads locks that changed, those that are looked at first; also those whose bar may be out of date. `failed` is called with the name and the error. */
export function refresh(shown, failed) {
  const now = performance.now();
  const isOld = (name) => {
    const lock = locks.get(name);
    return lock && now - Math.max(lock.at, lock.tried) > Math.min(30_000, Math.max(1_500, lock.full / 3));
  };
  queue = [...new Set([...shown.filter((name) => dirty.has(name) || isOld(name)), ...dirty])];
  budget = BUDGET;
  next(failed);
}

function next(failed) {
  while (reading < AT_ONCE && budget > 0 && queue.length > 0) {
    const name = queue.shift();
    dirty.delete(name);
    reading += 1;
    budget -= 1;
    api.lock(name).then(readOne, (error) => failed(name, error)).finally(() => {
      reading -= 1;
      next(failed);
    });
  }
}
