"""Forks, and the end of the process."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import latchwork

from conftest import run, start
from servers import redis


def test_a_forked_child_is_refused_with_the_next_step(url):
    said = run(
        """
        import os, sys, latchwork
        locks = latchwork.connect(sys.argv[1])
        lock = locks.lock("forked")
        guard = lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                lock.acquire()
            except latchwork.Forked as error:
                print("refused:", error, flush=True)
            assert guard.state == "lost" and guard.lost.reason == "forked"
            try:
                guard.ensure_held()
            except latchwork.Lost as error:
                print("lost:", error.reason, flush=True)
            # It connects by itself, and ends without touching what is its parent's.
            with latchwork.connect(sys.argv[1]) as own, own.lock("own"):
                print("own", flush=True)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert guard.ensure_held() == guard.token
        guard.release()
        print("parent", flush=True)
        """,
        url,
    )
    lines = said.stdout.splitlines()
    assert said.returncode == 0, said
    assert lines[0].startswith("refused:") and "connect" in lines[0], said
    assert lines[1:] == ["lost: forked", "own", "parent"], said


def test_a_fork_inside_a_running_loop_is_refused(redis_server):
    said = run(
        """
        import asyncio, os, sys, latchwork
        from latchwork import aio
        async def main():
            async with await aio.connect(sys.argv[1], namespace="forked-loop") as locks:
                async with locks.lock("stock") as guard:
                    child = os.fork()
                    if child == 0:
                        try:
                            await locks.lock("other").try_acquire()
                        except latchwork.Forked as error:
                            print("refused:", error, flush=True)
                        os._exit(0 if guard.lost.reason == "forked" else 1)
                    assert os.waitpid(child, 0)[1] == 0
                    guard.ensure_held()
                    print("parent", flush=True)
        asyncio.run(main())
        """,
        redis_server,
    )
    lines = said.stdout.splitlines()
    assert lines[0].startswith("refused:") and "connect" in lines[0] and lines[1:] == ["parent"], said


WORKERS = """
import multiprocessing, sys, latchwork

def begin(url):
    global locks
    locks = latchwork.connect(url)

def count(path):
    with locks.lock("counter"):
        value = int(open(path).read())
        open(path, "w").write(str(value + 1))

def hold(url):
    # It ends without a release; its ttl is a minute.
    global guard
    guard = latchwork.connect(url).lock("of-worker", ttl=60).acquire()

if __name__ == "__main__":
    url, path, method = sys.argv[1:]
    parent = latchwork.connect(url)      # a worker must not use it
    context = multiprocessing.get_context(method)
    open(path, "w").write("0")
    with context.Pool(3, initializer=begin, initargs=(url,)) as pool:
        pool.map(count, [path] * 60)
    print(open(path).read())
    worker = context.Process(target=hold, args=(url,))
    worker.start()
    worker.join()
    parent.lock("of-worker").acquire(timeout=5).release()
    print("released")
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing_connects_and_releases_in_its_workers(redis_server, tmp_path, method):
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    command = [sys.executable, script, redis_server, tmp_path / "counter", method]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert said.stdout == "60\nreleased\n", said


GLOBAL = "guard = locks.lock('at-exit', ttl=60).acquire()"
FRAME = """
def work():
    guard = locks.lock('at-exit', ttl=60).acquire()
    sys.exit(3)
work()
"""
WAITING = """
import threading
guard = locks.lock('at-exit', ttl=60).acquire()
def wait():
    try:
        locks.lock('at-exit').acquire()
    except SystemExit:
        print("ended", flush=True)
threading.Thread(target=wait, daemon=True).start()
while not locks.show('at-exit').waiters and not threading.active_count() > 1: pass
import time; time.sleep(0.2)
"""
RAISED = """
guard = locks.lock('at-exit', ttl=60).acquire()
raise SystemExit(4)
"""
FAILED = """
def work():
    guard = locks.lock('at-exit', ttl=60).acquire()
    raise ValueError("the program fails")
work()
"""
HOOK = """
import atexit
def hook():
    locks.lock('in-hook').acquire().release()
    raise ValueError("a hook fails")
# Before it, and after it: hooks run in the opposite order.
atexit.register(hook)
guard = locks.lock('at-exit', ttl=60).acquire()
"""


@pytest.mark.parametrize(
    "body, code",
    [(GLOBAL, 0), (FRAME, 3), (WAITING, 0), (RAISED, 4), (FAILED, 1), (HOOK, 0)],
    ids=["global", "frame", "daemon", "raised", "failed", "hook"],
)
def test_the_end_of_the_process_releases_everything(redis_server, tmp_path, body, code):
    for url in (redis_server, f"file://{tmp_path}/locks"):
        start_code = f"import sys, latchwork\nlocks = latchwork.connect(sys.argv[1])\n{body}"
        said = run(start_code, url)
        assert said.returncode == code, said
        if body is WAITING:
            assert "ended" in said.stdout, said
        with latchwork.connect(url) as locks:
            # Its ttl is a minute: without the release it would still be held.
            locks.lock("at-exit").acquire(timeout=20).release()


def test_h361_an_exit_with_a_thread_that_retries_for_ever(redis_server):
    """H361: whatever the thread does at that moment, also if many processes end at once."""
    said = start_all(
        8,
        """
        import sys, threading, time, latchwork
        locks = latchwork.connect(sys.argv[1], namespace=sys.argv[2])
        guard = locks.lock("for-ever", ttl=60).acquire()
        def wait():
            while True:
                try:
                    locks.lock("for-ever").acquire(timeout=0.01)
                except latchwork.LatchworkError:
                    pass
        for _ in range(4):
            threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.1)
        """,
        redis_server,
    )
    assert said == [(0, "")] * 8


def start_all(count, code, *args):
    """The codes and the errors of processes that run side by side."""
    started = [start(code, *args, f"process-{n}") for n in range(count)]
    said = [process.communicate(timeout=60)[1] for process in started]
    return [(process.returncode, error) for process, error in zip(started, said)]


def test_h463_daemon_threads_end_without_a_word(redis_server, tmp_path):
    """H463: they wait, observe, lead and cycle, and the process ends. What they have begun by ``with`` and ``finally`` ends."""
    program = """
        import asyncio, sys, threading, time
        import latchwork
        from latchwork import aio

        locks = latchwork.connect(sys.argv[1], namespace="h463")
        held, ready = locks.lock("held").acquire(), threading.Semaphore(0)

        def waits():
            ready.release()
            try:
                locks.lock("held").acquire()
            except Exception as error:
                print("not an end", error)
            finally:
                ended.append("waits")

        def observes():
            for _ in locks.election("lead").observe():
                ready.release()

        def cycles():
            while True:
                with locks.lock("cycle"):
                    ready.release()

        async def tasks():
            async with aio.connect(sys.argv[1], namespace="h463") as locks:
                ready.release()
                async with locks.lock("held"):
                    pass

        ended = []
        leads = lambda: locks.election("lead").lead(lambda guard: guard.lost.wait())
        for work in (waits, observes, cycles, leads, lambda: held.lost.wait(), lambda: asyncio.run(tasks())):
            threading.Thread(target=work, daemon=True).start()
        for _ in range(10):
            ready.acquire()
        time.sleep(0.2)
        import atexit
        atexit.unregister(latchwork._close_all)
        atexit.register(lambda: print(ended))
        atexit.register(latchwork._close_all)
        """
    for url in (redis_server, f"file://{tmp_path}/locks"):
        said = run(program, url)
        assert (said.stdout, said.stderr, said.returncode) == ("['waits']\n", "", 0), said
        with latchwork.connect(url, namespace="h463") as locks:
            assert locks.ls() == []


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_h464_threads_of_a_worker_end_their_work(redis_server, tmp_path, method):
    """H464: the function of a process of ``multiprocessing`` returns, and a thread of it that is no daemon goes on."""
    (tmp_path / "h464.py").write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys, threading
            import latchwork

            def work(url, returned):
                locks = latchwork.connect(url, namespace="h464")

                def goes_on():
                    with locks.lock("stock") as guard:
                        returned.wait()
                        for _ in range(20):
                            guard.ensure_held()
                            guard.lost.wait(0.01)
                    print("done")

                threading.Thread(target=goes_on).start()

            if __name__ == "__main__":
                context = multiprocessing.get_context(sys.argv[2])
                returned = context.Event()
                process = context.Process(target=work, args=(sys.argv[1], returned))
                process.start()
                returned.set()
                process.join()
                print(process.exitcode)
            """
        )
    )
    said = subprocess.run(
        [sys.executable, str(tmp_path / "h464.py"), redis_server, method], capture_output=True, text=True, timeout=60
    )
    assert (said.stdout, said.returncode) == ("done\n0\n", 0), said


def test_a_killed_process_is_freed_by_its_ttl(redis_server):
    holder = start(
        """
        import sys, time, latchwork
        guard = latchwork.connect(sys.argv[1]).lock("killed", ttl=1).acquire()
        print("holds", flush=True)
        time.sleep(60)
        """,
        redis_server,
    )
    assert holder.stdout.readline() == "holds\n"
    with latchwork.connect(redis_server) as locks:
        assert locks.lock("killed").try_acquire() is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        locks.lock("killed").acquire(timeout=10).release()
    holder.communicate()


def test_a_subinterpreter_is_refused():
    said = run(
        """
        import latchwork
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        try:
            id = interpreters.create()
            failed = interpreters.run_string(id, "import latchwork")
            if failed is not None: raise RuntimeError(failed.formatted)
        except Exception as error:
            print("refused:", error)
        interpreters.destroy(id)
        """
    )
    assert "refused:" in said.stdout and "subinterpreter" in said.stdout, said


def test_an_exit_ends_while_the_store_is_stopped(tmp_path):
    with redis(tmp_path) as (port, server):
        holder = start(
            """
            import sys, latchwork
            locks = latchwork.connect(sys.argv[1], op_timeout=1)
            guard = locks.lock("stopped", ttl=60).acquire()
            print("holds", flush=True)
            sys.stdin.read()
            """,
            f"redis://127.0.0.1:{port}",
            stdin=subprocess.PIPE,
        )
        assert holder.stdout.readline() == "holds\n"
        server.send_signal(signal.SIGSTOP)
        try:
            before = time.monotonic()
            holder.communicate(timeout=30)
            assert time.monotonic() - before < 10
        finally:
            server.send_signal(signal.SIGCONT)


def test_the_command_is_in_the_wheel(redis_server):
    for command in ([sys.executable, "-m", "latchwork"], [os.path.join(os.path.dirname(sys.executable), "latchwork")]):
        said = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert said.stdout == f"latchwork {latchwork.__version__}\n", said
    run_ = subprocess.run(
        [sys.executable, "-m", "latchwork", "--store", redis_server, "run", "by-command", "--", "echo", "done"],
        capture_output=True, text=True,
    )
    assert run_.stdout == "done\n", run_


def test_a_command_that_is_missing_is_named_with_its_package(tmp_path, monkeypatch):
    import latchwork.__main__ as main

    monkeypatch.setattr(main, "_folders", lambda: iter([str(tmp_path)]))
    with pytest.raises(SystemExit, match="pip install latchwork-cli"):
        main.command()


def test_memory_stays_flat_over_cycles_and_timeouts(redis_server):
    """`LATCHWORK_FULL=1000000` makes it a million of each kind, within a few minutes."""
    said = run(
        """
        import asyncio, sys, latchwork
        from latchwork import aio
        url, count = sys.argv[1], int(sys.argv[2])

        def resident():
            with open("/proc/self/smaps_rollup") as rollup:
                return next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))

        def cycles(lock, count):
            for _ in range(count):
                with lock:
                    pass

        def timeouts(lock, count):
            for _ in range(count):
                try:
                    lock.acquire(timeout=0.000001)
                except latchwork.TimedOut:
                    continue
                raise SystemExit("it was held")

        async def cycles_of_a_task(lock, count):
            for _ in range(count):
                async with lock:
                    pass

        async def timeouts_of_a_task(lock, count):
            for _ in range(count):
                try:
                    await lock.acquire(timeout=0.000001)
                except latchwork.TimedOut:
                    # A time that is over already is told without a turn of the loop.
                    await asyncio.sleep(0)
                    continue
                raise SystemExit("it was held")

        async def tasks():
            async with aio.connect(url) as locks, locks.lock("held"):
                for kind in cycles_of_a_task, timeouts_of_a_task:
                    name = "held" if kind is timeouts_of_a_task else "free/{}"
                    crowd = [locks.lock(name.format(task)) for task in range(64)]
                    for part in 0.2, 1:
                        before = resident()
                        await asyncio.gather(*(kind(lock, int(count * part) // 64) for lock in crowd))
                        # What the engine's thread has not come to yet goes meanwhile.
                        await asyncio.sleep(1)
                    print(kind.__name__, resident() - before)

        with latchwork.connect(url) as locks, locks.lock("held"):
            for kind, name in (cycles, "free"), (timeouts, "held"):
                kind(locks.lock(name), count // 5)
                before = resident()
                kind(locks.lock(name), count)
                print(kind.__name__, resident() - before)
        asyncio.run(tasks())
        """,
        redis_server,
        os.environ.get("LATCHWORK_FULL", "20000"),
        limit=1200,
    )
    assert said.returncode == 0, said.stderr
    grown = dict(line.split() for line in said.stdout.splitlines())
    assert len(grown) == 4, said.stdout
    assert all(int(kilobytes) < 1024 for kilobytes in grown.values()), grown
    print(grown)
