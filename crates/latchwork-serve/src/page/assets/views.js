// Elections, sessions, the newest events, and the doctor's findings.

import * as api from './api.js';
import * as history from './history.js';
import { locks, age, isElection, left, sessions, shortened } from './locks.js';
import { word, fact } from './timeline.js';
import { bdi, count, el, isMarked, length, link, moment, plain, renew, say } from './text.js';

const $ = (id) => document.getElementById(id);

/** What is shown in each view of cards, as text, and what is drawn again as time passes. */
const shown = { elections: {}, sessions: {} };

/** Draws a view of cards, which `make` makes. While `print` stays the same, only the times change. */
function drawCards(id, print, make) {
  const view = shown[id];
  if (print === view.print && $(id).childElementCount > 0) {
    if (!isMarked($(id))) for (const tick of view.ticks) tick();
    return;
  }
  view.print = print;
  view.ticks = [];
  const timed = (text) => {
    const span = el('span', 'faint', text());
    view.ticks.push(() => { span.textContent = text(); });
    return span;
  };
  renew($(id), ...make(timed));
}

const cardsOr = (cards, none) => (cards.length > 0 ? el('div', 'cards', ...cards) : el('p', 'empty', none));

/** Who leads each election, for how long, and who campaigns. While they stay the same, only the times change. */
export function drawElections() {
  const all = [...locks.values()].filter((one) => isElection(one.view)).sort((a, b) => (a.view.name < b.view.name ? -1 : 1));
  const print = JSON.stringify(all.map(({ view }) => [view.name, view.holders[0]?.token, view.holders[0]?.candidate, view.waiters.map((one) => one.candidate ?? one.holder)]));
  drawCards('elections', print, (timed) => [el('h1', '', 'Elections'), cardsOr(all.map(({ view: { name } }) => {
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
  }), 'Nobody leads and nobody campaigns.')]);
}

const MOST_SESSIONS = 200;
const MOST_KEPT = 8;

/** The names of the sessions that are on the screen, as the locks that they are. */
export const shownSessions = () => listed().slice(0, MOST_SESSIONS).map(({ name }) => name).filter((name) => locks.has(name));

/** Those with the most locks first. */
const listed = () => [...sessions().values()].sort((a, b) => b.kept.length - a.kept.length || (a.name < b.name ? -1 : 1));

/** Who has each session, for how long, which locks it keeps, and what remains of it. */
export function drawSessions() {
  const all = listed();
  const some = all.slice(0, MOST_SESSIONS);
  const names = (kept) => kept.slice(0, MOST_KEPT).map((lock) => lock.view.name);
  const print = JSON.stringify([all.length, ...some.map(({ name, lock, kept }) => [name, lock?.view.holders[0]?.holder, kept.length, names(kept)])]);
  drawCards('sessions', print, (timed) => [
    el('h1', '', 'Sessions'),
    el('p', 'faint', 'A session keeps many locks by one renewal of its client. When it ends, its locks end.'),
    cardsOr(some.map(({ name, lock, kept }) => {
      const state = () => {
        const now = locks.get(name);
        const holder = now?.view.holders[0];
        return holder ? `for ${length(age(now, holder))} · ${length(left(now).ms)} left unless renewed` : 'its own lock is not shown to you';
      };
      const holder = (lock ?? kept[0])?.view.holders.find((one) => lock || one.session === name)?.holder;
      const more = kept.length - MOST_KEPT;
      return el('article', 'card', el('h2', '', link(name, shortened(name))),
        el('p', 'leader', bdi(holder ?? '–'), timed(state)),
        el('h3', '', count(kept.length, 'lock', 'locks')),
        el('ul', 'kept', ...names(kept).map((one) => el('li', '', link(one))), more > 0 && el('li', 'faint', `and ${more.toLocaleString()} more`)));
    }), 'No client has a session.'),
    all.length > some.length && el('p', 'faint', `and ${(all.length - some.length).toLocaleString()} more sessions`),
  ].filter(Boolean));
}

/** Draws all again, because times are shown otherwise. */
export function forget() {
  shown.elections = {};
  shown.sessions = {};
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
