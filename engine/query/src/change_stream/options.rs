//! The specification of `$changeStream`.

use pinion_bson::{RawBsonRef, RawDocument, Timestamp};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, Types};

use super::token::{Resume, ResumeToken, TokenData, TokenForm};
use crate::error::error;

/// Which document an event of an update has beside what was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FullDocument {
    #[default]
    Default,
    /// As a majority has it when the event is made, perhaps changed again since.
    UpdateLookup,
    /// As it was right after the change, where that is known.
    WhenAvailable,
    Required,
}

impl FullDocument {
    const NAMES: [(&'static str, FullDocument); 4] = [
        ("default", FullDocument::Default),
        ("updateLookup", FullDocument::UpdateLookup),
        ("whenAvailable", FullDocument::WhenAvailable),
        ("required", FullDocument::Required),
    ];

    /// As specifications have it.
    pub(super) fn name(self) -> &'static str {
        let named = FullDocument::NAMES.iter().find(|(_, known)| *known == self);
        named.expect("every one has a name").0
    }
}

/// Whether an event has the document as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BeforeChange {
    #[default]
    Off,
    WhenAvailable,
    Required,
}

impl BeforeChange {
    const NAMES: [(&'static str, BeforeChange); 3] = [
        ("off", BeforeChange::Off),
        ("whenAvailable", BeforeChange::WhenAvailable),
        ("required", BeforeChange::Required),
    ];

    /// As specifications have it.
    pub(super) fn name(self) -> &'static str {
        let named = BeforeChange::NAMES.iter().find(|(_, known)| *known == self);
        named.expect("every one has a name").0
    }
}

/// Where a stream begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// Behind everything that there is.
    Now,
    /// With what has this time.
    At(Timestamp),
    /// Behind an event.
    Behind(Box<Resume>),
}

/// A parsed specification.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangeStreamOptions {
    pub full_document: FullDocument,
    pub before_change: BeforeChange,
    pub all_changes_for_cluster: bool,
    pub show_expanded_events: bool,
    pub start: Start,
    /// In which form the tokens of events are made.
    pub token_form: TokenForm,
}

/// What MongoDB has for its own parts, and what no stream here can do.
const INTERNAL: [(&str, Types); 9] = [
    ("allowToRunOnConfigDB", Types::BOOL),
    ("allowToRunOnSystemNS", Types::BOOL),
    ("ignoreRemovedShards", Types::BOOL),
    ("matchCollectionUUIDForUpdateLookup", Types::BOOL),
    ("showCommitTimestamp", Types::BOOL),
    ("showMigrationEvents", Types::BOOL),
    ("showRawUpdateDescription", Types::BOOL),
    ("showSystemEvents", Types::BOOL),
    ("supportedEvents", Types::ARRAY),
];

impl ChangeStreamOptions {
    /// Whether events are made of documents as they were before the change.
    pub fn wants_images(&self) -> bool {
        let full_document = self.full_document;
        self.before_change != BeforeChange::Off
            || matches!(
                full_document,
                FullDocument::WhenAvailable | FullDocument::Required
            )
    }

    /// The same stream as one of those of shards that a mongos of MongoDB 4.4 merges: its tokens
    /// have the form that mongos reads, and mongos looks up documents as they are now, once it has
    /// merged the events.
    #[must_use]
    pub fn of_mongos(self) -> ChangeStreamOptions {
        let full_document = match self.full_document {
            FullDocument::UpdateLookup => FullDocument::Default,
            other => other,
        };
        ChangeStreamOptions {
            full_document,
            token_form: TokenForm::V44,
            ..self
        }
    }

    /// Parses the specification; the errors are MongoDB's.
    pub fn parse(spec: RawBsonRef<'_>) -> Result<ChangeStreamOptions> {
        let RawBsonRef::Document(spec) = spec else {
            return Err(error(
                6_188_500,
                "$changeStream must take a nested object as its specification",
            ));
        };
        let reader = FieldReader::object(Path::root("$changeStream"), spec)?;
        let resume_after = reader.opt_doc("resumeAfter")?;
        let start_after = reader.opt_doc("startAfter")?;
        let start_at = timestamp(&reader, "startAtOperationTime")?;
        let full_document = reader.opt_one_of("fullDocument", &FullDocument::NAMES)?;
        let before_change = reader.opt_one_of("fullDocumentBeforeChange", &BeforeChange::NAMES)?;
        let all_changes_for_cluster = flag(&reader, "allChangesForCluster")?;
        let show_expanded_events = flag(&reader, "showExpandedEvents")?;
        for (name, expected) in INTERNAL {
            reader.unsupported_unless_empty(name, expected)?;
        }
        reader.finish()?;
        Ok(ChangeStreamOptions {
            full_document: full_document.unwrap_or_default(),
            before_change: before_change.unwrap_or_default(),
            all_changes_for_cluster,
            show_expanded_events,
            start: start(resume_after, start_after, start_at)?,
            token_form: TokenForm::Newest,
        })
    }
}

/// A timestamp as documents have it.
fn timestamp(reader: &FieldReader<'_, '_>, name: &str) -> Result<Option<Timestamp>> {
    // Examined for its type alone.
    reader.opt_timestamp(name)?;
    Ok(match reader.value(name) {
        Some(RawBsonRef::Timestamp(ts)) => Some(ts),
        _ => None,
    })
}

/// A flag, which unlike others cannot be null.
fn flag(reader: &FieldReader<'_, '_>, name: &str) -> Result<bool> {
    match reader.value(name) {
        Some(null @ (RawBsonRef::Null | RawBsonRef::Undefined)) => {
            Err(reader.wrong_type(name, null, Types::BOOL))
        }
        _ => Ok(reader.opt_bool(name)?.unwrap_or(false)),
    }
}

fn start(
    resume_after: Option<&RawDocument>,
    start_after: Option<&RawDocument>,
    start_at: Option<Timestamp>,
) -> Result<Start> {
    if resume_after.is_some() && start_after.is_some() {
        return Err(error(
            50865,
            "Do not specify both 'resumeAfter' and 'startAfter' in a $changeStream stage",
        ));
    }
    let token = resume_after.or(start_after).map(ResumeToken::parse);
    let resume = token.transpose()?.map(Resume::new).transpose()?;
    let Some(resume) = resume else {
        return Ok(start_at.map_or(Start::Now, Start::At));
    };
    if start_at.is_some() {
        return Err(error(
            40674,
            "Only one type of resume option is allowed, but multiple were found",
        ));
    }
    if resume_after.is_some() && resume.data.from_invalidate {
        return Err(error(
            260,
            "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification",
        ));
    }
    Ok(Start::Behind(Box::new(resume)))
}

impl Start {
    /// The first token that a client gets of a stream that has seen nothing, where it begins behind
    /// this time.
    pub fn first_token(&self, now: Timestamp) -> ResumeToken {
        self.first_token_in(TokenForm::Newest, now)
    }

    /// The same in a form, unless it is one that the client gave.
    pub fn first_token_in(&self, form: TokenForm, now: Timestamp) -> ResumeToken {
        let at = |time| TokenData::high_water_mark(time).token_in(form);
        match self {
            Start::Now => at(now),
            Start::At(time) => at(*time),
            Start::Behind(resume) => resume.token.clone(),
        }
    }
}
