// Locks of JavaScript in the words of `src/roles.rs`: `locks.js KIND URL TTL_MS NUMBER`.
//
// A lock is a function of a key that takes it and returns the function that gives it back; it may give up after a
// moment that it is told, and then returns nothing.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");
const { default: Redis } = require("ioredis");

const [kind, url, ttl, number] = process.argv.slice(2);
const now = () => process.hrtime.bigint();
const say = (...words) => fs.writeSync(1, words.join(" ") + "\n");
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = async () => (await input.next()).value;
// A client for each server of `redis://HOST:PORT` or `redlock://HOST:PORT,HOST:PORT,...`.
const clients = url.split("://")[1].split(",").map((host) => new Redis(`redis://${host}`));
const over = (until) => until !== undefined && now() >= until;

const kinds = {
  // redlock 5: polls every 100 to 300 ms, gives up after ten tries and is asked again. Over several servers losers
  // keep each other out for minutes, so they have to end sometime.
  redlock() {
    const { default: Redlock, ExecutionError } = require("redlock");
    const redlock = new Redlock(clients);
    return async (key, until) => {
      while (!over(until)) {
        try {
          const lock = await redlock.acquire([key], 30000);
          return { release: () => lock.release() };
        } catch (error) {
          if (!(error instanceof ExecutionError)) throw error;
        }
      }
    };
  },

  // The RedlockMutex of redis-semaphore: polls every 10 ms, gives up after 10 s and is asked again.
  mutex() {
    const { RedlockMutex, TimeoutError } = require("redis-semaphore");
    return async (key, until) => {
      while (!over(until)) {
        const mutex = new RedlockMutex(clients, key, { lockTimeout: 30000 });
        try {
          await mutex.acquire();
          return { release: () => mutex.release() };
        } catch (error) {
          if (!(error instanceof TimeoutError)) throw error;
        }
      }
    };
  },

  // The Mutex of redis-semaphore: renews each lock by itself after 0.8 of its ttl.
  semaphore() {
    const { Mutex } = require("redis-semaphore");
    return async (key) => {
      const mutex = new Mutex(clients[0], key, { lockTimeout: Number(ttl) || 10000 });
      await mutex.acquire();
      return { release: () => mutex.release(), held: () => mutex.isAcquired };
    };
  },
};

// Counts in the buckets of `src/times.rs`.
class Times {
  counts = new Map();

  record(nanos) {
    const bucket = Math.min(Math.floor(Math.log2(Math.max(Number(nanos), 1)) * 16), 639);
    this.counts.set(bucket, (this.counts.get(bucket) ?? 0) + 1);
  }

  toString() {
    return ["times", ...[...this.counts].map(([bucket, count]) => `${bucket}:${count}`)].join(" ");
  }
}

async function turns(take, key, until, scene, name, all) {
  for (let start = now(); start < until; ) {
    const lock = await take(key, scene && until);
    const acquired = now();
    all.acquires.record(acquired - start);
    if (lock === undefined) return;
    if (!scene) all.pairs[name.n] += 1;
    // What comes too late is no turn: then everybody gives up the contest.
    else if (acquired < until) {
      const seen = Buffer.alloc(8);
      fs.readSync(scene, seen, 0, 8, 0);
      fs.writeSync(scene, name.bytes, 0, 8, 0);
      all.pairs[name.n] += 1;
      all.handovers += seen.equals(name.bytes) ? 0 : 1;
      fs.readSync(scene, seen, 0, 8, 0);
      all.overlaps += seen.equals(name.bytes) ? 0 : 1;
    }
    await lock.release();
    const end = now();
    all.cycles.record(end - start);
    start = end;
  }
}

async function cycle(take, count, until, path) {
  const scene = path && fs.openSync(path, "r+");
  const all = { handovers: 0, overlaps: 0, pairs: [], acquires: new Times(), cycles: new Times() };
  const [before, start] = [process.cpuUsage(), now()];
  const tasks = [];
  for (let n = 0; n < count; n++) {
    const bytes = Buffer.alloc(8);
    bytes.writeBigUInt64LE((1n << 63n) | (BigInt(number) << 32n) | BigInt(n));
    all.pairs.push(0);
    tasks.push(turns(take, scene ? "bench" : `bench/${n}`, until, scene, { n, bytes }, all));
  }
  await Promise.all(tasks);
  const { user, system } = process.cpuUsage(before);
  const seconds = Number(now() - start) / 1e9;
  say(all.handovers, all.overlaps, seconds, user + system, ...all.pairs, all.acquires, all.cycles);
}

async function main() {
  const take = kinds[kind]();
  const stock = [];
  await (await take(`warm/${process.pid}`)).release();
  say("ready");
  for (let text = await line(); text !== undefined; text = await line()) {
    const [word, ...rest] = text.split(" ");
    if (word === "cycle") await cycle(take, Number(rest[0]), BigInt(rest[1]), rest[2]);
    else if (word === "hold") {
      const lock = await take("bench");
      say("acquired", now());
      await line();
      const released = now();
      await lock.release();
      say("released", released);
    } else if (word === "take") {
      while (stock.length < Number(rest[0])) stock.push(await take(`stock/${stock.length}`));
      say("taken");
    } else if (word === "held") say(stock.filter((lock) => lock.held()).length);
    else if (word === "cpu") {
      const { user, system } = process.cpuUsage();
      say(user + system);
    } else break;
  }
  process.exit(0);
}

main();
