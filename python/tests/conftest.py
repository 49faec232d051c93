"""Servers and processes for the tests: started here, and ended by their pid."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import latchwork


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(is_so, what, limit=20.0):
    end = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A Redis server of its own: its address."""
    folder = tmp_path_factory.mktemp("redis")
    program = shutil.which("redis-server", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "redis-server is not installed: cargo xtask setup"
    port = free_port()
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )

    def answers():
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        except OSError:
            return False

    try:
        wait_until(answers, "redis-server answers")
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(params=["mem", "file", "redis"])
def url(request, tmp_path):
    """The address of a store: each kind that processes of this machine can share, and memory."""
    if request.param == "mem":
        return "mem:"
    if request.param == "file":
        return f"file://{tmp_path}/locks"
    return request.getfixturevalue("redis_server")


@pytest.fixture
def shared_url(redis_server):
    return redis_server


@pytest.fixture
def locks(url, request):
    with latchwork.connect(url, namespace=request.node.name[:60]) as locks:
        yield locks


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


def start(code, *args, **more):
    """Starts a process of Python that runs this code; it prints a line when it is ready."""
    return subprocess.Popen(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(code), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def run(code, *args, limit=60, **more):
    """Runs this code in a process of Python to its end."""
    return subprocess.run(
        [sys.executable, "-W", "always", "-c", textwrap.dedent(code), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=limit,
        **more,
    )


def interrupt(process, kind=signal.SIGINT):
    os.kill(process.pid, kind)
