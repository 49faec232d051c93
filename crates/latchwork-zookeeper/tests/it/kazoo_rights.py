"""Carries out orders as a user: HOST USER:PASSWORD ORDER...

An order is "create PATH ACL", "acl PATH ACL" or "delete PATH". An ACL
is a list of user:password=rights, divided by commas; the user "world" is everybody.
"""

import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError
from kazoo.security import ACL, Id, Permissions, make_digest_acl_credential

RIGHTS = {"c": Permissions.CREATE, "r": Permissions.READ, "w": Permissions.WRITE, "d": Permissions.DELETE}
RIGHTS["a"] = Permissions.ADMIN


def acl(text):
    entries = []
    for entry in text.split(","):
        who, rights = entry.split("=")
        user, _, password = who.partition(":")
        is_open = user == "world"
        name = Id("world", "anyone") if is_open else Id("digest", make_digest_acl_credential(user, password))
        entries.append(ACL(sum(RIGHTS[right] for right in rights), name))
    return entries


client = KazooClient(sys.argv[1], timeout=10)
client.start()
client.add_auth("digest", sys.argv[2])
for order in sys.argv[3:]:
    verb, path, *rest = order.split(" ")
    if verb == "create":
        client.create(path, acl=acl(rest[0]))
    elif verb == "acl":
        client.set_acls(path, acl(rest[0]))
    elif verb == "delete":
        # Sessions that have just been closed take their nodes along.
        for _ in range(1000):
            try:
                client.delete(path)
                break
            except NotEmptyError:
                time.sleep(0.01)
client.stop()
print("done")
