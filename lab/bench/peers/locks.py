"""Locks of Python in the words of `src/roles.rs`: `locks.py KIND URL TTL_MS NUMBER`."""

import array
import asyncio
import collections
import itertools
import math
import os
import resource
import struct
import sys
import threading
import time


# Each makes locks by their keys: with `acquire` and `release`, or for `async with`.


def redis(url):
    from redis import Redis

    client = Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


def redis_lock(url):
    import redis_lock
    from redis import StrictRedis

    client = StrictRedis.from_url(url)
    return lambda key: redis_lock.Lock(client, key, expire=30)


def pottery(url):
    import pottery
    from redis import Redis

    masters = {Redis.from_url(url)}
    return lambda key: pottery.Redlock(key=key, masters=masters, auto_release_time=30)


def kazoo(url):
    from kazoo.client import KazooClient

    hosts, _, chroot = url.removeprefix("zk://").partition("/")
    client = KazooClient(hosts, timeout=30)
    client.start()
    return lambda key: client.Lock(f"/{chroot}/{key}")


def etcd3gw(url):
    import etcd3gw

    host, port = url.removeprefix("etcd://").split(":")
    client = etcd3gw.client(host=host, port=int(port))
    return lambda key: client.lock(key, ttl=30)


def pals(url):
    import pals
    import sqlalchemy

    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"), pool_size=64)
    return pals.Locker("bench", create_engine_callable=lambda: engine).lock


def filelock(url):
    import filelock

    folder = url.removeprefix("file://") + "-filelock"
    os.makedirs(folder, exist_ok=True)
    return lambda key: filelock.FileLock(f"{folder}/{key.replace('/', '-')}.lock")


class Guarded:
    """A guard is the caller's; the roles keep it in the lock."""

    def __init__(self, lock):
        self.lock = lock

    def acquire(self):
        self.guard = self.lock.acquire()

    def release(self):
        self.guard.release()

    def held(self):
        return self.guard.state == "held"


def latchwork(url, ttl=0):
    import latchwork

    locks = latchwork.connect(url, **({"ttl": ttl / 1000} if ttl else {}))
    return lambda key: Guarded(locks.lock(key))


async def latchwork_aio(url):
    from latchwork import aio

    locks = await aio.connect(url)
    return locks.lock


async def redis_asyncio(url):
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


async def aetcd(url):
    import aetcd

    host, port = url.removeprefix("etcd://").split(":")
    client = aetcd.Client(host=host, port=int(port))
    await client.connect()
    return lambda key: client.lock(key.encode(), ttl=30)


async def asyncio_alone(url):
    """No lock: what asyncio itself takes for two waits. Each future completes in the next turn of the loop."""
    loop, waiting = asyncio.get_running_loop(), []

    def turn():
        futures = waiting.copy()
        waiting.clear()
        for future in futures:
            future.set_result(None)

    class Nothing:
        async def __aenter__(self):
            future = loop.create_future()
            if not waiting:
                loop.call_soon(turn)
            waiting.append(future)
            await future

        async def __aexit__(self, *_):
            await self.__aenter__()

    return lambda key: Nothing()


ASYNC = {"latchwork.aio": latchwork_aio, "redis.asyncio": redis_asyncio, "aetcd": aetcd, "asyncio": asyncio_alone}


def say(*words):
    print(*words, flush=True)


def times(recorded):
    """The buckets of `src/times.rs`."""
    counts = collections.Counter(min(int(math.log2(max(nanos, 1)) * 16), 639) for nanos in itertools.chain(*recorded))
    return "times " + " ".join(f"{bucket}:{count}" for bucket, count in sorted(counts.items()))


class Task:
    """What it does is put into buckets afterwards, which takes longer than a part of a cycle."""

    def __init__(self, lock, until, scene, name):
        self.lock, self.until, self.scene, self.owner = lock, until, scene, struct.pack("<Q", name | 1 << 63)
        self.pairs = self.handovers = self.overlaps = 0
        self.acquires, self.cycles = array.array("q"), array.array("q")

    def run(self):
        start = time.monotonic_ns()
        while start < self.until:
            self.lock.acquire()
            acquired = time.monotonic_ns()
            self.has(start, acquired)
            self.lock.release()
            end = time.monotonic_ns()
            self.cycles.append(end - start)
            start = end

    async def run_async(self):
        start = time.monotonic_ns()
        while start < self.until:
            async with self.lock:
                self.has(start, time.monotonic_ns())
            end = time.monotonic_ns()
            self.cycles.append(end - start)
            start = end

    def has(self, start, acquired):
        self.acquires.append(acquired - start)
        if self.scene is None:
            self.pairs += 1
        # What comes too late is no turn: then everybody gives up the contest.
        elif acquired < self.until:
            last = os.pread(self.scene, 8, 0)
            os.pwrite(self.scene, self.owner, 0)
            self.pairs += 1
            self.handovers += last != self.owner
            self.overlaps += os.pread(self.scene, 8, 0) != self.owner


def cycle(make, loop, tasks, until, scene=None, number=0):
    if scene is not None:
        scene = os.open(scene, os.O_RDWR)
    before, start = time.process_time_ns(), time.monotonic_ns()
    keys = [f"bench/{n}" if scene is None else "bench" for n in range(int(tasks))]
    tasks = [Task(make(key), int(until), scene, int(number) << 32 | n) for n, key in enumerate(keys)]
    if loop:

        async def all_of_them():
            await asyncio.gather(*(task.run_async() for task in tasks))

        loop.run_until_complete(all_of_them())
    else:
        threads = [threading.Thread(target=task.run) for task in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    seconds, cpu = (time.monotonic_ns() - start) / 1e9, (time.process_time_ns() - before) / 1000
    handovers, overlaps = sum(task.handovers for task in tasks), sum(task.overlaps for task in tasks)
    took = times(task.acquires for task in tasks), times(task.cycles for task in tasks)
    say(handovers, overlaps, seconds, cpu, *(task.pairs for task in tasks), *took)


def hold(lock):
    lock.acquire()
    say("acquired", time.monotonic_ns())
    sys.stdin.readline()
    released = time.monotonic_ns()
    lock.release()
    say("released", released)


def main(kind, url, ttl, _number):
    name, _, on = kind.partition("+")
    stock, loop, bench = [], None, None
    if name in ASYNC:
        if on:
            import uvloop
        loop = uvloop.new_event_loop() if on else asyncio.new_event_loop()
        make = loop.run_until_complete(ASYNC[name](url))
    else:
        make = latchwork(url, int(ttl)) if name == "latchwork" else globals()[name](url)
        warm = make(f"warm/{os.getpid()}")
        warm.acquire()
        warm.release()
    say("ready")
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "cycle":
            cycle(make, loop, *rest)
        elif word == "hold":
            bench = bench or make("bench")
            hold(bench)
        elif word == "take":
            while len(stock) < int(rest[0]):
                stock.append(make(f"stock/{len(stock)}"))
                stock[-1].acquire()
            say("taken")
        elif word == "held":
            say(sum(lock.held() for lock in stock))
        elif word == "cpu":
            used = resource.getrusage(resource.RUSAGE_SELF)
            say((used.ru_utime + used.ru_stime) * 1e6)


main(*sys.argv[1:])
