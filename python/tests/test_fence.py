"""Fences refuse the token of a holder that was superseded."""

import asyncio
import sqlite3
import threading

import pytest

import latchwork
from latchwork import fence


def test_a_fence_in_memory_refuses_older_tokens():
    with latchwork.connect("mem:") as locks:
        stock = fence.Fence()
        old = locks.lock("stock", ttl=1).acquire()
        stock.check_write(old)
        locks.force_release("stock")
        with locks.lock("stock").acquire(timeout=5) as new:
            stock.check_write(new)
            with pytest.raises(latchwork.Fenced) as caught:
                stock.check_write(old)
            assert (caught.value.token, caught.value.newest) == (old.token, new.token) and stock.newest == new.token
            with pytest.raises(latchwork.Fenced):
                stock.check_read(old)
        old._forget()
    other = fence.Fence(starting_at=5)
    other.check_read(9)
    with pytest.raises(latchwork.Fenced):
        other.check_write(8)
    other.check_write(9)


def test_a_fence_in_memory_is_one_step_for_threads():
    stock, written, lock = fence.Fence(), [], threading.Lock()

    def write(numbers):
        for number in numbers:
            try:
                stock.check_write(number)
                written.append(number)
            except latchwork.Fenced:
                pass

    threads = [threading.Thread(target=write, args=(range(n, 4_000, 4),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stock.newest == max(written) == 3_999


def test_a_fence_in_sqlite_refuses_older_tokens(tmp_path):
    db = sqlite3.connect(tmp_path / "shop.db")
    fences = fence.SqlFence("sqlite")
    fences.create(db.cursor())
    with latchwork.connect("mem:") as locks, locks.lock("stock") as guard:
        fences.check(db.cursor(), "stock", guard)
        fences.check(db.cursor(), "stock", guard.token)
        with pytest.raises(latchwork.Fenced) as caught:
            fences.check(db.cursor(), "stock", guard.token - 1)
        assert caught.value.newest == guard.token
        fences.check(db.cursor(), "other", 1)


def test_a_fence_by_sqlalchemy_rolls_the_write_back(tmp_path):
    import sqlalchemy

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db")
    fences = fence.SqlFence("sqlite")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(fences.create_table))
        connection.execute(sqlalchemy.text("CREATE TABLE stock (amount INTEGER)"))
        connection.execute(sqlalchemy.text("INSERT INTO stock VALUES (20)"))

    def sell(token):
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("UPDATE stock SET amount = amount - 1"))
            fences.check_sqlalchemy(connection, "stock", token)

    sell(7)
    with pytest.raises(latchwork.Fenced):
        sell(6)
    with engine.begin() as connection:
        assert connection.execute(sqlalchemy.text("SELECT amount FROM stock")).scalar() == 19


def test_statements_for_every_database_have_their_parameters():
    for dialect, style in (("postgresql", "%s"), ("mysql", "%s"), ("sqlite", "?")):
        fences = fence.SqlFence(dialect, "app.fences")
        for statement in (fences._register, fences._admit, fences._newest):
            text, values = fences._positional(statement, "stock", 7)
            assert text.count(style) == len(values) and "$" not in text, text
            named = fences._named(statement)
            assert ":resource" in named and "?" not in named and "$" not in named
    with pytest.raises(latchwork.Invalid, match="table"):
        fence.SqlFence("sqlite", "fences; DROP TABLE stock")
    with pytest.raises(ValueError, match="dialect"):
        fence.SqlFence("oracle")


def test_a_fence_in_redis_refuses_older_tokens(redis_server):
    import redis

    client = redis.Redis.from_url(redis_server, decode_responses=True)
    stock = fence.RedisFence(client, "stock:fence")
    with latchwork.connect(redis_server) as locks:
        with locks.lock("redis-stock") as old:
            assert stock.set(old, "stock", 20)
        with locks.lock("redis-stock") as new:
            assert stock.eval(new, "return redis.call('DECRBY', KEYS[2], ARGV[2])", ["stock"], [1]) == 19
        with pytest.raises(latchwork.Fenced) as caught:
            stock.set(old, "stock", 99)
        assert (caught.value.token, caught.value.newest) == (old.token, new.token)
        assert client.get("stock") == "19"
        with pytest.raises(redis.ResponseError):
            stock.eval(new, "return redis.call('NONSENSE')")


def test_a_fence_in_redis_is_awaitable(redis_server):
    import redis.asyncio

    async def main():
        async with redis.asyncio.Redis.from_url(redis_server, decode_responses=True) as client:
            stock = fence.RedisFence(client, "tasks:fence")
            assert await stock.set(9, "tasks", "a")
            with pytest.raises(latchwork.Fenced):
                await stock.set(8, "tasks", "b")
            assert await client.get("tasks") == "a"

    asyncio.run(main())
