"""A worker that locks with another client than Latchwork and writes the history of docs/history.md.

It takes a number of tasks, and the orders of Latchwork's own workers as flags. The client's own file follows this one in the
same program. It defines `connect(worker)`, which returns what makes locks: `acquire(key, patience, luck)` returns a hold, or None
if the patience is over. A hold has

- `token`, the number that the store gave it, or 0 if it gives none,
- `seen`, when the holder asked the store for what it has, or before,
- `longest`, how long a long hold may be, in ttls,
- `check(at)`, which returns until when the holder relies on it if it asks at that time, None if that is in doubt, or raises Lost,
- `extend(at)`, which makes it last longer, if it is time for that, or raises Lost,
- `release()`, which returns yes, not_held or failed,
- `give_up()`, after a loss: deletes at the store what may be left of it.
"""

import os
import random
import socket
import sys
import threading
import time

MS = 1_000_000
# How long the holds of each kind of key are at most, in ttls; the client decides about the long ones.
LENGTHS = {"hot": 0.003, "fair": 0.05, "long": None}


def boot_time():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Lost(Exception):
    def __init__(self, since, reason):
        super().__init__(reason)
        self.since, self.reason = since, reason


class Log:
    """One line for an event, and one write for a line."""

    def __init__(self, path, process):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.process = process

    def note(self, task, event, at=None, **values):
        words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
        line = " ".join([str(at or boot_time()), self.process, "-" if task is None else str(task), event, *words])
        os.write(self.file, (line + "\n").encode())


class Desk:
    """A way to the resource. A holder without a number writes nothing: it only says that it holds."""

    def __init__(self, path, by):
        self.by = by
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.connect(path)
        self.lines = self.stream.makefile("r")

    def write(self, key, attempt, token):
        self.stream.sendall(f"{key} {self.by} {attempt} {token or '-'}\n".encode())
        return self.lines.readline() == "1\n"


class Worker:
    def __init__(self, tasks, orders):
        self.tasks, self.orders = tasks, orders
        self.ttl = int(float(orders["ttl"][:-2]) * MS)
        self.log = Log(orders["log"], orders["name"])
        self.closing = threading.Event()
        self.attempts, self.numbers = 0, threading.Lock()
        self.log.note(None, "started", pid=os.getpid(), seed=orders["seed"])

    def name(self, key):
        return f"{self.orders['namespace']}:{key}"

    def valid_from(self, since):
        """The end of a ttl that began then, less what clocks may differ."""
        return since + self.ttl - self.ttl // 100 - 2 * MS

    def next_attempt(self):
        with self.numbers:
            self.attempts += 1
            return self.attempts

    def watch_stalls(self):
        nap = 0.02
        while not self.closing.is_set():
            before = boot_time()
            time.sleep(nap)
            now = boot_time()
            length = now - before - int(nap * 1e9)
            if length >= 4 * MS:
                self.log.note(None, "stalled", at=now, length=length)

    def life(self, task, locks):
        luck = random.Random(f"{self.orders['seed']}/{task}")
        desk = Desk(self.orders["resource"], self.orders["name"])
        while not self.closing.is_set():
            time.sleep(luck.uniform(0, 0.03))
            kind = luck.choice(list(LENGTHS))
            key = f"{kind}{luck.randrange(int(self.orders['keys']))}"
            self.turn(task, locks, luck, desk, key, kind)

    def turn(self, task, locks, luck, desk, key, kind):
        attempt = self.next_attempt()
        self.log.note(task, "try", attempt=attempt, key=key, mode="exclusive", fair=False, waits=True, several=False)
        try:
            hold = locks.acquire(key, luck.uniform(0.5, 2.0) * self.ttl, luck)
        except Exception as error:
            print(f"attempt {attempt} on {key}: {error!r}", file=sys.stderr, flush=True)
            return self.log.note(task, "gave_up", attempt=attempt, why="failed")
        if hold is None:
            return self.log.note(task, "gave_up", attempt=attempt, why="timed_out")
        told = boot_time()
        try:
            valid_until = hold.check(hold.seen)
        except Lost:
            valid_until = None
        if valid_until is None:
            hold.give_up()
            return self.log.note(task, "gave_up", attempt=attempt, why="failed")
        self.log.note(task, "granted", attempt=attempt, token=hold.token, ttl=self.ttl, valid_until=valid_until)
        longest = LENGTHS[kind] or hold.longest
        try:
            self.work(task, desk, attempt, key, hold, told + int(luck.uniform(0, longest) * self.ttl))
        except Lost as lost:
            self.log.note(task, "lost", attempt=attempt, since=max(lost.since, told), reason=lost.reason)
            self.write(task, desk, key, attempt, hold)
            return hold.give_up()
        self.log.note(task, "released", attempt=attempt, answer=hold.release())

    def work(self, task, desk, attempt, key, hold, until):
        """Checks and writes in steps until the time is over."""
        while True:
            asked = boot_time()
            valid_until = hold.check(asked)
            if valid_until is None:
                self.log.note(task, "suspect", attempt=attempt)
                time.sleep(self.ttl / 1e9 / 20)
                continue
            self.log.note(task, "held", at=asked, attempt=attempt, valid_until=valid_until)
            if asked >= until:
                # It relied on it until the last time that it asked.
                return self.log.note(task, "releasing", at=asked, attempt=attempt, how="release")
            hold.extend(asked)
            self.write(task, desk, key, attempt, hold)
            ends = min(until, valid_until + MS)
            time.sleep(min(self.ttl // 20, max(0, ends - asked)) / 1e9)

    def write(self, task, desk, key, attempt, hold):
        accepted = desk.write(key, attempt, hold.token)
        if hold.token:
            self.log.note(task, "wrote", attempt=attempt, token=hold.token, accepted=accepted)

    def run(self, connect):
        locks = connect(self)
        threading.Thread(target=self.watch_stalls, daemon=True).start()
        tasks = [threading.Thread(target=self.life, args=(task, locks)) for task in range(self.tasks)]
        for task in tasks:
            task.start()
        sys.stdin.read()
        self.closing.set()
        for task in tasks:
            task.join()
        locks.close()
        self.log.note(None, "ended")


def main(connect):
    tasks, words = int(sys.argv[1]), sys.argv[2:]
    Worker(tasks, {name[2:]: value for name, value in zip(words[::2], words[1::2])}).run(connect)
