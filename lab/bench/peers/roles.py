"""What a process of a measurement does, for locks in Python.

A lock is a function of a key that returns an object with `acquire` and `release`.
`contend URL SCENE TASKS NUMBER`, `handoff URL` and `free URL` speak the words of the Rust child.
"""

import array
import collections
import itertools
import math
import os
import struct
import sys
import threading
import time


class Times(collections.Counter):
    """Counts in the buckets of the Rust child's `times.rs`."""

    def record(self, nanos):
        self[min(int(math.log2(max(nanos, 1)) * 16), 639)] += 1

    @classmethod
    def of(cls, recorded):
        times = cls()
        for nanos in itertools.chain.from_iterable(recorded):
            times.record(nanos)
        return times

    def __str__(self):
        return "times " + " ".join(f"{bucket}:{count}" for bucket, count in sorted(self.items()))


def merged(all_times):
    total = Times()
    for times in all_times:
        total.update(times)
    return total


def main(connect):
    role, url, *rest = sys.argv[1:]
    make = connect(url)
    if role == "contend":
        scene, tasks, number = rest
        contend(make, os.open(scene, os.O_RDWR), int(tasks), int(number))
    elif role == "free":
        free(make)
    else:
        handoff(make)


def say(*words):
    print(*words, flush=True)


class Task(threading.Thread):
    def __init__(self, make, scene, name, barrier, window):
        super().__init__()
        self.lock, self.warm = make("bench"), make(f"warm/{name}")
        self.scene, self.owner = scene, struct.pack("<Q", name | 1 << 63)
        self.barrier, self.window = barrier, window
        self.pairs = self.handovers = self.overlaps = 0
        self.times = Times()

    def run(self):
        self.warm.acquire()
        self.warm.release()
        self.barrier.wait()
        self.barrier.wait()
        until = self.window["until"]
        while (start := time.monotonic_ns()) < until:
            self.lock.acquire()
            end = time.monotonic_ns()
            self.times.record(end - start)
            # What comes too late is no turn: then everybody gives up the contest.
            if end < until:
                self.work()
            self.lock.release()

    def work(self):
        last = os.pread(self.scene, 8, 0)
        os.pwrite(self.scene, self.owner, 0)
        self.pairs += 1
        self.handovers += last != self.owner
        self.overlaps += os.pread(self.scene, 8, 0) != self.owner


def contend(make, scene, tasks, number):
    barrier, window = threading.Barrier(tasks + 1), {}
    threads = [Task(make, scene, number << 32 | n, barrier, window) for n in range(tasks)]
    for thread in threads:
        thread.start()
    barrier.wait()
    say("ready")
    window["until"] = int(sys.stdin.readline())
    before = time.process_time_ns()
    barrier.wait()
    for thread in threads:
        thread.join()
    cpu = (time.process_time_ns() - before) / 1000
    handovers = sum(thread.handovers for thread in threads)
    overlaps = sum(thread.overlaps for thread in threads)
    times = merged(thread.times for thread in threads)
    say(handovers, overlaps, cpu, *(thread.pairs for thread in threads), times)


def handoff(make):
    lock, warm = make("bench"), make(f"warm/{os.getpid()}")
    warm.acquire()
    warm.release()
    say("ready")
    for line in sys.stdin:
        lock.acquire()
        say("acquired", time.monotonic_ns())
        time.sleep(int(line) / 1000)
        released = time.monotonic_ns()
        lock.release()
        say("released", released)


def free(make):
    """For each line `TASKS MILLISECONDS` says how many cycles a second, and what one took."""
    warm = make(f"warm/{os.getpid()}")
    warm.acquire()
    warm.release()
    say("ready")
    for line in sys.stdin:
        tasks, length = map(int, line.split())
        # Put into buckets afterwards, which takes longer than a part of a cycle.
        times = [array.array("q") for _ in range(tasks)]
        before, start = time.process_time_ns(), time.monotonic_ns()
        until = start + length * 1_000_000

        def cycles(n):
            lock, record = make(f"bench/{n}"), times[n].append
            begun = time.monotonic_ns()
            while begun < until:
                lock.acquire()
                lock.release()
                now = time.monotonic_ns()
                record(now - begun)
                begun = now

        threads = [threading.Thread(target=cycles, args=(n,)) for n in range(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took, cpu = time.monotonic_ns() - start, time.process_time_ns() - before
        done = sum(map(len, times))
        say(done / (took / 1e9), cpu / 1000 / done, Times.of(times))
