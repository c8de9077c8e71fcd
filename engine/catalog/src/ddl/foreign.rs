//! What a command of the log changes, worked out from the command itself: MongoDB's members log no
//! rows, and another member's rows may name trees by numbers that are others here.
//!
//! A collection is identified by its UUID, an index by its name, a build by its UUID; what is new
//! gets the next numbers of this node, which may be others when the entry is applied again. Nothing
//! says beforehand which documents have arrays, so the indexes made here count as having them
//! anywhere.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_query::{IndexKind, IndexSpec, MultikeyPaths};
use pinion_storage::TreeId;
use pinion_wire::idl::{Namespace, i64_clamped};
use pinion_wire::{Error, ErrorCode, Result};

use super::create::system_document;
use super::drop::{dropping, dropping_view};
use super::logged::LoggedCommand;
use crate::catalog::Catalog;
use crate::change::CatalogChange;
use crate::entry::{Clustering, Collection};
use crate::index::{Building, Index};
use crate::options::{
    CollectionKind, CollectionOptions, ValidationAction, ValidationLevel, ViewDefinition,
};
use crate::uuid::Uuid;
use crate::view::{SYSTEM_VIEWS, View};

/// Options of MongoDB 4.4's collections that mean nothing here.
const NO_OPTIONS: [&str; 7] = [
    "create",
    "idIndex",
    "uuid",
    "autoIndexId",
    "flags",
    "recordPreImages",
    "comment",
];

/// The numbers that a change gives out.
pub(super) struct Numbers(u64);

impl Numbers {
    /// From this one on.
    pub(super) fn from(first: u64) -> Numbers {
        Numbers(first)
    }

    fn take(&mut self) -> u64 {
        self.0 += 1;
        self.0 - 1
    }
}

fn unfit(command: &LoggedCommand<'_>, what: &str) -> Error {
    Error::new(
        ErrorCode::OPLOG_OPERATION_UNSUPPORTED,
        format!(
            "the entry of the command '{}' on {} cannot be applied: {what}",
            command.name(),
            command.ns
        ),
    )
}

/// What a command changes here; `None` where that is nothing, or where it is about what is gone.
///
/// # Errors
/// A command that is not known; options that are not understood.
pub(super) fn worked_out(
    command: &LoggedCommand<'_>,
    rows: Option<&CatalogChange>,
    catalog: &Catalog,
    mut numbers: Numbers,
) -> Result<Option<CatalogChange>> {
    let work = Work { command, catalog };
    let change = match command.name() {
        // Views have no UUID: they are identified by the names in their rows.
        "create" | "collMod" if rows.is_some_and(|rows| !rows.views.is_empty()) => rows
            .map(|rows| work.views(rows, &mut numbers))
            .transpose()?,
        "create" => work.create(&mut numbers)?,
        "drop" => work.dropped()?,
        // What was in it went by entries of its own.
        "dropDatabase" => Some(CatalogChange::default()),
        "renameCollection" => work.rename()?,
        "createIndexes" => work.create_indexes(&mut numbers)?,
        "startIndexBuild" => work.start_build(&mut numbers)?,
        "commitIndexBuild" => work.commit_build(&mut numbers)?,
        "abortIndexBuild" => work.abort_build(),
        "dropIndexes" | "dropIndex" | "deleteIndexes" | "deleteIndex" => work.drop_indexes(),
        "collMod" => work.modify()?,
        // What a member does with what is its own.
        "dbCheck" | "reIndex" => None,
        _ => return Err(unfit(command, "there is no such command")),
    };
    Ok(change.map(|mut change| {
        change.next_number = numbers.0;
        change
    }))
}

/// What the document of a view, written or removed, changes; `None` where that is nothing.
///
/// # Errors
/// The document is none of a view.
pub(super) fn view_change(
    catalog: &Catalog,
    holder: Uuid,
    id: &str,
    document: Option<&RawDocument>,
    mut numbers: Numbers,
) -> Result<Option<CatalogChange>> {
    let Some(holder) = catalog.by_uuid(holder) else {
        return Ok(None);
    };
    let ns = Namespace::parse(id)?;
    let present = catalog.view(&ns);
    let mut change = CatalogChange::default();
    match document {
        Some(document) => {
            let number = present.map_or_else(|| numbers.take(), |present| present.number);
            let view = View::new(ns, number, options_of_view(document)?);
            change.documents.push(system_document(holder.tree(), &view));
            change.views.push(view);
        }
        None => {
            let Some(present) = present else {
                return Ok(None);
            };
            change.removes.push(present.number);
            change.documents.push(crate::change::SystemDocument {
                tree: holder.tree(),
                id: id.to_owned(),
                document: None,
            });
        }
    }
    change.next_number = numbers.0;
    Ok(Some(change))
}

fn options_of_view(document: &RawDocument) -> Result<CollectionOptions> {
    let bad = || Error::bad_value("the document of a view has no viewOn and pipeline");
    let (Some(RawBsonRef::String(on)), Some(RawBsonRef::Array(pipeline))) = (
        pinion_bson::get(document, "viewOn"),
        pinion_bson::get(document, "pipeline"),
    ) else {
        return Err(bad());
    };
    let collation = match pinion_bson::get(document, "collation") {
        Some(RawBsonRef::Document(collation)) => Some(collation.to_owned()),
        _ => None,
    };
    Ok(CollectionOptions {
        view: Some(ViewDefinition {
            on: on.to_owned(),
            pipeline: pipeline.to_owned(),
        }),
        collation,
        ..CollectionOptions::default()
    })
}

/// The collection that another member lists: its options, and its indexes with their builds.
/// Numbers are given out for it.
///
/// # Errors
/// Options or indexes that are not understood.
pub(super) fn listed_collection(
    ns: Namespace,
    uuid: Uuid,
    options: &RawDocument,
    indexes: &[ListedIndex],
    next_number: &mut u64,
) -> Result<Collection> {
    let mut numbers = Numbers::from(*next_number);
    let mut made = new_collection(ns, uuid, options_of(options)?, &mut numbers);
    for listed in indexes.iter().filter(|listed| listed.name() != "_id_") {
        let mut index = index_of(&listed.spec, numbers.take())?;
        if let Some(build) = listed.build {
            let side = TreeId(numbers.take());
            index = index.in_build(Building { build, side });
        }
        made = made.with_index(index);
    }
    *next_number = numbers.0;
    Ok(made)
}

/// An index as a member lists it.
#[derive(Clone, Debug)]
pub struct ListedIndex {
    pub spec: RawDocumentBuf,
    /// Where it is still being built.
    pub build: Option<Uuid>,
}

impl ListedIndex {
    fn name(&self) -> &str {
        self.spec.get_str("name").unwrap_or_default()
    }
}

fn new_collection(
    ns: Namespace,
    uuid: Uuid,
    options: CollectionOptions,
    numbers: &mut Numbers,
) -> Collection {
    let mut made = Collection::new(ns, uuid, numbers.take(), options);
    if made.clustering == Clustering::Record {
        made = made.with_id_index(TreeId(numbers.take()));
    }
    made
}

fn options_of(o: &RawDocument) -> Result<CollectionOptions> {
    let mut listed = DocBuilder::new();
    for (name, value) in pinion_bson::elements(o).filter(|(name, _)| !NO_OPTIONS.contains(name)) {
        // Sizes came as any number.
        match (name, value, i64_clamped(value)) {
            ("size" | "max", _, Some(number)) => {
                listed.append(name, number);
            }
            ("temp" | "capped", RawBsonRef::Boolean(false), _) => {}
            _ => {
                listed.append_raw(name, value);
            }
        }
    }
    let listed = listed.finish();
    let options = CollectionOptions::from_document(&listed);
    let mut options = options.map_err(|error| Error::bad_value(error.0))?;
    if let Some(capped) = &mut options.capped {
        capped.max_documents = capped.max_documents.filter(|max| *max > 0);
    }
    Ok(options)
}

/// An index with this specification, which is one of those that are stored.
fn index_of(spec: &RawDocument, number: u64) -> Result<Index> {
    let mut listed = DocBuilder::new();
    for (name, value) in pinion_bson::elements(spec).filter(|(name, _)| *name != "ns") {
        listed.append_raw(name, value);
    }
    let listed = listed.finish();
    let spec = IndexSpec::parse(&listed)?;
    let index = Index::new(spec, listed, TreeId(number));
    Ok(match index.spec.kind {
        // They refuse arrays.
        IndexKind::Hashed => index,
        _ => index.with_multikey(&MultikeyPaths::Anywhere),
    })
}

/// The specifications of a command on a build.
fn listed_specs(o: &RawDocument) -> Vec<&RawDocument> {
    match pinion_bson::get(o, "indexes") {
        Some(RawBsonRef::Array(list)) => pinion_bson::values(list)
            .filter_map(|spec| spec.as_document())
            .collect(),
        _ => Vec::new(),
    }
}

fn put(collection: Collection) -> CatalogChange {
    CatalogChange {
        puts: vec![collection],
        ..CatalogChange::default()
    }
}

struct Work<'a> {
    command: &'a LoggedCommand<'a>,
    catalog: &'a Catalog,
}

impl Work<'_> {
    /// The collection that the entry names by its UUID.
    fn present(&self) -> Option<&Arc<Collection>> {
        self.catalog.by_uuid(self.command.uuid?)
    }

    fn build(&self) -> Option<Uuid> {
        Uuid::from_bson(pinion_bson::get(self.command.o, "indexBuildUUID")?)
    }

    fn create(&self, numbers: &mut Numbers) -> Result<Option<CatalogChange>> {
        let o = self.command.o;
        let name = o.get_str("create");
        let name = name.map_err(|_| unfit(self.command, "it names no collection"))?;
        let db = self.command.ns.split('.').next().unwrap_or_default();
        let ns = Namespace::new(db, name)?;
        let options = options_of(o)?;
        let Some(uuid) = self.command.uuid else {
            return Err(unfit(self.command, "it has no UUID"));
        };
        if self
            .catalog
            .by_uuid(uuid)
            .is_some_and(|found| found.ns == ns)
        {
            return Ok(None);
        }
        if let Some(known) = self.catalog.by_uuid(uuid) {
            return Ok(Some(put(known.renamed(ns, known.options.temporary))));
        }
        Ok(Some(put(new_collection(ns, uuid, options, numbers))))
    }

    /// A view has no UUID.
    fn dropped(&self) -> Result<Option<CatalogChange>> {
        if self.command.uuid.is_some() {
            let present = self.present();
            return Ok(present.map(|found| dropping(self.catalog, found)));
        }
        let Ok(name) = self.command.o.get_str("drop") else {
            return Ok(None);
        };
        let db = self.command.ns.split('.').next().unwrap_or_default();
        let Some(view) = self.catalog.view(&Namespace::new(db, name)?) else {
            return Ok(None);
        };
        let mut change = dropping_view(self.catalog, view)?;
        if view.kind() == CollectionKind::TimeSeries
            && let Some(buckets) = self.catalog.get(&view.on())
        {
            change.add(dropping(self.catalog, buckets));
        }
        Ok(Some(change))
    }

    /// The views of these rows, and the collections that come with them, with numbers of this node.
    fn views(&self, rows: &CatalogChange, numbers: &mut Numbers) -> Result<CatalogChange> {
        let mut change = CatalogChange::default();
        for row in &rows.puts {
            if let Some(present) = self.catalog.by_uuid(row.uuid) {
                change.puts.push(present.with_options(row.options.clone()));
                continue;
            }
            let (ns, options) = (row.ns.clone(), row.options.clone());
            let mut made = new_collection(ns, row.uuid, options, numbers);
            for index in row.secondary_indexes() {
                made = made.with_index(index_of(&index.listed, numbers.take())?);
            }
            change.puts.push(made);
        }
        for row in &rows.views {
            let holder = Namespace::new(row.ns.db(), SYSTEM_VIEWS)?;
            let made = change.puts.iter().find(|made| made.ns == holder);
            let tree = made.map(Collection::tree);
            let tree = tree.or_else(|| self.catalog.get(&holder).map(|present| present.tree()));
            let present = self.catalog.view(&row.ns);
            let number = present.map_or_else(|| numbers.take(), |present| present.number);
            let view = View::new(row.ns.clone(), number, row.options.clone());
            change
                .documents
                .extend(tree.map(|tree| system_document(tree, &view)));
            change.views.push(view);
        }
        Ok(change)
    }

    fn rename(&self) -> Result<Option<CatalogChange>> {
        let Some(source) = self.present() else {
            return Ok(None);
        };
        let o = self.command.o;
        let to = o.get_str("to");
        let to = to.map_err(|_| unfit(self.command, "it names no target"))?;
        let to = Namespace::parse(to)?;
        let stays_temporary = o.get_bool("stayTemp").unwrap_or(false);
        let mut change = put(source.renamed(to.clone(), stays_temporary));
        let target = match pinion_bson::get(o, "dropTarget") {
            Some(RawBsonRef::Boolean(true)) => self.catalog.get(&to),
            Some(value) => Uuid::from_bson(value).and_then(|uuid| self.catalog.by_uuid(uuid)),
            None => None,
        };
        if let Some(target) = target.filter(|target| target.uuid != source.uuid) {
            change.removes.push(target.number);
            change.dropped_trees.extend(target.trees());
        }
        Ok(Some(change))
    }

    fn create_indexes(&self, numbers: &mut Numbers) -> Result<Option<CatalogChange>> {
        let Some(present) = self.present() else {
            return Ok(None);
        };
        let mut spec = DocBuilder::new();
        let fields = pinion_bson::elements(self.command.o);
        for (name, value) in fields.filter(|(name, _)| *name != "createIndexes") {
            spec.append_raw(name, value);
        }
        let spec = spec.finish();
        if spec
            .get_str("name")
            .is_ok_and(|name| present.index(name).is_some() || name == "_id_")
        {
            return Ok(None);
        }
        let index = index_of(&spec, numbers.take())?;
        Ok(Some(put(present.with_index(index))))
    }

    fn start_build(&self, numbers: &mut Numbers) -> Result<Option<CatalogChange>> {
        let (Some(present), Some(build)) = (self.present(), self.build()) else {
            return Ok(None);
        };
        let mut changed = Collection::clone(present);
        for spec in listed_specs(self.command.o) {
            let index = index_of(spec, numbers.take())?;
            let side = TreeId(numbers.take());
            if present.index(index.name()).is_none() {
                changed = changed.with_index(index.in_build(Building { build, side }));
            }
        }
        Ok(Some(put(changed)))
    }

    fn commit_build(&self, numbers: &mut Numbers) -> Result<Option<CatalogChange>> {
        let (Some(present), Some(build)) = (self.present(), self.build()) else {
            return Ok(None);
        };
        let mut changed = Collection::clone(present);
        let mut dropped_trees = Vec::new();
        for spec in listed_specs(self.command.o) {
            let made = index_of(spec, numbers.take())?;
            match present.index(made.name()) {
                None => changed = changed.with_index(made),
                Some(known) => {
                    let building = known.building.filter(|building| building.build == build);
                    if let Some(building) = building {
                        dropped_trees.push(building.side);
                        changed = changed.with_replaced(known.name(), known.built());
                    }
                }
            }
        }
        let mut change = put(changed);
        change.dropped_trees = dropped_trees;
        Ok(Some(change))
    }

    fn abort_build(&self) -> Option<CatalogChange> {
        let (present, build) = (self.present()?, self.build()?);
        let is_of_build = |index: &&Arc<Index>| index.building.is_some_and(|b| b.build == build);
        let of_build = present.indexes.iter().filter(is_of_build);
        self.without(
            present,
            of_build.map(|index| index.name().to_owned()).collect(),
        )
    }

    fn drop_indexes(&self) -> Option<CatalogChange> {
        let present = self.present()?;
        let names = match pinion_bson::get(self.command.o, "index")? {
            RawBsonRef::String("*") => {
                let all = present.secondary_indexes().iter();
                all.map(|index| index.name().to_owned()).collect()
            }
            RawBsonRef::String(name) => vec![name.to_owned()],
            RawBsonRef::Array(names) => pinion_bson::values(names)
                .filter_map(|name| name.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        };
        self.without(present, names)
    }

    fn without(&self, present: &Collection, names: Vec<String>) -> Option<CatalogChange> {
        let gone = names.iter().filter_map(|name| present.index(name));
        let dropped_trees: Vec<TreeId> = gone.flat_map(|index| index.trees()).collect();
        if dropped_trees.is_empty() {
            return None;
        }
        let mut change = put(present.without_indexes(&names));
        change.dropped_trees = dropped_trees;
        Some(change)
    }

    /// What `collMod` may change of a collection in MongoDB 4.4, and what means nothing here is
    /// passed over.
    fn modify(&self) -> Result<Option<CatalogChange>> {
        let Some(present) = self.present() else {
            return Ok(None);
        };
        let mut options = present.options.clone();
        let mut index = None;
        for (name, value) in pinion_bson::elements(self.command.o) {
            match (name, value) {
                ("validator", RawBsonRef::Document(validator)) => {
                    options.validator =
                        Some(validator.to_owned()).filter(|validator| !validator.is_empty());
                }
                ("validationLevel", RawBsonRef::String(level)) => {
                    options.validation_level = ValidationLevel::named(level);
                }
                ("validationAction", RawBsonRef::String(action)) => {
                    options.validation_action = ValidationAction::named(action);
                }
                ("index", RawBsonRef::Document(wanted)) => index = Some(wanted),
                _ => {}
            }
        }
        let has = |name: &&str| pinion_bson::get(self.command.o, name).is_some();
        if ["validator", "validationLevel", "validationAction"]
            .iter()
            .any(has)
        {
            options.complete_validation();
        }
        let mut changed = Collection::clone(present).with_options(options);
        if let Some(wanted) = index
            && let Some(new) = modified_index(present, wanted)?
        {
            let name = new.name().to_owned();
            changed = changed.with_replaced(&name, new);
        }
        Ok(Some(put(changed)))
    }
}

fn modified_index(present: &Collection, wanted: &RawDocument) -> Result<Option<Index>> {
    let by_name = wanted.get_str("name").ok();
    let by_key = wanted.get_document("keyPattern").ok();
    let is_meant = |index: &&Arc<Index>| match (by_name, by_key) {
        (Some(name), _) => index.name() == name,
        (None, Some(key)) => {
            pinion_bson::compare_documents(index.key(), key) == std::cmp::Ordering::Equal
        }
        (None, None) => false,
    };
    let Some(old) = present.indexes.iter().find(is_meant) else {
        return Ok(None);
    };
    let mut listed = DocBuilder::new();
    let changes = |name: &str| {
        matches!(name, "hidden" | "expireAfterSeconds") && pinion_bson::get(wanted, name).is_some()
    };
    for (name, value) in pinion_bson::elements(&old.listed).filter(|(name, _)| !changes(name)) {
        listed.append_raw(name, value);
    }
    // Entries have it as the client has written it; a change stores it as a long.
    if let Some(secs) = pinion_bson::get(wanted, "expireAfterSeconds").and_then(i64_clamped) {
        listed.append("expireAfterSeconds", secs);
    }
    if pinion_bson::get(wanted, "hidden") == Some(RawBsonRef::Boolean(true)) {
        listed.append("hidden", true);
    }
    let listed = listed.finish();
    let spec = IndexSpec::parse(&listed)?;
    Ok(Some(old.with_spec(spec, listed)))
}
