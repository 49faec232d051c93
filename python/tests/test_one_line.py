"""Locks in one line: of the default store, and around functions."""

import asyncio
import inspect
import pathlib
import threading
import time

import pytest

import latchwork
from latchwork import aio

from conftest import run


def test_one_line_locks_the_default_store(tmp_path, monkeypatch):
    monkeypatch.setenv("LATCHWORK_STORE", f"file://{tmp_path}/locks")
    lock = latchwork.lock("stock/42", ttl=30)
    with lock as guard:
        assert guard.ensure_held() and latchwork.lock("stock/42").try_acquire() is None
        assert [view.key for view in latchwork.ls()] == ["stock/42"]

    @latchwork.synchronized("user/{user_id}", timeout=5)
    def rename(user_id, guard=None):
        return guard.key, latchwork.lock("user/7").try_acquire()

    assert rename(7) == ("user/7", None)

    @aio.synchronized("user/{user_id}", timeout=5)
    async def renamed(user_id, *, guard=None):
        return guard.key, await aio.lock("user/7").try_acquire()

    async def main():
        async with aio.lock("stock/42") as guard:
            assert guard.ensure_held() and lock.try_acquire() is None
        async with aio.lock("stock/42").acquire(timeout=5):
            pass
        assert await renamed(7) == ("user/7", None)

    for _ in range(2):
        asyncio.run(main())
    # It is the same connection, and another store is another one.
    monkeypatch.setenv("LATCHWORK_STORE", "mem:")
    with lock:
        assert latchwork.lock("stock/42").try_acquire() is None


def test_one_line_connects_again_in_a_forked_child(redis_server, monkeypatch):
    said = run(
        """
import os, sys, latchwork
os.environ["LATCHWORK_STORE"] = sys.argv[1]
lock = latchwork.lock("forked/stock")
with lock:
    pass
child = os.fork()
if not child:
    with lock as guard:
        guard.ensure_held()
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
with lock:
    print("held")
""",
        redis_server,
    )
    assert said.stdout == "7\nheld\n" and said.stderr == "", said


def test_a_decorator_locks_functions_methods_and_coroutines(locks):
    inside, most = [], []

    class Account:
        def __init__(self, number):
            self.number = number

        @locks.synchronized("account/{self.number}")
        def settle(self, *, guard=None):
            """Settles."""
            inside.append(guard.ensure_held())
            most.append(len(inside))
            time.sleep(0.001)
            inside.pop()

    threads = [threading.Thread(target=Account(7).settle) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1] * 8 and Account.settle.__doc__ == "Settles."
    assert "guard" not in inspect.signature(Account.settle).parameters

    @locks.synchronized("account/{number}", timeout=0)
    def settle(number):
        return number

    with locks.lock("account/7"):
        assert settle(8) == 8
        with pytest.raises(latchwork.TimedOut):
            settle(7)

    @locks.synchronized("account/{number}", timeout=20, ttl=1)
    async def lost(number):
        locks.force_release("account/9")
        await asyncio.sleep(60)

    with pytest.raises(latchwork.Lost):
        asyncio.run(lost(9))
    for name, words in (("{user}", "no parameter"), ("{", "name"), ("{0}", "no parameter")):
        with pytest.raises(latchwork.Invalid, match=words):
            locks.synchronized(name)(lambda number: None)

    async def main():
        async with aio.connect("mem:") as tasks:
            with pytest.raises(TypeError, match="no coroutine function"):
                tasks.synchronized("a")(lambda: None)
            work = tasks.synchronized("a/{n}", timeout=5)(with_guard)
            assert await asyncio.gather(work(1), work(n=1)) == ["a/1", "a/1"]

    async def with_guard(n, guard):
        await asyncio.sleep(0)
        return guard.key

    asyncio.run(main())


def test_a_path_is_a_store_on_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with latchwork.connect(pathlib.Path("a folder")) as locks, locks.lock("stock"):
        with latchwork.connect(f"{tmp_path}/a folder") as other:
            assert other.lock("stock").try_acquire() is None
    assert latchwork.doctor(tmp_path / "a folder").is_fit


def test_h358_the_name_of_a_synchronized_call_is_that_of_every_process(locks):
    """H358: the text of an object with its address would be another lock in each process."""

    class User:
        id = 7

    @locks.synchronized("user/{user}")
    def by_object(user):
        raise AssertionError("it must not run")

    with pytest.raises(latchwork.Invalid, match="address"):
        by_object(User())

    @locks.synchronized("user/{user.id}/{day}", timeout=5)
    def by_attribute(user, day="Monday", *, guard=None):
        return guard.key

    # By position, by name or by default: the name is the same.
    keys = {by_attribute(User()), by_attribute(user=User()), by_attribute(User(), "Monday"), by_attribute(User(), day="Monday")}
    assert len(keys) == 1 and keys.pop().endswith("user/7/Monday")
