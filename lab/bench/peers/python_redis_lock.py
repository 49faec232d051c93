"""`redis_lock.Lock` of python-redis-lock: waits in a blocking list pop."""

import redis
import redis_lock

import roles


def connect(url):
    client = redis.StrictRedis.from_url(url)
    return lambda key: redis_lock.Lock(client, key, expire=30)


roles.main(connect)
