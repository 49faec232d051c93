//! Numbers that JSON cannot carry, and texts that are checked when they are read.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ClaimId, FencingToken, Key, Moment};

/// A number of 64 bits that is text where people can read the format.
trait Number: Sized {
    const EXPECTED: &'static str;
    fn from_number(number: u64) -> Self;
}

impl Number for FencingToken {
    const EXPECTED: &'static str =
        "a fencing token: a decimal number below 2^64, as text or number";

    fn from_number(number: u64) -> Self {
        Self::from_raw(number)
    }
}

impl Number for Moment {
    const EXPECTED: &'static str =
        "a moment: nanoseconds as a decimal number below 2^64, as text or number";

    fn from_number(number: u64) -> Self {
        Self::from_nanos(number)
    }
}

struct NumberVisitor<T>(PhantomData<T>);

impl<T: Number> Visitor<'_> for NumberVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        Ok(T::from_number(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        let unsigned = u64::try_from(number);
        unsigned
            .map(T::from_number)
            .map_err(|_| E::invalid_value(Unexpected::Signed(number), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        // The standard library would take a sign as well.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = if digits { u64::from_str(text).ok() } else { None };
        number.map(T::from_number).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }
}

fn write<S: Serializer>(number: u64, serializer: S) -> Result<S::Ok, S::Error> {
    if serializer.is_human_readable() {
        return serializer.collect_str(&number);
    }
    serializer.serialize_u64(number)
}

fn read<'de, T: Number, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let visitor = NumberVisitor(PhantomData);
    if deserializer.is_human_readable() {
        return deserializer.deserialize_any(visitor);
    }
    deserializer.deserialize_u64(visitor)
}

impl Serialize for FencingToken {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self.get(), serializer)
    }
}

impl<'de> Deserialize<'de> for FencingToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write(self.as_nanos(), serializer)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        read(deserializer)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Key::new(name).map_err(de::Error::custom)
    }
}

impl Serialize for ClaimId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(self);
        }
        serializer.serialize_u128(self.as_u128())
    }
}

impl<'de> Deserialize<'de> for ClaimId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if !deserializer.is_human_readable() {
            return u128::deserialize(deserializer).map(Self::from_u128);
        }
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            de::Error::invalid_value(Unexpected::Str(&text), &"a claim's id: 32 hexadecimal digits")
        })
    }
}
