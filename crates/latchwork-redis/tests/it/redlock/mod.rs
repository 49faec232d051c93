//! One lock over five real servers that are killed, stopped, cut off, slow, emptied, and have wrong
//! clocks.

#![allow(clippy::disallowed_methods, reason = "tests")]

mod clocks;
mod connecting;
mod counts;
mod doctor;
mod errors;
mod late;
mod majority;
mod minority;
mod modes;
mod restarts;
mod stopped_clients;
mod tokens;
mod waiting;
mod world;

/// Plays a part in another test; on its own it has nothing to do.
#[test]
fn child() {
    let Some((role, store)) = crate::common::role() else { return };
    crate::common::run(async {
        match &*role {
            "hold" => stopped_clients::hold(&store).await,
            "wait" => waiting::wait(&store).await,
            other => panic!("no such part: {other}"),
        }
    });
}
