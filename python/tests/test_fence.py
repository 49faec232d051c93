"""Fences refuse the token of a holder that was superseded."""

import asyncio
import decimal
import fractions
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


#: What is no token: other types, and numbers that no store gives.
NO_TOKENS = (
    float("nan"), float("inf"), 7.5, 9.0, True, False, None, -1, 2**63, 10**400, b"9", [9], "", "abc", "-1", "+9",
    " 9", "9 ", "9.0", "1e3", "0x9", "nan", "9_0", "\u0669", "9" * 20, str(2**63), decimal.Decimal(9), fractions.Fraction(9),
)


def refuses_what_is_no_token(check):
    """Each is refused before the fence has seen it, and the rightful tokens pass as ever."""
    check(7)
    check("8")
    for token in NO_TOKENS:
        with pytest.raises(latchwork.Invalid, match="token: .* is not a token"):
            check(token)
    check(8)
    check(str(9))
    with pytest.raises(latchwork.Fenced, match="superseded by 9"):
        check(8)
    check(2**63 - 1)


def test_h234_a_fence_in_memory_refuses_what_is_no_token():
    refuses_what_is_no_token(fence.Fence().check_write)
    refuses_what_is_no_token(fence.Fence("3").check_write)
    stock = fence.Fence()
    for token in NO_TOKENS:
        with pytest.raises(latchwork.Invalid):
            stock.check_read(token)
        with pytest.raises(latchwork.Invalid, match="starting_at"):
            fence.Fence(starting_at=token)
    stock.check_read("9")
    with pytest.raises(latchwork.Fenced):
        stock.check_write("8")
    stock.check_write(9)
    assert stock.newest == 9 and type(stock.newest) is int


def test_h234_a_fence_in_sqlite_refuses_what_is_no_token():
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="it needs Python 3.11")

    db, fences = sqlite3.connect(":memory:"), fence.SqlFence("sqlite")
    fences.create(db.cursor())
    refuses_what_is_no_token(lambda token: fences.check(db.cursor(), "stock", token))
    for value in ("abc", b"9", 7.5, -1, "9x"):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT INTO fences VALUES ('other', ?)", (value,))
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(fences.create_table))
        refuses_what_is_no_token(lambda token: fences.check_sqlalchemy(connection, "stock", token))


def test_h234_a_spoilt_row_of_sqlite_is_an_error_with_a_next_step():
    db, fences = sqlite3.connect(":memory:"), fence.SqlFence("sqlite")
    # As a table was made before it had checks.
    db.execute("CREATE TABLE fences (resource TEXT PRIMARY KEY NOT NULL, token INTEGER NOT NULL) WITHOUT ROWID")
    for value in ("abc", b"9", 7.5, float("inf")):
        db.execute("INSERT OR REPLACE INTO fences VALUES ('stock', ?)", (value,))
        for token in (1, 2**63 - 1):
            with pytest.raises(latchwork.Mismatch, match="stock: the table fences holds .* UPDATE fences SET token"):
                fences.check(db.cursor(), "stock", token)
    db.execute("UPDATE fences SET token = 7 WHERE resource = 'stock'")
    fences.check(db.cursor(), "stock", 7)


def test_h234_a_fence_in_postgresql_refuses_what_is_no_token(postgres_server):
    psycopg = pytest.importorskip("psycopg", reason="it needs Python 3.10")

    fences = fence.SqlFence("postgresql", "strange_fences")
    with psycopg.connect(postgres_server) as connection, connection.cursor() as cursor:
        fences.create(cursor)
        refuses_what_is_no_token(lambda token: fences.check(cursor, "stock", token))
        connection.commit()
        with pytest.raises(psycopg.IntegrityError):
            cursor.execute("INSERT INTO strange_fences VALUES ('other', -1)")

    async def main():
        connection = await psycopg.AsyncConnection.connect(postgres_server)
        async with connection, connection.cursor() as cursor:
            for token in NO_TOKENS:
                with pytest.raises(latchwork.Invalid):
                    await fences.check_async(cursor, "other", token)
            await fences.check_async(cursor, "other", "7")
            with pytest.raises(latchwork.Fenced, match="superseded by 7"):
                await fences.check_async(cursor, "other", 6)

    asyncio.run(main())


def test_h557_a_check_makes_no_idle_limit_longer(postgres_server):
    import psycopg

    def limits(fences, session):
        with psycopg.connect(postgres_server) as connection, connection.cursor() as cursor:
            fences.create(cursor)
            connection.commit()
            cursor.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", (session,))
            connection.commit()
            found = []
            for end in (lambda: fences.check(cursor, "stock", 7), connection.rollback):
                end()
                cursor.execute("SHOW idle_in_transaction_session_timeout")
                found.append(cursor.fetchone()[0])
            return found

    usual = fence.SqlFence("postgresql", "limited_fences")
    assert limits(usual, "0") == ["10s", "0"] and limits(usual, "3s") == ["3s", "3s"]
    assert limits(fence.SqlFence("postgresql", "limited_fences", idle_limit=0.5), "1h") == ["500ms", "1h"]
    assert limits(fence.SqlFence("postgresql", "limited_fences", idle_limit=None), "1h") == ["1h", "1h"]
    with pytest.raises(latchwork.Invalid, match="idle_limit"):
        fence.SqlFence("postgresql", idle_limit="10s")


def test_h234_a_fence_in_mysql_sends_nothing_that_is_no_token():
    class Unused:
        def execute(self, *_):
            raise AssertionError("sent")

    for token in NO_TOKENS:
        with pytest.raises(latchwork.Invalid):
            fence.SqlFence("mysql").check(Unused(), "stock", token)


def test_h234_a_fence_in_redis_refuses_what_is_no_token(redis_server):
    import redis

    client = redis.Redis.from_url(redis_server, decode_responses=True)
    stock = fence.RedisFence(client, "strange:fence")
    refuses_what_is_no_token(lambda token: stock.set(token, "strange", 1))
    for value in ("abc", "-1", "7.5", "nan", str(2**63), ""):
        client.set("strange:fence", value)
        with pytest.raises(redis.ResponseError, match="strange:fence holds something else than a token"):
            stock.set(7, "strange", 2)
    assert client.get("strange") == "1"


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
    sqlalchemy = pytest.importorskip("sqlalchemy", reason="it needs Python 3.11")

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


def test_a_fence_by_asyncpg_needs_a_transaction_and_refuses_older_tokens(postgres_server):
    asyncpg = pytest.importorskip("asyncpg", reason="it needs Python 3.10")
    large = 2**63 - 1

    async def main():
        connection = await asyncpg.connect(postgres_server)
        for idle_limit in (10.0, None):
            fences = fence.SqlFence("postgresql", table=f"asyncpg_{idle_limit is None}", idle_limit=idle_limit)
            await connection.execute(fences.create_table)
            with pytest.raises(latchwork.Invalid, match="is in no transaction"):
                await fences.check_async(connection, "stock", 7)
            for token in (7, 7, large):
                async with connection.transaction():
                    await fences.check_async(connection, "stock", token)
            with pytest.raises(latchwork.Fenced) as caught:
                async with connection.transaction():
                    await fences.check_async(connection, "stock", large - 1)
            assert caught.value.newest == large
        async with asyncpg.create_pool(postgres_server, min_size=1, max_size=1) as pool:
            with pytest.raises(latchwork.Invalid, match="with the connection"):
                await fences.check_async(pool, "stock", large)
            async with pool.acquire() as pooled, pooled.transaction():
                await fences.check_async(pooled, "stock", large)
        await connection.close()

    asyncio.run(main())


def test_a_cursor_of_asyncio_is_refused_by_the_check_of_threads():
    class Cursor:
        async def execute(self, *_):
            raise AssertionError("it is not called")

    with pytest.raises(latchwork.Invalid, match="is of asyncio; write `await fences.check_async"):
        fence.SqlFence("postgresql").check(Cursor(), "stock", 7)


def test_a_session_of_asyncio_runs_the_check_of_sqlalchemy(postgres_server):
    pytest.importorskip("sqlalchemy", reason="it needs Python 3.11")
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    fences = fence.SqlFence("postgresql", table="by_sqlalchemy")

    async def main():
        engine = create_async_engine(postgres_server.replace("postgres://", "postgresql+asyncpg://"))
        async with AsyncSession(engine) as session:
            await session.execute(text(fences.create_table))
            await session.run_sync(fences.check_sqlalchemy, "stock", 2**63 - 1)
            await session.commit()
            with pytest.raises(latchwork.Fenced):
                await session.run_sync(fences.check_sqlalchemy, "stock", 2**63 - 2)
            with pytest.raises(latchwork.Invalid, match="await session.run_sync"):
                fences.check_sqlalchemy(session, "stock", 2**63 - 1)
        await engine.dispose()

    asyncio.run(main())


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
