// The picture of one lock's past: a lane for each holder, with the time it held the lock, the time it waited,
// and how that ended.

import { el, bdi, length, moment, offset, plain } from './text.js';

const SVG = 'http://www.w3.org/2000/svg';
const LANE = 26;
const TOP = 6;
const AXIS = 22;
const MOST = 24;
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400].map((s) => s * 1000);

function draw(name, attributes, ...inside) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  element.append(...inside);
  return element;
}

const titled = (element, text) => { element.prepend(draw('title', {}, text)); return element; };

/** The lanes: those who held or waited, in the order in which they came. */
function lanes(parts, from) {
  const found = new Map();
  for (const part of [...parts].sort((a, b) => a.start - b.start)) {
    if (part.end !== null && part.end < from) continue;
    if (!found.has(part.who)) found.set(part.who, []);
    found.get(part.who).push(part);
  }
  const all = [...found.entries()];
  return { shown: all.slice(-MOST), more: Math.max(0, all.length - MOST) };
}

const WORDS = {
  released: 'released', lost: 'lost', 'handed over': 'handed over', granted: 'then got it', left: 'gave up', ended: 'ended',
};

function sentence(part, now) {
  const verb = part.what === 'held' ? 'held it' : 'waited';
  const lasted = length((part.end ?? now) - part.start);
  const how = part.end === null ? 'still does' : (WORDS[part.how] ?? part.how) + (part.reason ? ` (${part.reason})` : '');
  return `${plain(part.who) || 'somebody'} ${verb} for ${lasted} from ${moment(part.start)}: ${how}${part.token ? `, token ${part.token}` : ''}`;
}

/** The picture of these stretches, so wide, over so many milliseconds until now. */
export function timeline(past, width, span, now = Date.now()) {
  const from = now - span;
  const { shown, more } = lanes(past.parts, from);
  const label = width < 430 ? 0 : Math.min(190, Math.round(width * 0.28));
  const lane = label === 0 ? LANE + 16 : LANE;
  const room = Math.max(60, width - label - 10);
  const x = (at) => label + Math.max(0, Math.min(1, (at - from) / span)) * room;
  const height = TOP + shown.length * lane + AXIS;
  const svg = draw('svg', { width, height, viewBox: `0 0 ${width} ${height}`, class: 'timeline', role: 'img' });

  const step = STEPS.find((one) => (room / (span / one)) >= 74) ?? STEPS.at(-1);
  const behind = offset(now);
  for (let at = Math.ceil((from - behind) / step) * step + behind; at <= now; at += step) {
    svg.append(draw('line', { x1: x(at), x2: x(at), y1: TOP, y2: height - AXIS + 4, class: 'tick' }));
    if (x(at) > label + 24 && x(at) < width - 28) {
      const text = step >= 60_000 ? moment(at).slice(0, -3) : moment(at);
      svg.append(draw('text', { x: x(at), y: height - 6, class: 'time', 'text-anchor': 'middle' }, text));
    }
  }

  const places = new Map();
  shown.forEach(([who, parts], row) => {
    const y = TOP + row * lane;
    const text = plain(who) || 'somebody';
    const letters = Math.max(6, Math.floor((label === 0 ? width - 16 : label - 12) / 6.6));
    const cut = text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
    svg.append(titled(draw('text', { x: label === 0 ? 2 : 0, y: label === 0 ? y + 13 : y + 17, class: 'who', direction: 'ltr' }, `\u2068${cut}\u2069`), text));
    const mid = label === 0 ? y + 28 : y + LANE / 2;
    svg.append(draw('line', { x1: label, x2: width - 8, y1: mid, y2: mid, class: 'rail' }));
    for (const part of parts) {
      const start = x(part.start);
      const wide = Math.max(2, x(part.end ?? now) - start);
      const isHeld = part.what === 'held';
      const bar = draw('rect', {
        x: start, y: mid - (isHeld ? 8 : 3.5), width: wide, height: isHeld ? 16 : 7, rx: isHeld ? 4 : 3.5,
        class: `${part.what} ${part.end === null ? 'open' : ''} ${part.how === 'lost' ? 'lost' : ''}`,
      });
      svg.append(titled(bar, sentence(part, now)));
      if (part.how === 'lost' && part.end >= from) {
        const at = x(part.end);
        svg.append(draw('path', { d: `M${at - 5} ${mid - 5}l10 10m0 -10l-10 10`, class: 'cross' }));
      }
      if (isHeld) places.set(part, mid);
    }
  });

  // Each hold that began when another one ended: the lock went from hand to hand.
  const holds = [...places.keys()].sort((a, b) => a.start - b.start);
  for (const next of holds) {
    const before = holds.find((one) => one !== next && one.end !== null && one.who !== next.who
      && Math.abs(one.end - next.start) < Math.max(400, span / 400) && one.start <= next.start);
    if (!before || next.start < from) continue;
    const at = x(next.start);
    const [y1, y2] = [places.get(before), places.get(next)];
    const down = y2 > y1 ? 1 : -1;
    svg.append(draw('path', { d: `M${at} ${y1 + 8 * down}V${y2 - 9 * down}m-3.5 ${-4 * down}l3.5 ${4 * down}l3.5 ${-4 * down}`, class: 'handover' }));
  }
  svg.append(draw('line', { x1: x(now), x2: x(now), y1: 0, y2: height - AXIS + 4, class: 'now' }));

  const open = shown.flatMap(([, parts]) => parts).filter((part) => part.end === null);
  const text = open.length > 0 ? open.map((part) => sentence(part, now)).join('. ') : 'Nobody holds it or waits for it now.';
  svg.setAttribute('aria-label', `The last ${length(span)}: ${text}`);
  return { svg, more, isEmpty: shown.length === 0 };
}

/** What the marks of the picture mean. */
export function legend() {
  const item = (mark, text) => el('li', '', el('i', `mark ${mark}`), text);
  return el('ul', 'legend', item('held', 'held'), item('waited', 'waited'), item('lost', 'lost'), item('handover', 'passed on'));
}

/** The stretches as text, the newest first. */
export function story(past, most = 60) {
  const list = el('ol', 'story');
  for (const event of past.events.slice(0, most)) {
    const time = el('time', '', moment(event.at_ms));
    time.dateTime = new Date(event.at_ms).toISOString();
    list.append(el('li', event.event, time, el('span', 'what', word(event)), event.why ? bdi(`by ${event.forced_by}: ${event.why}`, 'by') : event.holder ? bdi(event.holder, 'by') : el('span', 'by', fact(event))));
  }
  return list;
}

const EVENTS = {
  granted: 'granted', waiting: 'waits', withdrawn: 'gave up waiting', released: 'released', lost: 'lost', handed_over: 'handed over',
  suspect: 'in doubt', forced: 'taken away', closing: 'the service is stopping',
  unreachable: 'the store does not answer', reachable: 'the store answers again',
};

// A number of waiters that was seen in the store: who came or went is not known.
const SEEN = { waiting: 'more wait', withdrawn: 'fewer wait' };

export const word = (event) => ((event.by === 'store' && SEEN[event.event]) || (EVENTS[event.event] ?? event.event)) + (event.reason ? ` (${event.reason.replaceAll('_', ' ')})` : '');

export const fact = (event) => {
  if (event.waiters !== undefined) return `${event.waiters} waiting`;
  if (event.lasted_ms !== undefined) return `after ${length(event.lasted_ms)}`;
  return event.token ? `token ${event.token}` : '';
};
