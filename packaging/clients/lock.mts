// Holds a lock of `latchwork serve` while standard input is open, and prints held, lost or released.
//
//   node lock.mts http://localhost:7117 nightly
//
// Exit code 73: the lock was lost, and the work may have overlapped with that of another holder. Its types are in
// comments, so that every Node.js runs it as it is (rename it to .mjs before version 22.18).

const [base, name] = process.argv.slice(2);
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

function lost() {
  console.log("lost");
  process.exit(73);
}

// The same key is the same claim: a retry after a lost answer gets the same hold.
const headers = { "Idempotency-Key": crypto.randomUUID() };
const path = `/v1/locks/${encodeURIComponent(name)}`;
const wish = { ttl_ms: ttl, wait_ms: ttl * 10 };
const acquire = () => ask("POST", path, wish, headers);
const held = await acquire().catch(acquire).catch(acquire);
if (held.status !== 200) {
  console.error("not acquired:", held.error);
  process.exit(75);
}
let until = held.sent + held.valid_for_ms;
let renewIn = held.renew_in_ms;
console.log("held", held.token); // give the token to the resource: text, because it exceeds 2^53

let working = true; // the work: here, until standard input ends
const done = new Promise((resolve) => process.stdin.resume().on("end", resolve)).then(() => (working = false));
for (;;) {
  const pause = Math.max(0, Math.min(renewIn, until - performance.now()));
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, pause))]);
  if (!working) break;
  const left = until - performance.now();
  if (left <= 0) lost();
  try {
    const next = await ask("POST", `/v1/holds/${held.hold}/renew`, undefined, {}, left);
    if (next.status === 200) {
      until = next.sent + next.valid_for_ms;
      renewIn = next.renew_in_ms;
      continue;
    }
    if (next.status === 404 || next.status === 410) lost();
  } catch {
    // Try again, for as long as it is valid.
  }
  renewIn = 100;
}
const released = await ask("DELETE", `/v1/holds/${held.hold}`, undefined, {}, 10000);
if (released.status !== 200) lost();
console.log("released");
process.exit(0);
