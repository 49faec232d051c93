// Elections, the newest events, and the doctor's findings.

import * as api from './api.js';
import * as history from './history.js';
import { locks, age, isElection, left } from './locks.js';
import { word, fact } from './timeline.js';
import { bdi, count, el, isMarked, length, moment, plain, renew, say } from './text.js';

const $ = (id) => document.getElementById(id);

const link = (name) => {
  const one = el('a', '', bdi(name));
  one.href = `#/locks/${encodeURIComponent(name)}`;
  return one;
};

let shown = '';
let ticks = [];

/** Who leads each election, for how long, and who campaigns. While they stay the same, only the times change. */
export function drawElections() {
  const all = [...locks.values()].filter((one) => isElection(one.view)).sort((a, b) => (a.view.name < b.view.name ? -1 : 1));
  const print = JSON.stringify(all.map(({ view }) => [view.name, view.holders[0]?.token, view.holders[0]?.candidate, view.waiters.map((one) => one.candidate ?? one.holder)]));
  if (print === shown && $('elections').childElementCount > 0) {
    if (!isMarked($('elections'))) for (const tick of ticks) tick();
    return;
  }
  shown = print;
  ticks = [];
  const timed = (text) => {
    const span = el('span', 'faint', text());
    ticks.push(() => { span.textContent = text(); });
    return span;
  };
  const cards = all.map(({ view: { name } }) => {
    const now = () => locks.get(name) ?? { view: { holders: [], waiters: [] }, at: 0 };
    const [leader] = now().view.holders;
    const leads = () => {
      const [one] = now().view.holders;
      return one ? `leads for ${length(age(now(), one))} · term ${one.token ?? '–'} · ${length(left(now()).ms)} left unless renewed` : '';
    };
    const { waiters } = now().view;
    const candidates = el('ol', 'parties queue', ...waiters.slice(0, 20).map((one, at) => el('li', '', bdi(one.candidate ?? one.holder, 'name'), timed(() => {
      const waiter = now().view.waiters[at];
      return waiter ? `waiting for ${length(age(now(), waiter))}` : '';
    }))));
    return el('article', 'card', el('h2', '', link(name)),
      leader ? el('p', 'leader', bdi(leader.candidate ?? leader.holder), timed(leads)) : el('p', 'leader nobody', 'Nobody leads'),
      el('h3', '', waiters.length > 0 ? count(waiters.length, 'candidate waits', 'candidates wait') : 'No other candidate'), candidates);
  });
  renew($('elections'), el('h1', '', 'Elections'),
    cards.length > 0 ? el('div', 'cards', ...cards) : el('p', 'empty', 'Nobody leads and nobody campaigns.'));
}

/** Draws all again, because times are shown otherwise. */
export function forget() {
  shown = '';
  drawn = -1;
}

let drawn = -1;
/** The newest events of all locks. */
export function drawActivity(anyway = false) {
  const newest = history.events[0]?.id ?? 0;
  if (!anyway && (newest === drawn || isMarked($('activity')))) return;
  drawn = newest;
  const list = el('ol', 'story wide');
  for (const event of history.events.slice(0, 200)) {
    const time = el('time', '', moment(event.at_ms));
    time.dateTime = new Date(event.at_ms).toISOString();
    list.append(el('li', event.event, time, el('span', 'what', word(event)), event.name ? link(event.name) : el('span'),
      event.holder ? bdi(event.holder, 'by') : el('span', 'by', fact(event))));
  }
  renew($('activity'), el('h1', '', 'Activity'),
    el('p', 'faint', 'The newest events. Those of locks that other programs hold are noticed in the store some seconds later.'),
    history.events.length > 0 ? list : el('p', 'empty', 'Nothing has happened yet.'));
}

const ORDER = ['critical', 'warning', 'info', 'ok'];

/** Examines the store and shows what was found. */
export async function examine() {
  const view = $('doctor');
  const again = el('button', 'primary', 'Examine the store again');
  again.type = 'button';
  again.addEventListener('click', examine);
  const hadFocus = view.contains(document.activeElement);
  view.replaceChildren(el('h1', '', 'Doctor'), el('p', 'faint', 'Examining the store…'));
  view.setAttribute('aria-busy', 'true');
  try {
    const report = await api.get('v1/doctor');
    const findings = [...report.findings].sort((a, b) => ORDER.indexOf(a.severity) - ORDER.indexOf(b.severity));
    const list = findings.map((one) => el('li', one.severity,
      el('span', `badge ${one.severity}`, one.severity),
      el('div', '', el('p', '', el('span', 'code', one.code), one.part ? bdi(` ${one.part}`, 'faint') : null), el('p', '', bdi(one.found)),
        one.consequence ? el('p', '', el('b', '', 'Then: '), bdi(one.consequence)) : null,
        one.remedy ? el('p', '', el('b', '', 'Do: '), bdi(one.remedy)) : null)));
    const warnings = findings.filter((one) => one.severity === 'warning').length;
    const [grade, verdict] = !report.fit ? ['unfit', 'Locks in this store are not safe: see the critical findings.']
      : warnings > 0 ? ['warned', `Locks in this store are safe while nothing fails: ${count(warnings, 'warning says', 'warnings say')} when they are not.`]
        : ['fit', 'Locks in this store are safe, as far as can be seen.'];
    view.replaceChildren(el('h1', '', 'Doctor'), el('p', `verdict ${grade}`, verdict),
      el('p', 'faint', bdi(report.store), ` · examined ${moment(Date.now())}`), el('ul', 'findings', ...list), again);
    say(verdict);
  } catch (error) {
    view.replaceChildren(el('h1', '', 'Doctor'), el('p', 'error', plain(error.message)), el('p', 'faint', plain(error.step)), again);
  } finally {
    if (hadFocus) again.focus({ preventScroll: true });
    view.removeAttribute('aria-busy');
  }
}
