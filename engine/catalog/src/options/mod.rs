//! What a collection is created with: parsed once, compared as data, written back as MongoDB lists
//! it.

mod engine;
pub(crate) mod stored;

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArrayBuf, RawDocument, RawDocumentBuf, rawdoc};
use pinion_collation::Collation;
use pinion_query::{TimeSeries, parse_collation};

pub use engine::check_storage_engine;

/// The kind of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CollectionKind {
    /// Documents of its own.
    Collection,
    /// A pipeline over another namespace.
    View,
    /// Measurements, which a collection of buckets holds.
    TimeSeries,
}

impl CollectionKind {
    /// As `listCollections` names it.
    pub fn name(self) -> &'static str {
        match self {
            CollectionKind::Collection => "collection",
            CollectionKind::View => "view",
            CollectionKind::TimeSeries => "timeseries",
        }
    }
}

/// The bounds of a capped collection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Capped {
    pub size_bytes: i64,
    /// Not bounded by their number where this is `None`.
    pub max_documents: Option<i64>,
}

impl Capped {
    /// The greatest size, 1 PB.
    pub const MAX_SIZE_BYTES: i64 = 1 << 50;

    /// `max` as it counts: none for what is not positive, and refused from 2^31 on.
    pub fn max_of(max: i64) -> Result<Option<i64>, &'static str> {
        match max {
            i64::MIN..=0 => Ok(None),
            1..=0x7fff_ffff => Ok(Some(max)),
            _ => Err("max in a capped collection has to be < 2^31 or not set"),
        }
    }
}

/// The index by which a clustered collection is ordered: always that on `_id`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Clustered {
    /// `{v, key: {_id: 1}, name, unique: true}`.
    Named { name: String },
    /// `true`, of the collections in which buckets are.
    Legacy,
}

impl Clustered {
    /// As it is listed among the options.
    fn to_bson(&self) -> pinion_bson::RawBson {
        match self {
            Clustered::Legacy => true.into(),
            Clustered::Named { name } => {
                rawdoc! { "v": 2, "key": { "_id": 1 }, "name": name.as_str(), "unique": true }
                    .into()
            }
        }
    }

    /// As `listIndexes` shows it.
    fn listed_index(&self, collation: Option<&RawDocument>) -> RawDocumentBuf {
        let name = match self {
            Clustered::Named { name } => name,
            Clustered::Legacy => "_id_",
        };
        let mut out = DocBuilder::new();
        out.append_all(&rawdoc! { "v": 2, "key": { "_id": 1 }, "name": name, "unique": true });
        append_collation(&mut out, collation);
        out.append("clustered", true);
        out.finish()
    }
}

/// Which documents a validator looks at.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ValidationLevel {
    Off,
    /// Not those that did not pass before they were updated.
    Moderate,
    #[default]
    Strict,
}

impl ValidationLevel {
    pub const NAMES: [(&'static str, ValidationLevel); 3] = [
        ("off", ValidationLevel::Off),
        ("moderate", ValidationLevel::Moderate),
        ("strict", ValidationLevel::Strict),
    ];

    pub(crate) fn named(name: &str) -> Option<ValidationLevel> {
        let found = Self::NAMES.iter().find(|(listed, _)| *listed == name);
        found.map(|(_, level)| *level)
    }
}

/// What becomes of a document that does not pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ValidationAction {
    /// It is refused.
    #[default]
    Error,
    /// It is written, and logged.
    Warn,
    /// It is refused and logged.
    ErrorAndLog,
}

impl ValidationAction {
    pub const NAMES: [(&'static str, ValidationAction); 3] = [
        ("error", ValidationAction::Error),
        ("warn", ValidationAction::Warn),
        ("errorAndLog", ValidationAction::ErrorAndLog),
    ];

    pub(crate) fn named(name: &str) -> Option<ValidationAction> {
        let found = Self::NAMES.iter().find(|(listed, _)| *listed == name);
        found.map(|(_, action)| *action)
    }
}

/// The name of a value in its list of names.
fn name_of<T: Copy + PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    let found = names.iter().find(|(_, listed)| *listed == value);
    found.expect("every value has a name").0
}

/// A pipeline over another namespace of the same database.
#[derive(Clone, PartialEq, Debug)]
pub struct ViewDefinition {
    pub on: String,
    pub pipeline: RawArrayBuf,
}

/// The options of a collection, a view or a time series.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CollectionOptions {
    pub capped: Option<Capped>,
    /// It goes when the node starts again: it stands in for one that is not complete.
    pub temporary: bool,
    pub pre_and_post_images: bool,
    /// `storageEngine`, if it is not empty. What it says is meant for another engine; it is kept.
    pub storage_engine: Option<RawDocumentBuf>,
    /// `indexOptionDefaults.storageEngine`, likewise.
    pub index_storage_engine: Option<RawDocumentBuf>,
    pub validator: Option<RawDocumentBuf>,
    /// The level, if one was given: an explicit `strict` is listed, and another option than none.
    pub validation_level: Option<ValidationLevel>,
    pub validation_action: Option<ValidationAction>,
    /// The default collation, with all of its fields.
    pub collation: Option<RawDocumentBuf>,
    pub view: Option<ViewDefinition>,
    pub time_series: Option<TimeSeries>,
    pub clustered: Option<Clustered>,
    pub expire_after_secs: Option<i64>,
}

impl CollectionOptions {
    /// The kind of a namespace with these options. The collection in which a time series has its
    /// buckets has `timeseries` among its options too, and is no series.
    pub fn kind(&self) -> CollectionKind {
        match (&self.view, &self.time_series) {
            (Some(_), Some(_)) => CollectionKind::TimeSeries,
            (Some(_), None) => CollectionKind::View,
            (None, _) => CollectionKind::Collection,
        }
    }

    /// Gives validation the level and the action that it has by default where none was given: a
    /// `collMod` of one of its options stores the others as well.
    pub(crate) fn complete_validation(&mut self) {
        self.validation_level.get_or_insert_default();
        self.validation_action.get_or_insert_default();
    }

    /// The collation, as strings are compared with. It was examined before it became an option.
    pub(crate) fn parsed_collation(&self) -> Option<Arc<Collation>> {
        let collation = self.collation.as_deref()?;
        parse_collation(collation).ok().flatten()
    }

    /// The index on `_id` as it is listed, of a collection with these options.
    pub fn id_index(&self) -> RawDocumentBuf {
        let collation = self.collation.as_deref();
        if let Some(clustered) = &self.clustered {
            return clustered.listed_index(collation);
        }
        let mut out = DocBuilder::new();
        out.append_all(&rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" });
        append_collation(&mut out, collation);
        out.finish()
    }
}

fn append_collation(out: &mut DocBuilder, collation: Option<&RawDocument>) {
    if let Some(collation) = collation {
        out.append("collation", collation);
    }
}
