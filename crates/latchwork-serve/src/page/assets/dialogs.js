// The dialogs: the token, a forced release with its reason, another limit, and the keys.

import * as api from './api.js';
import { locks, shownHolder } from './locks.js';
import { bdi, count, el, plain, refusal, say } from './text.js';

const $ = (id) => document.getElementById(id);

function button(text, className, call) {
  const one = el('button', className, text);
  one.type = 'button';
  one.addEventListener('click', call);
  return one;
}

function titled(id, text) {
  const title = el('h2', '', text);
  title.id = id;
  return title;
}

function field(label, input, hint) {
  input.id = `${label.replaceAll(' ', '-').toLowerCase()}-field`;
  const name = el('label', '', label);
  name.htmlFor = input.id;
  const note = hint ? el('p', 'faint', hint) : null;
  if (note) { note.id = `${input.id}-hint`; input.setAttribute('aria-describedby', note.id); }
  return el('div', 'field', name, input, note);
}

/** Asks for the token; `then` is called after a new one was given. */
export function askToken(then, why) {
  const dialog = $('token-dialog');
  if (dialog.open) return;
  const input = el('input');
  input.type = 'password';
  input.autocomplete = 'off';
  input.spellcheck = false;
  const keep = el('input');
  keep.type = 'checkbox';
  keep.id = 'keep-token';
  const label = el('label', 'check', keep, 'Keep it until this tab is closed');
  const use = () => {
    if (input.value.trim() === '') { input.focus(); return; }
    api.setToken(input.value.trim(), keep.checked);
    dialog.close();
    then();
  };
  input.addEventListener('keydown', (event) => { if (event.key === 'Enter') { event.preventDefault(); use(); } });
  const forget = api.hasToken() ? button('Forget the token', 'quiet', () => { api.setToken('', false); dialog.close(); then(); }) : null;
  dialog.replaceChildren(
    titled('token-title', 'Token'),
    el('p', why ? 'error' : 'faint', why || 'The service was started with tokens. Yours stays in the memory of this page and is sent only to this service.'),
    field('Token', input), label,
    el('div', 'acts', forget, button('Cancel', 'quiet', () => dialog.close()), button('Use this token', 'primary', use)),
  );
  dialog.showModal();
  input.focus();
}

/** Asks for the reason of a forced release, and does it. */
export function askRelease(name, then) {
  const dialog = $('release-dialog');
  const view = locks.get(name)?.view;
  if (!view || view.holders.length === 0) return;
  const reason = el('textarea');
  reason.rows = 3;
  reason.maxLength = 500;
  reason.required = true;
  const problem = el('p', 'error');
  problem.setAttribute('role', 'alert');
  const holders = el('ul', 'parties', ...view.holders.slice(0, 8).map((one) => el('li', '', bdi(shownHolder(one), 'name'))));
  if (view.holders.length > 8) holders.append(el('li', 'faint', `and ${view.holders.length - 8} more`));
  const release = button('Take the lock away', 'danger solid', async () => {
    const text = reason.value.trim();
    if (text === '') {
      problem.textContent = 'Say why: the reason goes into the log of the service.';
      reason.setAttribute('aria-invalid', 'true');
      reason.focus();
      return;
    }
    release.disabled = true;
    try {
      const done = await api.act(name, 'force-release', { reason: text });
      dialog.close();
      const token = done.token ? `; token ${done.token} now fences the old holder` : '';
      then(`${plain(name)}: taken away from ${count(done.evicted.length, 'holder', 'holders')}${token}`);
    } catch (error) {
      problem.textContent = refusal(error);
      release.disabled = false;
    }
  });
  const title = titled('release-title', 'Force release ');
  title.append(bdi(name));
  dialog.replaceChildren(
    title, holders,
    el('p', 'next', ...(view.waiters.length > 0 ? ['Next in the queue: ', bdi(shownHolder(view.waiters[0]), 'name'), view.waiters.length > 1 ? `, and ${view.waiters.length - 1} behind it.` : '.'] : ['Nobody waits: the lock will be free.'])),
    el('p', '', 'The holder is not asked. It notices at its next renewal, within a third of its ttl, and may work until then. The token of the lock moves on, so that a resource which checks tokens refuses the old holder.'),
    field('Reason', reason, 'Written into the log of the service, 500 characters at most.'), problem,
    el('div', 'acts', button('Cancel', 'quiet', () => dialog.close()), release),
  );
  dialog.showModal();
  reason.focus();
  say('Confirm the forced release with a reason');
}

/** Asks for another limit of a semaphore, and sets it. */
export function askLimit(name, then) {
  const dialog = $('resize-dialog');
  const view = locks.get(name)?.view;
  if (view?.kind !== 'semaphore') return;
  const limit = el('input');
  limit.type = 'number';
  limit.min = 1;
  limit.max = 4294967295;
  limit.value = view.permits;
  limit.required = true;
  const problem = el('p', 'error');
  problem.setAttribute('role', 'alert');
  const change = async () => {
    if (!limit.checkValidity()) {
      problem.textContent = 'Write how many permits there are: 1 or more.';
      limit.setAttribute('aria-invalid', 'true');
      limit.focus();
      return;
    }
    set.disabled = true;
    try {
      const done = await api.act(name, 'resize', { limit: limit.valueAsNumber });
      dialog.close();
      then(`${plain(name)}: ${done.message}`);
    } catch (error) {
      problem.textContent = refusal(error);
      set.disabled = false;
    }
  };
  const set = button('Change the limit', 'primary', change);
  limit.addEventListener('keydown', (event) => { if (event.key === 'Enter') { event.preventDefault(); change(); } });
  const title = titled('resize-title', 'Permits of ');
  title.append(bdi(name));
  dialog.replaceChildren(
    title,
    el('p', '', 'Nobody is evicted: if more permits are held than there are now, nobody is admitted until enough of them are released. A client that asks with another limit later is refused, unless it is configured to follow this one.'),
    field('Limit', limit), problem,
    el('div', 'acts', button('Cancel', 'quiet', () => dialog.close()), set),
  );
  dialog.showModal();
  limit.select();
}

export const KEYS = [
  ['/', 'search'], ['↑ ↓, j k', 'select a lock'], ['Page Up, Page Down, Home, End', 'move further'], ['Enter', 'open the selected lock'],
  ['Esc', 'close the lock, or clear the search'], ['1 2 3 4 5', 'locks, elections, sessions, activity, doctor'], ['t', 'enter a token'], ['u', 'times in UTC or of this browser'], ['g', 'group the locks by prefix'],
  ['f', 'force release of the open lock (administrators)'],
  ['l', 'another limit of the open semaphore (administrators)'], ['?', 'this list'],
];

/** Lists the keys. */
export function showKeys() {
  const dialog = $('help-dialog');
  const list = el('dl', 'keys');
  for (const [keys, what] of KEYS) list.append(el('div', '', el('dt', '', el('kbd', '', keys)), el('dd', '', what)));
  dialog.replaceChildren(titled('help-title', 'Keyboard'), list, el('div', 'acts', button('Close', 'primary', () => dialog.close())));
  dialog.showModal();
}
