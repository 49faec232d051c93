"""`kazoo.recipe.lock.Lock`: watches the node ahead."""

from kazoo.client import KazooClient

import roles


def connect(url):
    hosts, _, chroot = url.removeprefix("zk://").partition("/")
    client = KazooClient(hosts, timeout=30)
    client.start()
    return lambda key: client.Lock(f"/{chroot}/{key}")


roles.main(connect)
