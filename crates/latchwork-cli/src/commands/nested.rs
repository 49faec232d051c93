//! A command that runs under a lock and asks for the same lock again.
//!
//! It would wait for the command that started it, which waits for it: for ever. The outer command left its
//! keys and tokens in the environment, and the store says whether that hold still goes on.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use latchwork::{Error, ErrorKind, FencingToken, LockManager};

use super::Place;
use crate::exit;

/// The variable with the keys that a command runs under, one a line.
pub(super) const KEY: &str = "LATCHWORK_KEY";
/// The variable with their tokens, in the same order.
pub(super) const TOKEN: &str = "LATCHWORK_TOKEN";

/// Whether a command under a lock started this one.
pub(super) fn is_inside() -> bool {
    std::env::var_os(KEY).is_some()
}

/// The tokens of the names that a command around this one holds, in the order of the names; nothing for
/// a name that it does not hold.
///
/// # Errors
///
/// As [`LockManager::inspect`]. Without such a command the store is not asked.
pub(super) async fn held_outside(
    place: &Place,
    names: &[String],
) -> Result<Vec<Option<String>>, Error> {
    let outside = keys_and_tokens();
    let mut tokens = Vec::with_capacity(names.len());
    let mut manager = None;
    for name in names {
        let key = place.key(name);
        let claimed = outside.iter().find(|(held, _)| *held == key);
        tokens.push(match claimed {
            Some((_, token)) => {
                if manager.is_none() {
                    manager = Some(place.connect().await?);
                }
                let goes_on = match &manager {
                    Some(manager) => is_held(manager, name, token).await?,
                    None => false,
                };
                goes_on.then(|| token.clone())
            }
            None => None,
        });
    }
    if let Some(manager) = manager {
        super::close(&manager).await;
    }
    Ok(tokens)
}

fn keys_and_tokens() -> Vec<(String, String)> {
    let (Ok(keys), Ok(tokens)) = (std::env::var(KEY), std::env::var(TOKEN)) else {
        return Vec::new();
    };
    keys.lines().map(str::to_owned).zip(tokens.lines().map(str::to_owned)).collect()
}

/// Whether a holder of the lock has this token.
async fn is_held(manager: &LockManager, name: &str, token: &str) -> Result<bool, Error> {
    let seen = manager.inspect(name).await?;
    let mut tokens = seen.holders.iter().filter_map(|party| party.token);
    Ok(tokens.any(|grant| FencingToken::from_grant(grant).to_string() == token))
}

/// Refuses a command that would wait for the one around it.
///
/// # Errors
///
/// `Invalid` if a command around this one holds one of the names.
pub(super) async fn refuse(place: &Place, names: &[String]) -> Result<(), Error> {
    if !is_inside() {
        return Ok(());
    }
    let held = held_outside(place, names).await?;
    match names.iter().zip(held).find_map(|(name, token)| Some((name, token?))) {
        Some((name, token)) => Err(waits_for_itself(name, &token)),
        None => Ok(()),
    }
}

fn waits_for_itself(name: &str, token: &str) -> Error {
    let message = format!(
        "{name:?} is held by the command that runs this one (token {token}): it would wait for itself"
    );
    Error::new(ErrorKind::Invalid, message)
        .next_step("add --inherit to run under that hold, or use another name")
}

/// Becomes the command, under the hold of the command around this one. Returns if it holds none of the
/// names: then they are still to be taken.
///
/// The command stays in the process group of the outer one, which is ended as a whole if the lock is lost.
///
/// # Errors
///
/// `Invalid` if it holds some of the names and not the others.
pub(super) async fn inherit(
    place: &Place,
    names: &[String],
    words: &[OsString],
) -> Result<Option<u8>, Error> {
    if !is_inside() {
        return Ok(None);
    }
    let held = held_outside(place, names).await?;
    let tokens: Vec<_> = held.iter().flatten().map(String::as_str).collect();
    if tokens.is_empty() {
        return Ok(None);
    }
    if tokens.len() < names.len() {
        let message = "the command that runs this one holds some of these locks, but not all";
        return Err(Error::new(ErrorKind::Invalid, message).next_step(
            "take all of them in the outer command, or the others under names of their own",
        ));
    }
    let keys: Vec<_> = names.iter().map(|name| place.key(name)).collect();
    let tokens = tokens.join("\n");
    place.output.detail("inherited", &format!("runs under the outer hold, token {tokens}"), &[]);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).env(KEY, keys.join("\n")).env(TOKEN, tokens);
    for (name, value) in place.store.environment() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let error = command.exec();
    place.output.fail("Command", &format!("{}: {error}", words[0].to_string_lossy()));
    Ok(Some(match error.kind() {
        std::io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }))
}
