"""`redis.lock.Lock` of redis-py: polls every 100 ms."""

import redis

import roles


def connect(url):
    client = redis.Redis.from_url(url)
    return lambda key: client.lock(key, timeout=30)


roles.main(connect)
