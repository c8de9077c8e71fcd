//! One member of a configuration.

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_wire::idl::{FieldReader, Path, Types, missing_field, wrong_type};
use pinion_wire::{Error, Result};

use super::FieldNames;
use super::HostPort;
use super::limits::{MAX_DELAY_SECS, MAX_MEMBER_ID, MAX_PRIORITY};

const DELAY: &str = "secondaryDelaySecs";
/// Its name before MongoDB 5.0.
const OLD_DELAY: &str = concat!("sl", "aveDelay");

#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    pub id: i64,
    pub host: HostPort,
    /// It votes and holds no data.
    pub arbiter_only: bool,
    pub build_indexes: bool,
    /// It is not reported to clients.
    pub hidden: bool,
    pub priority: f64,
    /// In the order given.
    pub tags: Vec<(String, String)>,
    /// It applies entries only when they are so old.
    pub delay_secs: i64,
    pub votes: i64,
    /// It does not count as a voter yet: a primary of MongoDB's marks members so until they have
    /// their data.
    pub newly_added: bool,
}

impl Member {
    pub fn is_voter(&self) -> bool {
        self.votes > 0 && !self.newly_added
    }

    pub fn is_electable(&self) -> bool {
        !self.arbiter_only && !self.newly_added && self.priority > 0.0
    }

    pub(super) fn parse(path: Path<'_>, value: RawBsonRef<'_>) -> Result<Member> {
        let RawBsonRef::Document(document) = value else {
            return Err(wrong_type(path, value, Types::OBJECT));
        };
        let reader = FieldReader::object(path, document)?;
        let id = reader
            .opt_between("_id", 0, MAX_MEMBER_ID)?
            .ok_or_else(|| missing_field(reader.path().field("_id")))?;
        let host = HostPort::parse(reader.str("host")?)?;
        let arbiter_only = reader.opt_safe_bool("arbiterOnly")?.unwrap_or(false);
        let mut tags = Vec::new();
        if let Some(document) = reader.opt_doc("tags")? {
            for (name, tag) in pinion_bson::elements(document) {
                let RawBsonRef::String(tag) = tag else {
                    return Err(wrong_type(reader.path().field("tags"), tag, Types::STRING));
                };
                tags.push((name.to_owned(), tag.to_owned()));
            }
        }
        let priority = match reader.opt_f64("priority")? {
            // MongoDB gives arbiters the priority that they can only have.
            Some(1.0) | None if arbiter_only => 0.0,
            Some(priority) => priority,
            None => 1.0,
        };
        let delay = reader.opt_i64(DELAY)?;
        let delay_before = reader.opt_i64(OLD_DELAY)?;
        if delay.is_some() && delay_before.is_some() {
            return Err(Error::bad_value(format!(
                "Cannot specify both secondaryDelaySecs and {OLD_DELAY}"
            )));
        }
        let member = Member {
            id,
            host,
            arbiter_only,
            build_indexes: reader.opt_safe_bool("buildIndexes")?.unwrap_or(true),
            hidden: reader.opt_safe_bool("hidden")?.unwrap_or(false),
            priority,
            tags,
            delay_secs: delay.or(delay_before).unwrap_or(0),
            votes: reader.opt_i64("votes")?.unwrap_or(1),
            newly_added: reader.opt_safe_bool("newlyAdded")?.unwrap_or(false),
        };
        reader.ignore(&["horizons"]);
        if let Some(horizons) = reader.value("horizons")
            && !matches!(horizons, RawBsonRef::Document(names) if names.is_empty())
        {
            return Err(Error::bad_value(
                "horizons are not supported: every client reaches a member by its one host name",
            ));
        }
        reader.finish()?;
        Ok(member)
    }

    /// The name by which a member's document gives the delay.
    pub(super) fn names_in(member: RawBsonRef<'_>) -> Option<FieldNames> {
        let member = member.as_document()?;
        let has = |name| pinion_bson::get(member, name).is_some();
        match (has(OLD_DELAY), has(DELAY)) {
            (true, _) => Some(FieldNames::Old),
            (false, true) => Some(FieldNames::New),
            (false, false) => None,
        }
    }

    pub(super) fn append_to(&self, out: &mut DocBuilder, names: FieldNames) {
        out.append("_id", self.id as i32)
            .append("host", self.host.to_string().as_str())
            .append("arbiterOnly", self.arbiter_only)
            .append("buildIndexes", self.build_indexes)
            .append("hidden", self.hidden);
        // A whole number where it is one, as MongoDB shows it.
        match self.priority.fract() == 0.0 {
            true => out.append("priority", self.priority as i32),
            false => out.append("priority", self.priority),
        };
        out.start_document("tags");
        for (name, tag) in &self.tags {
            out.append(name, tag.as_str());
        }
        out.end()
            .append(
                if names.are_old() { OLD_DELAY } else { DELAY },
                self.delay_secs,
            )
            .append("votes", self.votes as i32);
        if self.newly_added {
            out.append("newlyAdded", true);
        }
    }

    /// What one member by itself may not be.
    pub(super) fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::bad_value(message));
        if !(0..=1).contains(&self.votes) {
            return refuse(format!(
                "votes field value is {} but must be 0 or 1",
                self.votes
            ));
        }
        if !(0.0..=MAX_PRIORITY).contains(&self.priority) {
            return refuse(format!(
                "priority field value of {} is out of range",
                self.priority
            ));
        }
        if self.arbiter_only {
            if !self.tags.is_empty() {
                return refuse("Cannot set tags on arbiters.".into());
            }
            if self.votes == 0 {
                return refuse("Arbiter must vote (cannot have 0 votes)".into());
            }
            if self.priority > 0.0 {
                return refuse("priority must be 0 for an arbiter".into());
            }
        }
        if !(0..=MAX_DELAY_SECS).contains(&self.delay_secs) {
            return refuse(format!(
                "secondaryDelaySecs field value of {} seconds is out of range",
                self.delay_secs
            ));
        }
        if self.priority > 0.0 {
            let reasons = [
                (self.delay_secs > 0, "when secondaryDelaySecs is used"),
                (self.hidden, "when hidden=true"),
                (!self.build_indexes, "when buildIndexes=false"),
                (self.votes == 0, "when non-voting (votes:0)"),
            ];
            if let Some((_, reason)) = reasons.iter().find(|(holds, _)| *holds) {
                return refuse(format!("priority must be 0 {reason}"));
            }
        }
        Ok(())
    }
}
