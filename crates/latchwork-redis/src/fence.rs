//! The check of a token where the data is in Redis.
//!
//! Use it when what the lock protects is written to Redis: the server keeps the largest token that
//! has written and refuses smaller ones, in the same script as the write. Then a holder that was
//! stopped past its validity cannot write over its successor, whatever it still believes. For data
//! elsewhere there are `latchwork::fence::Fence` and the statements for databases beside it.
//!
//! The scripts are plain text for any client. `KEYS[1]` keeps the largest token: a key of your own
//! for each thing that is protected, on a Cluster with the same hash tag as the data. It must live
//! as long as the data: without an expiry, and where nothing is evicted.
//!
//! # Examples
//!
//! ```
//! use latchwork_store::FencingToken;
//! use latchwork_redis::fence;
//!
//! # let server = latchwork_services::RedisServer::start(&Default::default()).unwrap();
//! # let mut redis = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
//! let mut write = |token: FencingToken, value: &str| {
//!     let mut eval = redis::cmd("EVAL");
//!     eval.arg(fence::set()).arg(2).arg("stock/42:fence").arg("stock/42");
//!     eval.arg(token.to_string()).arg(value).query::<String>(&mut redis)
//! };
//! let (old, new) = (FencingToken::from_grant(1), FencingToken::from_grant(2));
//! assert!(write(new, "19").is_ok());
//! let error = write(old, "20").unwrap_err();
//! assert_eq!(fence::refusal(&error.to_string()).unwrap().newest, new);
//! ```

use latchwork_store::{Fenced, FencingToken};

/// The check alone: Lua that goes before the lines of a script.
///
/// `KEYS[1]` is the key that keeps the largest token, `ARGV[1]` the caller's token as text. If the
/// token is smaller, the script ends with an error that begins with `FENCED` and has written
/// nothing. Otherwise the token is kept, and what follows runs.
pub const CHECK: &str = include_str!("protocol/scripts/fence.lua");

/// A script of your own under the fence: `body` runs if the token is admitted.
///
/// `body` takes its keys from `KEYS[2]` and its arguments from `ARGV[2]` on, and may return what it
/// likes.
///
/// ```
/// let script = latchwork_redis::fence::script("return redis.call('DECRBY', KEYS[2], ARGV[2])");
/// assert!(script.starts_with(latchwork_redis::fence::CHECK));
/// ```
pub fn script(body: &str) -> String {
    format!("{CHECK}{body}")
}

/// The script that sets the string `KEYS[2]` to `ARGV[2]`, as `SET` does.
pub fn set() -> String {
    script("return redis.call('SET', KEYS[2], ARGV[2])")
}

/// Whether the text of an error is a refusal by the fence, and by which token.
///
/// `None` for any other error: whether that script has written is not known.
pub fn refusal(error: &str) -> Option<Fenced> {
    let (_, rest) = error.split_once("FENCED")?;
    let (_, rest) = rest.split_once("token ")?;
    let (refused, newest) = rest.split_once(" was superseded by ")?;
    let end = newest.find(|c: char| !c.is_ascii_digit()).unwrap_or(newest.len());
    let token = |text: &str| text.parse::<FencingToken>().ok();
    Some(Fenced { refused: token(refused)?, newest: token(&newest[..end])? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_texts_count_as_refusals() {
        let fenced = Fenced {
            refused: FencingToken::from_grant(1),
            newest: FencingToken::from_grant((1 << 53) - 1),
        };
        for text in [
            format!("FENCED {fenced}"),
            format!("-FENCED {fenced} script: 5f, on @user_script:12."),
            format!("\"FENCED\": {fenced}"),
        ] {
            assert_eq!(refusal(&text), Some(fenced), "{text}");
        }
        for text in
            ["ERR the fence: ARGV[1] is not a token", "FENCED", "token 1 was superseded by 2"]
        {
            assert_eq!(refusal(text), None, "{text}");
        }
    }
}
