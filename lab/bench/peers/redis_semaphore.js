// The Mutex of redis-semaphore over ioredis: renews each lock by itself after 0.8 of its ttl.
"use strict";

const { default: Redis } = require("ioredis");
const { Mutex } = require("redis-semaphore");
const roles = require("./roles.js");

const client = new Redis(process.argv[3]);

async function hold(key, ttl) {
  const mutex = new Mutex(client, key, { lockTimeout: ttl });
  await mutex.acquire();
  return () => mutex.isAcquired;
}

roles.main({ hold });
