"""The API in a program with types, for `mypy --strict`: all kinds of locks, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Dict, List, Optional

import latchwork
from latchwork import aio, fence

stock: Dict[str, int] = {"42": 20}
written = fence.Fence()


def sell(locks: latchwork.Locks, article: str) -> int:
    with locks.lock(f"stock/{article}", ttl=timedelta(seconds=30), fair=True).acquire(timeout=5) as guard:
        token: int = guard.ensure_held()
        written.check_write(token)
        stock[article] -= 1
        return stock[article]


def kinds(locks: latchwork.Locks) -> List[str]:
    seen: List[str] = []
    with locks.rwlock("catalogue").read as reading, locks.semaphore("gpu", of=2) as permit:
        seen += [reading.key, permit.key]
    with locks.multi(["a", "b"]) as several:
        seen += sorted(several.tokens)
    account = locks.reentrant("account")
    with account as outer, account as inner:
        seen.append(outer.key if outer.token == inner.token else "not reentrant")
    leadership: Optional[latchwork.Guard] = locks.election("leader", candidate="me").try_campaign()
    if leadership is not None:
        with leadership:
            leader: Optional[latchwork.Leader] = locks.election("leader").leader()
            seen.append(leader.candidate if leader is not None else "nobody")

    @locks.once("report", every="1d")
    def report(day: str) -> str:
        return day

    outcome: latchwork.Outcome[str] = report("Monday")
    seen.append(outcome.value or "skipped")
    with locks.once("mail", every="1h") as run:
        if run:
            assert run.token > 0
        else:
            seen.append(run.why)
    if (guard := locks.lock("now or never").try_acquire()):
        with guard:
            guard.ensure_held()
    seen.append(rename(locks, 7, name="Ada"))
    return seen


def rename(locks: latchwork.Locks, user_id: int, *, name: str) -> str:
    @locks.synchronized("user/{user_id}", timeout=5)
    def renamed(user_id: int, name: str, guard: Optional[latchwork.Guard] = None) -> str:
        return f"{name} {guard.key if guard else ''}"

    return renamed(user_id, name=name)


async def tasks(url: str) -> int:
    async with aio.connect(url) as locks:
        async with locks.lock("stock/42").acquire(timeout=5) as guard:
            reason: Optional[str] = guard.lost.reason
            assert reason is None
            return await guard.run(asyncio.sleep(0, 7))


def main(url: str = "mem:") -> List[str]:
    with latchwork.connect(url) as locks:
        try:
            return [str(sell(locks, "42")), *kinds(locks), str(asyncio.run(tasks(url)))]
        except latchwork.TimedOut as error:
            return [error.kind, error.hint or ""]


if __name__ == "__main__":
    print(main())
