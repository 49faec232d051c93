# Latchwork's own package for Python. Half of the acquires block a thread; the others are awaited in a loop of asyncio, one for each
# thread, and cancelled when their time is over.

import asyncio

import latchwork
from latchwork import aio

FAILURES = latchwork.LatchworkError


class Latchwork:
    def __init__(self, worker):
        self.worker, self.store, self.ttl = worker, worker.orders["store"], worker.ttl / 1e9
        self.locks = latchwork.connect(self.store, ttl=self.ttl)
        self.mine, self.loops = threading.local(), []

    def acquire(self, key, patience, luck):
        name, patience = self.worker.name(key), patience / 1e9
        try:
            if luck.random() < 0.5:
                return Hold(self.worker, self.locks.lock(name).acquire(patience))
            run, locks = self.of_tasks()
            return Hold(self.worker, run(asyncio.wait_for(locks.lock(name).acquire(), patience)), run)
        except (latchwork.TimedOut, asyncio.TimeoutError):
            return None

    def of_tasks(self):
        """What runs a coroutine in this thread's loop, and a connection of that loop."""
        if not hasattr(self.mine, "way"):
            run = asyncio.new_event_loop().run_until_complete
            self.mine.way = run, run(aio.connect(self.store, ttl=self.ttl))
            self.loops.append(self.mine.way)
        return self.mine.way

    def close(self):
        for run, locks in self.loops:
            run(locks.close())
        self.locks.close()


class Hold:
    # The package renews all of them.
    longest = 2.0

    def __init__(self, worker, guard, run=lambda done: done):
        self.worker, self.guard, self.run = worker, guard, run
        self.seen, self.token = boot_time(), guard.token

    def check(self, at):
        try:
            self.guard.ensure_held()
            # The clock first: what remains is less by the time between the two.
            return boot_time() + int(self.guard.remaining * 1e9)
        except latchwork.Suspect:
            return None
        except latchwork.Lost as lost:
            raise Lost(boot_time(), lost.reason) from None

    def extend(self, at):
        """The package does that."""

    def release(self):
        try:
            self.run(self.guard.release())
            return "yes"
        except latchwork.NotHeld:
            return "not_held"
        except FAILURES:
            return "failed"

    def give_up(self):
        self.release()


main(Latchwork)
