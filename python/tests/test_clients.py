"""Connections by the settings of a client of redis-py or valkey-py."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import threading

import pytest
import redis
import redis.asyncio
import valkey

import latchwork
from latchwork import _clients, aio

from servers import free_port, listens, provided, running, wait_until
from servers import redis as redis_process


def excludes(client, database=0, **more):
    """Locks of a connection that was made of the client are where the client is."""
    with latchwork.connect(client, **more) as locks, locks.lock("by-client"):
        assert client.get("by-client").startswith(b"lw:")
        assert not client.lock("by-client", timeout=5, blocking=False).acquire()
    assert client.get("by-client") is None


@pytest.mark.parametrize("package", [redis, valkey])
def test_a_client_is_enough_to_connect(package, redis_server):
    port = int(redis_server.rsplit(":", 1)[1])
    brand = package.Redis if package is redis else package.Valkey
    client = brand(port=port, db=3)
    excludes(client)
    assert client.config_get("maxclients")
    excludes(brand.from_url(f"{package.__name__}://127.0.0.1:{port}/2?socket_timeout=5"))
    with pytest.raises(latchwork.TimedOut, match="without waiting: held by a client of another kind [(]"):
        with client.lock("theirs", timeout=30), latchwork.connect(client) as locks:
            locks.lock("theirs").acquire(timeout=0)


def test_a_client_of_asyncio_is_enough_to_connect(redis_server):
    async def main():
        client = redis.asyncio.Redis.from_url(redis_server)
        async with aio.connect(client) as locks, locks.lock("by-client"):
            assert (await client.get("by-client")).startswith(b"lw:")
        await client.aclose()

    asyncio.run(main())


def test_a_client_of_fakeredis_is_refused_with_what_a_test_may_use():
    fake = type("FakeRedis", (redis.Redis,), {"__module__": "fakeredis"})(host="9f2ec0ffee")
    with pytest.raises(latchwork.Invalid, match="in a test use latchwork.testing.Store"):
        latchwork.connect(fake)


def test_login_and_socket_of_a_client_are_taken(tmp_path):
    with redis_process(tmp_path) as (port, _):
        with redis.Redis(port=port) as admin:
            admin.execute_command("ACL", "SETUSER", "app", "on", ">p@ss/w?rd", "~*", "&*", "+@all")
            admin.config_set("requirepass", "of:default")
        excludes(redis.Redis(port=port, username="app", password="p@ss/w?rd"))
        excludes(redis.Redis(port=port, password="of:default"))
        excludes(redis.Redis(unix_socket_path=str(tmp_path / "socket"), db=5, username="app", password="p@ss/w?rd"))
        with pytest.raises(latchwork.Denied):
            latchwork.connect(redis.Redis(port=port, password="wrong"))


def test_a_provider_of_credentials_is_asked_again(tmp_path):
    words = ["first"]

    class Provider(redis.CredentialProvider):
        def get_credentials(self):
            return ("app", words[-1])

    with redis_process(tmp_path) as (port, _), redis.Redis(port=port) as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">first", "~*", "&*", "+@all")
        with latchwork.connect(redis.Redis(port=port, credential_provider=Provider()), ttl=3) as locks:
            with locks.lock("kept") as guard:
                words.append("second")
                admin.execute_command("ACL", "SETUSER", "app", "<first", ">second")
                admin.execute_command("CLIENT", "KILL", "USER", "app")

                def is_let_in():
                    try:
                        locks.lock("other").acquire(timeout=20).release()
                        return True
                    except latchwork.Denied:
                        return False

                # The first refusal has the provider asked again.
                wait_until(is_let_in, "the new password is used")
                assert guard.ensure_held() and words == ["first", "second"]


def test_a_client_of_sentinels_is_enough_to_connect(tmp_path):
    port = free_port()
    with redis_process(tmp_path) as (master, _):
        configuration = tmp_path / "sentinel.conf"
        configuration.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nrequirepass of-sentinels\n"
            f"sentinel monitor locks 127.0.0.1 {master} 1\n"
        )
        with running([provided("redis"), str(configuration), "--sentinel"], port):
            sentinels = redis.Sentinel([("127.0.0.1", port)], sentinel_kwargs={"password": "of-sentinels"})
            excludes(sentinels.master_for("locks", db=1))
            with pytest.raises(latchwork.Invalid, match="replica"):
                latchwork.connect(sentinels.slave_for("locks"))


def test_a_client_of_a_cluster_is_enough_to_connect(tmp_path):
    port = free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path), "--cluster-enabled", "yes"]
    with running([provided("redis"), *options, "--cluster-port", str(free_port())], port):
        with redis.Redis(port=port) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until(lambda: node.cluster("INFO")["cluster_state"] == "ok", "the Cluster is ready")
        client = redis.RedisCluster(host="127.0.0.1", port=port)
        with latchwork.connect(client) as locks, locks.lock("by-client"):
            assert client.get("{by-client}").startswith(b"lw:") or client.get("by-client").startswith(b"lw:")


@contextlib.contextmanager
def tls_before(port, folder):
    """Ends TLS before a server that has none: the port, and the certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        check=True, capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    async def pipe(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader, writer):
        there = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pipe(reader, there[1]), pipe(there[0], writer))

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(connected, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1], certificate
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)


def test_the_certificates_of_a_client_are_taken(tmp_path):
    with redis_process(tmp_path) as (plain, _), tls_before(plain, tmp_path) as (port, certificate):
        excludes(redis.Redis(host="localhost", port=port, ssl=True, ssl_ca_certs=str(certificate)))
        with pytest.raises(latchwork.LatchworkError, match="certificate"):
            latchwork.connect(redis.Redis(host="localhost", port=port, ssl=True))
        with pytest.raises(latchwork.Invalid, match="does not verify"):
            latchwork.connect(redis.Redis(port=port, ssl=True, ssl_cert_reqs="none"))
        with pytest.raises(latchwork.Invalid, match="ssl_ca_data"):
            latchwork.connect(redis.Redis(port=port, ssl=True, ssl_ca_data="x"))


def test_what_is_no_client_is_refused():
    for wrong in 7, object(), b"redis://h", socket:
        with pytest.raises(latchwork.Invalid, match="store: "):
            latchwork.connect(wrong)
    assert _clients.address(redis.Redis(host="::1", password="a:b")) == "redis://:a%3Ab@[::1]:6379/0"
