//! The text form of a line: words apart by one space, `name=value`, and `%XX` for what a word
//! cannot hold.

use std::sync::Arc;

use latchwork_store::Moment;

/// The words of a line.
pub(crate) struct Fields<'a> {
    pub(crate) at: Moment,
    pub(crate) process: Arc<str>,
    pub(crate) task: Option<u32>,
    pub(crate) event: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> Fields<'a> {
    pub(crate) fn read(line: &'a str) -> Result<Self, String> {
        let mut words = line.split(' ');
        let mut word = |what: &str| words.next().ok_or_else(|| format!("no {what} in {line:?}"));
        let at = word("moment")?.parse().map_err(|e| format!("{e}: moment of {line:?}"))?;
        let process = unescape(word("process")?)?.into();
        let task = match word("task")? {
            "-" => None,
            task => Some(task.parse().map_err(|e| format!("{e}: task of {line:?}"))?),
        };
        let event = word("event")?;
        let pairs = words
            .map(|word| word.split_once('=').ok_or_else(|| format!("{word:?} in {line:?}")))
            .collect::<Result<_, _>>()?;
        Ok(Self { at: Moment::from_nanos(at), process, task, event, pairs })
    }

    /// The value of this name, if `read` makes one of its text.
    pub(crate) fn value<T>(
        &self,
        name: &str,
        read: fn(Option<&str>) -> Option<T>,
    ) -> Result<T, String> {
        let raw = self.pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let text = raw.map(unescape).transpose()?;
        read(text.as_deref()).ok_or_else(|| format!("{}: {name}={raw:?}", self.event))
    }
}

pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' && byte != b'=' {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

fn unescape(text: &str) -> Result<String, String> {
    let bad = || format!("{text:?} has a bad %XX");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok()).ok_or_else(bad)?;
            bytes.push(u8::from_str_radix(digits, 16).map_err(|_| bad())?);
            rest = &rest[2..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}
