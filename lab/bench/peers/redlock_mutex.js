// The RedlockMutex of redis-semaphore over ioredis: polls every 10 ms, gives up after 10 s and is asked again.
"use strict";

const { default: Redis } = require("ioredis");
const { RedlockMutex, TimeoutError } = require("redis-semaphore");
const roles = require("./roles.js");

const clients = roles.servers((url) => new Redis(url));

async function take(key, until) {
  while (!roles.over(until)) {
    const mutex = new RedlockMutex(clients, key, { lockTimeout: 30000 });
    try {
      await mutex.acquire();
      return () => mutex.release();
    } catch (error) {
      if (!(error instanceof TimeoutError)) throw error;
    }
  }
}

roles.main({ take });
