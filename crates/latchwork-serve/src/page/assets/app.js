// The page: it reads all locks once, follows the events, and shows what it knows.

import * as api from './api.js';
import * as detail from './detail.js';
import * as dialogs from './dialogs.js';
import * as history from './history.js';
import * as locks from './locks.js';
import * as table from './table.js';
import * as urgent from './urgent.js';
import * as views from './views.js';
import { length, plain, refusal, say, showUtc } from './text.js';

const $ = (id) => document.getElementById(id);
const VIEWS = ['locks', 'elections', 'sessions', 'activity', 'doctor'];

let me = { rights: [], prefixes: [], tokens: false };
let trouble = '';
let session = new AbortController();

// --- What the service says of itself and of this page's rights.

const isAdmin = (name) => me.rights.includes('admin') && me.prefixes.some((prefix) => name.startsWith(prefix));

function live(word, text) {
  const mark = $('live');
  if (mark.dataset.state === word) return;
  mark.dataset.state = word;
  mark.lastChild.textContent = text;
}

function notice(text) {
  $('notice').hidden = !text;
  if ($('notice').textContent !== text) $('notice').textContent = text;
}

function failed(error) {
  if (error.name === 'AbortError') return;
  if (error.status === 401) lockOut();
  else if (error.status) notice(refusal(error));
}

/** The service does not know this reader any more: nothing of what it has shown stays. */
function lockOut() {
  notice('');
  live('closed', 'token needed');
  forget();
}

/** Nobody answers: what is known stays, greyed, with its age. */
function unsure(error) {
  const isStore = error.status === 503 && error.kind !== 'Closed';
  trouble = isStore ? `The store does not answer: ${plain(error.message)}` : 'The service does not answer';
  locks.fallSilent();
  live(isStore ? 'silent' : 'lost', isStore ? 'store silent' : 'connecting again');
  tellAge();
}

function tellAge() {
  const silence = locks.silence();
  document.body.classList.toggle('stale', silence !== null);
  if (silence === null) return;
  notice(`${trouble}. ${locks.isKnown() ? `What is shown was read ${length(silence)} ago.` : 'Nothing is known of the locks yet.'}`);
}

/** Of a request for one lock: what is wrong with that lock alone is shown there. */
function failedRow(name, error) {
  if (error.name === 'AbortError') return;
  if (error.status === 503) unsure(error);
  else if (error.status === 401) failed(error);
  else if (error.status) locks.refuse(name, error);
}

// --- The locks: a list, then events; and the same again after every break.

let reading = null;
function read(signal) {
  if (reading?.signal === signal) return reading.last;
  locks.beginList();
  const last = api.allLocks(locks.takePart, signal).then((number) => {
    if (signal.aborted) return number;
    locks.endList();
    tellAge();
    notice('');
    live('live', 'live');
    return number;
  }).finally(() => { if (reading?.signal === signal) reading = null; });
  reading = { signal, last };
  return last;
}

const readAgain = (name) => api.lock(name).then(locks.readOne, (error) => failedRow(name, error));

const KEPT = 4_000;
// How often a silent store is asked, beside what the service says of it.
const PROBE = 1_000;

/** Of a request for all locks. */
function refused(error) {
  if (error.name === 'AbortError') return;
  if (error.status === undefined || error.status >= 502) unsure(error);
  else failed(error);
}

// How long a page that nobody sees keeps its stream. A browser has six connections to a service, for all its tabs.
const UNSEEN = 5_000;

/** Follows events while somebody sees the page. */
async function follow(from, hear, signal) {
  const own = new AbortController();
  const stop = () => own.abort();
  let leaving;
  const look = () => {
    clearTimeout(leaving);
    if (document.hidden) leaving = setTimeout(stop, UNSEEN);
  };
  look();
  document.addEventListener('visibilitychange', look);
  signal.addEventListener('abort', stop);
  try {
    await api.follow(from, hear, own.signal);
  } finally {
    clearTimeout(leaving);
    document.removeEventListener('visibilitychange', look);
    signal.removeEventListener('abort', stop);
  }
}

/** Waits until somebody sees the page. */
async function seen() {
  while (document.hidden) {
    await new Promise((wake) => { document.addEventListener('visibilitychange', wake, { once: true }); });
  }
}

async function run() {
  session.abort();
  session = new AbortController();
  const { signal } = session;
  let pause = 500;
  let knows = false;
  while (!signal.aborted) {
    try {
      me = await api.get('v1/whoami', signal);
      $('token-button').hidden = !me.tokens && !api.hasToken();
      let last = await read(signal);
      // What happened before belongs to the past only.
      const from = knows ? last : Math.max(0, last - KEPT);
      // The past may be shorter than what was asked for, and the list was read right now.
      let isFirst = !knows;
      await follow(from, (type, data) => {
        pause = 500;
        if (type === 'unreachable' && data.id > last) unsure({ status: 503, message: 'it was silent for a whole request' });
        if ((type === 'reset' && !isFirst) || (type === 'reachable' && data.id > last)) {
          read(signal).then((next) => { last = next; }, refused);
        }
        if (type !== 'hello') isFirst = false;
        if (typeof data.id !== 'number') return;
        history.hear(data);
        if (data.event === 'closing') notice('The service is stopping; this page connects again by itself.');
        if (data.name && data.id > last) locks.hear(data);
      }, signal);
      knows = true;
    } catch (error) {
      if (signal.aborted) return;
      refused(error);
      if (error.status === 401 || error.status === 403) {
        $('token-button').hidden = false;
        if (error.status === 401) dialogs.askToken(begin, api.hasToken() ? plain(error.message) : '');
        return;
      }
    }
    if (signal.aborted) return;
    if (document.hidden) {
      await seen();
      continue;
    }
    if ($('live').dataset.state === 'silent') pause = PROBE;
    else live('lost', 'connecting again');
    await new Promise((wake) => { setTimeout(wake, pause * (0.75 + Math.random() / 2)); });
    pause = Math.min(10_000, pause * 2);
  }
}

function forget() {
  history.forget();
  locks.clear();
  views.forget();
  for (const view of VIEWS.slice(1)) $(view).replaceChildren();
  // At once: a click on a row of before would be lost.
  draw();
  detail.draw(true);
}

function begin() {
  forget();
  if (current() === 'doctor') views.examine();
  run();
}

// --- Drawing: after changes, and as time passes.

let isDirty = false;
locks.onChange((name) => {
  isDirty = true;
  table.stale();
  if (name === null || name === detail.shownName()) detail.draw();
});

function draw() {
  isDirty = false;
  const view = current();
  if (view === 'locks') { urgent.draw(); table.draw(); }
  if (view === 'elections') views.drawElections();
  if (view === 'sessions') views.drawSessions();
  if (view === 'activity') views.drawActivity();
}

setInterval(() => { if (isDirty && !document.hidden) draw(); }, 200);
setInterval(() => {
  if (document.hidden) return;
  tellAge();
  draw();
  detail.draw();
}, 1_000);
setInterval(() => {
  if (!document.hidden && $('live').dataset.state === 'silent' && reading === null) read(session.signal).catch(refused);
}, PROBE);
setInterval(() => {
  if (document.hidden || $('live').dataset.state !== 'live') return;
  if (reading !== null) return;
  if (locks.isFarBehind()) { read(session.signal).catch(refused); return; }
  const open = detail.shownName();
  const names = current() === 'locks' ? table.shown() : current() === 'sessions' ? views.shownSessions()
    : [...locks.locks.values()].filter((one) => locks.isElection(one.view)).map((one) => one.view.name);
  locks.refresh(open === null ? names : [open, ...names], failedRow);
}, 250);

// --- Views: the fragment of the address says which, with the filters, so that Back works and a link shows the same.

const parts = () => location.hash.split('?')[0].split('/');

const current = () => {
  const [, view] = parts();
  return VIEWS.includes(view) ? view : 'locks';
};

/** Writes the filters into the address, which then leads back to them. */
function remember() {
  const [before] = location.hash.split('?');
  const filters = table.filters();
  if (isUtc) filters.set('utc', '1');
  const text = filters.toString();
  const hash = `${before === '' ? '#/locks' : before}${text ? `?${text}` : ''}`;
  if (hash !== location.hash && (text || location.hash.includes('?'))) window.history.replaceState(null, '', hash);
}

let isUtc = false;
function useUtc(is) {
  isUtc = is;
  showUtc(is);
  $('zone-button').textContent = is ? 'UTC' : 'Local time';
  $('zone-button').setAttribute('aria-pressed', String(is));
  views.forget();
}

function switchZone() {
  useUtc(!isUtc);
  remember();
  draw();
  detail.draw(true);
}

function named() {
  const [, view, ...rest] = parts();
  if (view !== 'locks' || rest.length === 0) return null;
  try { return decodeURIComponent(rest.join('/')); } catch { return null; }
}

function route() {
  const [, query] = location.hash.split('?');
  if (query === undefined) remember();
  else {
    const filters = new URLSearchParams(query);
    if ((filters.get('utc') === '1') !== isUtc) useUtc(!isUtc);
    table.filter(filters);
  }
  const view = current();
  for (const one of VIEWS) $(one).hidden = one !== view;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.dataset.view === view) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const name = named();
  const before = detail.shownName();
  if (name !== before) {
    detail.show(name);
    if (name !== null) {
      table.select(name, true);
      readAgain(name);
      $('detail').focus({ preventScroll: true });
      say(`${plain(name)} is open`);
    } else if (before !== null) $('table').focus({ preventScroll: true });
  }
  document.title = name === null ? (view === 'locks' ? 'Latchwork' : `${view[0].toUpperCase()}${view.slice(1)} · Latchwork`) : `${plain(name)} · Latchwork`;
  if (view === 'doctor') views.examine();
  if (view === 'activity') views.drawActivity(true);
  table.stale();
  draw();
}

const go = (hash) => { if (location.hash.split('?')[0] !== hash) location.hash = hash; };
const closeDetail = () => go('#/locks');

function done(name, text) {
  notice('');
  say(text);
  toast(text);
  // The button that had the focus may be about to go.
  $('detail').focus({ preventScroll: true });
  readAgain(name);
}

const release = (name) => dialogs.askRelease(name, (text) => done(name, text));
const resize = (name) => dialogs.askLimit(name, (text) => done(name, text));

let fading;
function toast(text) {
  document.querySelector('.toast')?.remove();
  clearTimeout(fading);
  const one = document.createElement('p');
  one.className = 'toast';
  one.textContent = text;
  document.body.append(one);
  fading = setTimeout(() => one.remove(), 8_000);
}

document.addEventListener('keydown', (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
  if (event.target.matches('input, textarea')) return;
  const open = detail.shownName();
  switch (event.key) {
    case '/': go(open === null ? '#/locks' : location.hash); $('search').focus(); $('search').select(); break;
    case '?': dialogs.showKeys(); break;
    case 't': dialogs.askToken(begin); break;
    case 'u': switchZone(); break;
    case 'g': go('#/locks'); table.toggleTree(); break;
    case 'f': if (open !== null && isAdmin(open)) release(open); break;
    case 'l': if (open !== null && isAdmin(open)) resize(open); break;
    case '1': case '2': case '3': case '4': case '5': go(`#/${VIEWS[Number(event.key) - 1]}`); break;
    case 'Escape': if (open !== null) closeDetail(); break;
    default: return;
  }
  event.preventDefault();
});

$('token-button').addEventListener('click', () => dialogs.askToken(begin));
$('zone-button').addEventListener('click', switchZone);
$('help-button').addEventListener('click', dialogs.showKeys);
$('skip').addEventListener('click', (event) => {
  event.preventDefault();
  $(current() === 'locks' ? 'table' : 'main').focus();
});
addEventListener('hashchange', route);
addEventListener('resize', () => detail.draw());
document.addEventListener('visibilitychange', () => { if (!document.hidden) { table.stale(); draw(); detail.draw(); } });

detail.start({ release, resize, close: closeDetail, isAdmin });
table.start((name) => go(`#/locks/${encodeURIComponent(name)}`), (name) => {
  // A lock that is open follows the selection.
  if (detail.shownName() !== null && detail.shownName() !== name) showInPlace(name);
}, remember, () => $('live').dataset.state === 'closed');
urgent.start((filters) => { go('#/locks'); table.filter(new URLSearchParams(filters)); remember(); draw(); }, (name) => go(`#/locks/${encodeURIComponent(name)}`));

function showInPlace(name) {
  window.history.replaceState(null, '', `#/locks/${encodeURIComponent(name)}`);
  remember();
  detail.show(name);
  readAgain(name);
}

route();
run();
