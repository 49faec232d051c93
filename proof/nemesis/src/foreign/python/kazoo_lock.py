# kazoo's Lock. The class is what docs/zookeeper.md tells users of kazoo to write. The token is the transaction that created
# the node, as Latchwork's is. The holder relies on a hold while the session's connection is fine, for no longer than the
# session lasts without another look.

from urllib.parse import urlparse

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.recipe.lock import Lock

FAILURES = (KazooException, KazooTimeoutError)


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


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


class Kazoo:
    def __init__(self, worker):
        self.worker = worker
        self.client = KazooClient(urlparse(worker.orders["store"]).netloc, timeout=worker.ttl / 1e9,
                                  connection_retry={"max_tries": -1, "delay": 0.05, "max_delay": 0.5})
        self.session = Session(self.client)
        self.client.start(timeout=30)

    def acquire(self, key, patience, luck):
        lock, count = CuratorLock(self.client, "/" + self.worker.name(key)), self.session.count
        try:
            if not lock.acquire(timeout=patience / 1e9):
                return None
            seen = boot_time()
            return Hold(self, lock, count, seen, self.token_of(lock))
        except LockTimeout:
            return None
        except FAILURES:
            Hold(self, lock, count, 0, 0).give_up()
            raise

    def token_of(self, lock):
        """The transaction that created the node, if the node is this session's."""
        stat = self.client.exists(f"{lock.path}/{lock.node}")
        is_ours = stat is not None and stat.ephemeralOwner == self.client.client_id[0]
        return stat.czxid << 10 if is_ours else 0

    def close(self):
        self.client.stop()
        self.client.close()


class Hold:
    longest = 0.8

    def __init__(self, kazoo, lock, count, seen, token):
        self.worker, self.session, self.lock = kazoo.worker, kazoo.session, lock
        self.count, self.seen, self.token = count, seen, token

    def check(self, at):
        if not self.token or not self.session.is_fine(self.count):
            raise Lost(self.session.lost_at, "session_ended")
        return self.worker.valid_from(at)

    def extend(self, at):
        """The session does that."""

    def release(self):
        try:
            return "yes" if self.lock.release() else "not_held"
        except FAILURES:
            return "failed"

    def give_up(self):
        """The session may live on, and the node with it."""
        try:
            self.lock.release()
        except FAILURES as error:
            print(f"{self.lock.path}: {error!r}", file=sys.stderr, flush=True)


main(Kazoo)
