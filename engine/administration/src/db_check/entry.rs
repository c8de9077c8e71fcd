//! What the oplog says of a check: `{dbCheck: <namespace>, type: "start" | "batch" | "stop", ...}`
//! in an entry of a command.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::Uuid;
use pinion_clock::Timestamp;
use pinion_exec::cluster_time::bson_time;
use pinion_wire::idl::Namespace;

use super::options::Checks;
use super::range::Range;
use crate::limits::MAX_CHECK_REASON_BYTES;

/// What an entry says.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CheckEntry {
    /// The name that the collection had on the primary.
    pub ns: Namespace,
    /// Of a run over a database: none.
    pub uuid: Option<Uuid>,
    pub checks: Checks,
    pub step: Step,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    Start,
    /// With why, where not everything was compared.
    Stop(Option<Early>),
    Batch(Box<Batch>),
}

/// Why a run has ended before its end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Early {
    /// It was ended by a command, or the node was no primary any more.
    pub is_killed: bool,
    pub what: String,
}

impl Early {
    pub(super) fn killed(what: &str) -> Early {
        Early {
            is_killed: true,
            what: cut(what).to_owned(),
        }
    }

    pub(super) fn failed(what: &str) -> Early {
        Early {
            is_killed: false,
            what: cut(what).to_owned(),
        }
    }
}

/// The beginning of a text that may be long.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_CHECK_REASON_BYTES)]
}

const FAILED: &str = "failed";
const KILLED: &str = "killed";

/// What the primary has read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    pub range: Range,
    pub read_at: Timestamp,
    pub md5: String,
    /// Whether members write it down that have read the same.
    pub is_logged: bool,
}

/// Whether an entry of a check asks for a comparison, and does not say that a run begins or ends.
pub(super) fn is_batch(entry: &RawDocument) -> bool {
    let o = pinion_bson::get(entry, "o").and_then(|o| o.as_document());
    let kind = o.and_then(|o| pinion_bson::get(o, "type"));
    !matches!(kind, Some(RawBsonRef::String("start" | "stop")))
}

impl CheckEntry {
    /// The command, as the entry has it in `o`.
    pub(super) fn to_command(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("dbCheck", self.ns.as_str());
        match &self.step {
            Step::Start => {
                out.append("type", "start");
            }
            Step::Stop(early) => {
                out.append("type", "stop");
                if let Some(early) = early {
                    let outcome = if early.is_killed { KILLED } else { FAILED };
                    out.append("outcome", outcome)
                        .append("error", early.what.as_str());
                }
            }
            Step::Batch(batch) => {
                out.append("type", "batch")
                    .append("md5", batch.md5.as_str());
                batch.range.append(&mut out);
                out.append("readTimestamp", bson_time(batch.read_at))
                    .append("logBatchToHealthLog", batch.is_logged);
            }
        }
        out.append("secondaryIndexCheckParameters", &*self.checks.to_document());
        out.finish()
    }

    /// Reads an entry of the oplog.
    ///
    /// # Errors
    /// What keeps this member from doing what it says: it is not of this program, or is damaged.
    pub(super) fn read(entry: &RawDocument) -> Result<CheckEntry, String> {
        let o = pinion_bson::get(entry, "o").and_then(|o| o.as_document());
        let o = o.ok_or("the entry has no command")?;
        let text = |name: &str| match pinion_bson::get(o, name) {
            Some(RawBsonRef::String(text)) => Ok(text),
            _ => Err(format!("the entry has no {name}")),
        };
        // Of a database in which there was nothing to compare it is that of its commands.
        let ns = Namespace::parse_sought(text("dbCheck")?).map_err(|error| error.message)?;
        let uuid = pinion_bson::get(entry, "ui").and_then(Uuid::from_bson);
        let kind = text("type")?;
        // Members of MongoDB 4.4 name no modes, and other ranges.
        let checks = pinion_bson::get(o, "secondaryIndexCheckParameters");
        let checks = checks.and_then(|checks| Checks::of_document(checks.as_document()?));
        let checks = checks.ok_or_else(|| {
            format!("the entry of type '{kind}' is none of this version: nothing was compared")
        })?;
        let step = match kind {
            "start" => Step::Start,
            "stop" => Step::Stop(match text("outcome") {
                Ok(KILLED) => Some(Early::killed(text("error")?)),
                Ok(FAILED) => Some(Early::failed(text("error")?)),
                Ok(other) => return Err(format!("the entry has the unknown outcome '{other}'")),
                Err(_) => None,
            }),
            "batch" => {
                let range = Range::of_entry(o).ok_or("the entry names no range")?;
                let Some(RawBsonRef::Timestamp(at)) = pinion_bson::get(o, "readTimestamp") else {
                    return Err("the entry has no readTimestamp".to_owned());
                };
                let is_logged = pinion_bson::get(o, "logBatchToHealthLog");
                Step::Batch(Box::new(Batch {
                    range,
                    read_at: Timestamp::new(at.time, at.increment),
                    md5: text("md5")?.to_owned(),
                    is_logged: is_logged != Some(RawBsonRef::Boolean(false)),
                }))
            }
            other => return Err(format!("the entry has the unknown type '{other}'")),
        };
        Ok(CheckEntry {
            ns,
            uuid,
            checks,
            step,
        })
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::super::options::{BsonMode, ValidateMode};
    use super::super::range::Border;
    use super::*;

    fn checks() -> Checks {
        Checks {
            mode: ValidateMode::MissingKeys,
            index: String::new(),
            skips_lookup: false,
            bson: BsonMode::Default,
        }
    }

    fn of_command(command: &RawDocument) -> Result<CheckEntry, String> {
        let uuid = Uuid([7; 16]);
        let mut entry = DocBuilder::new();
        entry
            .append("op", "c")
            .append("ui", uuid.to_bson())
            .append("o", command);
        CheckEntry::read(&entry.finish())
    }

    #[test]
    fn entries_are_read_back() {
        let border = |id: i32| Border::of_id(RawBsonRef::Int32(id));
        let batch = Batch {
            range: Range {
                start: border(1),
                is_start_included: true,
                end: border(9),
            },
            read_at: Timestamp::new(5, 6),
            md5: "abc".to_owned(),
            is_logged: false,
        };
        for step in [
            Step::Start,
            Step::Stop(None),
            Step::Stop(Some(Early::killed("why"))),
            Step::Stop(Some(Early::failed("why"))),
            Step::Batch(Box::new(batch)),
        ] {
            let entry = CheckEntry {
                ns: Namespace::parse("d.c").expect("a namespace"),
                uuid: Some(Uuid([7; 16])),
                checks: checks(),
                step,
            };
            let command = entry.to_command();
            let (name, _) = pinion_bson::elements(&command).next().expect("a command");
            assert_eq!(name, "dbCheck");
            assert_eq!(of_command(&command), Ok(entry));
        }
    }

    #[test]
    fn entries_of_other_versions_are_refused() {
        let older =
            rawdoc! { "dbCheck": "d.c", "type": "batch", "md5": "x", "minKey": 1, "maxKey": 2 };
        let error = of_command(&older).expect_err("a refusal");
        assert!(error.contains("'batch'"), "{error}");
        let mut unknown = DocBuilder::new();
        unknown.append("dbCheck", "d.c").append("type", "later");
        unknown.append("secondaryIndexCheckParameters", &*checks().to_document());
        let error = of_command(&unknown.finish()).expect_err("a refusal");
        assert!(error.contains("'later'"), "{error}");
    }
}
