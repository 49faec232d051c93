"""`aetcd.locks.Lock`: waits in a watch."""

import aetcd

import roles_asyncio


async def connect(url):
    host, port = url.removeprefix("etcd://").split(":")
    client = aetcd.Client(host=host, port=int(port))
    await client.connect()
    return lambda key: client.lock(key.encode(), ttl=30)


roles_asyncio.main(connect)
