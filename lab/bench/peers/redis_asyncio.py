"""`redis.asyncio.lock.Lock` of redis-py: polls every 100 ms."""

import redis.asyncio

import roles_asyncio


async def connect(url):
    client = redis.asyncio.Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


if __name__ == "__main__":
    roles_asyncio.main(connect)
