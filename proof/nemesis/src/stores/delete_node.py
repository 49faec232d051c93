"""Deletes the first claims of some locks, as a person at a console might: python3 delete_node.py HOSTS"""

import random
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

LOCKS = 3

client = KazooClient(sys.argv[1], timeout=10)
client.start(timeout=20)
locks = [name for name in client.get_children("/") if name.startswith("nemesis-")]
random.shuffle(locks)
deleted = 0
for lock in locks:
    claims = client.get_children("/" + lock)
    if not claims or deleted == LOCKS:
        continue
    # The numbers at their ends are the order.
    first = min(claims, key=lambda name: name[-10:])
    try:
        client.delete(f"/{lock}/{first}")
        deleted += 1
    except NoNodeError:
        pass
client.stop()
client.close()
