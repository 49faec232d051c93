//! ZooKeeper's encoding of numbers, texts and lists ("jute"): big-endian, lengths in four bytes.

/// Writes a message.
#[derive(Debug, Default, Clone)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(value.into());
        self
    }

    pub(crate) fn buffer(&mut self, bytes: &[u8]) -> &mut Self {
        self.int(bytes.len() as i32);
        self.0.extend(bytes);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.buffer(text.as_bytes())
    }
}

/// Reads a message; `None` where it is shorter than it should be, or not as it should be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn int(&mut self) -> Option<i32> {
        self.take().map(i32::from_be_bytes)
    }

    pub(crate) fn long(&mut self) -> Option<i64> {
        self.take().map(i64::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Option<bool> {
        self.take::<1>().map(|[byte]| byte != 0)
    }

    /// Bytes with their length; a length of -1 is nothing.
    pub(crate) fn buffer(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.int()?.max(0)).ok()?;
        if length > self.0.len() {
            return None;
        }
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        Some(bytes)
    }

    pub(crate) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.buffer()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_value_round_trips() {
        let mut writer = Writer::default();
        writer.int(-3).long(1 << 40).bool(true).buffer(b"\0x").text("stra\u{df}e").int(-1);
        let mut reader = Reader(&writer.0);
        assert_eq!((reader.int(), reader.long()), (Some(-3), Some(1 << 40)));
        assert_eq!((reader.bool(), reader.buffer()), (Some(true), Some(&b"\0x"[..])));
        assert_eq!((reader.text(), reader.buffer()), (Some("stra\u{df}e"), Some(&b""[..])));
        assert_eq!((reader.int(), reader.long(), reader.bool()), (None, None, None));
    }

    #[test]
    fn a_length_beyond_the_end_is_an_error() {
        for length in [5, i32::MAX] {
            let mut writer = Writer::default();
            writer.int(length).int(0);
            assert_eq!(Reader(&writer.0).buffer(), None);
        }
        assert_eq!(Reader(&[0, 0, 0, 1, 0xff]).text(), None, "not UTF-8");
    }
}
