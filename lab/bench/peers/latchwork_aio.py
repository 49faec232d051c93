"""`latchwork.aio`: the wheel that was built here."""

from latchwork import aio

import roles_asyncio


async def connect(url):
    locks = await aio.connect(url)
    return locks.lock


if __name__ == "__main__":
    roles_asyncio.main(connect)
