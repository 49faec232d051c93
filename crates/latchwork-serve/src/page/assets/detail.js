// One lock: who holds it, who waits, and its past as a picture.

import { clock, locks, left, age, isKnown, isSession, kind, sessions, shortened, shownHolder } from './locks.js';
import { pastOf } from './history.js';
import { timeline, legend, story } from './timeline.js';
import { bdi, copier, count, el, isMarked, length, link, moment, plain, quoted, refusal, renew } from './text.js';

const SPANS = [['Auto', 0], ['1 min', 60_000], ['5 min', 300_000], ['30 min', 1_800_000], ['3 h', 10_800_000]];

const panel = () => document.getElementById('detail');
const state = { name: null, span: 0, parts: null, view: undefined, release: () => {}, resize: () => {}, close: () => {}, isAdmin: () => false };

export const shownName = () => state.name;

/** Begins: `release` asks for a forced release, `resize` for another limit, `close` closes the panel, `isAdmin` says whether one may. */
export function start(calls) { Object.assign(state, calls); }

/** Shows a lock, or nothing. */
export function show(name) {
  state.name = name;
  state.view = undefined;
  state.parts = null;
  panel().hidden = name === null;
  document.body.classList.toggle('has-detail', name !== null);
  if (name !== null) { build(); draw(); }
}

function button(text, className, call) {
  const one = el('button', className, text);
  one.type = 'button';
  one.addEventListener('click', call);
  return one;
}

function build() {
  const title = el('h2', '', bdi(state.name));
  const close = button('×', 'quiet close', () => state.close());
  close.setAttribute('aria-label', 'Close this lock');
  const facts = el('div', '');
  const token = copier('the token', () => locks.get(state.name)?.view.token ?? '', 'Copy token');
  const spans = el('div', 'chips small');
  spans.setAttribute('role', 'group');
  spans.setAttribute('aria-label', 'How much of the past');
  for (const [text, span] of SPANS) {
    spans.append(button(text, '', () => { state.span = span; draw(true); }));
    spans.lastChild.dataset.span = String(span);
  }
  const command = `latchwork show ${state.name.startsWith('-') ? '-- ' : ''}${quoted(state.name)}`;
  const picture = el('div', 'picture');
  const note = el('p', 'faint');
  const people = el('div', 'people');
  const past = el('div', 'past');
  const acts = el('div', 'acts');
  panel().replaceChildren(
    el('header', '', title, copier('the name', state.name), close), el('div', 'facts', facts, token), people, acts,
    el('section', '', el('div', 'line', el('h3', '', 'Timeline'), spans), picture, legend(), note),
    el('section', '', el('h3', '', 'Events'), past),
    el('p', 'line command', el('code', '', plain(command)), copier('the command', command)),
  );
  state.parts = { facts, token, spans, picture, note, people, past, acts };
}

function fact(term, ...value) {
  return el('div', '', el('dt', '', term), el('dd', '', ...value));
}

function party(lock, one, isHolder, now, wall) {
  const lasted = age(lock, one, now);
  const facts = [];
  if (one.mode === 'permits') facts.push(`${one.permits} of ${lock.view.permits} permits`);
  else if (one.mode !== 'exclusive') facts.push(one.mode);
  if (lasted !== null) facts.push(`${isHolder ? 'held' : 'waiting'} for ${length(lasted)}, since ${moment(wall - lasted)}`);
  if (isHolder && one.remaining_ms !== null) facts.push(`${length(Math.max(0, one.remaining_ms - (now - lock.at)))} left unless renewed`);
  if (isHolder && one.remaining_ms === null) facts.push('never expires');
  if (isHolder && one.token && lock.view.holders.length > 1) facts.push(`token ${one.token}`);
  if (!one.latchwork) facts.push('not a Latchwork client');
  const session = one.session ? [' · ', link(one.session, `session ${shortened(one.session)}`)] : [];
  return el('li', '', bdi(shownHolder(one), 'name'), el('span', 'faint', facts.join(' · '), ...session));
}

function people(lock, now, wall) {
  const { view } = lock;
  const all = [];
  const holders = el('ul', 'parties', ...view.holders.map((one) => party(lock, one, true, now, wall)));
  all.push(el('section', '', el('h3', '', view.holders.length > 1 ? `Held by ${view.holders.length}` : 'Held by'),
    view.holders.length > 0 ? holders : el('p', 'faint', 'Nobody holds it.')));
  const MOST = 100;
  if (isSession(view)) {
    const { kept } = sessions().get(view.name) ?? { kept: [] };
    const names = kept.slice(0, MOST).map(({ view: { name } }) => el('li', '', link(name)));
    all.push(el('section', '', el('h3', '', `Keeps ${count(kept.length, 'lock', 'locks')}`), el('ul', 'kept', ...names)));
    if (kept.length > MOST) all.push(el('p', 'faint', `and ${kept.length - MOST} more`));
    return all;
  }
  const waiters = el('ol', 'parties queue', ...view.waiters.slice(0, MOST).map((one) => party(lock, one, false, now, wall)));
  const queue = view.waiters.length > 0 ? waiters : el('p', 'faint', 'Nobody waits.');
  all.push(el('section', '', el('h3', '', view.waiters.length > 0 ? `Queue of ${view.waiters.length}, the next one first` : 'Queue'), queue));
  if (view.waiters.length > MOST) all.push(el('p', 'faint', `and ${view.waiters.length - MOST} more`));
  return all;
}

/** The shortest span that shows what is there. */
function fits(past, now) {
  const starts = past.parts.filter((part) => part.end === null || part.end > now - 300_000).map((part) => part.start);
  return Math.max(30_000, Math.min(SPANS.at(-1)[1], (now - Math.min(now, ...starts)) * 1.06));
}

/** Draws it again; all of it if it has changed or `anyway`, else only what time changes. */
export function draw(anyway = false) {
  if (state.name === null || state.parts === null || (!anyway && isMarked(panel()))) return;
  const { facts, token, spans, picture, note, people: both, past: events, acts } = state.parts;
  const lock = locks.get(state.name);
  const past = pastOf(state.name);
  const now = clock();
  const wall = Date.now() - (performance.now() - now);
  const view = lock?.view ?? null;

  const span = state.span || fits(past, wall);
  for (const chip of spans.children) chip.setAttribute('aria-pressed', String(Number(chip.dataset.span) === state.span));
  const width = Math.max(260, picture.clientWidth);
  const drawn = timeline(past, width, span, wall);
  picture.replaceChildren(drawn.isEmpty ? el('p', 'faint', 'Nothing has happened in this time.') : drawn.svg);
  note.textContent = drawn.more > 0 ? `${count(drawn.more, 'earlier holder is', 'earlier holders are')} not shown.` : '';

  const rest = lock ? left(lock, now) : { ms: null };
  const isUnknown = !lock && !isKnown();
  const state_word = isUnknown ? 'unknown' : !lock ? 'free' : view.holders.length > 0 ? 'held' : view.linger_ms !== null ? 'done' : 'free';
  facts.replaceChildren(el('dl', '',
    fact('State', el('span', `state ${state_word}`, state_word)),
    fact('Kind', lock ? kind(view) : '–'),
    fact('Token', el('span', 'number', view?.token ?? '–')),
    fact(state_word === 'done' ? 'Opens in' : 'Time left', rest.ms === null ? '–' : length(rest.ms))));
  token.hidden = !view?.token;
  if (state_word === 'done' && view.closed_by) facts.firstChild.append(fact('Done by', bdi(view.closed_by)));
  renew(both, ...(isUnknown ? [] : people(lock ?? { view: { name: state.name, holders: [], waiters: [] } }, now, wall)));
  for (const text of view?.notes ?? []) both.append(el('p', 'faint', bdi(text)));
  if (lock?.problem) both.append(el('p', 'error', refusal(lock.problem)));

  const newest = past.events[0]?.id ?? -1;
  if (anyway || state.view !== view || state.newest !== newest) {
    state.view = view;
    state.newest = newest;
    events.replaceChildren(past.events.length > 0 ? story(past) : el('p', 'faint', 'None since this page was opened.'));
    const can = state.isAdmin(state.name) && view !== null && view.holders.length > 0;
    const hasLimit = can && view.kind === 'semaphore';
    if (acts.childElementCount !== Number(can) + Number(hasLimit)) {
      const release = button('Force release…', 'danger', () => state.release(state.name));
      release.title = `Take ${plain(state.name)} away from its holder`;
      const limit = button('Change the limit…', 'quiet', () => state.resize(state.name));
      limit.title = `Change how many permits ${plain(state.name)} has`;
      acts.replaceChildren(...(can ? [release] : []), ...(hasLimit ? [limit] : []));
    }
  }
}
