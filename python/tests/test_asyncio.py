"""asyncio: the same promises, and cancellation that leaves nothing."""

import asyncio
import gc
import random
import time
import weakref

import pytest

import latchwork
from latchwork import aio

from conftest import Stalls, run, wait_until


def in_loop(work, runner=asyncio.run):
    return runner(work)


def test_one_task_at_a_time(url, runner):
    async def main():
        inside, most, done = 0, 0, 0
        async with await aio.connect(url, namespace="tasks") as locks:
            lock = locks.lock("stock")

            async def work():
                nonlocal inside, most, done
                for _ in range(5):
                    async with lock as guard:
                        assert guard.ensure_held() == guard.token
                        inside += 1
                        most = max(most, inside)
                        await asyncio.sleep(0)
                        inside -= 1
                        done += 1

            await asyncio.gather(*(work() for _ in range(16)))
        return most, done

    assert runner(main()) == (1, 80)


def test_a_loop_of_tries_lets_other_tasks_run(runner):
    """H550: none of them needs the store, so none would have to wait."""

    async def main():
        async with await aio.connect("mem:") as locks:
            lock = locks.lock("stock")

            async def hold():
                async with lock:
                    started.set()
                    await asyncio.sleep(0)

            async def within_no_time():
                try:
                    return await lock.acquire(timeout=0)
                except latchwork.TimedOut:
                    return None

            for attempt in (lock.try_acquire, within_no_time):
                started = asyncio.Event()
                holder = asyncio.create_task(hold())
                await started.wait()
                for _ in range(1_000):
                    guard = await attempt()
                    if guard is not None:
                        break
                else:
                    raise AssertionError("the holder did not run")
                await guard.release()
                await holder

    runner(main())


def test_all_ways_to_acquire(url, runner):
    async def main():
        async with await aio.connect(url, namespace="ways") as locks:
            lock = locks.lock("stock", ttl=5)
            guard = await lock.acquire()
            assert await lock.try_acquire() is None
            with pytest.raises(latchwork.TimedOut):
                async with lock.acquire(timeout=0.05):
                    raise AssertionError("it is held")
            await guard.release()
            async with lock.acquire(timeout=5) as guard:
                assert guard.state == "held"
            assert guard.state == "released"
            async with await lock.try_acquire() as guard:
                pass
            task = asyncio.create_task(lock.acquire())
            async with await task:
                assert [view.key for view in await locks.ls("stock")] == ["ways:stock"]
            # `with` and `async with` of the same connection for threads.
            with latchwork.connect("mem:") as other:
                both = other.lock("both")
                async with both as guard:
                    assert both.try_acquire() is None
                with both:
                    pass

    runner(main())


def test_a_read_hold_is_upgraded_and_a_cancelled_upgrade_changes_nothing(upgrading, runner):
    async def main():
        async with await aio.connect(upgrading, namespace="upgrades") as locks:
            catalogue = locks.rwlock("catalogue")
            async with catalogue.read as guard:
                token = guard.token
                other = await catalogue.read.acquire(timeout=5)
                task = asyncio.create_task(guard.upgrade())
                while not (await locks.show("catalogue")).waiters:
                    await asyncio.sleep(0.01)
                with pytest.raises(latchwork.UpgradeConflict):
                    await other.upgrade()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert guard.ensure_held() == token
                # Its place is withdrawn, and it may ask again.
                await (await catalogue.read.acquire(timeout=5)).release()
                task = asyncio.create_task(guard.upgrade(timeout=30))
                while not (await locks.show("catalogue")).waiters:
                    await asyncio.sleep(0.01)
                await other.release()
                assert await task == guard.token > token
                assert await catalogue.read.try_acquire() is None
                assert await guard.downgrade() == guard.token
                await (await catalogue.read.acquire(timeout=5)).release()
            assert (await locks.show("catalogue")).is_free

    runner(main())


def test_a_loss_is_awaitable_and_stops_the_work(url, runner):
    async def main():
        async with await aio.connect(url, namespace="losses") as locks:
            guard = await locks.lock("stock", ttl=1).acquire()
            stopped = []

            async def work():
                try:
                    await asyncio.sleep(60)
                finally:
                    stopped.append(True)

            running = asyncio.ensure_future(guard.run(work()))
            await asyncio.sleep(0.05)
            await locks.force_release("stock")
            assert await guard.lost == "taken"
            with pytest.raises(latchwork.Lost):
                await running
            assert stopped == [True]
            with pytest.raises(latchwork.Lost):
                await guard.release()
            async with locks.lock("other") as guard:
                assert await guard.run(asyncio.sleep(0, "done")) == "done"
                watch = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(asyncio.ensure_future(lost(guard))), 10))
                await asyncio.sleep(0.01)
            assert await watch is None

    async def lost(guard):
        return await guard.lost

    runner(main())


class Undone(Exception):
    """Opens a task again, so that its period is not closed."""


def test_ten_thousand_cancels_leave_nothing(redis_server, runner):
    choose = random.Random(17)

    async def main():
        cancelled = held = 0
        async with await aio.connect(redis_server, namespace="cancels", ttl=60) as locks:
            names = [f"stock/{n}" for n in range(4)]

            async def once():
                name = choose.choice(names)
                kind = choose.randrange(9)
                if kind == 0:
                    async with locks.lock(name) as guard:
                        await asyncio.sleep(choose.random() * 0.002)
                elif kind == 1:
                    async with locks.lock(name, fair=True).acquire(timeout=5):
                        await asyncio.sleep(0)
                elif kind == 2:
                    guard = await locks.lock(name).try_acquire()
                    if guard is not None:
                        await guard.release()
                elif kind == 3:
                    async with locks.multi(names[:2]):
                        await asyncio.sleep(0)
                elif kind == 4:
                    rwlock = locks.rwlock("catalogue")
                    async with choose.choice([rwlock.read, rwlock.write]):
                        await asyncio.sleep(0)
                elif kind == 5:
                    async with locks.semaphore("gpu", of=2, permits=choose.choice([1, 2])):
                        await asyncio.sleep(0)
                elif kind == 6:
                    lock = locks.reentrant("account")
                    async with lock, lock:
                        await asyncio.sleep(0)
                elif kind == 7:
                    async with locks.election("scheduler").campaign() as leadership:
                        await leadership.run(asyncio.sleep(0))
                else:
                    task = locks.once("report", every="1d")
                    async with task as run:
                        if run:
                            raise Undone

            async def cancelled_at_random():
                nonlocal cancelled, held
                task = asyncio.ensure_future(once())
                for _ in range(choose.randrange(6)):
                    await asyncio.sleep(0)
                if choose.random() < 0.5:
                    await asyncio.sleep(choose.random() * 0.003)
                task.cancel()
                try:
                    await task
                    held += 1
                except asyncio.CancelledError:
                    cancelled += 1
                except Undone:
                    held += 1

            for _ in range(10_000 // 50):
                await asyncio.gather(*(cancelled_at_random() for _ in range(50)))
            # Their ttl is a minute, so a claim that was left would be in the way.
            async with locks.multi([*names, "account", "scheduler"]).acquire(timeout=5):
                pass
            async with locks.rwlock("catalogue").write.acquire(timeout=5):
                pass
            async with locks.semaphore("gpu", of=2, permits=2).acquire(timeout=5):
                pass
            end = time.monotonic() + 5
            while await locks.ls():
                assert time.monotonic() < end, await locks.ls()
                await asyncio.sleep(0.01)
        return cancelled, held

    cancelled, held = runner(main())
    assert cancelled + held == 10_000 and cancelled > 5_000


def test_a_cancelled_release_goes_on(redis_server):
    async def main():
        async with await aio.connect(redis_server, namespace="released", ttl=60) as locks:
            for _ in range(50):
                guard = await locks.lock("stock").acquire(timeout=5)
                task = asyncio.ensure_future(guard.release())
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_a_collected_guard_of_a_task_warns(redis_server):
    async def main():
        async with await aio.connect(redis_server, namespace="collected", ttl=60) as locks:
            guard = await locks.lock("stock").acquire()
            with pytest.warns(RuntimeWarning, match="never released"):
                del guard
                gc.collect()
            await (await locks.lock("stock").acquire(timeout=5)).release()

    asyncio.run(main())


def test_a_lock_is_collected_with_a_task_that_has_entered_it():
    """The lock knows the task, and the task the lock: neither is kept when their loop has ended."""
    loop, entered = asyncio.new_event_loop(), asyncio.Event()
    locks = latchwork.connect("mem:")

    async def holds(lock):
        async with lock:
            entered.set()
            await asyncio.Event().wait()

    async def main():
        lock = locks.lock("stock")
        task = asyncio.create_task(holds(lock))
        await entered.wait()
        return weakref.ref(lock), weakref.ref(task)

    lock, task = loop.run_until_complete(main())
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed but it is pending!"
    loop.close()
    del loop
    gc.collect()
    assert lock() is None and task() is None
    wait_until(lambda: locks.show("stock").is_free, "the lock is released")
    locks.close()


def test_a_loop_is_never_blocked_by_the_store(url):
    async def main():
        longest = 0.0

        async def tick():
            nonlocal longest
            while True:
                before = time.monotonic()
                await asyncio.sleep(0.001)
                longest = max(longest, time.monotonic() - before)

        async with await aio.connect(url, namespace="ticks") as locks:
            ticking = asyncio.ensure_future(tick())

            async def work(n):
                for _ in range(40):
                    async with locks.lock(f"stock/{n % 4}"):
                        await asyncio.sleep(0)

            with Stalls() as stalls:
                await asyncio.gather(*(work(n) for n in range(16)))
            ticking.cancel()
        return longest, stalls.longest

    longest, stalled = asyncio.run(main())
    assert longest < 0.25 + stalled, (longest, stalled)


def test_anyio_works_on_asyncio(redis_server):
    import anyio

    async def main():
        async with await aio.connect(redis_server, namespace="anyio", ttl=60) as locks:
            lock = locks.lock("stock")
            async with lock:
                with anyio.move_on_after(0.05) as scope:
                    await lock.acquire()
                assert scope.cancelled_caught
            order = []

            async def work(n):
                async with lock:
                    order.append(n)

            async with anyio.create_task_group() as group:
                for n in range(5):
                    group.start_soon(work, n)
            assert sorted(order) == [0, 1, 2, 3, 4]
            assert (await locks.show("stock")).is_free

    anyio.run(main)


def test_outside_of_a_loop_the_error_says_so():
    operation = aio.connect("mem:")
    with pytest.raises(RuntimeError, match="no event loop is running"):
        operation.send(None)


def test_latchworks_threads_never_take_the_gil(redis_server):
    said = run(
        """
        import sys, time, latchwork
        locks = latchwork.connect(sys.argv[1], namespace="no-gil", ttl=1)
        guards = [locks.lock(f"stock/{n}").acquire() for n in range(200)]
        # One call that keeps the GIL for seconds: nothing of Python can run meanwhile.
        start, n = time.monotonic(), 0
        import re
        sys.setswitchinterval(3600)
        while time.monotonic() - start < 3:
            n += 1
        assert all(guard.state == "held" for guard in guards)
        print("held")
        """,
        redis_server,
    )
    assert said.stdout == "held\n", said
