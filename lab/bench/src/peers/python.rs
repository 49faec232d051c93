//! Locks of Python: Latchwork's wheel, and those that it is measured beside, in their newest versions.

use super::{Kind, Program, SCRIPTS, SET_AND_SCRIPTS, Waits};
use crate::installing::PYTHON_LOCKS;

const fn ours(name: &'static str, script: &'static str) -> Kind {
    Kind {
        name,
        program: Program::Wheel(script),
        waits: Waits::Told,
        own_thread: true,
        sends: SCRIPTS,
    }
}

const fn peer(
    name: &'static str,
    script: &'static str,
    waits: Waits,
    sends: &'static [&'static str],
) -> Kind {
    Kind { name, program: Program::Venv(script, PYTHON_LOCKS), waits, own_thread: false, sends }
}

/// The package for threads.
pub(crate) const LATCHWORK: Kind = ours("latchwork", "latchwork_python.py");
pub(crate) const LATCHWORK_AIO: Kind = ours("latchwork.aio", "latchwork_aio.py");
pub(crate) const LATCHWORK_AIO_UVLOOP: Kind =
    ours("latchwork.aio, uvloop", "latchwork_aio_uvloop.py");

pub(crate) const REDIS_PY: Kind = peer("redis-py", "redis_py.py", Waits::Polls, SET_AND_SCRIPTS);
pub(crate) const REDIS_ASYNCIO: Kind =
    peer("redis.asyncio", "redis_asyncio.py", Waits::Polls, SET_AND_SCRIPTS);
pub(crate) const REDIS_ASYNCIO_UVLOOP: Kind =
    peer("redis.asyncio, uvloop", "redis_asyncio_uvloop.py", Waits::Polls, SET_AND_SCRIPTS);
/// The floor of 64 tasks.
pub(crate) const ASYNCIO_ALONE: Kind =
    peer("no lock: asyncio alone", "asyncio_alone.py", Waits::Rod, &[]);
pub(crate) const PYTHON_REDIS_LOCK: Kind =
    peer("python-redis-lock", "python_redis_lock.py", Waits::Told, &["set", "get", "blpop"]);
pub(crate) const POTTERY: Kind =
    peer("pottery Redlock", "pottery_redlock.py", Waits::Polls, SET_AND_SCRIPTS);
pub(crate) const KAZOO: Kind = peer("kazoo", "kazoo_lock.py", Waits::Told, &[]);
pub(crate) const ETCD3GW: Kind = peer("etcd3gw", "etcd3gw_lock.py", Waits::Polls, &[]);
pub(crate) const AETCD: Kind = peer("aetcd, asyncio", "aetcd_lock.py", Waits::Told, &[]);
pub(crate) const FILELOCK: Kind = peer("filelock", "filelock_lock.py", Waits::Polls, &[]);
