//! Fields that several entries of a unique index share while it is built: examined again at the
//! end, when there are no writers.

use pinion_storage::Key;

use crate::limits::MAX_NOTED_FIELDS;

/// What was found in one partition.
#[derive(Default)]
pub(crate) struct SharedFields {
    fields: Vec<Key>,
    /// There are more than were noted: all entries have to be examined.
    more: bool,
}

impl SharedFields {
    /// Nothing is known: all entries have to be examined.
    pub(super) fn all() -> SharedFields {
        SharedFields {
            fields: Vec::new(),
            more: true,
        }
    }

    pub(super) fn note(&mut self, fields: &[u8]) {
        if self.fields.last().is_some_and(|last| last[..] == *fields) {
            return;
        }
        match self.fields.len() < MAX_NOTED_FIELDS {
            true => self.fields.push(Key::from_slice(fields)),
            false => self.more = true,
        }
    }

    pub(super) fn add(&mut self, other: SharedFields) {
        other.fields.iter().for_each(|fields| self.note(fields));
        self.more |= other.more;
    }

    /// The fields to be examined, in their order; none where all entries have to be.
    pub(super) fn into_fields(mut self) -> Option<Vec<Key>> {
        if self.more {
            return None;
        }
        self.fields.sort_unstable();
        self.fields.dedup();
        Some(self.fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(noted: &[&str], expected: &[&str]) {
        let mut shared = SharedFields::default();
        noted
            .iter()
            .for_each(|fields| shared.note(fields.as_bytes()));
        let found = shared.into_fields().expect("few");
        let expected: Vec<Key> = expected
            .iter()
            .map(|fields| Key::from_slice(fields.as_bytes()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn fields_are_noted_once() {
        check(&[], &[]);
        check(&["b", "b", "a", "b"], &["a", "b"]);
        let mut shared = SharedFields::default();
        for n in 0..=MAX_NOTED_FIELDS as u32 {
            shared.note(&n.to_be_bytes());
        }
        assert!(shared.into_fields().is_none());
    }
}
