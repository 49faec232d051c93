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
    Ok(())
}
