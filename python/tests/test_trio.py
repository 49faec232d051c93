"""trio: the same API below a loop that is not asyncio's."""

import contextlib

import pytest
import trio

import latchwork
from latchwork import aio
from latchwork.testing import Store

from conftest import run, start


def test_locks_of_all_kinds_work_below_trio(url):
    async def main():
        async with aio.connect(url, namespace="trio-kinds", ttl=5) as locks:
            lock = locks.lock("stock")
            async with lock as guard:
                assert guard.ensure_held() == guard.token and await lock.try_acquire() is None
                with pytest.raises(latchwork.TimedOut):
                    await lock.acquire(timeout=0.05)
            async with lock.acquire(timeout=5) as guard:
                assert guard.state == "held"
            assert (await locks.show("stock")).is_free
            reentrant = locks.reentrant("account")
            async with reentrant as outer, reentrant as inner:
                assert outer.token == inner.token
                async with trio.open_nursery() as nursery:

                    @nursery.start_soon
                    async def another_task_is_another_owner():
                        assert await reentrant.try_acquire() is None

            async with locks.election("scheduler", candidate="me").campaign(timeout=5):
                assert (await locks.election("scheduler").leader()).candidate == "me"

            @locks.once("report", every="1d")
            async def report():
                await trio.sleep(0)
                return 7

            assert (await report()).value == 7 and not (await report()).ran

            @locks.synchronized("user/{user_id}", timeout=5)
            async def rename(user_id, guard=None):
                await trio.sleep(0)
                return guard.key

            assert await rename(7) == "trio-kinds:user/7"

    trio.run(main)


def test_a_read_hold_is_upgraded_below_trio(upgrading):
    async def main():
        async with aio.connect(upgrading, namespace="trio-upgrades") as locks:
            catalogue = locks.rwlock("catalogue")
            async with catalogue.read as guard:
                token, other = guard.token, await catalogue.read.acquire(timeout=5)
                with trio.move_on_after(0.1):
                    await guard.upgrade()
                    raise AssertionError("another reader has it")
                assert guard.ensure_held() == token
                await other.release()
                assert await guard.upgrade(timeout=5) == guard.token > token
                assert await catalogue.read.try_acquire() is None
                await guard.downgrade()
                await (await catalogue.read.acquire(timeout=5)).release()

    trio.run(main)


def test_tasks_of_trio_exclude_each_other(url):
    inside = []

    async def work(lock):
        for _ in range(10):
            async with lock:
                inside.append(1)
                assert len(inside) == 1
                await trio.sleep(0)
                inside.pop()

    async def main():
        async with aio.connect(url, namespace="trio-many") as locks:
            lock = locks.lock("stock")
            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(work, lock)

    trio.run(main)


def test_cancellation_below_trio_leaves_nothing(url):
    async def main():
        async with aio.connect(url, namespace="trio-cancel", ttl=5) as locks:
            lock = locks.lock("stock")
            guard = await lock.acquire()
            for limit in (0, 0.001, 0.05):
                with trio.move_on_after(limit) as scope:
                    await lock.acquire()
                assert scope.cancelled_caught
            with trio.move_on_after(0.05) as scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(20):
                        nursery.start_soon(lock.acquire)
            assert scope.cancelled_caught
            await guard.release()
            # The guard of a block that is cancelled is released as well, though nothing can be awaited.
            with trio.move_on_after(0.05):
                async with lock:
                    await trio.sleep_forever()
            with trio.fail_after(20):
                async with lock:
                    pass
                while not (await locks.show("stock")).is_free:
                    await trio.sleep(0.01)

    trio.run(main)


def test_each_acquire_below_trio_can_be_cancelled_also_in_memory():
    """A task that never has to wait lets the others run, and ends."""

    async def main():
        locks = await aio.connect("mem:")
        with trio.move_on_after(0.05) as scope:
            while True:
                async with locks.lock("stock"):
                    pass
        assert scope.cancelled_caught
        await locks.close()

    trio.run(main)


def test_work_below_trio_is_cancelled_at_a_loss():
    async def main():
        store = Store()
        locks, ended = store.aio_locks(), []
        told = []
        locks.on_lost(told.append)
        async with locks.lock("stock") as guard:
            assert await guard.run(returns(7)) == 7
            with pytest.raises(KeyError):
                await guard.run(raises(KeyError("mine")))
            with trio.move_on_after(0.02) as scope:
                await guard.run(trio.sleep_forever())
            assert scope.cancelled_caught and guard.ensure_held()
        guard = await locks.lock("stock").acquire()

        async def work():
            try:
                await trio.sleep_forever()
            finally:
                ended.append(True)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, store.lose, "stock")
            with pytest.raises(latchwork.Lost):
                await guard.run(work())
        assert ended == [True] and await guard.lost == "taken"
        guard._forget()
        with trio.fail_after(20):
            while not told:
                await trio.sleep(0.01)
        assert told[0].reason == "taken"
        await locks.close()

    trio.run(main)


async def returns(value):
    await trio.sleep(0)
    return value


async def raises(error):
    await trio.sleep(0)
    raise error


def test_anyio_on_trio_works(redis_server):
    import anyio

    async def main():
        async with aio.connect(redis_server, namespace="anyio-trio") as locks:
            with anyio.move_on_after(0.05) as scope:
                async with locks.lock("stock"):
                    await anyio.sleep(60)
            assert scope.cancelled_caught
            async with locks.lock("stock").acquire(timeout=20):
                pass

    anyio.run(main, backend="trio")


def test_trio_and_asyncio_live_in_one_program(redis_server):
    import asyncio

    async def one(kind):
        async with aio.connect(redis_server, namespace="both") as locks:
            async with locks.lock("stock"):
                return kind

    assert trio.run(one, "trio") == "trio"
    assert asyncio.run(one("asyncio")) == "asyncio"

    async def inside_of_a_thread():
        return await trio.to_thread.run_sync(lambda: asyncio.run(one("asyncio")))

    assert trio.run(inside_of_a_thread) == "asyncio"


def test_ctrl_c_ends_a_wait_below_trio(redis_server):
    import signal

    process = start(
        """
        import sys, trio
        from latchwork import aio
        async def main():
            async with aio.connect(sys.argv[1], namespace="trio-ctrl-c") as locks:
                guard = await locks.lock("stock").acquire()
                print("waits", flush=True)
                await locks.lock("stock").acquire()
        trio.run(main)
        """,
        redis_server,
    )
    assert process.stdout.readline() == "waits\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in said and process.returncode != 0, said
    with latchwork.connect(redis_server, namespace="trio-ctrl-c") as locks, contextlib.ExitStack() as stack:
        stack.enter_context(locks.lock("stock").acquire(timeout=20))


def test_an_operation_below_trio_has_one_task():
    async def main():
        locks = await aio.connect("mem:")
        operation = locks.lock("stock").try_acquire()
        async with await operation:
            with pytest.raises(RuntimeError, match="awaited before"):
                await operation
        await locks.close()

    trio.run(main)


def test_a_blocking_call_below_trio_warns():
    said = run(
        """
        import threading, trio, latchwork
        async def main():
            with latchwork.connect("mem:") as locks:
                guard = locks.lock("stock").acquire()
                threading.Timer(1.3, guard.release).start()
                with locks.lock("stock"):
                    pass
        trio.run(main)
        """
    )
    assert "this call blocks the event loop" in said.stderr and said.returncode == 0, said
