// What a process of a measurement does, for locks in JavaScript.
//
// A lock is a function of a key that takes it and returns the function that gives it back.
// `contend URL SCENE TASKS NUMBER`, `handoff URL` and `held URL COUNT TTL` speak the words of the
// Rust child.
"use strict";

const fs = require("node:fs");
const readline = require("node:readline");

const now = () => process.hrtime.bigint();
const say = (...words) => fs.writeSync(1, words.join(" ") + "\n");
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const input = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const line = async () => (await input.next()).value;

function work(task) {
  const seen = Buffer.alloc(8);
  fs.readSync(task.scene, seen, 0, 8, 0);
  fs.writeSync(task.scene, task.name, 0, 8, 0);
  task.pairs += 1;
  task.handovers += seen.equals(task.name) ? 0 : 1;
  fs.readSync(task.scene, seen, 0, 8, 0);
  task.overlaps += seen.equals(task.name) ? 0 : 1;
}

async function turns(take, task, until) {
  while (now() < until) {
    const release = await take("bench");
    // What comes too late is not counted: then everybody gives up the contest.
    if (now() < until) work(task);
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
  await Promise.all(tasks.map((task) => turns(take, task, until)));
  const cpu = process.cpuUsage(before);
  const sum = (what) => tasks.reduce((total, task) => total + task[what], 0);
  const pairs = tasks.map((task) => task.pairs);
  say(sum("handovers"), sum("overlaps"), cpu.user + cpu.system, ...pairs);
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

// As in Rust. Takes many with `hold(key, ttl)`, which returns the function that tells whether it still holds.
async function held(hold, count, ttl) {
  const locks = [];
  for (let n = 0; n < count; n++) locks.push(await hold(`stock/${n}`, ttl));
  say("ready");
  while ((await line()) === "cpu") {
    const { user, system } = process.cpuUsage();
    say(user + system);
  }
  say(locks.filter((still) => still()).length);
}

exports.main = async (lock) => {
  const [role, , ...rest] = process.argv.slice(2);
  if (role === "contend") await contend(lock.take, rest[0], Number(rest[1]), Number(rest[2]));
  else if (role === "handoff") await handoff(lock.take);
  else await held(lock.hold, Number(rest[0]), Number(rest[1]));
  process.exit(0);
};
