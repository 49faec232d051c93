"""What a process of a measurement does, for locks of asyncio: the role `free` of `roles.py`.

A lock is a function of a key that returns an object for `async with`.
"""

import array
import asyncio
import os
import sys
import time

from roles import Times, say


def main(connect, new_loop=asyncio.new_event_loop):
    role, url = sys.argv[1:]
    assert role == "free", role
    loop = new_loop()
    make = loop.run_until_complete(connect(url))
    loop.run_until_complete(warm(make))
    say("ready")
    for line in sys.stdin:
        tasks, length = map(int, line.split())
        loop.run_until_complete(free(make, tasks, length))


async def warm(make):
    async with make(f"warm/{os.getpid()}"):
        pass


async def free(make, tasks, length):
    # Put into buckets afterwards, which takes longer than a part of a cycle.
    times = [array.array("q") for _ in range(tasks)]
    before, start = time.process_time_ns(), time.monotonic_ns()
    until = start + length * 1_000_000

    async def cycles(n):
        lock, record = make(f"bench/{n}"), times[n].append
        begun = time.monotonic_ns()
        while begun < until:
            async with lock:
                pass
            now = time.monotonic_ns()
            record(now - begun)
            begun = now

    await asyncio.gather(*(cycles(n) for n in range(tasks)))
    took, cpu = time.monotonic_ns() - start, time.process_time_ns() - before
    done = sum(map(len, times))
    say(done / (took / 1e9), cpu / 1000 / done, Times.of(times))
