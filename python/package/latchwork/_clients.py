"""Clients of redis-py and valkey-py: the address of the server that one of them uses."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Protocol, Tuple, Union
from urllib.parse import quote, urlencode

from . import _errors, _native

_PACKAGES = ("redis", "valkey")


class Client(Protocol):
    """A client of redis-py or valkey-py, for threads or for tasks."""

    connection_pool: Any


class ClusterClient(Protocol):
    """The same of a Cluster."""

    nodes_manager: Any


def connecting(client: Union[Client, ClusterClient]) -> _native.Operation:
    """Connects to the server of a client. If it has a provider of credentials, that is asked again after a refusal."""
    packages = _packages(client)
    if "fakeredis" in packages:
        raise _errors.invalid(
            "store",
            f"{client!r} has no server; in a test use latchwork.testing.Store(), or the address of a fakeredis.TcpFakeServer",
        )
    if not any(package in _PACKAGES for package in packages):
        raise _errors.invalid(
            "store", f"{client!r} is neither an address, a path, a function that returns an address, nor a client of redis-py"
        )
    found = address(client)
    if _settings(client).get("credential_provider") is None:
        return _native.connect(found)
    # The first address is there already: the provider is not asked for it twice.
    first = [found]
    return _native.connect_from(None, None, lambda: first.pop() if first else address(client))


def _packages(client: Any) -> List[str]:
    """The packages that the class of a client and those that it inherits from are in."""
    return [it.__module__.split(".")[0] for it in type(client).__mro__]


def _settings(client: Any) -> Dict[str, Any]:
    """How a client connects."""
    if hasattr(client, "connection_pool"):
        return dict(client.connection_pool.connection_kwargs)
    if hasattr(client, "nodes_manager"):
        return dict(client.nodes_manager.connection_kwargs)
    raise _errors.invalid("store", f"{client!r} is no client; pass redis.Redis(), or an address")


def _refused(what: str) -> _errors.Invalid:
    return _errors.invalid("store", f"a client with {what} has no address that says so; pass an address")


def _quoted(text: Any) -> str:
    return quote(text.decode() if isinstance(text, bytes) else str(text), safe="")


def _host(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _login(known: Dict[str, Any]) -> str:
    provider = known.get("credential_provider")
    if provider is not None:
        parts: Tuple[Any, ...] = tuple(provider.get_credentials())
        user, password = ("", parts[0]) if len(parts) == 1 else parts[:2]
    else:
        user, password = known.get("username") or "", known.get("password")
    if not user and not password:
        return ""
    return f"{_quoted(user)}:{_quoted(password or '')}@"


def _tls(known: Dict[str, Any]) -> Dict[str, str]:
    for name in ("ssl_ca_data", "ssl_ca_path", "ssl_password", "ssl_ciphers"):
        if known.get(name):
            raise _refused(name)
    verified = str(known.get("ssl_cert_reqs", "required")).lower()
    if verified not in ("required", "verifymode.cert_required", "2") or known.get("ssl_check_hostname") is False:
        raise _errors.invalid(
            "store", "the client does not verify the certificate of its server; pass an address, with ca=/path or insecure=true"
        )
    named = (("ca", "ssl_ca_certs"), ("cert", "ssl_certfile"), ("key", "ssl_keyfile"))
    return {name: str(known[of]) for name, of in named if known.get(of)}


def _made(scheme: str, known: Dict[str, Any], hosts: str, path: str, options: Dict[str, str]) -> str:
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"{scheme}://{_login(known)}{hosts}{path}{query}"


def _of_cluster(client: Any, brand: str) -> str:
    nodes = list(client.nodes_manager.startup_nodes.values())
    known = _settings(client)
    is_secure = bool(known.get("ssl"))
    hosts = ",".join(sorted({_host(node.host, node.port) for node in nodes}))
    return _made(f"{_scheme(brand, is_secure)}+cluster", known, hosts, "", _tls(known) if is_secure else {})


def _of_sentinels(pool: Any, known: Dict[str, Any], brand: str) -> str:
    if not pool.is_master:
        raise _refused("a replica")
    options: Dict[str, str] = {}
    hosts: List[str] = []
    for sentinel in pool.sentinel_manager.sentinels:
        of_sentinel = sentinel.connection_pool.connection_kwargs
        hosts.append(_host(of_sentinel["host"], of_sentinel["port"]))
        for name, of in (("sentinel_user", "username"), ("sentinel_password", "password")):
            if of_sentinel.get(of):
                options[name] = str(of_sentinel[of])
    is_secure = "SSL" in pool.connection_class.__name__
    options.update(_tls(known) if is_secure else {})
    path = f"/{_quoted(pool.service_name)}/{int(known.get('db') or 0)}"
    return _made(f"{_scheme(brand, is_secure)}+sentinel", known, ",".join(hosts), path, options)


def _scheme(brand: str, is_secure: bool) -> str:
    return {("redis", True): "rediss", ("valkey", True): "valkeys"}.get((brand, is_secure), brand)


def address(client: Any) -> str:
    """The address of the server that the client uses, with its login, its database and its certificates."""
    brand = next(name for name in _packages(client) if name in _PACKAGES)
    known = _settings(client)
    if hasattr(client, "nodes_manager"):
        return _of_cluster(client, brand)
    pool = client.connection_pool
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinels(pool, known, brand)
    database = int(known.get("db") or 0)
    path: Optional[str] = known.get("path")
    if path is not None:
        return _made(f"{brand}+unix", known, "", quote(path), {"db": str(database)})
    is_secure = "SSL" in pool.connection_class.__name__
    host = _host(known.get("host") or "localhost", int(known.get("port") or 6379))
    return _made(_scheme(brand, is_secure), known, host, f"/{database}", _tls(known) if is_secure else {})
