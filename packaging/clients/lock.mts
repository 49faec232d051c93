// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released. Several locks belong
// to a session, which one request renews.
//
//   node lock.mts http://localhost:7117 nightly
//   node lock.mts http://localhost:7117 stock/1 stock/2
//
// Exit code 73: the lock was lost, or nobody answered to its release: the work may have overlapped with that of another
// holder. Its types are in comments, so that every Node.js runs it as it is (rename it to .mjs before version 22.18).

const [base, ...names] = process.argv.slice(2);
const ttl = Number(process.env.TTL_MS ?? 15000);

/**
 * Sends a request. `sent` is from before that: `valid_for_ms` counts from there. The clock stands still while the
 * machine sleeps.
 *
 * @param {string} method @param {string} path @param {object} [body] @param {Record<string, string>} [headers]
 * @param {number} [limit] in milliseconds
 */
async function ask(method, path, body, headers = {}, limit = ttl * 12) {
  const sent = performance.now();
  const response = await fetch(base + path, {
    method,
    headers: { "Content-Type": "application/json", ...headers },
    body: body && JSON.stringify(body),
    signal: AbortSignal.timeout(Math.max(1, Math.floor(limit))),
  });
  return { status: response.status, sent, ...(await response.json()) };
}

async function lost() {
  console.log("lost");
  await ask("DELETE", mine, undefined, {}, 1000).catch(() => null); // the work must have ended here: this releases what is left
  process.exit(73);
}

/**
 * Repeats a request whose answer is lost, with the same key: it is the same claim, and gets the same hold.
 *
 * @param {string} path @param {object} wish
 */
async function acquire(path, wish) {
  const headers = { "Idempotency-Key": crypto.randomUUID() };
  const send = () => ask("POST", path, wish, headers);
  const held = await send().catch(send).catch(send);
  if (held.status === 200) return held;
  console.error("not acquired:", held.error);
  process.exit(75);
}

const session = names.length > 1 ? await acquire("/v1/sessions", { ttl_ms: ttl }) : null;
// In a session without a wait: nobody renews it meanwhile.
const wish = session ? { session: session.session } : { ttl_ms: ttl, wait_ms: ttl * 10 };
let kept = session; // what is renewed
for (const name of names) {
  const held = await acquire(`/v1/lock?name=${encodeURIComponent(name)}`, wish);
  console.log("held", held.token); // give the token to the resource: text, because it exceeds 2^53
  kept ??= held;
}
let until = kept.sent + kept.valid_for_ms;
let renewIn = kept.renew_in_ms;
const mine = session ? `/v1/sessions/${session.session}` : `/v1/holds/${kept.hold}`;

let working = true; // the work: here, until standard input ends
const done = new Promise((resolve) => process.stdin.resume().on("end", resolve)).then(() => (working = false));
for (;;) {
  const pause = Math.max(0, Math.min(renewIn, until - performance.now()));
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, pause))]);
  if (!working) break;
  const left = until - performance.now();
  if (left <= 0) await lost();
  try {
    const next = await ask("POST", `${mine}/renew`, undefined, {}, left);
    if (next.status === 200) {
      until = next.sent + next.valid_for_ms;
      renewIn = next.renew_in_ms;
      if (session && next.held.length < names.length) await lost(); // one of them
      continue;
    }
    if (next.status === 404 || next.status === 410) await lost();
  } catch {
    // Try again, for as long as it is valid.
  }
  renewIn = 100;
}
const released = await ask("DELETE", mine, undefined, {}, 10000).catch(() => null);
if (released?.status !== 200) await lost(); // also without an answer: nobody knows whether it was held until now
console.log("released");
process.exit(0);
