//! The parts that child processes play.

use std::path::Path;

use latchwork_file::FileBackend;
use latchwork_store::*;

use crate::common::*;

pub(crate) fn play() {
    let Some((role, dir)) = role() else { return };
    let runtime = without_io();
    runtime.block_on(async {
        match role.as_str() {
            "steps" => steps(&dir).await,
            "slow disk" => crate::surroundings::slow_disk::hold_and_sync(&dir).await,
            "use" => crate::surroundings::other_users::use_everything(&dir).await,
            "swap" => crate::surroundings::other_users::swap(&dir),
            other => panic!("no such part: {other}"),
        }
    });
}

/// Does what the parent says, a word a line, and says what came of it.
async fn steps(dir: &Path) {
    let backend = match FileBackend::connect(dir, io()) {
        Ok(backend) => backend,
        Err(error) => return say(format_args!("refused {error}")),
    };
    say("connected");
    let mut mine = claim("k");
    loop {
        match hear().as_str() {
            "try" => say(tried(backend.try_acquire(&mine).await)),
            "try without a place" => {
                let once = claim("k").with(|it| it.waits = false);
                say(tried(backend.try_acquire(&once).await));
            }
            "wait" => {
                let (token, _) = acquire(&backend, &mine).await;
                say(format_args!("granted {token}"));
            }
            "renew" => say(match renew(&backend, &mine).await {
                Renewal::Held { .. } => "held",
                Renewal::Lost => "lost",
            }),
            "release" => {
                say(match release(&backend, &mine).await {
                    Released::Yes => "released",
                    Released::NotHeld => "not held",
                });
                mine = claim("k");
            }
            "leave a command behind" => {
                let Some(Lifeline(life)) = backend.lifeline() else { panic!() };
                #[expect(clippy::zombie_processes, reason = "it is to outlive this process")]
                let command = std::process::Command::new("sleep")
                    .arg("600")
                    .stdin(std::process::Stdio::from(life.try_clone().unwrap()))
                    .stdout(std::process::Stdio::null())
                    .stderr(std::process::Stdio::null())
                    .spawn()
                    .unwrap();
                say(command.id());
            }
            _ => return,
        }
    }
}

fn tried(answer: Result<Attempt, BackendError>) -> String {
    match answer {
        Ok(Attempt::Granted(grant)) => format!("granted {}", grant.token),
        Ok(Attempt::Blocked(_)) => "blocked".to_owned(),
        Err(error) => format!("error {error}; {}", error.next_step.as_deref().unwrap_or("none")),
    }
}
