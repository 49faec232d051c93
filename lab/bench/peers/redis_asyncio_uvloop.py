"""`redis.asyncio.lock.Lock` on uvloop."""

import uvloop

import roles_asyncio
from redis_asyncio import connect

roles_asyncio.main(connect, uvloop.new_event_loop)
