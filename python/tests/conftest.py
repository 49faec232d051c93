"""What the tests share: stores, processes, and a measure of stalls."""

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import latchwork

from servers import (  # noqa: F401  (fixtures)
    etcd_server, free_port, postgres_server, redis_server, redlock_servers, wait_until, zookeeper_server,
)

# A job in the background of a shell inherits SIGINT as ignored, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(params=["mem", "file", "redis", "postgres"])
def url(request, tmp_path):
    """The address of a store: one in memory, on files, on a server that notifies, and in a database."""
    if request.param == "mem":
        return "mem:"
    if request.param == "file":
        return f"file://{tmp_path}/locks"
    return request.getfixturevalue({"redis": "redis_server", "postgres": "postgres_server"}[request.param])


@pytest.fixture
def locks(url, request):
    with latchwork.connect(url, namespace=request.node.name[:60]) as locks:
        yield locks


@pytest.fixture
def upgrading(url):
    """The address of a store that can upgrade a read hold."""
    with latchwork.connect(url, namespace="upgrading") as locks, locks.rwlock("tried").read as guard:
        try:
            guard.upgrade()
        except latchwork.Unsupported as error:
            pytest.skip(str(error))
    return url


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request):
    """Runs a coroutine on one kind of event loop."""
    if request.param == "asyncio":
        return asyncio.run
    import uvloop

    return uvloop.run


class Stalls(threading.Thread):
    """Measures how long this machine did not run this process: what upper bounds are widened by."""

    def __init__(self):
        super().__init__(daemon=True)
        self.longest = 0.0
        self.ends = False

    def run(self):
        last = time.monotonic()
        while not self.ends:
            time.sleep(0.002)
            now = time.monotonic()
            self.longest = max(self.longest, now - last - 0.002)
            last = now

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.ends = True
        self.join()


@contextlib.contextmanager
def unraisable():
    """What Python prints of exceptions that nobody can catch."""
    seen, before = [], sys.unraisablehook
    sys.unraisablehook = lambda it: seen.append(f"{it.err_msg} {it.exc_value!r} {it.object!r}")
    try:
        yield seen
        gc.collect()
    finally:
        sys.unraisablehook = before


#: Python 3.12 and later warn of each fork of a process with threads.
WARNINGS = ["-W", "always", "-W", "ignore:This process:DeprecationWarning"]


def start(code, *args, **more):
    """Starts a process of Python that runs this code; it prints a line when it is ready."""
    return subprocess.Popen(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def run(code, *args, limit=60, **more):
    """Runs this code in a process of Python to its end."""
    return subprocess.run(
        [sys.executable, *WARNINGS, "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=limit,
        **more,
    )


def interrupt(process, kind=signal.SIGINT):
    os.kill(process.pid, kind)
