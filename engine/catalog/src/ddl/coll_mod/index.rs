//! The properties of one index changed: hidden, expiry, and the way to uniqueness.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::IndexSpec;
use pinion_storage::TreeId;
use pinion_wire::{Error, ErrorCode, Result};

use super::{PropertyChange, invalid};
use crate::build;
use crate::entry::{Collection, Placement};
use crate::index::Index;
use crate::oplog_format::check_v44_can_follow;
use crate::text::render;

/// Which index is meant.
#[derive(Clone, Debug)]
pub enum IndexName {
    Name(String),
    Key(RawDocumentBuf),
}

/// What is to be changed of an index.
#[derive(Clone, Debug)]
pub struct IndexChange {
    pub which: IndexName,
    pub expire_after_secs: Option<i64>,
    pub hidden: Option<bool>,
    pub unique: Option<bool>,
    pub prepare_unique: Option<bool>,
}

impl IndexChange {
    /// Whether the index is to be made unique.
    pub(super) fn is_conversion(&self) -> bool {
        self.unique == Some(true)
    }
}

/// An index and what it will be.
pub(super) struct Plan {
    old: Arc<Index>,
    new: Index,
    moves: bool,
    reported: Vec<PropertyChange>,
}

impl Plan {
    pub(super) fn is_conversion(&self) -> bool {
        self.new.spec.unique && !self.old.spec.unique
    }

    /// Whether its entries lie elsewhere afterwards: those that share their fields must be in one
    /// place to be found there.
    pub(super) fn moves(&self) -> bool {
        self.moves
    }

    /// Whether all entries have to be examined.
    pub(super) fn is_long(&self) -> bool {
        self.is_conversion() || self.moves()
    }

    pub(super) fn index(&self) -> &Index {
        &self.new
    }

    pub(super) fn before(&self) -> &Index {
        &self.old
    }

    /// The plan, now that the entries are in their other place.
    pub(super) fn rebuilt(self, new: Index) -> Plan {
        Plan { new, ..self }
    }

    pub(super) fn reported(&self) -> Vec<PropertyChange> {
        self.reported.clone()
    }

    /// The collection with the index as it will be.
    pub(super) fn apply(
        self,
        collection: Collection,
        dropped_trees: &mut Vec<TreeId>,
    ) -> Result<Collection> {
        if self.new.tree != self.old.tree {
            dropped_trees.push(self.old.tree);
        }
        // What was learned of arrays since it was planned.
        let current = collection.index(self.old.name()).cloned();
        let known = current.and_then(|index| index.spec.multikey.clone());
        let new = match known {
            Some(paths) => self.new.with_multikey(&paths),
            None => self.new,
        };
        Ok(collection.with_replaced(self.old.name(), new))
    }
}

/// Finds the index and works out what it will be.
pub(super) fn plan(collection: &Collection, change: &IndexChange) -> Result<Plan> {
    check_expiry_here(collection, change)?;
    let Some(old) = find(collection, &change.which)? else {
        return id_index_untouched(change);
    };
    let wants_unique = change.unique == Some(true) || change.prepare_unique == Some(true);
    if collection.options.time_series.is_some() && wants_unique {
        return Err(invalid(
            "Unique indexes are not supported on collections clustered by _id or time-series collections",
        ));
    }
    let mut made = Making {
        listed: old.listed.clone(),
        reported: Vec::new(),
    };
    if let Some(secs) = change.expire_after_secs {
        made.expiry(&old, secs)?;
    }
    if let Some(hidden) = change.hidden
        && hidden != old.spec.hidden
    {
        // The index of a series is that of its buckets.
        let is_series = collection.options.time_series.is_some();
        if collection.ns.collection().starts_with("system.") && !is_series {
            return Err(Error::bad_value("Can't hide index on system collection"));
        }
        made.flag("hidden", Some(old.spec.hidden), hidden);
    }
    if let Some(prepare) = change.prepare_unique
        && prepare != old.spec.prepare_unique
        && !old.spec.unique
    {
        check_can_be_unique(&old)?;
        made.flag("prepareUnique", Some(old.spec.prepare_unique), prepare);
    }
    match change.unique {
        Some(false) => return Err(Error::bad_value("Cannot make index non-unique")),
        Some(true) if !old.spec.unique => {
            if !old.spec.prepare_unique {
                return Err(invalid(
                    "Cannot make index unique with collMod when it is not 'prepareUnique'",
                ));
            }
            made.unset("prepareUnique");
            made.flag("unique", None, true);
        }
        _ => {}
    }
    let spec = IndexSpec::parse(&made.listed)?;
    let new = old.with_spec(spec, made.listed);
    Ok(Plan {
        moves: collection.placement == Placement::Hashed && new.needs_other_place(),
        new,
        old,
        reported: made.reported,
    })
}

fn check_expiry_here(collection: &Collection, change: &IndexChange) -> Result<()> {
    if change.expire_after_secs.is_none() {
        return Ok(());
    }
    if collection.options.time_series.is_some() {
        return Err(invalid(
            "TTL indexes are not supported for time-series collections. Please refer to the documentation and use the top-level 'expireAfterSeconds' option instead",
        ));
    }
    if collection.options.capped.is_some() {
        return Err(invalid(
            "TTL indexes are not supported for capped collections.",
        ));
    }
    Ok(())
}

/// Kinds of indexes, or collations and filters, under which nothing can be unique stay as they are.
fn check_can_be_unique(index: &Index) -> Result<()> {
    match index.spec.kind {
        pinion_query::IndexKind::Btree => Ok(()),
        _ => Err(invalid(format!(
            "index {} cannot be converted to a unique index",
            index.name()
        ))),
    }
}

/// The index that is meant; `None` for that on `_id`.
fn find(collection: &Collection, which: &IndexName) -> Result<Option<Arc<Index>>> {
    let not_found = |what: &str| {
        Error::new(
            ErrorCode::INDEX_NOT_FOUND,
            format!("cannot find index {what} for ns {}", collection.ns),
        )
    };
    // The index by which a collection is clustered is none to be found by its name.
    let has_id_index = collection.options.clustered.is_none();
    match which {
        IndexName::Name(name) if name == "_id_" && has_id_index => Ok(None),
        IndexName::Name(name) => match collection.index(name) {
            Some(index) => Ok(Some(index.clone())),
            None => Err(not_found(name)),
        },
        IndexName::Key(key) => {
            let is_same = |other: &RawDocument| {
                pinion_bson::compare_documents(other, key) == std::cmp::Ordering::Equal
            };
            if has_id_index && is_same(&pinion_bson::rawdoc! { "_id": 1 }) {
                return Ok(None);
            }
            let listed = |index: &&Arc<Index>| matches!(pinion_bson::get(&index.listed, "key"), Some(RawBsonRef::Document(key)) if is_same(key));
            let found: Vec<&Arc<Index>> = collection.indexes.iter().filter(listed).collect();
            match &found[..] {
                [index] => Ok(Some(Arc::clone(index))),
                [] => Err(not_found(&render(key))),
                several => Err(Error::new(
                    ErrorCode::AMBIGUOUS_INDEX_KEY_PATTERN,
                    format!(
                        "index keyPattern {} matches {} indexes, must use index name. Conflicting indexes:{}",
                        render(key),
                        several.len(),
                        several
                            .iter()
                            .map(|index| render(&index.listed))
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                )),
            }
        }
    }
}

/// The index on `_id` is what it is: unique, seen by all plans, and for ever.
fn id_index_untouched(change: &IndexChange) -> Result<Plan> {
    if change.expire_after_secs.is_some() {
        return Err(invalid("the _id field does not support TTL indexes"));
    }
    if change.hidden.is_some() {
        return Err(Error::bad_value("can't hide _id index"));
    }
    Err(invalid(
        "the _id index is unique already, and cannot be changed",
    ))
}

/// The specification that is being made.
struct Making {
    listed: RawDocumentBuf,
    reported: Vec<PropertyChange>,
}

impl Making {
    /// Sets a field, where it stands or at the end.
    fn set(&mut self, name: &str, value: RawBsonRef<'_>) {
        let mut out = DocBuilder::new();
        let mut is_set = false;
        for (field, present) in pinion_bson::elements(&self.listed) {
            if field == name {
                out.append_raw(name, value);
                is_set = true;
            } else {
                out.append_raw(field, present);
            }
        }
        if !is_set {
            out.append_raw(name, value);
        }
        self.listed = out.finish();
    }

    fn unset(&mut self, name: &str) {
        let mut out = DocBuilder::new();
        for (field, value) in pinion_bson::elements(&self.listed) {
            if field != name {
                out.append_raw(field, value);
            }
        }
        self.listed = out.finish();
    }

    /// A property that is listed only where it is true.
    fn flag(&mut self, name: &'static str, old: Option<bool>, new: bool) {
        match new {
            true => self.set(name, RawBsonRef::Boolean(true)),
            false => self.unset(name),
        }
        self.reported.push(PropertyChange {
            name,
            old: old.map(RawBson::from),
            new: new.into(),
        });
    }

    fn expiry(&mut self, old: &Index, secs: i64) -> Result<()> {
        let present = old.spec.expire_after_secs;
        if present == Some(secs) {
            return Ok(());
        }
        check_v44_can_follow(present.is_none(), "making an index one that expires")?;
        if present.is_none() && old.spec.fields() != 1 {
            return Err(invalid(
                "TTL indexes are single-field indexes, compound indexes do not support TTL",
            ));
        }
        // It is appended at the end, wherever it was.
        self.unset("expireAfterSeconds");
        self.set("expireAfterSeconds", RawBsonRef::Int64(secs));
        self.reported.push(PropertyChange {
            name: "expireAfterSeconds",
            old: present.map(RawBson::from),
            new: secs.into(),
        });
        Ok(())
    }
}

/// Refuses to make an index unique in which documents share their fields, and names those
/// documents.
pub(super) async fn check_convertible(collection: &Arc<Collection>, plan: &Plan) -> Result<()> {
    let violations = build::duplicates(collection, &plan.old).await?;
    if violations.is_empty() {
        return Ok(());
    }
    let mut extra = DocBuilder::new();
    extra.start_array("violations");
    for ids in violations {
        extra.push_document().start_array("ids");
        for id in &ids {
            extra.push(id.as_raw_bson_ref());
        }
        extra.end().end();
    }
    extra.end();
    Err(Error::new(
        ErrorCode::CANNOT_CONVERT_INDEX_TO_UNIQUE,
        "Cannot convert the index to unique. Please resolve conflicting documents before running collMod again.",
    )
    .with_extra(extra.finish()))
}
