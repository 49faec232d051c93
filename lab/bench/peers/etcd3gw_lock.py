"""`etcd3gw.lock.Lock`, over etcd's JSON gateway: it does not wait."""

import etcd3gw

import roles


def connect(url):
    host, port = url.removeprefix("etcd://").split(":")
    client = etcd3gw.client(host=host, port=int(port))
    return lambda key: client.lock(key, ttl=30)


roles.main(connect)
