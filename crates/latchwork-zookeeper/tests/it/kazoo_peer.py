"""kazoo's locks, as another process that does what it is told, line by line.

The class is what docs/zookeeper.md tells users of kazoo to write.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout
from kazoo.recipe.lock import Lock


class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]


def say(text):
    print(">" + text, flush=True)


client = KazooClient(sys.argv[1], timeout=4)
client.start()
say("ready")
held = {}
for order in sys.stdin:
    kind, path = order.strip().split(" ", 1)
    if kind == "free":
        held.pop(path).release()
        say("free")
        continue
    lock = CuratorLock(client, path)
    try:
        lock.acquire(timeout=0.3 if kind.startswith("try-") else 60)
        held[path] = lock
        say("held")
    except LockTimeout:
        say("blocked")
