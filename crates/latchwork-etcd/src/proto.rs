//! The messages and calls of etcd, made from `proto/etcd.proto` by `cargo xtask stubs`.

#![allow(missing_docs, unreachable_pub, dead_code, clippy::all, reason = "generated")]

include!("proto/etcdserverpb.rs");

#[cfg(test)]
mod tests {
    /// The tool leaves the FNV-1a sum of both files.
    #[test]
    fn the_stubs_are_those_of_the_protocol_file() {
        let files = [include_str!("../proto/etcd.proto"), include_str!("proto/etcdserverpb.rs")];
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let sum = files.concat().bytes().fold(0xcbf2_9ce4_8422_2325, step);
        let told = include_str!("proto/checksum").trim();
        assert_eq!(format!("{sum:016x}"), told, "generate them again: cargo xtask stubs");
    }
}
