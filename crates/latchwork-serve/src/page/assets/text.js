// Texts of others are data: they become text nodes, isolated from the writing direction around them, and the
// characters that show nothing or turn other text round are shown as escapes.

// Controls, formats, what Unicode says may be ignored, halves of pairs, and blanks that look like a space or like nothing.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{DI}\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]/gu;

const NAMES = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

export const escaped = (c) => NAMES[c] ?? `\\u{${c.codePointAt(0).toString(16)}}`;

/** The text with its hidden characters as escapes: for titles, labels and announcements. */
export const plain = (text) => String(text ?? '').replace(HIDDEN, escaped);

/** A refusal of the service: what is wrong, and the next step. */
export const refusal = (error) => `${plain(error.message)}${error.step ? `; ${plain(error.step)}` : ''}`;

/** Puts a text of others into an element, in place of what is there. */
export function put(element, text) {
  const all = String(text ?? '');
  const parts = [];
  let from = 0;
  for (const found of all.matchAll(HIDDEN)) {
    if (found.index > from) parts.push(all.slice(from, found.index));
    const mark = document.createElement('span');
    mark.className = 'esc';
    mark.textContent = escaped(found[0]);
    parts.push(mark);
    from = found.index + found[0].length;
  }
  if (from < all.length) parts.push(all.slice(from));
  element.replaceChildren(...parts);
}

/** Puts new elements into another; a link there that had the focus has it again. */
export function renew(element, ...inside) {
  const { activeElement } = document;
  const href = element.contains(activeElement) ? activeElement.getAttribute('href') : null;
  element.replaceChildren(...inside);
  if (href !== null) [...element.querySelectorAll('a')].find((one) => one.getAttribute('href') === href)?.focus({ preventScroll: true });
}

/** Whether a text in this element is marked: to draw it again would take it from the person who copies it. */
export function isMarked(element) {
  const marked = getSelection();
  return marked !== null && !marked.isCollapsed && element.contains(marked.anchorNode);
}

/** An element with a text of others. */
export function bdi(text, className) {
  const element = document.createElement('bdi');
  element.dir = 'auto';
  if (className) element.className = className;
  put(element, text);
  return element;
}

/** An element: its name, its class, and what is in it. Strings become text. */
export function el(name, className, ...inside) {
  const element = document.createElement(name);
  if (className) element.className = className;
  element.append(...inside.filter((one) => one !== null && one !== undefined && one !== false));
  return element;
}

/** A link to a lock; `text` is another one than its name. */
export function link(name, text) {
  const one = el('a', '', text ?? bdi(name));
  one.href = `#/locks/${encodeURIComponent(name)}`;
  return one;
}

const UNITS = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]];

/** A length of time by its two largest units: 2h 5m. */
export function length(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return '–';
  let left = Math.max(0, Math.floor(ms / 1000));
  if (left === 0) return '0s';
  const words = [];
  for (const [unit, seconds] of UNITS) {
    const count = Math.floor(left / seconds);
    left -= count * seconds;
    if (count > 0) words.push(count + unit);
    else if (words.length > 0) break;
    if (words.length === 2) break;
  }
  return words.join(' ');
}

let clock;
let day;
let isUtc = false;

/** Shows times in UTC from now on, as logs have them, or in the time zone of this browser. */
export function showUtc(is) {
  isUtc = is;
  const timeZone = is ? 'UTC' : undefined;
  clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23', timeZone });
  day = new Intl.DateTimeFormat(undefined, { year: 'numeric', month: 'short', day: 'numeric', timeZone });
}

showUtc(false);

/** By how many milliseconds times that are shown lag behind UTC. */
export const offset = (ms) => (isUtc ? 0 : new Date(ms).getTimezoneOffset() * 60_000);

/** A time of day, with its date unless that is today. */
export function moment(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return '–';
  return day.format(at) === day.format(new Date()) ? clock.format(at) : `${day.format(at)} ${clock.format(at)}`;
}

export const count = (number, one, many) => `${number.toLocaleString()} ${number === 1 ? one : many}`;

async function copy(text) {
  // Browsers have a clipboard for pages of TLS and of this machine alone.
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = el('textarea', 'sr');
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand('copy');
  field.remove();
  return undefined;
}

/** A button that copies a text, or what a function returns then; `what` says which. */
export function copier(what, text, word = 'Copy') {
  const one = el('button', 'quiet copy', word);
  one.type = 'button';
  one.setAttribute('aria-label', `Copy ${what}`);
  one.addEventListener('click', () => {
    copy(typeof text === 'function' ? text() : text).then(() => {
      one.textContent = 'Copied';
      say(`${what} is copied`);
      setTimeout(() => { one.textContent = word; }, 1_500);
    }, () => say(`${what} cannot be copied by this browser`));
  });
  return one;
}

/** A word of a command, as a shell takes it. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

let timer;
/** Tells a person who listens instead of looking. */
export function say(text) {
  const live = document.getElementById('say');
  clearTimeout(timer);
  live.textContent = '';
  timer = setTimeout(() => { live.textContent = text; }, 60);
}
