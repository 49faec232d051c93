// The table of locks. Only the rows on the screen exist: 10,000 locks cost as much as 40.

import * as api from './api.js';
import { clock, isKnown, isLate, locks, left, heldFor, kind, shownHolder, silence, first, shortened } from './locks.js';
import { copier, count, el, length, plain, put } from './text.js';

const $ = (id) => document.getElementById(id);
const phone = matchMedia('(max-width: 640px)');
const ROW = () => (phone.matches ? 68 : 40);
const MORE = 6;

const COLUMNS = [
  { id: 'name', title: 'Name', of: (lock) => lock.view.name },
  { id: 'kind', title: 'Kind', of: (lock) => kind(lock.view) },
  { id: 'holder', title: 'Holder', of: (lock) => (lock.view.holders[0] ? shownHolder(lock.view.holders[0]) : '') },
  { id: 'held', title: 'Held', of: (lock, now) => heldFor(lock, now) ?? -1, down: true },
  { id: 'left', title: 'Time left', of: (lock, now) => left(lock, now).ms ?? Infinity },
  { id: 'waiting', title: 'Waiting', of: (lock) => lock.waiting, down: true },
  { id: 'token', title: 'Token', of: (lock) => BigInt(lock.view.token ?? 0), down: true },
];

const IS_WANTED = {
  all: () => true,
  held: (lock) => lock.view.holders.length > 0,
  waited: (lock) => lock.waiting > 0,
  late: isLate,
  done: (lock) => lock.view.holders.length === 0 && lock.view.linger_ms !== null,
};

/** `names` are those of the rows; in a tree, some rows are prefixes, whose names begin with `PREFIX`. */
const state = { search: '', which: 'all', sort: COLUMNS[0], isReversed: false, isTree: false, closed: new Set(), groups: new Map(), names: [], selected: null, isStale: true };
const PREFIX = '\u0000';
const rows = new Map();
let open = () => {};
let pick = () => {};
let changed = () => {};
let needsToken = () => false;

/** The names on the screen. */
export function shown() {
  const scroll = $('scroll');
  const from = Math.floor(scroll.scrollTop / ROW());
  return state.names.slice(from, from + Math.ceil(scroll.clientHeight / ROW()) + 1).filter((name) => !name.startsWith(PREFIX));
}

export const selected = () => state.selected;

/** Filters and sorts again at the next picture. */
export function stale() { state.isStale = true; }

function arrange() {
  state.isStale = false;
  const now = clock();
  const search = state.search.trim().toLowerCase();
  const isWanted = IS_WANTED[state.which];
  const { of, down } = state.sort;
  const wanted = [];
  let held = 0;
  let waiting = 0;
  for (const lock of locks.values()) {
    if (lock.view.holders.length > 0) held += 1;
    waiting += lock.waiting;
    if (isWanted(lock) && (search === '' || lock.text.includes(search))) wanted.push([of(lock, now), lock.view.name]);
  }
  const turn = Boolean(down) !== state.isReversed ? -1 : 1;
  const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  wanted.sort((a, b) => turn * compare(a[0], b[0]) || compare(a[1], b[1]));
  state.names = wanted.map((one) => one[1]);
  const all = state.names.length;
  if (state.isTree) grow();
  const isUnknown = locks.size === 0 && !isKnown();
  $('count').textContent = isUnknown ? '–' : locks.size.toLocaleString();
  $('count-word').textContent = locks.size === 1 ? 'lock' : 'locks';
  const sums = [`${held.toLocaleString()} held`, `${waiting.toLocaleString()} waiting`];
  if (all < locks.size) sums.unshift(`${all.toLocaleString()} shown`);
  $('sums').textContent = isUnknown ? '' : sums.join(' · ');
  $('table').setAttribute('aria-rowcount', String(state.names.length + 1));
  const empty = $('empty');
  empty.hidden = all > 0;
  const says = all > 0 ? '' : !isUnknown && locks.size > 0 ? 'No lock matches.' : !isUnknown ? 'No lock is held or waited for.'
    : silence() !== null ? 'Unknown: nobody has answered yet.' : needsToken() ? 'A token is needed to see the locks.' : 'Reading the locks…';
  if (empty.dataset.says === says) return;
  empty.dataset.says = says;
  empty.replaceChildren(el('p', '', says));
  if (says.startsWith('No lock is')) empty.append(...lesson());
}

/** What a person types to see a first lock here. */
function lesson() {
  const token = api.hasToken() ? ' --oauth2-bearer TOKEN' : '';
  const command = `curl -X POST${token} -H 'Content-Type: application/json' -d '{"ttl_ms": 60000}' ${new URL('v1/locks/hello', api.base).href}`;
  return [el('p', 'faint', 'A lock appears here as soon as a client acquires it. For a first one, type:'),
    el('p', 'line command', el('code', '', command), copier('the command', command))];
}

/** The prefixes of a name, the shortest first. */
const prefixes = (name) => [...name.slice(0, -1).matchAll(/[/:]/g)].map((mark) => name.slice(0, mark.index + 1));

/** Those that are rows of the tree: one with a single lock below it is none. */
const levels = (name) => prefixes(name).filter((prefix) => state.groups.get(prefix)?.locks > 1);

/** Puts the locks below their prefixes, each level one of a tree, and leaves out what is closed. */
function grow() {
  state.groups = new Map();
  const inOrder = [...state.names].sort();
  for (const name of inOrder) {
    const lock = locks.get(name);
    for (const prefix of prefixes(name)) {
      const group = state.groups.get(prefix) ?? { locks: 0, held: 0, waiting: 0 };
      group.locks += 1;
      group.held += Number(lock.view.holders.length > 0);
      group.waiting += lock.waiting;
      state.groups.set(prefix, group);
    }
  }
  state.names = [];
  const before = new Set();
  for (const name of inOrder) {
    let isClosed = false;
    for (const prefix of levels(name)) {
      if (isClosed) break;
      if (!before.has(prefix)) { before.add(prefix); state.names.push(PREFIX + prefix); }
      isClosed = state.closed.has(prefix);
    }
    if (!isClosed) state.names.push(name);
  }
}

function turn(prefix) {
  if (!state.closed.delete(prefix)) state.closed.add(prefix);
  stale();
  draw();
}

/** Shows the locks below their prefixes, or as one list. */
export function toggleTree() {
  state.isTree = !state.isTree;
  showFilters();
  changed();
  draw();
}

/** What is filtered, and how it is sorted, as a part of the address. */
export function filters() {
  const found = new URLSearchParams();
  if (state.search !== '') found.set('q', state.search);
  if (state.which !== 'all') found.set('which', state.which);
  if (state.sort !== COLUMNS[0] || state.isReversed) found.set('sort', (state.isReversed ? '-' : '') + state.sort.id);
  if (state.isTree) found.set('tree', '1');
  return found;
}

/** Takes the filters of an address. */
export function filter(found) {
  const which = found.get('which') ?? 'all';
  const sort = found.get('sort') ?? COLUMNS[0].id;
  state.search = found.get('q') ?? '';
  state.which = which in IS_WANTED ? which : 'all';
  state.isReversed = sort.startsWith('-');
  state.sort = COLUMNS.find((one) => one.id === sort.replace('-', '')) ?? COLUMNS[0];
  state.isTree = found.get('tree') === '1';
  showFilters();
}

function showFilters() {
  if ($('search').value !== state.search) $('search').value = state.search;
  for (const chip of $('chips').children) chip.setAttribute('aria-pressed', String(chip.dataset.which === state.which));
  $('tree').setAttribute('aria-pressed', String(state.isTree));
  $('table').setAttribute('role', state.isTree ? 'treegrid' : 'grid');
  mark();
  stale();
}

function head() {
  const cells = COLUMNS.map((column) => {
    const button = el('button', '', column.title);
    button.type = 'button';
    button.addEventListener('click', () => sortBy(column));
    const cell = el('span', `cell ${column.id}`, button);
    cell.setAttribute('role', 'columnheader');
    return cell;
  });
  $('head').replaceChildren(...cells);
  mark();
}

function mark() {
  const isDown = Boolean(state.sort.down) !== state.isReversed;
  COLUMNS.forEach((column, at) => {
    const cell = $('head').children[at];
    const sorts = column === state.sort;
    cell.setAttribute('aria-sort', sorts ? (isDown ? 'descending' : 'ascending') : 'none');
  });
}

function sortBy(column) {
  state.isReversed = column === state.sort && !state.isReversed;
  state.sort = column;
  mark();
  stale();
  changed();
  draw();
}

function make() {
  const row = el('div', 'row body');
  row.setAttribute('role', 'row');
  const cells = {};
  for (const { id } of COLUMNS) {
    cells[id] = el('span', `cell ${id}`);
    cells[id].setAttribute('role', 'gridcell');
    row.append(cells[id]);
  }
  cells.name.append(el('bdi'));
  cells.holder.append(el('bdi'), el('span', 'others'));
  const fill = el('i', 'fill');
  const bar = el('span', 'meter', fill);
  bar.setAttribute('aria-hidden', 'true');
  const words = el('span', 'words');
  cells.left.append(bar, words);
  row.addEventListener('click', () => { select(row.dataset.name); enter(row.dataset.name); });
  const bdis = [cells.name.firstChild, cells.holder.firstChild];
  bdis.forEach((one) => { one.dir = 'auto'; });
  $('spacer').append(row);
  return { row, cells, fill, words, bdis, drawn: null, view: null };
}

/** Opens a lock, or opens and closes a prefix. */
function enter(name) {
  if (name.startsWith(PREFIX)) turn(name.slice(1));
  else open(name);
}

function makeGroup() {
  const row = el('div', 'row body group');
  row.setAttribute('role', 'row');
  const name = el('bdi');
  name.dir = 'auto';
  const cell = el('span', 'cell name', name);
  const words = el('span', 'cell words');
  for (const one of [cell, words]) one.setAttribute('role', 'gridcell');
  row.append(cell, words);
  row.addEventListener('click', () => { select(row.dataset.name); enter(row.dataset.name); });
  $('spacer').append(row);
  return { row, name, words, isGroup: true };
}

function fillGroup(one, id, at) {
  const { row } = one;
  const prefix = id.slice(1);
  const group = state.groups.get(prefix);
  if (!group) return;
  row.dataset.name = id;
  row.style.transform = `translateY(${at * ROW()}px)`;
  row.setAttribute('aria-rowindex', String(at + 2));
  row.setAttribute('aria-expanded', String(!state.closed.has(prefix)));
  indent(one, prefix);
  put(one.name, prefix);
  const words = `${count(group.locks, 'lock', 'locks')} · ${group.held.toLocaleString()} held · ${group.waiting.toLocaleString()} waiting`;
  if (one.said !== words) { one.said = words; one.words.textContent = words; }
  mind(one, id);
}

/** Shows on which level of the tree a row stands. */
function indent(one, name) {
  const depth = state.isTree ? levels(name).length : 0;
  if (one.depth === depth) return;
  one.depth = depth;
  one.row.style.setProperty('--depth', String(depth));
  if (state.isTree) one.row.setAttribute('aria-level', String(depth + 1));
  else one.row.removeAttribute('aria-level');
}

/** Marks the row that is selected. */
function mind(one, name) {
  const { row } = one;
  const isSelected = name === state.selected;
  if (one.isSelected === isSelected) return;
  one.isSelected = isSelected;
  row.setAttribute('aria-selected', String(isSelected));
  if (isSelected) row.id = 'selected-row'; else row.removeAttribute('id');
}

function fillIn(one, name, at, now) {
  const lock = locks.get(name);
  if (!lock) return;
  const { row, cells } = one;
  if (one.place !== at) {
    one.place = at;
    row.style.transform = `translateY(${at * ROW()}px)`;
    row.setAttribute('aria-rowindex', String(at + 2));
  }
  if (one.view !== lock.view) {
    one.view = lock.view;
    const [holder] = lock.view.holders;
    row.dataset.name = name;
    put(one.bdis[0], name);
    cells.name.title = plain(name);
    cells.kind.textContent = kind(lock.view);
    const isDone = !holder && lock.view.linger_ms !== null;
    const who = holder ? shownHolder(holder) : isDone ? (lock.view.closed_by ?? '') : '';
    put(one.bdis[1], who || (isDone ? 'done' : 'nobody'));
    cells.holder.title = plain(holder?.session ? `${who}, in session ${shortened(holder.session)}` : who);
    cells.holder.classList.toggle('nobody', !holder);
    const others = lock.view.holders.length > 1 ? [`+${lock.view.holders.length - 1}`] : [];
    cells.holder.lastChild.textContent = [...others, ...(holder?.session ? ['session'] : [])].join(' ');
    cells.token.textContent = (first(lock.view)?.token ?? lock.view.token) ?? '–';
    one.fill.classList.toggle('closed', isDone);
  }
  if (one.waiting !== lock.waiting) {
    one.waiting = lock.waiting;
    cells.waiting.textContent = lock.waiting > 0 ? lock.waiting.toLocaleString() : '–';
    cells.waiting.classList.toggle('some', lock.waiting > 0);
    cells.waiting.setAttribute('aria-label', lock.waiting > 0 ? count(lock.waiting, 'waiter', 'waiters') : 'nobody waits');
  }
  const held = length(heldFor(lock, now));
  if (one.held !== held) { one.held = held; cells.held.textContent = held; }
  const rest = left(lock, now);
  const words = rest.ms === null ? '–' : length(rest.ms);
  if (one.said !== words) { one.said = words; one.words.textContent = words; }
  const part = rest.part.toFixed(3);
  if (one.part !== part) {
    one.part = part;
    one.fill.style.transform = `scaleX(${part})`;
    const isHeld = lock.view.holders.length > 0;
    one.fill.classList.toggle('late', isHeld && rest.ms !== null && rest.part < 0.5);
    one.fill.classList.toggle('ending', isHeld && rest.ms !== null && rest.part < 0.25);
    cells.left.classList.toggle('is-late', isLate(lock));
    cells.left.title = isLate(lock) ? 'Its holder renews late' : '';
  }
  indent(one, name);
  mind(one, name);
}

/** Draws the rows on the screen. */
export function draw() {
  if ($('locks').hidden) return;
  if (state.isStale) arrange();
  const scroll = $('scroll');
  const height = ROW();
  const spacer = `${state.names.length * height}px`;
  if ($('spacer').style.height !== spacer) $('spacer').style.height = spacer;
  const from = Math.max(0, Math.floor(scroll.scrollTop / height) - MORE);
  const to = Math.min(state.names.length, Math.ceil((scroll.scrollTop + scroll.clientHeight) / height) + MORE);
  const wanted = new Set(state.names.slice(from, to));
  const free = [];
  for (const [name, one] of rows) {
    if (!wanted.has(name)) { rows.delete(name); free.push(one); }
  }
  const now = clock();
  for (let at = from; at < to; at += 1) {
    const name = state.names[at];
    const isGroup = name.startsWith(PREFIX);
    let one = rows.get(name);
    if (!one) {
      const spare = free.findIndex((row) => Boolean(row.isGroup) === isGroup);
      one = spare >= 0 ? free.splice(spare, 1)[0] : isGroup ? makeGroup() : make();
      one.row.hidden = false;
      rows.set(name, one);
    }
    if (isGroup) fillGroup(one, name, at);
    else fillIn(one, name, at, now);
  }
  for (const one of free) one.row.remove();
  const active = rows.has(state.selected) ? 'selected-row' : '';
  if ($('table').getAttribute('aria-activedescendant') !== active) $('table').setAttribute('aria-activedescendant', active);
}

/** Selects a lock, and scrolls to it if so asked. */
export function select(name, scrolls = false) {
  state.selected = name;
  const at = state.names.indexOf(name);
  if (scrolls && at >= 0) {
    const scroll = $('scroll');
    const top = at * ROW();
    if (top < scroll.scrollTop) scroll.scrollTop = top;
    else if (top + ROW() > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + ROW() - scroll.clientHeight;
  }
  draw();
  if (!name?.startsWith(PREFIX)) pick(name);
}

function move(to) {
  if (state.names.length === 0) return;
  select(state.names[Math.max(0, Math.min(state.names.length - 1, to))], true);
}

function key(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (state.isStale) arrange();
  const at = state.names.indexOf(state.selected);
  const page = Math.max(1, Math.floor($('scroll').clientHeight / ROW()) - 1);
  const moves = {
    ArrowDown: at + 1, j: at + 1, ArrowUp: at < 0 ? 0 : at - 1, k: at < 0 ? 0 : at - 1,
    PageDown: at + page, PageUp: at - page, Home: 0, End: state.names.length - 1,
  };
  if (event.key in moves) move(moves[event.key]);
  else if (event.key === 'Enter' && event.target === $('table') && state.selected !== null) enter(state.selected);
  else if ((event.key === 'ArrowLeft' || event.key === 'ArrowRight') && state.selected?.startsWith(PREFIX)) {
    const prefix = state.selected.slice(1);
    if (state.closed.has(prefix) === (event.key === 'ArrowRight')) turn(prefix);
  } else return;
  event.preventDefault();
}

/**
 * Begins: `opens` is called with a lock to show in detail, `picks` with the one that is selected, `changes` after
 * other filters; `asks` tells whether a token is missing.
 */
export function start(opens, picks, changes, asks) {
  open = opens;
  pick = picks;
  changed = changes;
  needsToken = asks;
  head();
  $('table').addEventListener('keydown', key);
  let isAsked = false;
  const soon = () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => { isAsked = false; draw(); });
  };
  $('scroll').addEventListener('scroll', soon, { passive: true });
  new ResizeObserver(() => {
    // As wide as the rows, beside a bar that scrolls.
    $('head').style.marginRight = `${$('scroll').offsetWidth - $('scroll').clientWidth}px`;
    soon();
  }).observe($('scroll'));
  phone.addEventListener('change', () => { for (const one of rows.values()) one.place = null; soon(); });
  const search = $('search');
  search.addEventListener('input', () => { state.search = search.value; $('scroll').scrollTop = 0; stale(); changed(); soon(); });
  search.addEventListener('keydown', (event) => {
    if (event.key === 'Escape') { search.value = ''; state.search = ''; stale(); changed(); soon(); $('table').focus(); }
    if (event.key === 'Enter' || event.key === 'ArrowDown') { event.preventDefault(); $('table').focus(); if (state.names.length > 0) move(0); }
  });
  $('chips').addEventListener('click', (event) => {
    const which = event.target.dataset?.which;
    if (!which) return;
    state.which = which;
    $('scroll').scrollTop = 0;
    showFilters();
    changed();
    soon();
  });
  $('tree').addEventListener('click', toggleTree);
}

