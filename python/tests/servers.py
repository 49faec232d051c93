"""Servers of the stores, as processes on free ports: started at their first use, and ended by their pid."""

import contextlib
import functools
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

import pytest

import latchwork


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(is_so, what, limit=60.0):
    end = time.monotonic() + limit
    while not is_so():
        assert time.monotonic() < end, f"not within {limit} s: {what}"
        time.sleep(0.005)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def program(name, *folders):
    found = shutil.which(name, path=os.pathsep.join([os.environ["PATH"], "/usr/sbin", *folders]))
    assert found, f"{name} is not installed: cargo xtask setup"
    return found


@functools.cache
def provided(name):
    """Where a server of the tests is, which is fetched or built if it is not there."""
    script = pathlib.Path(__file__).resolve().parents[2] / "proof/services/provide"
    return subprocess.check_output(["sh", script, name], text=True).strip()


@contextlib.contextmanager
def running(command, port, stop=signal.SIGTERM, **more):
    """A process, from when its port is open; it is ended by its pid."""
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, **more)
    try:
        wait_until(lambda: listens(port), f"{command[0]} listens")
        yield process
    finally:
        process.send_signal(stop)
        process.wait(20)


@contextlib.contextmanager
def redis(folder):
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    options += ["--unixsocket", str(folder / "socket")]
    with running([provided("redis"), *options], port) as process:
        yield port, process


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    """A Redis server of its own: its address."""
    with redis(tmp_path_factory.mktemp("redis")) as (port, _):
        yield f"redis://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def redlock_servers(tmp_path_factory):
    """Three Redis servers that vote: their address."""
    with contextlib.ExitStack() as servers:
        ports = [servers.enter_context(redis(tmp_path_factory.mktemp("redlock")))[0] for _ in range(3)]
        yield "redlock://" + ",".join(f"127.0.0.1:{port}" for port in ports)


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory):
    """An etcd server of its own: its address."""
    port, peer = free_port(), free_port()
    urls = {"client": f"http://127.0.0.1:{port}", "peer": f"http://127.0.0.1:{peer}"}
    command = [
        provided("etcd"), f"--data-dir={tmp_path_factory.mktemp('etcd')}/data", "--name=only",
        f"--listen-client-urls={urls['client']}", f"--advertise-client-urls={urls['client']}",
        f"--listen-peer-urls={urls['peer']}", f"--initial-advertise-peer-urls={urls['peer']}",
        f"--initial-cluster=only={urls['peer']}",
    ]
    with running(command, port):
        yield f"etcd://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory):
    """A ZooKeeper server of its own: its address."""
    folder, port = tmp_path_factory.mktemp("zookeeper"), free_port()
    (folder / "zoo.cfg").write_text(
        f"tickTime=500\ndataDir={folder}/data\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
        "admin.enableServer=false\nmaxClientCnxns=0\nmaxSessionTimeout=300000\n"
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    command = [program("java"), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", provided("zookeeper"), main, str(folder / "zoo.cfg")]
    url = f"zk://127.0.0.1:{port}"
    with running(command, port):
        # It listens before it serves.
        wait_until(lambda: is_ready(url), "ZooKeeper is ready")
        yield url


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory):
    """A PostgreSQL server of its own, prepared for locks: its address. It refuses to run as root."""
    programs = pathlib.Path(provided("postgres"))
    folder = tmp_path_factory.mktemp("postgres")
    # Those of the registries bring their libraries.
    libraries = programs.parent / "lib"
    brings = (libraries / "libpq.so.5").exists()
    user = {"env": {**os.environ, **({"LD_LIBRARY_PATH": str(libraries)} if brings else {})}}
    if os.geteuid() == 0:
        import pwd

        entry = pwd.getpwnam("nobody")
        user |= {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        # Only the folders that pytest has made: with workers there is one more.
        for path in (path for path in [folder, *folder.parents] if "pytest-" in str(path)):
            os.chmod(path, 0o755)
        os.chown(folder, entry.pw_uid, entry.pw_gid)
    port, data = free_port(), folder / "data"
    initdb = [f"{programs}/initdb", "-D", data, "-U", "postgres", "--auth=trust", "--no-sync"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    command = [
        f"{programs}/postgres", "-D", data, "-p", str(port), "-k", folder, "-c", "listen_addresses=127.0.0.1",
    ]
    url = f"postgres://postgres@127.0.0.1:{port}/postgres"
    # A fast shutdown: it does not wait for connections.
    with running(command, port, stop=signal.SIGINT, cwd=folder, **user):
        wait_until(lambda: is_ready(url), "PostgreSQL is ready")
        yield url


def is_ready(url):
    """Whether a server that may still be starting is prepared for locks."""
    try:
        latchwork.init(url)
        latchwork.connect(url).close()
        return True
    except latchwork.LatchworkError:
        return False
