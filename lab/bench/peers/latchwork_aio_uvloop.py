"""`latchwork.aio` on uvloop."""

import uvloop

import roles_asyncio
from latchwork_aio import connect

roles_asyncio.main(connect, uvloop.new_event_loop)
