//! The messages and calls of etcd, made from `proto/etcd.proto` by `cargo xtask stubs`.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]

include!("proto/etcdserverpb.rs");
