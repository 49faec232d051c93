"""`pals.Lock`: waits in `pg_advisory_lock`, over SQLAlchemy and psycopg2."""

import pals
import sqlalchemy

import roles


def connect(url):
    engine = sqlalchemy.create_engine(url.replace("postgres://", "postgresql+psycopg2://"), pool_size=64)
    locker = pals.Locker("bench", create_engine_callable=lambda: engine)
    return locker.lock


roles.main(connect)
