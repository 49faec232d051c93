// What is urgent: the longest wait, holds that are renewed late, losses, and where most wait.

import { events } from './history.js';
import { age, isElection, isLate, locks, prefixOf } from './locks.js';
import { bdi, count, el, length } from './text.js';

const $ = (id) => document.getElementById(id);

/** A wait that is shorter is no news. */
const LONG_WAIT = 10_000;
const RECENT = 15 * 60_000;

let filter = () => {};
let open = () => {};
let shown = '';

/** Begins: `filters` is called with filters of the table, `opens` with a lock. */
export function start(filters, opens) {
  filter = filters;
  open = opens;
}

function found() {
  const waiting = new Map();
  let longest = null;
  let late = 0;
  for (const lock of locks.values()) {
    if (isLate(lock)) late += 1;
    if (lock.waiting > 0) {
      const prefix = prefixOf(lock.view.name);
      if (prefix !== '') waiting.set(prefix, (waiting.get(prefix) ?? 0) + lock.waiting);
    }
    // Candidates of an election wait for as long as the leader lives.
    for (const waiter of isElection(lock.view) ? [] : lock.view.waiters) {
      const waits = age(lock, waiter);
      if (waits !== null && waits >= LONG_WAIT && !(longest?.waits >= waits)) longest = { waits, name: lock.view.name };
    }
  }
  const since = Date.now() - RECENT;
  const lost = events.filter((one) => one.event === 'lost' && one.at_ms >= since);
  const most = [...waiting].sort((a, b) => b[1] - a[1])[0];
  const all = [];
  if (longest) all.push({ kind: 'wait', text: ['waiting for ', length(longest.waits), ': '], name: longest.name, act: () => open(longest.name) });
  if (late > 0) all.push({ kind: 'late', text: [count(late, 'hold is', 'holds are'), ' renewed late'], act: () => filter({ which: 'late' }) });
  if (lost.length > 0) all.push({ kind: 'lost', text: [count(lost.length, 'loss', 'losses'), ' in 15 min, last: '], name: lost[0].name, act: () => open(lost[0].name) });
  if (most && most[1] > 1) all.push({ kind: 'many', text: [count(most[1], 'waits', 'wait'), ' below '], name: most[0], act: () => filter({ which: 'waited', q: most[0] }) });
  return all;
}

/** Draws it again if it has changed. */
export function draw() {
  const all = found();
  const print = JSON.stringify(all);
  if (print === shown) return;
  shown = print;
  const focused = document.activeElement?.closest?.('#urgent li')?.dataset.kind;
  $('urgent').hidden = all.length === 0;
  $('urgent').replaceChildren(...all.map((one) => {
    const button = el('button', one.kind, ...one.text, one.name === undefined ? null : bdi(one.name));
    button.type = 'button';
    button.addEventListener('click', one.act);
    const item = el('li', '', button);
    item.dataset.kind = one.kind;
    if (one.kind === focused) setTimeout(() => button.focus({ preventScroll: true }));
    return item;
  }));
}
