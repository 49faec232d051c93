// redlock 5 over ioredis: polls every 100 to 300 ms, gives up after ten tries and is asked again.
"use strict";

const { default: Redis } = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");
const roles = require("./roles.js");

const redlock = new Redlock(roles.servers((url) => new Redis(url)));

// Over several servers losers keep each other out for minutes, so they have to end sometime.
async function take(key, until) {
  while (!roles.over(until)) {
    try {
      const lock = await redlock.acquire([key], 30000);
      return () => lock.release();
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
    }
  }
}

roles.main({ take });
