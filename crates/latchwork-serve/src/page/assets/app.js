// The page: it reads all locks once, follows the events, and shows what it knows.

import * as api from './api.js';
import * as detail from './detail.js';
import * as dialogs from './dialogs.js';
import * as history from './history.js';
import * as locks from './locks.js';
import * as table from './table.js';
import * as views from './views.js';
import { plain, say } from './text.js';

const $ = (id) => document.getElementById(id);
const VIEWS = ['locks', 'elections', 'activity', 'doctor'];

let me = { rights: [], prefixes: [], tokens: false };
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
  if (error.status === 401) { notice(''); live('closed', 'token needed'); }
  else if (error.status) notice(`${plain(error.message)}${error.step ? `; ${plain(error.step)}` : ''}`);
}

// --- The locks: a list, then events; and the same again after every break.

let reading = null;
function read(signal) {
  if (reading?.signal === signal) return reading.last;
  locks.beginList();
  const last = api.allLocks(locks.takePart, signal).then((number) => {
    if (!signal.aborted) locks.endList();
    return number;
  }).finally(() => { if (reading?.signal === signal) reading = null; });
  reading = { signal, last };
  return last;
}

const readAgain = (name) => api.get(api.path(name)).then(locks.readOne, failed);

const KEPT = 4_000;

async function run() {
  session.abort();
  session = new AbortController();
  const { signal } = session;
  let pause = 500;
  let knows = false;
  while (!signal.aborted) {
    try {
      me = await api.get('/v1/whoami', signal);
      $('token-button').hidden = !me.tokens && !api.hasToken();
      let last = await read(signal);
      // What happened before belongs to the past only.
      const from = knows ? last : Math.max(0, last - KEPT);
      live('live', 'live');
      notice('');
      // The past may be shorter than what was asked for, and the list was read right now.
      let isFirst = !knows;
      await api.follow(from, (type, data) => {
        pause = 500;
        if (type === 'reset' && !isFirst) {
          read(signal).then((next) => { last = next; }, failed);
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
      failed(error);
      if (error.status === 401 || error.status === 403) {
        $('token-button').hidden = false;
        if (error.status === 401) dialogs.askToken(begin, api.hasToken() ? plain(error.message) : '');
        return;
      }
    }
    if (signal.aborted) return;
    live('lost', 'connecting again');
    await new Promise((wake) => { setTimeout(wake, pause * (0.75 + Math.random() / 2)); });
    pause = Math.min(10_000, pause * 2);
  }
}

function begin() {
  history.forget();
  locks.clear();
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
  if (view === 'locks') table.draw();
  if (view === 'elections') views.drawElections();
  if (view === 'activity') views.drawActivity();
}

setInterval(() => { if (isDirty && !document.hidden) draw(); }, 200);
setInterval(() => {
  if (document.hidden) return;
  draw();
  detail.draw();
}, 1_000);
setInterval(() => {
  if (document.hidden || $('live').dataset.state !== 'live') return;
  if (reading !== null) return;
  if (locks.isFarBehind()) { read(session.signal).catch(failed); return; }
  const open = detail.shownName();
  const names = current() === 'locks' ? table.shown() : [...locks.locks.values()].filter((one) => locks.isElection(one.view)).map((one) => one.view.name);
  locks.refresh(open === null ? names : [open, ...names], failed);
}, 250);

// --- Views: the fragment of the address says which, so that Back works.

const current = () => {
  const [, view] = location.hash.split('/');
  return VIEWS.includes(view) ? view : 'locks';
};

function named() {
  const [, view, ...rest] = location.hash.split('/');
  if (view !== 'locks' || rest.length === 0) return null;
  try { return decodeURIComponent(rest.join('/')); } catch { return null; }
}

function route() {
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

const go = (hash) => { if (location.hash !== hash) location.hash = hash; };
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
    case 'f': if (open !== null && isAdmin(open)) release(open); break;
    case 'l': if (open !== null && isAdmin(open)) resize(open); break;
    case '1': case '2': case '3': case '4': go(`#/${VIEWS[Number(event.key) - 1]}`); break;
    case 'Escape': if (open !== null) closeDetail(); break;
    default: return;
  }
  event.preventDefault();
});

$('token-button').addEventListener('click', () => dialogs.askToken(begin));
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
});

function showInPlace(name) {
  window.history.replaceState(null, '', `#/locks/${encodeURIComponent(name)}`);
  detail.show(name);
  readAgain(name);
}

route();
run();
