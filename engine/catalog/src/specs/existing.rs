//! Indexes that are there: which are wanted beside them, and which are meant by a name or a key.

use std::cmp::Ordering;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, compare_values};
use pinion_query::{IndexKind, IndexSpec};
use pinion_storage::TreeId;
use pinion_wire::idl::f64_lossy;
use pinion_wire::{Error, ErrorCode, Result};

use super::id::{check_id_collation, is_id_pattern};
use super::options::is_simple_collation;
use super::{check_index_specs, flag, kind_of, name_of, normal_form, part};
use crate::ddl::IndexSelection;
use crate::entry::Collection;
use crate::index::Index;
use crate::limits::MAX_INDEXES;
use crate::names::is_replicated;
use crate::oplog_format::check_v44_can_follow;
use crate::options::Clustered;
use crate::text::{render, render_value};
use crate::uuid::Uuid;
use crate::v44_checks::is_partial_filter;

/// An index that has to be built.
pub(crate) struct Wanted {
    spec: IndexSpec,
    listed: RawDocumentBuf,
}

impl Wanted {
    pub(crate) fn key(&self) -> &RawDocument {
        &self.spec.key
    }

    /// Whether documents may not share a key of it.
    pub(crate) fn enforces_unique(&self) -> bool {
        self.spec.enforces_unique()
    }

    /// Refuses what MongoDB 4.4's indexes do not have, where its members follow.
    fn check_form<'a>(&self, mut others: impl Iterator<Item = &'a RawDocument>) -> Result<()> {
        check_v44_can_follow(self.spec.prepare_unique, "prepareUnique")?;
        let is_compound = self.spec.kind == IndexKind::Wildcard && self.spec.fields() > 1;
        check_v44_can_follow(is_compound, "a compound wildcard index")?;
        let is_new = match part(&self.listed, "partialFilterExpression") {
            Some(RawBsonRef::Document(filter)) => !is_partial_filter(filter),
            _ => false,
        };
        check_v44_can_follow(is_new, "this partialFilterExpression")?;
        let is_second = others.any(|other| {
            let keys = (super::key_of(other), super::key_of(&self.listed));
            pinion_bson::compare_documents(keys.0, keys.1) == Ordering::Equal
                && same_part(other, &self.listed, "collation")
        });
        check_v44_can_follow(is_second, "a second index on one key")
    }

    pub(crate) fn into_index(self, tree: TreeId) -> Index {
        Index::new(self.spec, self.listed, tree)
    }
}

/// How a requested index relates to one that is there or requested too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Likeness {
    Identical,
    /// The same documents under the same keys, with other options.
    Equivalent,
    Different,
}

/// Options by which indexes on one key may stand side by side, and those that say nothing of an
/// index's meaning.
const NOT_COMPARED: [&str; 12] = [
    "2dsphereIndexVersion",
    "background",
    "collation",
    "key",
    "name",
    "ns",
    "partialFilterExpression",
    "sparse",
    "textIndexVersion",
    "unique",
    "v",
    "wildcardProjection",
];

fn likeness(a: &RawDocument, b: &RawDocument) -> Result<Likeness> {
    let keys = (super::key_of(a), super::key_of(b));
    let differs = pinion_bson::compare_documents(keys.0, keys.1) != Ordering::Equal
        || flag(a, "unique") != flag(b, "unique")
        || flag(a, "sparse") != flag(b, "sparse")
        || !same_part(a, b, "collation");
    if differs {
        return Ok(Likeness::Different);
    }
    let (parsed_a, parsed_b) = (IndexSpec::parse(a)?, IndexSpec::parse(b)?);
    if !parsed_a.holds_the_same(&parsed_b) {
        return Ok(Likeness::Different);
    }
    let compared = |listed: &RawDocument| {
        let fields = pinion_bson::elements(listed).map(|(field, _)| field.to_owned());
        fields
            .filter(|field| !NOT_COMPARED.contains(&&**field))
            .collect::<Vec<String>>()
    };
    let same = compared(a)
        .iter()
        .chain(&compared(b))
        .all(|field| same_part(a, b, field));
    Ok(if same {
        Likeness::Identical
    } else {
        Likeness::Equivalent
    })
}

fn same_part(a: &RawDocument, b: &RawDocument, field: &str) -> bool {
    match (part(a, field), part(b, field)) {
        (None, None) => true,
        (Some(a), Some(b)) => compare_values(a, b) == Ordering::Equal,
        _ => false,
    }
}

/// Whether an index like this is among those that are there.
///
/// # Errors
/// When it conflicts with one of them.
fn is_there<'a>(
    mut existing: impl Iterator<Item = &'a RawDocument> + Clone,
    wanted: &RawDocument,
) -> Result<bool> {
    let name = name_of(wanted);
    if let Some(same_name) = existing.clone().find(|listed| name_of(listed) == name) {
        let requested = format!(
            "Requested index: {}, existing index: {}",
            render(wanted),
            render(same_name)
        );
        return match likeness(same_name, wanted)? {
            Likeness::Identical => Ok(true),
            Likeness::Equivalent => Err(Error::new(
                ErrorCode::INDEX_OPTIONS_CONFLICT,
                format!(
                    "An equivalent index already exists with the same name but different options. {requested}"
                ),
            )),
            Likeness::Different => Err(Error::new(
                ErrorCode::INDEX_KEY_SPECS_CONFLICT,
                format!(
                    "An existing index has the same name as the requested index. When index names are not specified, they are auto generated and \
                     can cause conflicts. Please refer to our documentation. {requested}"
                ),
            )),
        };
    }
    for other in existing.by_ref() {
        let message = match likeness(other, wanted)? {
            Likeness::Different => continue,
            Likeness::Identical => format!(
                "Index already exists with a different name: {}",
                name_of(other)
            ),
            Likeness::Equivalent => format!(
                "An equivalent index already exists with a different name and options. Requested index: {}, existing index: {}",
                render(wanted),
                render(other)
            ),
        };
        return Err(Error::new(ErrorCode::INDEX_OPTIONS_CONFLICT, message));
    }
    Ok(false)
}

/// The specification with the collation that the index has: the collection's where none is asked
/// for, and none for the simple one.
fn with_collation(collection: &Collection, listed: &RawDocument) -> Result<RawDocumentBuf> {
    let mut out = DocBuilder::new();
    for (field, value) in pinion_bson::elements(listed) {
        if field != "collation" {
            out.append_raw(field, value);
        } else if !is_simple_collation(value) {
            check_collatable(listed, value)?;
            out.append_raw(field, value);
        }
    }
    // An index of the first version has none of its own, and so none of the collection's.
    let is_first_version = part(listed, "v").and_then(f64_lossy) == Some(1.0);
    if let Some(default) = &collection.options.collation
        && part(listed, "collation").is_none()
        && !is_first_version
    {
        check_collatable(listed, RawBsonRef::Document(default))?;
        out.append("collation", &**default);
    }
    Ok(out.finish())
}

/// Refuses a collation of an index whose keys have none.
fn check_collatable(listed: &RawDocument, collation: RawBsonRef<'_>) -> Result<()> {
    match kind_of(super::key_of(listed)) {
        kind @ (IndexKind::Text | IndexKind::TwoD) => Err(super::cannot_create(format!(
            "Index type '{}' does not support collation: {}",
            kind.name(),
            render_value(collation)
        ))),
        _ => Ok(()),
    }
}

fn check_one_text_index<'a>(
    mut existing: impl Iterator<Item = &'a RawDocument>,
    wanted: &RawDocument,
) -> Result<()> {
    let is_text = |listed: &RawDocument| kind_of(super::key_of(listed)) == IndexKind::Text;
    if !is_text(wanted) {
        return Ok(());
    }
    match existing.find(|listed| is_text(listed)) {
        None => Ok(()),
        Some(other) => Err(super::cannot_create(format!(
            "only one text index per collection allowed, found existing text index \"{}\"",
            name_of(other)
        ))),
    }
}

/// What a collection lacks of the indexes that are requested.
pub(crate) struct Missing {
    /// No more of them than are too many by one.
    pub wanted: Vec<Wanted>,
    /// Builds under way that make the same indexes.
    pub builds: Vec<Uuid>,
}

/// The requested indexes that are not there yet.
pub(crate) fn missing(collection: &Collection, requested: &[RawDocumentBuf]) -> Result<Missing> {
    check_index_specs(requested)?;
    let is_ttl = |listed: &RawDocumentBuf| part(listed, "expireAfterSeconds").is_some();
    if collection.options.capped.is_some() && requested.iter().any(is_ttl) {
        return Err(super::cannot_create(
            "Cannot create TTL index on a capped collection",
        ));
    }
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut builds = Vec::new();
    for listed in requested {
        if wanted.len() > MAX_INDEXES {
            break;
        }
        if name_of(listed) == "_id_" {
            check_id_collation(collection, listed)?;
            continue;
        }
        let listed = with_collation(collection, &normal_form(listed)?)?;
        let existing = collection.indexes.iter().map(|index| &*index.listed);
        if is_there(existing.clone(), &listed)? {
            let same = collection.index(name_of(&listed));
            builds.extend(same.and_then(|index| Some(index.building?.build)));
            continue;
        }
        let earlier = wanted.iter().map(|wanted| &*wanted.listed);
        if is_there(earlier.clone(), &listed)? {
            return Err(Error::new(
                ErrorCode::INDEX_ALREADY_EXISTS,
                format!("Identical index already exists: {}", name_of(&listed)),
            ));
        }
        let others = existing.chain(earlier);
        check_one_text_index(others.clone(), &listed)?;
        let made = Wanted {
            spec: IndexSpec::parse(&listed)?,
            listed: listed.clone(),
        };
        if is_replicated(&collection.ns) {
            made.check_form(others)?;
        }
        wanted.push(made);
    }
    builds.dedup();
    Ok(Missing { wanted, builds })
}

/// The names of the indexes that a `dropIndexes` means.
pub(crate) fn select(collection: &Collection, selection: &IndexSelection) -> Result<Vec<String>> {
    let clustered = match &collection.options.clustered {
        Some(Clustered::Named { name }) => Some(&**name),
        Some(Clustered::Legacy) | None => None,
    };
    let id_index = || match clustered {
        Some(_) => Error::new(
            ErrorCode(5979800),
            "It is illegal to drop the clusteredIndex",
        ),
        None => Error::new(ErrorCode::INVALID_OPTIONS, "cannot drop _id index"),
    };
    match selection {
        IndexSelection::All => Ok(collection
            .secondary_indexes()
            .iter()
            .map(|index| index.name().to_owned())
            .collect()),
        IndexSelection::Names(names) => {
            let mut selected: Vec<String> = Vec::new();
            for name in names {
                if name == "_id_" || clustered == Some(name) {
                    return Err(id_index());
                }
                // One after the other: a name given twice is not there the second time.
                if collection.index(name).is_none() || selected.contains(name) {
                    return Err(Error::new(
                        ErrorCode::INDEX_NOT_FOUND,
                        format!("index not found with name [{name}]"),
                    ));
                }
                selected.push(name.clone());
            }
            Ok(selected)
        }
        IndexSelection::Key(key) => {
            if is_id_pattern(key) {
                return Err(id_index());
            }
            let same = |index: &&Arc<Index>| {
                pinion_bson::compare_documents(index.key(), key) == std::cmp::Ordering::Equal
            };
            let found: Vec<&Arc<Index>> = collection.indexes.iter().filter(same).collect();
            match &found[..] {
                [index] => Ok(vec![index.name().to_owned()]),
                [] => Err(Error::new(
                    ErrorCode::INDEX_NOT_FOUND,
                    format!("can't find index with key: {}", render(key)),
                )),
                several => Err(Error::new(
                    ErrorCode::AMBIGUOUS_INDEX_KEY_PATTERN,
                    format!(
                        "{} indexes found for key: {}, identify by name instead. Conflicting indexes: {}",
                        several.len(),
                        render(key),
                        several
                            .iter()
                            .map(|index| index.name())
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                )),
            }
        }
    }
}
