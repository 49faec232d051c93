// What a process of a measurement does, for locks in JavaScript.
//
// A lock is a function of a key that takes it and returns the function that gives it back; it may give up
// after a moment that it is told, and then returns nothing.
// `contend URL SCENE TASKS NUMBER`, `handoff URL`, `free URL`, `timed URL` and `held URL TTL`
// speak the words of the Rust child.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");

const now = () => process.hrtime.bigint();
const say = (...words) => fs.writeSync(1, words.join(" ") + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = async () => (await input.next()).value;

// Counts in the buckets of the Rust child's `times.rs`.
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

function work(task) {
  const seen = Buffer.alloc(8);
  fs.readSync(task.scene, seen, 0, 8, 0);
  fs.writeSync(task.scene, task.name, 0, 8, 0);
  task.pairs += 1;
  task.handovers += seen.equals(task.name) ? 0 : 1;
  fs.readSync(task.scene, seen, 0, 8, 0);
  task.overlaps += seen.equals(task.name) ? 0 : 1;
}

async function turns(take, task, until, times) {
  for (let start = now(); start < until; start = now()) {
    const release = await take("bench", until);
    const end = now();
    times.record(end - start);
    if (release === undefined) return;
    // What comes too late is no turn: then everybody gives up the contest.
    if (end < until) work(task);
    await release();
  }
}

async function contend(take, scene, count, number) {
  const file = fs.openSync(scene, "r+");
  const tasks = [];
  for (let n = 0; n < count; n++) {
    const name = Buffer.alloc(8);
    name.writeBigUInt64LE((1n << 63n) | (BigInt(number) << 32n) | BigInt(n));
    tasks.push({ scene: file, name, pairs: 0, handovers: 0, overlaps: 0 });
  }
  await (await take(`warm/${number}`))();
  say("ready");
  const until = BigInt(await line());
  const before = process.cpuUsage();
  const times = new Times();
  await Promise.all(tasks.map((task) => turns(take, task, until, times)));
  const cpu = process.cpuUsage(before);
  const sum = (what) => tasks.reduce((total, task) => total + task[what], 0);
  const pairs = tasks.map((task) => task.pairs);
  say(sum("handovers"), sum("overlaps"), cpu.user + cpu.system, ...pairs, times);
}

async function handoff(take) {
  await (await take(`warm/${process.pid}`))();
  say("ready");
  for (let text = await line(); text !== undefined; text = await line()) {
    const release = await take("bench");
    say("acquired", now());
    await sleep(Number(text));
    const released = now();
    await release();
    say("released", released);
  }
}

// As in Rust. For each line `TASKS MILLISECONDS` says how many cycles a second, the processor time of one, and
// how long they took.
async function free(take) {
  await (await take("warm"))();
  say("ready");
  for (let text = await line(); text !== undefined; text = await line()) {
    const [tasks, length] = text.split(" ").map(Number);
    const [before, start] = [process.cpuUsage(), now()];
    const until = start + BigInt(length) * 1000000n;
    let done = 0;
    const times = new Times();
    const cycles = async (key) => {
      for (let begun = now(); begun < until; begun = now()) {
        await (await take(key))();
        times.record(now() - begun);
        done += 1;
      }
    };
    await Promise.all(Array.from({ length: tasks }, (_, n) => cycles(`bench/${n}`)));
    const took = Number(now() - start);
    const { user, system } = process.cpuUsage(before);
    say(done / (took / 1e9), (user + system) / done, times);
  }
}

// As in Rust. For each line of milliseconds says how many cycles one task did, and what an acquire took.
async function timed(take) {
  await (await take("warm"))();
  say("ready");
  for (let text = await line(); text !== undefined; text = await line()) {
    const until = now() + BigInt(text) * 1000000n;
    const took = [];
    while (now() < until) {
      const start = now();
      const release = await take("bench");
      took.push(Number(now() - start) / 1e3);
      await release();
    }
    took.sort((a, b) => a - b);
    const at = (part) => took[Math.round((took.length - 1) * part)];
    say(took.length, at(0.5), at(0.99), at(1));
  }
}

// As in Rust. Takes many with `hold(key, ttl)`, which returns the function that tells whether it still holds.
async function held(hold, ttl) {
  const locks = [];
  say("ready");
  for (;;) {
    const [word, count] = (await line()).split(" ");
    if (word === "take") {
      while (locks.length < Number(count)) locks.push(await hold(`stock/${locks.length}`, ttl));
      say("taken");
    } else if (word === "cpu") {
      const { user, system } = process.cpuUsage();
      say(user + system);
    } else break;
  }
  say(locks.filter((still) => still()).length);
}

// Whether a moment is over; there may be none.
exports.over = (until) => until !== undefined && now() >= until;

// A client for each server of `redis://HOST:PORT` or `redlock://HOST:PORT,HOST:PORT,...`.
exports.servers = (connect) => {
  const [, hosts] = process.argv[3].split("://");
  return hosts.split(",").map((host) => connect(`redis://${host}`));
};

exports.main = async (lock) => {
  const [role, , ...rest] = process.argv.slice(2);
  if (role === "contend") await contend(lock.take, rest[0], Number(rest[1]), Number(rest[2]));
  else if (role === "handoff") await handoff(lock.take);
  else if (role === "free") await free(lock.take);
  else if (role === "timed") await timed(lock.take);
  else await held(lock.hold, Number(rest[0]));
  process.exit(0);
};
