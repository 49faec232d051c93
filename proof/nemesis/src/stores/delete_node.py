"""Deletes one node of some lock, as a person at a console might: python3 delete_node.py HOSTS"""

import random
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

client = KazooClient(sys.argv[1], timeout=10)
client.start(timeout=20)
locks = [name for name in client.get_children("/") if name.startswith("nemesis-")]
random.shuffle(locks)
for lock in locks:
    claims = client.get_children("/" + lock)
    if claims:
        try:
            client.delete("/" + lock + "/" + random.choice(claims))
        except NoNodeError:
            pass
        break
client.stop()
client.close()
