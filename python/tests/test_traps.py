"""What programs do by mistake: each is refused, or seen, before it costs the lock."""

import asyncio
import contextlib
import functools
import gc
import inspect
import sys
import threading
from datetime import timedelta

import pytest

import latchwork
from latchwork import aio

from conftest import run, unraisable


def test_h350_a_guard_without_a_name_is_seen():
    """H350: with the filters that Python has by default, and in its development mode with the place."""
    code = """
import sys, latchwork
with latchwork.connect("mem:") as locks:
    lock = locks.lock("stock")
    if lock.try_acquire():
        print("free" if locks.show("stock").is_free else "held")
"""
    import subprocess

    for options, hint in ((), "python -X dev"), (("-X", "dev"), "it was acquired at <string>:5"):
        said = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)
        assert said.stdout in ("free\n", "held\n"), said
        assert "RuntimeWarning" in said.stderr and hint in said.stderr, said
        assert "if (guard := lock.try_acquire()):" in said.stderr and "never released" in said.stderr, said


def test_a_guard_with_a_name_is_the_hold(locks, recwarn):
    lock = locks.lock("stock")
    if guard := lock.try_acquire():
        with guard:
            assert lock.try_acquire() is None
    assert [str(it.message) for it in recwarn] == []


@pytest.mark.parametrize("store", ["mem", "redis", "postgres"])
def test_h352_a_loop_inside_of_a_loop_goes_on(store, request):
    """H352: notebooks and debuggers run a loop inside of a task of the same loop."""
    url = "mem:" if store == "mem" else request.getfixturevalue(f"{store}_server")
    said = run(
        """
import asyncio, sys
import nest_asyncio
nest_asyncio.apply()
from latchwork import aio

async def cell():
    async with aio.connect(sys.argv[1], namespace="nested") as locks:
        async with locks.lock("a"):
            async def inner():
                async with locks.lock("b"):
                    return await locks.show("a")
            for _ in range(3):
                view = asyncio.get_event_loop().run_until_complete(inner())
                assert view.holders
    return "done"

print(asyncio.run(cell()))
""",
        url,
    )
    assert said.stdout == "done\n", said


def test_h400_a_task_written_in_python_is_known():
    """H400: from CPython 3.14 on, `asyncio.current_task()` is None in the tasks of nest_asyncio and the like."""
    said = run(
        """
import asyncio
known = asyncio.current_task
asyncio.current_task = lambda *_: None
asyncio.tasks._py_current_task = known
from latchwork import aio

async def main():
    async with aio.connect("mem:") as locks:
        async with locks.lock("a") as guard, locks.reentrant("b"), locks.reentrant("b"):
            assert guard.ensure_held()
    return "done"

print(asyncio.run(main()))
"""
    )
    assert said.stdout == "done\n", said


def test_h353_what_ls_gives_is_what_other_verbs_take(url):
    """H353: a clean-up of an operator acts on the keys that it was shown."""
    with latchwork.connect(url, namespace="h353") as locks:
        guard, twice = locks.lock("a").acquire(), locks.lock("h353:b").acquire()
        views = locks.ls()
        assert [(view.key, view.name) for view in views] == [("h353:a", "a"), ("h353:h353:b", "h353:b")]
        for verb in (locks.show, locks.force_release, locks.ls):
            with pytest.raises(latchwork.Invalid, match="begins with the namespace"):
                verb(guard.key)
        for view in views:
            assert locks.show(view).holders and locks.show(view).key == view.key
            assert len(locks.force_release(view).evicted) == 1
        assert guard.lost.wait(20) == "taken" and twice.lost.wait(20) == "taken"
        with locks.lock("c"), pytest.raises(latchwork.Invalid, match="not in the namespace"):
            locks.namespace("other").show(locks.ls("c")[0])
        with locks.namespace("other").lock("d"):
            assert [view.name for view in locks.namespace("other").ls()] == ["d"]

    async def main():
        async with aio.connect(url, namespace="h353") as tasks:
            async with tasks.lock("a"):
                (view,) = await tasks.ls()
                assert view.name == "a" and (await tasks.show(view)).holders
                with pytest.raises(latchwork.Invalid, match="begins with the namespace"):
                    await tasks.force_release("h353:a")

    asyncio.run(main())


class Later:
    async def __call__(self, *_):
        raise AssertionError("it must not run")


async def coroutine(*_):
    raise AssertionError("it must not run")


def generator(*_):
    yield


@pytest.mark.parametrize(
    "work",
    [coroutine, generator, Later(), functools.partial(coroutine, 1), lambda *_: coroutine(), 5, None],
    ids=["coroutine", "generator", "object", "partial", "lambda", "number", "none"],
)
def test_h354_a_period_is_not_closed_if_nothing_ran(locks, work):
    """H354: what is no work, or makes work that nobody awaits, is refused and leaves the task open."""
    with pytest.raises(TypeError, match="once"):
        locks.once("mail", every="1h")(work)()
    with pytest.raises(TypeError, match="lead"):
        locks.election("scheduler").lead(work)
    if not inspect.iscoroutinefunction(work):
        with pytest.raises(TypeError, match="synchronized"):
            locks.synchronized("mail")(work)()
    assert locks.show("mail").is_free and locks.election("scheduler").leader() is None


def test_h354_what_has_run_in_a_task_closes_its_period():
    """H354: a plain function has run when it returns, and does not run again on each host."""

    async def main():
        async with aio.connect("mem:") as tasks:
            ran = []
            task = tasks.once("mail", every="1h")
            for _ in range(2):
                await task(lambda: ran.append(True))()
            assert ran == [True]
            assert await tasks.election("scheduler").lead(lambda leadership: leadership.token) > 0
            for work in (5, None, generator):
                with pytest.raises(TypeError, match="once"):
                    tasks.once("other", every="1h")(work)
                with pytest.raises(TypeError, match="lead"):
                    await tasks.election("scheduler").lead(work)

    asyncio.run(main())


def test_h355_an_operation_has_one_task(redis_server, runner):
    """H355: a second task is refused; before, the first one slept for ever."""

    async def main():
        async with aio.connect(redis_server, namespace="h355") as locks:
            held = await locks.lock("stock").acquire()
            operation = locks.lock("stock").acquire()

            async def awaits():
                return await operation

            first, second = asyncio.ensure_future(awaits()), asyncio.ensure_future(awaits())
            with pytest.raises(RuntimeError, match="awaited already"):
                await asyncio.wait_for(second, 20)
            await held.release()
            await (await asyncio.wait_for(first, 20)).release()
            with pytest.raises(RuntimeError, match="awaited before"):
                await operation

    runner(main())


def test_h356_a_call_that_blocks_a_loop_is_seen():
    """H356: a task holds the lock, and another one waits for it by a call that blocks their loop."""

    async def main():
        with latchwork.connect("mem:") as locks:
            lock = locks.lock("stock")
            async with lock:
                with pytest.warns(RuntimeWarning, match="blocks the event loop") as seen:
                    with pytest.raises(latchwork.TimedOut):
                        lock.acquire(timeout=1.5)
                assert seen[0].filename == __file__
            with pytest.warns(RuntimeWarning, match="never released"):
                with pytest.raises(TypeError, match="latchwork.aio"):
                    async with lock.acquire():
                        raise AssertionError("it is no lock of tasks")
                gc.collect()

    asyncio.run(main())
    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(60)


def test_h357_each_block_leaves_with_its_own_guard(locks):
    """H357: stacks and generators that are not left in the reverse order of their begin."""
    semaphore = locks.semaphore("gpu", of=4)
    one, other = contextlib.ExitStack(), contextlib.ExitStack()
    first, second = one.enter_context(semaphore), other.enter_context(semaphore)
    one.close()
    assert (first.state, second.state) == ("released", "held")
    other.close()
    assert second.state == "released"

    def suspended():
        with semaphore as guard:
            yield guard

    generators = [suspended() for _ in range(3)]
    guards = [next(it) for it in generators]
    generators[0].close()
    assert [guard.state for guard in guards] == ["released", "held", "held"]
    generators[2].close()
    assert [guard.state for guard in guards] == ["released", "held", "released"]
    generators[1].close()
    with semaphore as outer, semaphore as inner:
        pass
    assert outer.state == inner.state == "released" and locks.show("gpu").is_free


def test_h357_a_stack_that_takes_over_leaves_with_its_own_guard(locks):
    """H357: ``pop_all()`` gives the blocks of a stack to another one, and a block inside of them is still entered."""
    semaphore = locks.semaphore("gpu", of=4)
    with contextlib.ExitStack() as stack:
        outer = stack.enter_context(semaphore)
        with semaphore as inner:
            taken = stack.pop_all()
            again = stack.enter_context(semaphore)
            taken.close()
            assert [guard.state for guard in (outer, inner, again)] == ["released", "held", "held"]
        assert [guard.state for guard in (inner, again)] == ["released", "held"]
    assert again.state == "released" and locks.show("gpu").is_free


def test_h357_each_block_of_tasks_leaves_with_its_own_guard(url):
    async def main():
        async with aio.connect(url, namespace="h357") as locks:
            semaphore = locks.semaphore("gpu", of=4)
            one, other = contextlib.AsyncExitStack(), contextlib.AsyncExitStack()
            first = await one.enter_async_context(semaphore)
            second = await other.enter_async_context(semaphore)
            await one.aclose()
            assert (first.state, second.state) == ("released", "held")
            await other.aclose()

            async def suspended():
                async with semaphore as guard:
                    yield guard

            left, stays = suspended(), suspended()
            first, second = await left.__anext__(), await stays.__anext__()
            await left.aclose()
            assert (first.state, second.state) == ("released", "held")
            await stays.aclose()
            assert second.state == "released" and (await locks.show("gpu")).is_free
            async with contextlib.AsyncExitStack() as stack:
                outer = await stack.enter_async_context(semaphore)
                async with semaphore as inner:
                    await stack.pop_all().aclose()
                    assert (outer.state, inner.state) == ("released", "held")
            assert (await locks.show("gpu")).is_free

    asyncio.run(main())


def test_h359_a_closed_coroutine_releases_without_a_wait(redis_server):
    """H359: a block in a coroutine that is closed cannot await its release."""

    async def block(lock, held):
        async with lock as guard:
            held.append(guard)
            await asyncio.sleep(3600)

    async def acquired(lock, held):
        async with lock.acquire() as guard:
            held.append(guard)
            await asyncio.sleep(3600)

    async def runs(lock, held):
        async with await lock.acquire() as guard:
            held.append(guard)
            await guard.run(asyncio.sleep(3600))

    async def main():
        async with aio.connect(redis_server, namespace="h359", ttl=60) as locks:
            for body in (block, acquired, runs):
                held = []
                waiting = body(locks.lock("stock"), held)
                while True:
                    # As a task does it.
                    slept = waiting.send(None)
                    if held:
                        break
                    slept._asyncio_future_blocking = False
                    ended = asyncio.Event()
                    slept.add_done_callback(lambda _: ended.set())
                    await asyncio.wait_for(ended.wait(), 20)
                with unraisable() as seen:
                    waiting.close()
                    del waiting
                assert seen == [] and held[0].state == "released"
                await (await locks.lock("stock").acquire(timeout=10)).release()

    asyncio.run(main())


def test_a_timedelta_of_days_is_of_the_calendar(locks):
    task = locks.once("report", every=timedelta(days=1), tz="Europe/Berlin")
    with task as run:
        assert run and run.period[1] - run.period[0] >= 23 * 3600
    assert locks.once("report", every="1d", tz="Europe/Berlin").begin().why == "done"


def test_a_report_is_the_table_of_the_command(tmp_path):
    import subprocess

    url = f"file://{tmp_path}"
    said = subprocess.run([sys.executable, "-m", "latchwork", "doctor", "--store", url], capture_output=True, text=True)
    printed = str(latchwork.doctor(url))
    # A measured time or number may be another one.
    shape = lambda text: [line.split()[:2] for line in text.strip().splitlines()]
    assert shape(printed) == shape(said.stdout), (printed, said)


def test_a_report_counts_a_closed_period_as_closed(redis_server):
    with latchwork.connect(redis_server, namespace="closed") as locks, locks.once("mail", every="1d") as run:
        assert run
    found = {finding.code: finding.found for finding in latchwork.doctor(redis_server).findings}
    assert found["locks"].endswith(" held, waited for or closed"), found


def test_the_end_of_a_process_is_silent(redis_server):
    said = run(
        """
import sys, latchwork
locks = latchwork.connect(sys.argv[1], namespace="silent")

def suspended(name):
    with locks.lock(name) as guard:
        yield guard

def by_guard(name):
    with locks.lock(name).acquire() as guard:
        yield guard

kept = [suspended("a"), by_guard("b")]
guards = [next(it) for it in kept]
cycle = [guards]
cycle.append(cycle)
print("ends")
""",
        redis_server,
    )
    assert (said.stdout, said.stderr, said.returncode) == ("ends\n", "", 0), said


def test_a_loss_is_noted_once(locks):
    async def main():
        async with aio.connect("mem:") as tasks:
            with pytest.raises(latchwork.Lost) as caught:
                async with tasks.lock("stock") as guard:
                    await tasks.force_release("stock")
                    await guard.run(asyncio.sleep(60))
            assert getattr(caught.value, "__notes__", []) == []

    asyncio.run(main())
