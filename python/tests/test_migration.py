"""Old locks and Latchwork's side by side, as docs/python-migration.md says."""

import threading

import filelock
import portalocker
import pytest
import redis
import redis_lock

import latchwork

from servers import wait_until


@pytest.fixture
def client(redis_server):
    with redis.Redis.from_url(redis_server) as client:
        yield client


def test_redis_py_and_latchwork_exclude_each_other(redis_server, client):
    with latchwork.connect(redis_server) as locks:
        new, old = locks.lock("migration/py"), client.lock("migration/py", timeout=30)
        with old:
            assert new.try_acquire() is None
            with pytest.raises(latchwork.TimedOut):
                new.acquire(timeout=0.3)
        with new.acquire(timeout=5) as guard:
            assert not old.acquire(blocking=False) and not old.acquire(blocking_timeout=0.3)
            guard.ensure_held()
        with old:
            pass


def test_python_redis_lock_and_latchwork_exclude_each_other(redis_server, client):
    with latchwork.connect(redis_server, namespace="lock") as locks:
        new, old = locks.lock("migration/prl"), redis_lock.Lock(client, "migration/prl", expire=30)
        with old:
            assert new.try_acquire() is None
            released = threading.Timer(0.3, old.release)
            released.start()
            with new.acquire(timeout=10) as guard:
                assert not old.acquire(blocking=False)
                guard.ensure_held()
            # For the end of its block.
            assert old.acquire(blocking=False)


def test_a_waiter_of_python_redis_lock_tries_again_after_its_expiry(redis_server, client):
    with latchwork.connect(redis_server, namespace="lock") as locks:
        old, acquired = redis_lock.Lock(client, "migration/wait", expire=1), threading.Event()
        with locks.lock("migration/wait"):
            waiter = threading.Thread(target=lambda: old.acquire() and acquired.set())
            waiter.start()
            wait_until(lambda: any(it["cmd"] == "blpop" for it in client.client_list()), "it waits")
            assert not acquired.is_set()
        assert acquired.wait(10)
        waiter.join()
        old.release()


def test_a_reset_of_python_redis_lock_is_a_loss(redis_server, client):
    with latchwork.connect(redis_server, namespace="lock") as locks:
        guard = locks.lock("migration/reset", ttl=1).acquire()
        redis_lock.reset_all(client)
        assert guard.lost.wait(timeout=10)
        with pytest.raises(latchwork.Lost):
            guard.ensure_held()


def by_filelock(path):
    return filelock.FileLock(path, timeout=0)


def by_portalocker(path):
    return portalocker.Lock(path, timeout=0, fail_when_locked=True)


@pytest.mark.parametrize("old", [by_filelock, by_portalocker])
def test_programs_that_hold_both_exclude_the_old_and_the_new(tmp_path, redis_server, old):
    path, name = str(tmp_path / "stock.lock"), f"migration/{old.__name__}"
    refused = (filelock.Timeout, portalocker.LockException)
    with latchwork.connect(redis_server) as locks:
        with old(path):
            with pytest.raises(refused), old(path), locks.lock(name):
                pytest.fail("the old program holds the file")
        with old(path), locks.lock(name).acquire(timeout=5) as guard:
            with pytest.raises(refused), old(path):
                pytest.fail("the program that takes both holds the file")
            assert locks.lock(name).try_acquire() is None
            guard.ensure_held()
        with locks.lock(name):
            with pytest.raises(latchwork.TimedOut), old(path), locks.lock(name).acquire(timeout=0.2):
                pytest.fail("the new program holds the lock")
        with old(path), locks.lock(name):
            pass


def test_filelock_and_portalocker_share_a_file(tmp_path):
    path = str(tmp_path / "stock.lock")
    with by_filelock(path), pytest.raises(portalocker.LockException), by_portalocker(path):
        pytest.fail("filelock holds it")
