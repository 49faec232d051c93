//! Makes the stubs of etcd's API from the protocol file: `etcd-stubs PROTO OUTPUT_FOLDER`.

use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(proto), Some(out)) = (args.next(), args.next()) else {
        return Err("usage: etcd-stubs PROTO OUTPUT_FOLDER".into());
    };
    let folder = proto.parent().unwrap_or(Path::new("."));
    let files = protox::compile([&proto], [folder])?;
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .emit_rerun_if_changed(false)
        .out_dir(&out)
        .compile_fds(files)?;
    let stubs = out.join("etcdserverpb.rs");
    let sum = checksum(&[std::fs::read(&proto)?, std::fs::read(stubs)?].concat());
    std::fs::write(out.join("checksum"), format!("{sum:016x}\n"))?;
    Ok(())
}

/// FNV-1a, as a test of the etcd backend computes it of both files: neither is changed without the
/// other.
fn checksum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
