//! Reads the replies of a server: texts, numbers, maps, times.

use std::time::Duration;

use redis::Value;

/// A text, or a number as text.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A number, given as such or as text; `None` below zero.
pub(crate) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        value => text(value)?.parse().ok(),
    }
}

/// The names and values of a map, in either version of the protocol.
pub(crate) fn pairs(value: &Value) -> Option<Vec<(&Value, &Value)>> {
    match value {
        Value::Map(pairs) => Some(pairs.iter().map(|(name, value)| (name, value)).collect()),
        Value::Array(flat) => Some(flat.chunks_exact(2).map(|pair| (&pair[0], &pair[1])).collect()),
        _ => None,
    }
}

/// The names and values in the text of `INFO`, `CLUSTER INFO` and the like.
pub(crate) fn fields(info: &str) -> impl Iterator<Item = (&str, &str)> {
    info.lines().filter_map(|line| line.trim().split_once(':'))
}

/// The server's clock, from seconds and microseconds.
pub(crate) fn time(seconds: &Value, micros: &Value) -> Option<Duration> {
    Duration::from_secs(number(seconds)?).checked_add(Duration::from_micros(number(micros)?))
}
