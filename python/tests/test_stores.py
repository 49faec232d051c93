"""Every kind of lock on every store, for threads and for asyncio."""

import asyncio
import shlex
import socket
import threading
import warnings

import pytest

import latchwork
from latchwork import aio

from servers import redis


def _replace(file, address):
    """As a tool replaces a secret: the file is the old one or the new one."""
    new = file.with_suffix(".new")
    new.write_text(address + "\n")
    new.replace(file)


def _password(port, *rules):
    said = _redis_says(port, "ACL", "SETUSER", "app", "on", "~*", "&*", "+@all", *rules)
    assert said.startswith("+OK"), said
    _redis_says(port, "CLIENT", "KILL", "USER", "app")


def _redis_says(port, *words):
    sent = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
    with socket.create_connection(("127.0.0.1", port), 5) as server:
        server.sendall(sent.encode())
        return server.recv(4096).decode()


def _connect(source, file):
    if source == "file":
        return {"store_file": file}
    if source == "command":
        return {"store_command": f"cat {shlex.quote(str(file))}"}
    return {"url": file.read_text}


@pytest.mark.parametrize("source", ["file", "command", "function"])
def test_h317_a_password_replaced_in_four_steps_loses_no_hold(source, tmp_path):
    """H317: of a connection of threads and of one of tasks."""
    ttl, file = 3, tmp_path / "the store"
    with redis(tmp_path) as (port, _):
        address = "redis://app:{}@127.0.0.1:" + str(port)
        _password(port, ">old")
        _replace(file, address.format("old"))

        async def main():
            locks = latchwork.connect(ttl=ttl, **_connect(source, file))
            async with await aio.connect(ttl=ttl, **_connect(source, file)) as tasks:
                held, other = locks.lock("threads").acquire(), await tasks.lock("tasks").acquire()
                for rules, password in [((">new",), "new"), (("<old",), "new"), (("resetpass", ">last"), "last")]:
                    # The file is there before the server refuses the old password.
                    _replace(file, address.format(password))
                    _password(port, *rules)
                    await asyncio.sleep(ttl + 0.5)
                    assert held.ensure_held() and other.ensure_held()
                await other.release()
            held.release()
            locks.close()

        asyncio.run(main())


def test_h317_a_source_that_fails_says_why_and_no_secret(tmp_path):
    def raises():
        raise OSError("redis://app:secret@host")

    async def is_awaited():
        return "mem:"

    printed = tmp_path / "printed"
    printed.write_text("redis://app:secret@host\n")
    for source, words in [
        ({"store_file": tmp_path / "none"}, "none"),
        ({"store_command": f"cat {shlex.quote(str(printed))}; exit 3"}, "exit status 3"),
        ({"url": raises}, "raised OSError"),
        ({"url": lambda: 7}, "returned no text"),
        ({"url": is_awaited}, "not async def"),
        ({"url": "mem:", "store_file": "x"}, "one of url, store_file and store_command"),
    ]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the coroutine that nobody awaits
            with pytest.raises(latchwork.Invalid) as refused:
                latchwork.connect(**source)
        assert words in str(refused.value) and "secret" not in str(refused.value)


@pytest.fixture(params=["mem", "file", "redis", "redlock", "etcd", "zookeeper", "postgres"])
def store(request, tmp_path):
    """The address of each store that `connect` knows."""
    if request.param == "mem":
        return "mem:"
    if request.param == "file":
        return f"file://{tmp_path}/locks"
    names = {"redlock": "redlock_servers"}
    return request.getfixturevalue(names.get(request.param, f"{request.param}_server"))


def test_every_kind_works_on_every_store(store):
    latchwork.init(store)
    assert latchwork.doctor(store).findings
    # Servers that vote have no queue, and cannot count permits.
    votes = store.startswith("redlock:")
    with latchwork.connect(store, namespace="threads", ttl=10) as locks:
        with locks.lock("stock").acquire(timeout=40) as first:
            assert first.ensure_held() == first.token and locks.lock("stock").try_acquire() is None
            with pytest.raises(latchwork.Unsupported if votes else latchwork.TimedOut):
                locks.lock("stock", fair=True).acquire(timeout=0.1)
        with locks.lock("stock", fair=not votes).acquire(timeout=10) as second:
            assert second.token > first.token
        catalogue = locks.rwlock("catalogue")
        with catalogue.read, catalogue.read:
            assert catalogue.write.try_acquire() is None
        with catalogue.write.acquire(timeout=10):
            assert catalogue.read.try_acquire() is None
        gpu = locks.semaphore("gpu", of=2)
        if votes:
            with pytest.raises(latchwork.Unsupported, match="semaphore"):
                gpu.acquire()
        else:
            with gpu, gpu:
                assert gpu.try_acquire() is None
        account = locks.reentrant("account")
        with account as outer, account as inner:
            assert outer.token == inner.token
        with locks.multi(["a", "b"]) as several:
            assert len(several.tokens) == 2
        election = locks.election("scheduler", candidate="me:1")
        with election.campaign(timeout=10) as leadership:
            assert election.leader() == latchwork.Leader("me:1", leadership.token)
            assert election.try_campaign() is None
        task = locks.once("report", every="1d")
        with task as run:
            assert run
        assert task.begin().why == "done" and task.reset() == "opened"
        waiting = locks.lock("stock").acquire(timeout=10)
        admitted = []
        thread = threading.Thread(target=lambda: admitted.append(locks.lock("stock").acquire(timeout=10)))
        thread.start()
        waiting.release()
        thread.join(15)
        (guard,) = admitted
        assert [view.key for view in locks.ls("stock")] == ["threads:stock"]
        forced = locks.force_release("stock")
        assert len(forced.evicted) == 1 and guard.lost.wait(timeout=20) == "taken"
        with pytest.raises(latchwork.Lost):
            guard.release()
        assert locks.show("stock").is_free


def test_every_kind_works_with_asyncio_on_every_store(store):
    async def main():
        await aio.init(store)
        async with await aio.connect(store, namespace="tasks", ttl=10) as locks:
            async with locks.lock("stock").acquire(timeout=40) as first:
                assert await locks.lock("stock").try_acquire() is None
                with pytest.raises(latchwork.TimedOut):
                    await locks.lock("stock").acquire(timeout=0.1)
            async with locks.lock("stock") as second:
                assert second.token > first.token
            catalogue = locks.rwlock("catalogue")
            async with catalogue.read, catalogue.read:
                assert await catalogue.write.try_acquire() is None
            if not store.startswith("redlock:"):
                async with locks.semaphore("gpu", of=2, permits=2):
                    pass
            account = locks.reentrant("account")
            async with account as outer, account as inner:
                assert outer.token == inner.token
            async with locks.multi(["a", "b"]) as several:
                assert len(several.tokens) == 2
            election = locks.election("scheduler", candidate="me:1")
            async with election.campaign(timeout=10) as leadership:
                async for leader in election.observe():
                    assert leader == latchwork.Leader("me:1", leadership.token)
                    break
            task = locks.once("report", every="1d")
            async with task as run:
                assert run
            assert (await task.begin()).why == "done" and await task.reset() == "opened"
            most = inside = 0

            async def work():
                nonlocal most, inside
                async with locks.lock("stock").acquire(timeout=30):
                    inside += 1
                    most = max(most, inside)
                    await asyncio.sleep(0.001)
                    inside -= 1

            await asyncio.gather(*(work() for _ in range(8)))
            assert most == 1
            async with locks.lock("stock") as guard:
                waiter = asyncio.ensure_future(locks.lock("stock").acquire())
                await asyncio.sleep(0.1)
                waiter.cancel()
                await asyncio.gather(waiter, return_exceptions=True)
                await locks.force_release("stock")
                assert await guard.lost == "taken"
                guard._forget()

    asyncio.run(main())
