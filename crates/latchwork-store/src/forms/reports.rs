//! Texts that are written for people and never parsed: errors, and findings about a store.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::Error;
use crate::doctor::Report;

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Error", 7)?;
        form.serialize_field("kind", &self.kind())?;
        form.serialize_field("message", self.message())?;
        form.serialize_field("key", &self.key())?;
        form.serialize_field("store", &self.store())?;
        form.serialize_field("next_step", &self.next_step())?;
        form.serialize_field("lost", &self.lost())?;
        form.serialize_field("may_have_applied", &self.may_have_applied())?;
        form.end()
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_struct("Report", 4)?;
        form.serialize_field("store", &self.store)?;
        form.serialize_field("fit", &self.is_fit())?;
        form.serialize_field("worst", &self.worst())?;
        form.serialize_field("findings", &self.findings)?;
        form.end()
    }
}
