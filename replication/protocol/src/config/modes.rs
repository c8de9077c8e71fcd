//! Write concerns by the tags of members: `{dc: 2}` is two data centres that hold the write.

use pinion_bson::{DocBuilder, RawDocument};
use pinion_wire::{Error, ErrorCode, Result};

use super::member::Member;

/// For each tag, how many different values of it the members that hold a write must have.
#[derive(Clone, Debug, PartialEq)]
pub struct WriteMode {
    pub name: String,
    pub tags: Vec<(String, i64)>,
}

impl WriteMode {
    /// Reads the tags of a mode.
    ///
    /// # Errors
    /// A count that is not positive.
    pub fn parse(name: &str, tags: &RawDocument) -> Result<WriteMode> {
        let mut counts = Vec::new();
        for (tag, count) in pinion_bson::elements(tags) {
            match pinion_wire::idl::i64_clamped(count) {
                Some(count) if count > 0 => counts.push((tag.to_owned(), count)),
                _ => {
                    return Err(Error::bad_value(format!(
                        "Value for getLastErrorModes.{name}.{tag} must be a positive number"
                    )));
                }
            }
        }
        Ok(WriteMode {
            name: name.to_owned(),
            tags: counts,
        })
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder) {
        out.start_document(&self.name);
        for (tag, count) in &self.tags {
            out.append(tag, *count);
        }
        out.end();
    }

    /// Whether the members that hold a write are enough.
    pub fn is_satisfied_by<'m>(&self, holding: impl Iterator<Item = &'m Member> + Clone) -> bool {
        self.tags.iter().all(|(tag, count)| {
            let values = holding
                .clone()
                .flat_map(|member| member.tags.iter().filter(|(name, _)| name == tag));
            let mut values: Vec<&str> = values.map(|(_, value)| value.as_str()).collect();
            values.sort_unstable();
            values.dedup();
            values.len() as i64 >= *count
        })
    }

    /// A mode that all members together could not satisfy.
    pub(super) fn check_satisfiable(&self, members: &[Member]) -> Result<()> {
        for (tag, _) in &self.tags {
            let known = members.iter().flat_map(|member| &member.tags);
            if !known.into_iter().any(|(name, _)| name == tag) {
                return Err(Error::new(
                    ErrorCode::NO_SUCH_KEY,
                    format!(
                        "No replica set tag \"{tag}\" is used by a member, as the mode {} needs",
                        self.name
                    ),
                ));
            }
        }
        match self.is_satisfied_by(members.iter()) {
            true => Ok(()),
            false => Err(Error::new(
                ErrorCode::UNSATISFIABLE_WRITE_CONCERN,
                format!(
                    "Not enough members carry the tags that the mode {} needs",
                    self.name
                ),
            )),
        }
    }
}
