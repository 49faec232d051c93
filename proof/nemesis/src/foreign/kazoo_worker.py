"""A worker that locks with kazoo and writes the history of docs/history.md.

It takes a number of tasks, and the orders of Latchwork's own workers as flags. The class is what docs/zookeeper.md tells users of kazoo to
write. Its token is the transaction that created its node, as Latchwork's is. It counts on a hold while the session's
connection is fine, for no longer than the session lasts without another look.
"""

import os
import random
import socket
import sys
import threading
import time
from urllib.parse import urlparse

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.lock import Lock

MS = 1_000_000


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


def boot_time():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Log:
    """One line for an event, and one write for a line."""

    def __init__(self, path, process):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.process = process

    def note(self, task, event, at=None, **values):
        words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()]
        line = " ".join([str(at or boot_time()), self.process, "-" if task is None else str(task), event, *words])
        os.write(self.file, (line + "\n").encode())


class Session:
    """Counts how often the connection was lost: a hold of an earlier count is lost."""

    def __init__(self, client):
        self.client, self.count, self.lost_at = client, 0, 0
        client.add_listener(self.changed)

    def changed(self, state):
        if state in (KazooState.SUSPENDED, KazooState.LOST):
            self.lost_at = boot_time()
            self.count += 1

    def is_fine(self, count):
        return self.count == count and self.client.state == KazooState.CONNECTED


class Desk:
    """A way to the resource."""

    def __init__(self, path, by):
        self.by = by
        self.stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.stream.connect(path)
        self.lines = self.stream.makefile("r")

    def write(self, key, attempt, token):
        self.stream.sendall(f"{key} {self.by} {attempt} {token}\n".encode())
        return self.lines.readline() == "1\n"


class Worker:
    def __init__(self, tasks, orders):
        self.tasks, self.orders = tasks, orders
        self.ttl = int(float(orders["ttl"][:-2]) * MS)
        self.log = Log(orders["log"], orders["name"])
        self.closing = threading.Event()
        self.attempts, self.numbers = 0, threading.Lock()
        self.log.note(None, "started", pid=os.getpid(), seed=orders["seed"])
        self.client = KazooClient(urlparse(orders["store"]).netloc, timeout=self.ttl / 1e9,
                                  connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5})
        self.session = Session(self.client)

    def validity(self, seen):
        """As long as the session would last if the last sign of life was now, less what clocks may differ."""
        return seen + self.ttl - self.ttl // 100 - 2 * MS

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

    def life(self, task):
        luck = random.Random(f"{self.orders['seed']}/{task}")
        desk = Desk(self.orders["resource"], self.orders["name"])
        while not self.closing.is_set():
            time.sleep(luck.uniform(0, 0.03))
            kind = luck.choice(["hot", "long", "fair"])
            key = f"{kind}{luck.randrange(int(self.orders['keys']))}"
            self.turn(task, luck, desk, key, kind)

    def turn(self, task, luck, desk, key, kind):
        attempt = self.next_attempt()
        self.log.note(task, "try", attempt=attempt, key=key, mode="exclusive", fair=False, waits=True, several=False)
        lock = CuratorLock(self.client, f"/{self.orders['namespace']}:{key}")
        token, count = None, self.session.count
        try:
            if not lock.acquire(timeout=luck.uniform(0.5, 2.0) * self.ttl / 1e9):
                return self.log.note(task, "gave_up", attempt=attempt, why="timed_out")
            token = self.token_of(lock)
        except LockTimeout:
            return self.log.note(task, "gave_up", attempt=attempt, why="timed_out")
        except (KazooException, KazooTimeoutError) as error:
            print(f"attempt {attempt} on {key}: {error!r}", file=sys.stderr)
        seen = boot_time()
        if token is None or not self.session.is_fine(count):
            self.give_up(lock)
            return self.log.note(task, "gave_up", attempt=attempt, why="failed")
        self.log.note(task, "granted", attempt=attempt, token=token, ttl=self.ttl, valid_until=self.validity(seen))
        lengths = {"hot": 0.003, "fair": 0.05, "long": 0.8}
        until = seen + int(luck.uniform(0, lengths[kind]) * self.ttl)
        while True:
            asked = boot_time()
            if not self.session.is_fine(count):
                self.log.note(task, "lost", attempt=attempt, since=max(self.session.lost_at, seen), reason="session_ended")
                self.write(task, desk, key, attempt, token)
                return self.give_up(lock)
            self.log.note(task, "held", at=asked, attempt=attempt, valid_until=self.validity(asked))
            self.write(task, desk, key, attempt, token)
            if asked >= until:
                break
            time.sleep(min(self.ttl // 20, max(0, until - asked)) / 1e9)
        self.log.note(task, "releasing", attempt=attempt, how="release")
        try:
            answer = "yes" if lock.release() else "not_held"
        except (KazooException, KazooTimeoutError):
            answer = "failed"
        self.log.note(task, "released", attempt=attempt, answer=answer)

    def token_of(self, lock):
        """The transaction that created the node, if the node is this session's."""
        stat = self.client.exists(f"{lock.path}/{lock.node}")
        is_ours = stat is not None and stat.ephemeralOwner == self.client.client_id[0]
        return stat.czxid << 10 if is_ours else None

    def write(self, task, desk, key, attempt, token):
        accepted = desk.write(key, attempt, token)
        self.log.note(task, "wrote", attempt=attempt, token=token, accepted=accepted)

    def give_up(self, lock):
        """Deletes the node if it is there: the session may live on."""
        try:
            lock.release()
        except (KazooException, KazooTimeoutError) as error:
            print(f"{lock.path}: {error!r}", file=sys.stderr)

    def work(self):
        self.client.start(timeout=30)
        threading.Thread(target=self.watch_stalls, daemon=True).start()
        tasks = [threading.Thread(target=self.life, args=(task,)) for task in range(self.tasks)]
        for task in tasks:
            task.start()
        sys.stdin.read()
        self.closing.set()
        for task in tasks:
            task.join()
        self.client.stop()
        self.client.close()
        self.log.note(None, "ended")


tasks, words = int(sys.argv[1]), sys.argv[2:]
Worker(tasks, {name[2:]: value for name, value in zip(words[::2], words[1::2])}).work()
