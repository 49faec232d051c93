"""A step of a data pipeline that writes to PostgreSQL under a fence: a worker that was paused cannot overwrite its successor."""

import psycopg

from latchwork.fence import SqlFence

fences = SqlFence("postgresql", table="fences")


def prepare(dsn):
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        fences.create(cursor)
        cursor.execute("CREATE TABLE IF NOT EXISTS totals (day date PRIMARY KEY, amount bigint)")


def write_total(dsn, guard, day, amount):
    # One transaction: if the token was superseded, `check` raises, and nothing is committed.
    with psycopg.connect(dsn) as connection, connection.cursor() as cursor:
        fences.check(cursor, f"totals/{day}", guard)
        cursor.execute(
            "INSERT INTO totals VALUES (%s, %s) ON CONFLICT (day) DO UPDATE SET amount = excluded.amount",
            (day, amount),
        )
