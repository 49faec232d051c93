"""`pottery.Redlock` on one server: polls with pauses of random length."""

import pottery
import redis

import roles


def connect(url):
    masters = {redis.Redis.from_url(url)}
    return lambda key: pottery.Redlock(key=key, masters=masters, auto_release_time=30)


roles.main(connect)
