# redis-py's Lock, with a timeout of the ttl. It has no number. redis-py says nothing of the end of a hold: the holder counts the timeout
# itself, from before the command that set it, as Latchwork does. Of long holds, half are reacquired in time.

from urllib.parse import urlparse

import redis
from redis.exceptions import LockError, LockNotOwnedError, RedisError
from redis.lock import Lock
from redis.sentinel import Sentinel


class TimedLock(Lock):
    """Notes when the command was sent that took the lock."""

    sent = 0

    def do_acquire(self, token):
        self.sent = boot_time()
        return super().do_acquire(token)


class RedisPy:
    def __init__(self, worker):
        self.worker = worker
        url, limit = urlparse(worker.orders["store"]), worker.ttl / 1e9 / 8
        limits = {"socket_timeout": limit, "socket_connect_timeout": limit}
        hosts = [host.rsplit(":", 1) for host in url.netloc.split(",")]
        hosts = [(host, int(port)) for host, port in hosts]
        if url.scheme == "redis+sentinel":
            self.client = Sentinel(hosts, **limits).master_for(url.path[1:], **limits)
        else:
            (host, port), = hosts
            self.client = redis.Redis(host, port, **limits)

    def acquire(self, key, patience, luck):
        lock = TimedLock(self.client, self.worker.name(key), timeout=self.worker.ttl / 1e9, sleep=0.02)
        if not lock.acquire(blocking_timeout=patience / 1e9):
            return None
        return Hold(self.worker, lock, luck.random() < 0.5)

    def close(self):
        self.client.close()


class Hold:
    token = 0

    def __init__(self, worker, lock, lasts):
        self.worker, self.lock, self.lasts = worker, lock, lasts
        self.longest = 1.5 if lasts else 0.8
        self.seen, self.valid_until = lock.sent, worker.valid_from(lock.sent)

    def check(self, at):
        if at >= self.valid_until:
            raise Lost(self.valid_until, "expired")
        return self.valid_until

    def extend(self, at):
        ttl, remaining = self.worker.ttl, self.valid_until - at
        # In less than a quarter, an answer may come too late: the holder would ask too late whether it still holds.
        if not self.lasts or not ttl // 4 <= remaining < ttl // 2:
            return
        sent = boot_time()
        try:
            self.lock.reacquire()
            self.valid_until = self.worker.valid_from(sent)
        except LockNotOwnedError:
            now = boot_time()
            if now < self.valid_until:
                raise Lost(now, "taken") from None
            raise Lost(self.valid_until, "expired") from None
        except RedisError as error:
            print(f"{self.lock.name}: {error!r}", file=sys.stderr, flush=True)

    def release(self):
        try:
            self.lock.release()
            return "yes"
        except LockError:
            return "not_held"
        except RedisError:
            return "failed"

    def give_up(self):
        if self.release() == "failed":
            print(f"{self.lock.name}: its release failed", file=sys.stderr, flush=True)


main(RedisPy)
