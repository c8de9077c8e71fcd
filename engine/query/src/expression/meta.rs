//! What a query knows of a document beside its fields: `$meta`.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::{Error, Result};

use super::Value;
use super::parse::{Expr, Parser};
use crate::error::error;
use crate::value::elements;

/// A kind of metadata that something here gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKind {
    /// How well the document answers the query's `$text`.
    TextScore,
    /// How far the document is from the point of a `$geoNear`.
    GeoNearDistance,
    /// Where the document is by which that distance is measured.
    GeoNearPoint,
    /// The key by which an index gave the document.
    IndexKey,
    /// What stages that rank documents have given them.
    Score,
    ScoreDetails,
    /// The key under which the collection holds the document.
    RecordId,
    /// The values by which a sort orders the document.
    SortKey,
    /// The number by which a `$sample` of a part orders the document. No expression reads it.
    RandVal,
}

/// What a query knows of one document beside its fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(Vec<(MetaKind, RawBson)>);

/// Of a document of which nothing is known.
pub(crate) static NO_METADATA: Metadata = Metadata(Vec::new());

impl Metadata {
    /// The same with something more, or something else, known.
    #[must_use]
    pub fn with(mut self, kind: MetaKind, value: impl Into<RawBson>) -> Metadata {
        self.0.retain(|(other, _)| *other != kind);
        self.0.push((kind, value.into()));
        self
    }

    /// The same with all that something else knows.
    #[must_use]
    pub(crate) fn and(self, other: Metadata) -> Metadata {
        let others = other.0.into_iter();
        others.fold(self, |known, (kind, value)| known.with(kind, value))
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// About how many bytes [`Metadata::to_document`] makes.
    pub(crate) fn bytes(&self) -> usize {
        let bytes =
            |(_, value): &(MetaKind, RawBson)| 32 + crate::value::bytes(value.as_raw_bson_ref());
        self.0.iter().map(bytes).sum()
    }

    /// All that is known, by the names of its kinds.
    pub(crate) fn to_document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for (kind, value) in &self.0 {
            out.append(kind.name(), value.as_raw_bson_ref());
        }
        out.finish()
    }

    /// What [`Metadata::to_document`] made a document of.
    pub(crate) fn from_document(document: &RawDocument) -> Metadata {
        let mut metadata = Metadata::default();
        for (name, value) in elements(document) {
            if let Some(kind) = MetaKind::ALL.into_iter().find(|kind| kind.name() == name) {
                metadata = metadata.with(kind, value);
            }
        }
        metadata
    }

    /// What is known, or null.
    pub(crate) fn or_null(&self, kind: MetaKind) -> RawBsonRef<'_> {
        let known = self.0.iter().find(|(other, _)| *other == kind);
        known.map_or(RawBsonRef::Null, |(_, value)| value.as_raw_bson_ref())
    }

    pub(crate) fn value(&self, kind: MetaKind) -> Value<'_> {
        match self.0.iter().find(|(other, _)| *other == kind) {
            Some((_, value)) => Value::Ref(value.as_raw_bson_ref()),
            None => Value::Missing,
        }
    }
}

/// A document as expressions look at it: with what is known of it beside its fields.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub document: &'a RawDocument,
    pub metadata: &'a Metadata,
}

impl<'a> From<&'a RawDocument> for Subject<'a> {
    fn from(document: &'a RawDocument) -> Subject<'a> {
        Subject {
            document,
            metadata: &NO_METADATA,
        }
    }
}

impl<'a> From<&'a RawDocumentBuf> for Subject<'a> {
    fn from(document: &'a RawDocumentBuf) -> Subject<'a> {
        Subject::from(&**document)
    }
}

impl MetaKind {
    const ALL: [MetaKind; 9] = [
        MetaKind::TextScore,
        MetaKind::GeoNearDistance,
        MetaKind::GeoNearPoint,
        MetaKind::IndexKey,
        MetaKind::Score,
        MetaKind::ScoreDetails,
        MetaKind::RecordId,
        MetaKind::SortKey,
        MetaKind::RandVal,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            MetaKind::TextScore => "textScore",
            MetaKind::GeoNearDistance => "geoNearDistance",
            MetaKind::GeoNearPoint => "geoNearPoint",
            MetaKind::IndexKey => "indexKey",
            MetaKind::Score => "score",
            MetaKind::ScoreDetails => "scoreDetails",
            MetaKind::RecordId => "recordId",
            MetaKind::SortKey => "sortKey",
            MetaKind::RandVal => "randVal",
        }
    }

    /// The field in which a shard gives it to a mongos of MongoDB 4.4 that merges; `None` where
    /// that reads nothing of the kind.
    pub(crate) fn field_of_v44(self) -> Option<&'static str> {
        match self {
            MetaKind::TextScore => Some("$textScore"),
            MetaKind::RandVal => Some("$randVal"),
            MetaKind::SortKey => Some("$sortKey"),
            MetaKind::GeoNearDistance => Some("$dis"),
            MetaKind::GeoNearPoint => Some("$pt"),
            MetaKind::IndexKey | MetaKind::Score | MetaKind::ScoreDetails | MetaKind::RecordId => {
                None
            }
        }
    }

    /// The error of a filter, or of a command that writes, that reads what is known only when a
    /// read gives a document.
    pub fn refuse_before_read(self) -> Result<()> {
        match self {
            MetaKind::RecordId | MetaKind::SortKey => Err(error(
                115,
                format!("{{$meta: \"{}\"}} is not supported here", self.name()),
            )),
            _ => Ok(()),
        }
    }

    /// The error of a query that reads what nothing in it gives; an index's key may always be read.
    pub(crate) fn check_given(self, given: bool) -> Result<()> {
        let what = match self {
            MetaKind::TextScore => "text score",
            MetaKind::GeoNearDistance => "$geoNear distance",
            MetaKind::GeoNearPoint => "$geoNear point",
            MetaKind::Score => "score",
            MetaKind::ScoreDetails => "scoreDetails",
            MetaKind::RecordId => "record ID",
            MetaKind::SortKey => "sort key",
            MetaKind::RandVal => "rand val",
            MetaKind::IndexKey => return Ok(()),
        };
        match given {
            true => Ok(()),
            false => Err(error(
                40218,
                format!("query requires {what} metadata, but it is not available"),
            )),
        }
    }
}

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaSet(u16);

impl MetaSet {
    pub(crate) fn insert(&mut self, kind: MetaKind) {
        self.0 |= 1 << kind as u8;
    }

    /// These kinds.
    pub(crate) fn of(kinds: impl IntoIterator<Item = MetaKind>) -> MetaSet {
        let mut set = MetaSet::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
    }

    pub(crate) fn remove(&mut self, kind: MetaKind) {
        self.0 &= !(1 << kind as u8);
    }

    /// Whether a kind is one of these.
    pub fn contains(self, kind: MetaKind) -> bool {
        self.0 & 1 << kind as u8 != 0
    }

    pub(crate) fn union(self, other: MetaSet) -> MetaSet {
        MetaSet(self.0 | other.0)
    }

    pub(crate) fn intersection(self, other: MetaSet) -> MetaSet {
        MetaSet(self.0 & other.0)
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = MetaKind> {
        MetaKind::ALL
            .into_iter()
            .filter(move |kind| self.contains(*kind))
    }
}

/// What only search servers and random cursors give, so that no document here has it.
const NEVER_GIVEN: [&str; 7] = [
    "randVal",
    "searchHighlights",
    "searchScore",
    "searchScoreDetails",
    "searchSequenceToken",
    "stream",
    "vectorSearchScore",
];

pub(super) fn parse(parser: &mut Parser<'_>, _: &str, operand: RawBsonRef<'_>) -> Result<Expr> {
    let RawBsonRef::String(name) = operand else {
        return Err(error(17307, "$meta only supports string arguments"));
    };
    if NEVER_GIVEN.contains(&name) {
        return Ok(Expr::Remove);
    }
    if let Some(kind) = MetaKind::ALL.into_iter().find(|kind| kind.name() == name) {
        parser.reads(kind);
        return Ok(Expr::Meta(kind));
    }
    match name {
        "timeseriesBucketMinTime" | "timeseriesBucketMaxTime" => Err(error(
            115,
            format!("{{$meta: \"{name}\"}} is not supported"),
        )),
        _ => Err(error(
            17308,
            format!("Unsupported argument to $meta: {name}"),
        )),
    }
}

/// The kind by which a sort may order; what else stands in the place of a direction is refused.
pub(crate) fn sort_kind(operand: Option<RawBsonRef<'_>>) -> Result<MetaKind> {
    let illegal = |what: &str| -> Error { error(31138, format!("Illegal $meta sort: {what}")) };
    match operand {
        None => Err(error(
            17312,
            "$meta is the only expression supported by $sort right now",
        )),
        Some(RawBsonRef::String("textScore")) => Ok(MetaKind::TextScore),
        Some(RawBsonRef::String("geoNearDistance")) => Ok(MetaKind::GeoNearDistance),
        Some(RawBsonRef::String("score")) => Ok(MetaKind::Score),
        Some(RawBsonRef::String(name @ ("randVal" | "searchScore" | "vectorSearchScore"))) => {
            Err(error(
                115,
                format!("sorting by {{$meta: \"{name}\"}} is not supported"),
            ))
        }
        Some(RawBsonRef::String(name)) => Err(illegal(&format!("$meta: \"{name}\""))),
        Some(other) => Err(illegal(&crate::text::element_text("$meta", other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::{Expression, Variables};
    use pinion_bson::{rawbson, rawdoc};

    #[test]
    fn metadata_is_read() {
        let parse = |expression: RawBson| {
            Expression::parse(expression.as_raw_bson_ref(), &Variables::default())
        };
        let parsed = parse(rawbson!({ "$add": [{ "$meta": "textScore" }, 1] })).expect("parsed");
        assert!(parsed.reads().contains(MetaKind::TextScore));
        assert!(!parsed.reads().contains(MetaKind::IndexKey));
        let metadata = Metadata::default().with(MetaKind::TextScore, 1.5);
        let document = rawdoc! {};
        let subject = Subject {
            document: &document,
            metadata: &metadata,
        };
        let value = parsed.evaluate(subject).expect("a value");
        assert_eq!(value.or_null(), RawBsonRef::Double(2.5));
        let check_error = |operand: RawBson, code: i32| {
            let parsed = parse(rawbson!({ "$meta": operand }));
            assert_eq!(parsed.map(|_| ()).map_err(|e| e.code.0), Err(code));
        };
        check_error(rawbson!("nope"), 17308);
        check_error(rawbson!(1), 17307);
        check_error(rawbson!("timeseriesBucketMinTime"), 115);
        for name in NEVER_GIVEN {
            let parsed = parse(rawbson!({ "$meta": name })).expect("parsed");
            assert!(parsed.reads().is_empty(), "{name}");
        }
    }

    #[test]
    fn sets_of_kinds() {
        let mut set = MetaSet::of([MetaKind::SortKey, MetaKind::TextScore]);
        assert!(set.contains(MetaKind::SortKey) && !set.contains(MetaKind::RecordId));
        set.remove(MetaKind::SortKey);
        assert_eq!(set, MetaSet::of([MetaKind::TextScore]));
        set.remove(MetaKind::TextScore);
        assert!(set.is_empty());
    }

    #[test]
    fn later_knowledge_comes_on_top() {
        let score = |n: f64| Metadata::default().with(MetaKind::TextScore, n);
        let both = score(1.0).and(Metadata::default().with(MetaKind::RecordId, 7_i64));
        assert_eq!(both, score(1.0).with(MetaKind::RecordId, 7_i64));
        assert_eq!(score(1.0).and(score(2.0)), score(2.0));
    }

    #[test]
    fn what_is_not_given_is_refused() {
        let check = |kind: MetaKind, given: bool, expected: Option<i32>| {
            let found = kind.check_given(given).err().map(|e| e.code.0);
            assert_eq!(found, expected, "{kind:?}");
        };
        check(MetaKind::TextScore, true, None);
        check(MetaKind::TextScore, false, Some(40218));
        check(MetaKind::IndexKey, false, None);
        check(MetaKind::RecordId, false, Some(40218));
        check(MetaKind::SortKey, false, Some(40218));
    }
}
