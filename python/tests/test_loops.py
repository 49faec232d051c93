"""Event loops: one sends and reads by itself, and nothing depends on it."""

import asyncio
import contextvars
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

import latchwork
from latchwork import aio

from conftest import Stalls, unraisable, wait_until


def redis_client(url):
    import redis

    return redis.Redis.from_url(url)


def test_holds_outlive_a_blocked_loop(redis_server):
    async def main():
        async with await aio.connect(redis_server, namespace="blocked", ttl=1) as locks:
            guards = [await locks.lock(f"stock/{n}").acquire() for n in range(100)]
            # Some are under way when the loop stops: free keys, and one that is held.
            free = [asyncio.ensure_future(locks.lock(f"free/{n}").acquire()) for n in range(20)]
            waiting = asyncio.ensure_future(locks.lock("stock/0").acquire())
            await asyncio.sleep(0)
            time.sleep(3.2)
            assert all(guard.ensure_held() for guard in guards)
            for guard in await asyncio.gather(*free):
                await guard.release()
            for guard in guards:
                await guard.release()
            await (await waiting).release()

    asyncio.run(main())


def test_many_loops_one_after_another_and_side_by_side(redis_server):
    with latchwork.connect(redis_server, namespace="loops") as locks:
        lock = locks.lock("stock")

        async def main():
            async with lock:
                await asyncio.sleep(0)

        for _ in range(3):
            asyncio.run(main())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(30):
            asyncio.run(main())
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        threads = [threading.Thread(target=lambda: asyncio.run(main())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert locks.show("stock").is_free


def switches_of_other_threads():
    """How often the threads of this process, without this one, have waited for something."""
    count, own = 0, threading.get_native_id()
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != own:
            with open(f"/proc/self/task/{thread}/status") as status:
                count += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return count


def test_a_loop_reads_its_answers_by_itself(redis_server, runner):
    async def main():
        async with await aio.connect(redis_server, namespace="near") as locks:
            lock = locks.lock("stock")
            for _ in range(20):
                async with lock:
                    pass
            before, start = switches_of_other_threads(), time.monotonic()
            for _ in range(1000):
                async with lock:
                    pass
            return switches_of_other_threads() - before, time.monotonic() - start

    switches, took = runner(main())
    # 2,000 answers. Latchwork's thread looks after the connection a hundred times in a second.
    assert switches < 300 + 400 * took, (switches, took)


def test_operations_of_one_turn_share_commands(redis_server, runner):
    calls = lambda client: sum(it["calls"] for name, it in client.info("commandstats").items() if "eval" in name)

    async def main():
        client = redis_client(redis_server)
        async with await aio.connect(redis_server, namespace="together") as locks:
            async with locks.lock("warm"):
                pass
            before = calls(client)
            guards = await asyncio.gather(*(locks.lock(f"stock/{n}").acquire() for n in range(64)))
            acquired = calls(client) - before
            await asyncio.gather(*(guard.release() for guard in guards))
            return acquired, calls(client) - before - acquired

    acquired, released = runner(main())
    assert acquired <= 10 and released <= 10, (acquired, released)


def test_a_loop_goes_on_after_it_was_blocked(redis_server, runner):
    async def main():
        async with await aio.connect(redis_server, namespace="again") as locks:
            for _ in range(5):
                begun = [asyncio.ensure_future(locks.lock(f"stock/{n}").acquire()) for n in range(40)]
                await asyncio.sleep(0)
                time.sleep(0.1)
                for guard in await asyncio.wait_for(asyncio.gather(*begun), 5):
                    await guard.release()

    runner(main())


def test_two_loops_share_a_connection(redis_server):
    stop, longest = threading.Event(), []
    with latchwork.connect(redis_server, namespace="two") as locks:

        async def blocks():
            async with locks.lock("blocked", ttl=1) as guard:
                while not stop.is_set():
                    time.sleep(0.3)
                    async with locks.lock("of-blocked"):
                        pass
                guard.ensure_held()

        async def works(n):
            lock = locks.lock(f"stock/{n}")
            for _ in range(100):
                start = time.monotonic()
                async with lock:
                    await asyncio.sleep(0)
                longest.append(time.monotonic() - start)

        async def all_work():
            await asyncio.gather(*(works(n) for n in range(8)))

        blocked = threading.Thread(target=lambda: asyncio.run(blocks()))
        blocked.start()
        wait_until(lambda: not locks.show("blocked").is_free, "the loop that blocks has its lock")
        with Stalls() as stalls:
            threads = [threading.Thread(target=lambda: asyncio.run(all_work())) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        stop.set()
        blocked.join(30)
    assert len(longest) == 1600
    longest.sort()
    assert longest[800] < 0.25 + stalls.longest, longest[-10:]


@pytest.mark.parametrize("new_loop", ["asyncio", "uvloop"])
def test_a_loop_that_is_closed_under_way_leaves_nothing(redis_server, new_loop):
    names = [f"stock/{n}" for n in range(20)]
    with latchwork.connect(redis_server, namespace=f"closed-{new_loop}", ttl=60) as locks:

        async def hold(name):
            async with locks.lock(name):
                await asyncio.sleep(3600)

        async def next_loop():
            async with locks.lock("next"):
                gc.collect()

        def closes_one(sleep):
            if new_loop == "uvloop":
                import uvloop

                event_loop = uvloop.new_event_loop()
            else:
                event_loop = asyncio.new_event_loop()
            held = locks.lock("held").acquire()
            tasks = [event_loop.create_task(hold(name)) for name in ["held", "held", *names]]
            event_loop.set_exception_handler(lambda *_: None)
            event_loop.run_until_complete(asyncio.sleep(sleep))
            event_loop.close()
            del tasks
            held.release()
            asyncio.run(next_loop())
            for name in ["held", *names]:
                locks.lock(name).acquire(timeout=10).release()

        # The tasks are closed as they are collected: a block among them that waited for its release would be in the way.
        with unraisable() as seen:
            for sleep in (0, 0.0005, 0.05):
                closes_one(sleep)
                gc.collect()
        assert seen == []


def test_a_task_goes_on_in_its_own_context(redis_server, runner):
    name = contextvars.ContextVar("name")

    async def work(locks, n):
        name.set(n)
        for _ in range(20):
            async with locks.lock(f"stock/{n % 3}"):
                assert name.get() == n
                assert asyncio.current_task().get_name() == str(n)

    async def main():
        async with await aio.connect(redis_server, namespace="contexts") as locks:
            tasks = [asyncio.ensure_future(work(locks, n)) for n in range(20)]
            for n, task in enumerate(tasks):
                task.set_name(str(n))
            await asyncio.gather(*tasks)

    runner(main())


def test_a_loop_in_debug_mode_and_tasks_in_python(redis_server):
    async def work(lock):
        for _ in range(5):
            async with lock:
                await asyncio.sleep(0)

    async def main():
        async with await aio.connect(redis_server, namespace="debug") as locks:
            lock = locks.lock("stock")
            event_loop = asyncio.get_running_loop()
            tasks = [asyncio.tasks._PyTask(work(lock), loop=event_loop) for _ in range(4)]
            await asyncio.gather(*tasks, *(work(lock) for _ in range(4)))
            async with lock:
                for make in (event_loop.create_task, lambda it: asyncio.tasks._PyTask(it, loop=event_loop)):
                    waiting = make(lock.acquire())
                    await asyncio.sleep(0.01)
                    assert "latchwork operation pending" in repr(waiting)
                    waiting.cancel("enough")
                    with pytest.raises(asyncio.CancelledError):
                        await waiting
            assert (await locks.show("stock")).is_free

    asyncio.run(main(), debug=True)


def test_an_error_in_one_task_does_not_delay_the_others(redis_server, runner):
    async def main():
        async with await aio.connect(redis_server, namespace="errors") as locks:

            async def fails(n):
                async with locks.lock(f"stock/{n}"):
                    raise ValueError(n)

            done = await asyncio.gather(*(fails(n) for n in range(30)), return_exceptions=True)
            assert [str(error) for error in done] == [str(n) for n in range(30)]
            assert await locks.ls() == []

    runner(main())


def test_a_loop_is_not_starved_by_its_own_operations(runner):
    """Two tasks pass a lock on to each other for ever; others run as well."""

    async def main():
        async with await aio.connect("mem:") as locks:
            lock = locks.lock("stock")

            async def works():
                while True:
                    async with lock:
                        pass

            async with lock:
                tasks = [asyncio.ensure_future(works()) for _ in range(3)]
                await asyncio.sleep(0)
            start = time.monotonic()
            for _ in range(100):
                await asyncio.sleep(0.001)
            took = time.monotonic() - start
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return took

    with Stalls() as stalls:
        took = runner(main())
    assert took < 5 + 100 * stalls.longest


def test_what_is_never_awaited_warns(redis_server):
    async def main():
        async with await aio.connect(redis_server, namespace="forgotten", ttl=60) as locks:
            lock = locks.lock("stock")
            with pytest.warns(RuntimeWarning, match="never awaited"):
                lock.acquire()
            with pytest.warns(RuntimeWarning, match="never awaited"):
                lock.try_acquire()
            assert (await locks.show("stock")).is_free
            async with lock as guard:
                with pytest.warns(RuntimeWarning, match="never awaited"):
                    guard.release()
                guard.ensure_held()

    asyncio.run(main())


def test_the_last_reference_to_a_guard_may_be_its_release(redis_server, recwarn):
    async def main():
        async with await aio.connect(redis_server, namespace="last", ttl=60) as locks:
            lock = locks.lock("stock")
            for _ in range(5):
                await (await lock.acquire()).release()
                assert (await locks.show("stock")).is_free
                async with lock:
                    pass
                assert (await locks.show("stock")).is_free

    asyncio.run(main())
    assert [str(warning.message) for warning in recwarn] == []


def test_a_guard_is_made_by_a_lock_only():
    for kind in (latchwork.Guard, aio.Guard):
        with pytest.raises(TypeError, match="made by a lock"):
            kind()


def test_the_end_of_a_process_inside_of_a_loop_is_clean(redis_server):
    code = """
import asyncio, sys
from latchwork import aio

async def main():
    locks = await aio.connect(sys.argv[1], namespace="exit", ttl=60)
    guard = await locks.lock("stock").acquire()
    waiting = [asyncio.ensure_future(locks.lock("stock").acquire()) for _ in range(5)]
    await asyncio.sleep(0.05)
    raise SystemExit(3)

asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", code, redis_server], capture_output=True, text=True, timeout=30)
    assert said.returncode == 3, said
    with latchwork.connect(redis_server, namespace="exit") as locks:
        locks.lock("stock").acquire(timeout=5).release()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are of Python 3.12")
def test_eager_tasks_take_locks(url):
    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        inside = []
        async with aio.connect(url, namespace="eager", ttl=5) as locks:
            lock = locks.lock("stock")

            async def work(n):
                async with lock:
                    inside.append(n)
                    assert len(inside) == 1
                    await asyncio.sleep(0)
                    inside.pop()
                async with lock.acquire(timeout=20) as guard:
                    return guard.token

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(work(n)) for n in range(30)]
            assert len({task.result() for task in tasks}) == 30
            async with lock:
                waiting = [asyncio.create_task(lock.acquire()) for _ in range(10)]
                assert not any(task.done() for task in waiting)
                for task in waiting:
                    task.cancel()
                assert all(isinstance(it, asyncio.CancelledError) for it in await asyncio.gather(*waiting, return_exceptions=True))
            guard = await asyncio.create_task(lock.try_acquire())
            with pytest.raises(ZeroDivisionError):
                await guard.run(fails())
            assert guard.ensure_held()
            await guard.release()

    async def fails():
        raise ZeroDivisionError

    asyncio.run(main())


def test_a_debugger_awaits_while_the_loop_is_stopped(redis_server):
    """A debugger that stands at a breakpoint of a task evaluates `await ...` by a loop of another thread."""

    async def main():
        async with aio.connect(redis_server, namespace="debugger", ttl=2) as locks:
            lock, seen = locks.lock("stock"), []

            async def expression():
                seen.append([await lock.try_acquire(), (await locks.show("stock")).holders[0].token])
                async with locks.lock("other").acquire(timeout=20):
                    pass

            async with lock as guard:
                evaluates = threading.Thread(target=lambda: asyncio.run(expression()))
                evaluates.start()
                # The loop of this thread does nothing meanwhile.
                evaluates.join(20)
                assert seen == [[None, guard.token]]
            async with locks.lock("other").acquire(timeout=20):
                pass

    asyncio.run(main())
