// Requests to the service. The token is in a header and never in an address.

/** Where the service is: a proxy may have it below a path of its own. */
export const base = new URL('../', import.meta.url);

const KEY = 'latchwork-token';
let token = sessionStorage.getItem(KEY) ?? '';

export const hasToken = () => token !== '';

/** Uses this token from now on; kept for this tab only if so asked, else until the page is left. */
export function setToken(text, keep) {
  token = text;
  sessionStorage.removeItem(KEY);
  if (keep && text) sessionStorage.setItem(KEY, text);
}

/** What the service answers instead of a success. */
export class Refused extends Error {
  constructor(status, body) {
    super(body?.error ?? `the service answered with ${status}`);
    this.status = status;
    this.kind = body?.kind ?? '';
    this.step = body?.next_step ?? '';
  }
}

async function send(path, options = {}) {
  const headers = { Accept: 'application/json', ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(new URL(path, base), { cache: 'no-store', credentials: 'omit', redirect: 'error', ...options, headers });
  if (answer.ok) return answer;
  let body = null;
  try { body = await answer.json(); } catch { /* not ours */ }
  throw new Refused(answer.status, body);
}

export async function get(path, signal) {
  return (await send(path, { signal })).json();
}

async function post(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' };
  return (await send(path, { method: 'POST', headers, body: JSON.stringify(body), signal })).json();
}

// A head has at most 64 KiB, for a proxy often 8: a longer name goes into the body.
const isLong = (text) => encodeURIComponent(text).length > 4_000;

// No proxy changes a name in a query.
const named = (path, name) => `${path}?name=${encodeURIComponent(name)}`;

/** Reads one lock. */
export const lock = (name) => (isLong(name) ? post('v1/lock/show', { name }) : get(named('v1/lock', name)));

/** Does something to a lock. */
export const act = (name, what, body) => {
  const path = `v1/lock/${what}`;
  return isLong(name) ? post(path, { name, ...body }) : post(named(path, name), body);
};

/** Reads all that is held, waited for or closed, part by part; returns the number of the last event before. */
export async function allLocks(take, signal) {
  let after = null;
  let last = null;
  do {
    const more = after === null ? '' : `&after=${encodeURIComponent(after)}`;
    const part = await (isLong(after ?? '') ? post('v1/lock/list', { limit: 1000, after }, signal) : get(`v1/locks?limit=1000${more}`, signal));
    if (signal.aborted) return last;
    take(part.locks);
    last ??= part.last_event;
    after = part.next ?? null;
  } while (after !== null);
  return last;
}

// The service writes a comment every 10 s.
const SILENCE = 25_000;

/** Follows the events behind this number until the stream ends. EventSource cannot send a token in a header. */
export async function follow(after, hear, signal) {
  const inner = new AbortController();
  const stop = () => inner.abort();
  signal.addEventListener('abort', stop);
  let watch = setTimeout(stop, SILENCE);
  try {
    const answer = await send(`v1/events?after=${after}`, { signal: inner.signal, headers: { Accept: 'text/event-stream' } });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(stop, SILENCE);
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) hearBlock(block, hear);
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener('abort', stop);
    inner.abort();
  }
}

function hearBlock(block, hear) {
  let type = 'message';
  const data = [];
  for (const line of block.split('\n')) {
    if (line.startsWith('event:')) type = line.slice(6).trim();
    else if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
  }
  if (data.length > 0) hear(type, JSON.parse(data.join('\n')));
}
