//! One index's entry in the catalog, and its element of its collection's row.
//!
//! An element has MongoDB's documented shape,
//! `{spec: {v, key, name, ...}, ready, multikey, multikeyPaths, head, backgroundSecondary}`; beside
//! it stand `multikeyArrays`, the paths of arrays in a wildcard index, and `placement` where the
//! entries lie elsewhere than the specification says.

use std::sync::Arc;

use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_clock::Timestamp;
use pinion_query::{IndexSpec, MultikeyPaths};
use pinion_storage::TreeId;

use crate::entry::{BadRow, index_ident, parse_ident};
use crate::uuid::Uuid;

/// Where an index's entries live in a collection that has several partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndexPlacement {
    /// Beside their documents.
    Beside,
    /// Where the hash of the entry's fields says, so that one core decides whether they are taken.
    ByKey,
}

impl IndexPlacement {
    /// The placement of a new index.
    fn of(spec: &IndexSpec) -> IndexPlacement {
        if spec.enforces_unique() {
            IndexPlacement::ByKey
        } else {
            IndexPlacement::Beside
        }
    }
}

/// One secondary index. The `_id` index is the collection's own tree and is not among them.
#[derive(Clone, Debug)]
pub struct Index {
    /// What keys it has.
    pub spec: Arc<IndexSpec>,
    /// The specification as it is stored and listed: `{v, key, name, ...}`.
    pub listed: RawDocumentBuf,
    /// Its tree in each partition.
    pub tree: TreeId,
    /// Where its entries are.
    pub placement: IndexPlacement,
    /// When this process made it; `None` if an earlier one did.
    pub made_ms: Option<i64>,
    /// While it is built.
    pub building: Option<Building>,
    /// When it became ready: what a snapshot below sees is not all in it. Null if that was before
    /// any snapshot that can be opened.
    pub visible_from: Timestamp,
}

/// An index that is being built: it has no readers, and what is written of it waits in a tree of
/// its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Building {
    /// Which build it is.
    pub build: Uuid,
    /// The tree of the side writes in each partition: under the key of each entry whether it is
    /// there.
    pub side: TreeId,
}

impl Index {
    /// A new index.
    pub(crate) fn new(spec: IndexSpec, listed: RawDocumentBuf, tree: TreeId) -> Index {
        Index {
            placement: IndexPlacement::of(&spec),
            spec: Arc::new(spec),
            listed,
            tree,
            made_ms: Some(pinion_runtime::wall_ms()),
            building: None,
            visible_from: Timestamp::MIN,
        }
    }

    /// The same index at the beginning of a build.
    pub(crate) fn in_build(self, building: Building) -> Index {
        let mut spec = IndexSpec::clone(&self.spec);
        spec.ready = false;
        Index {
            spec: Arc::new(spec),
            building: Some(building),
            ..self
        }
    }

    /// The same index at the end of its build.
    pub(crate) fn built(&self) -> Index {
        let mut spec = IndexSpec::clone(&self.spec);
        spec.ready = true;
        Index {
            spec: Arc::new(spec),
            building: None,
            ..self.clone()
        }
    }

    /// The same index for a read whose snapshot is below its beginning: it is there, and not to be
    /// used.
    pub(crate) fn unseen(&self) -> Index {
        let mut spec = IndexSpec::clone(&self.spec);
        spec.ready = false;
        Index {
            spec: Arc::new(spec),
            ..self.clone()
        }
    }

    /// Its trees in each partition.
    pub(crate) fn trees(&self) -> impl Iterator<Item = TreeId> + use<> {
        let side = self.building.map(|building| building.side);
        std::iter::once(self.tree).chain(side)
    }

    /// A new index whose entries are beside their documents.
    pub(crate) fn beside(spec: IndexSpec, listed: RawDocumentBuf, tree: TreeId) -> Index {
        Index {
            placement: IndexPlacement::Beside,
            ..Index::new(spec, listed, tree)
        }
    }

    /// The index's name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// The index's key pattern.
    pub fn key(&self) -> &RawDocument {
        &self.spec.key
    }

    /// The same index, knowing that documents have arrays in these places. Only a repair unlearns
    /// that.
    pub(crate) fn with_multikey(&self, found: &MultikeyPaths) -> Index {
        let mut spec = IndexSpec::clone(&self.spec);
        spec.merge_multikey(found);
        Index {
            spec: Arc::new(spec),
            ..self.clone()
        }
    }

    /// The same index, for which documents have arrays in these places and in no others.
    pub(crate) fn with_arrays(&self, paths: Option<MultikeyPaths>) -> Index {
        let mut spec = IndexSpec::clone(&self.spec);
        spec.multikey = paths;
        Index {
            spec: Arc::new(spec),
            ..self.clone()
        }
    }

    /// The same index with another specification, which has the same keys.
    pub(crate) fn with_spec(&self, mut spec: IndexSpec, listed: RawDocumentBuf) -> Index {
        spec.multikey = self.spec.multikey.clone();
        spec.ready = self.spec.ready;
        Index {
            spec: Arc::new(spec),
            listed,
            ..self.clone()
        }
    }

    /// Whether entries that share their fields must be in one place and are not.
    pub(crate) fn needs_other_place(&self) -> bool {
        self.placement == IndexPlacement::Beside
            && IndexPlacement::of(&self.spec) == IndexPlacement::ByKey
    }

    /// The same index with its entries in another tree, where its specification says.
    pub(crate) fn moved_to(&self, tree: TreeId) -> Index {
        Index {
            tree,
            placement: IndexPlacement::of(&self.spec),
            ..self.clone()
        }
    }

    /// Appends the index to the list of a row that is being written.
    pub(crate) fn write_row(&self, rows: &mut DocBuilder) {
        begin_element(rows, &self.listed, &self.spec);
        if self.placement != IndexPlacement::of(&self.spec) {
            let name = match self.placement {
                IndexPlacement::Beside => "beside",
                IndexPlacement::ByKey => "byKey",
            };
            rows.append("placement", name);
        }
        if let Some(building) = &self.building {
            rows.append("buildUUID", building.build.to_bson())
                .append("sideWrites", index_ident(building.side).as_str());
        }
        rows.end();
    }

    /// Reads an element of a row's list; `None` for the index on `_id` where the collection's tree
    /// is that index.
    pub(crate) fn from_row(
        entry: &RawDocument,
        idents: &RawDocument,
        is_tree: bool,
    ) -> Result<Option<Index>, BadRow> {
        let bad = |what: &str| BadRow(format!("catalog row: {what}"));
        let listed = entry
            .get_document("spec")
            .map_err(|_| bad("index without spec"))?;
        let name = listed
            .get_str("name")
            .map_err(|_| bad("index without name"))?;
        // A clustered collection's may have any name.
        let is_id = name == "_id_" || listed.get_bool("clustered").unwrap_or(false);
        if is_id && is_tree {
            return Ok(None);
        }
        let ident = idents
            .get_str(name)
            .map_err(|_| bad("index without ident"))?;
        let tree =
            TreeId(parse_ident(ident).ok_or_else(|| bad("index ident is not of this catalog"))?);
        let damaged = |what: &str| BadRow(format!("catalog row: index {name}: {what}"));
        let mut spec = IndexSpec::parse(listed).map_err(|e| damaged(&e.message))?;
        // It is unique without saying so.
        spec.unique |= name == "_id_";
        spec.ready = entry.get_bool("ready").unwrap_or(true);
        spec.multikey = read_multikey(entry, &spec).map_err(|e| damaged(&e))?;
        let placement = match entry.get_str("placement") {
            Ok("beside") => IndexPlacement::Beside,
            Ok("byKey") => IndexPlacement::ByKey,
            Ok(_) => return Err(damaged("unknown placement")),
            Err(_) => IndexPlacement::of(&spec),
        };
        let building = match pinion_bson::get(entry, "buildUUID") {
            None => None,
            Some(uuid) => {
                let side = entry.get_str("sideWrites").ok().and_then(parse_ident);
                let (build, side) = Uuid::from_bson(uuid)
                    .zip(side)
                    .ok_or_else(|| damaged("its build cannot be understood"))?;
                let side = TreeId(side);
                Some(Building { build, side })
            }
        };
        Ok(Some(Index {
            spec: Arc::new(spec),
            listed: listed.to_owned(),
            tree,
            placement,
            made_ms: None,
            building,
            visible_from: Timestamp::MIN,
        }))
    }
}

/// Begins an element of a row's list with what all indexes have there.
pub(crate) fn begin_element(rows: &mut DocBuilder, listed: &RawDocument, spec: &IndexSpec) {
    rows.push_document()
        .append("spec", listed)
        .append("ready", spec.ready)
        .append("multikey", spec.is_multikey());
    match (&spec.multikey, spec.multikey_components()) {
        (_, Some(fields)) => write_components(rows, &spec.key, &fields),
        // A plane's index says no more than where its fields have arrays.
        (Some(MultikeyPaths::Fields(paths)), None) => {
            let fields: Vec<Vec<bool>> = (pinion_bson::elements(&spec.key).zip(paths))
                .map(|((field, _), arrays)| {
                    let components = 0..field.split('.').count() as u16;
                    components.map(|at| arrays.contains(&at)).collect()
                })
                .collect();
            write_components(rows, &spec.key, &fields);
        }
        (Some(MultikeyPaths::Arrays(paths)), None) => {
            rows.start_array("multikeyArrays");
            for path in paths {
                rows.push(&**path);
            }
            rows.end();
        }
        (Some(MultikeyPaths::Anywhere) | None, None) => {}
    }
    // Fields of MongoDB's rows that have one value for all indexes of its present engine.
    rows.append("head", 0i64)
        .append("backgroundSecondary", false);
}

/// A byte for each component of each field's path: one where some document has an array.
fn write_components(rows: &mut DocBuilder, key: &RawDocument, fields: &[Vec<bool>]) {
    rows.start_document("multikeyPaths");
    for ((field, _), components) in pinion_bson::elements(key).zip(fields) {
        let flags: Vec<u8> = components.iter().copied().map(u8::from).collect();
        rows.append(
            field,
            RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes: &flags,
            }),
        );
    }
    rows.end();
}

fn read_multikey(entry: &RawDocument, spec: &IndexSpec) -> Result<Option<MultikeyPaths>, String> {
    if !entry.get_bool("multikey").unwrap_or(false) {
        return Ok(None);
    }
    if let Ok(arrays) = entry.get_array("multikeyArrays") {
        let paths = pinion_bson::values(arrays).filter_map(|path| path.as_str().map(Into::into));
        return Ok(Some(MultikeyPaths::Arrays(paths.collect())));
    }
    let Ok(stored) = entry.get_document("multikeyPaths") else {
        return Ok(Some(MultikeyPaths::Anywhere));
    };
    let mut paths = Vec::new();
    for (field, _) in pinion_bson::elements(&spec.key) {
        let Some(RawBsonRef::Binary(flags)) = pinion_bson::get(stored, field) else {
            return Err(format!("no multikeyPaths of {field}"));
        };
        paths.push(
            (0u16..)
                .zip(flags.bytes)
                .filter(|(_, flag)| **flag != 0)
                .map(|(component, _)| component)
                .collect(),
        );
    }
    Ok(Some(MultikeyPaths::Fields(paths)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    /// An index keeps all that its row says.
    #[track_caller]
    fn check(listed: RawDocumentBuf, change: impl Fn(&mut Index)) {
        let spec = IndexSpec::parse(&listed).expect("a specification");
        let mut index = Index {
            placement: IndexPlacement::of(&spec),
            spec: Arc::new(spec),
            listed,
            tree: TreeId(17),
            made_ms: None,
            building: None,
            visible_from: Timestamp::MIN,
        };
        change(&mut index);
        let mut row = DocBuilder::new();
        row.start_array("indexes");
        index.write_row(&mut row);
        row.end();
        let row = row.finish();
        let list = row.get_array("indexes").expect("written");
        let entry = pinion_bson::values(list).next().expect("one");
        let mut idents = DocBuilder::new();
        idents.append(index.name(), "index-17");
        let entry = entry.as_document().expect("a document");
        let read = Index::from_row(entry, &idents.finish(), true);
        let read = read.expect("reads").expect("not _id");
        assert_eq!(
            (&read.listed, read.tree, read.placement, &read.spec.multikey),
            (
                &index.listed,
                index.tree,
                index.placement,
                &index.spec.multikey
            )
        );
        assert_eq!(read.building, index.building);
        assert_eq!(
            (
                read.spec.ready,
                read.spec.unique,
                read.spec.hidden,
                read.spec.filter.is_some()
            ),
            (
                index.spec.ready,
                index.spec.unique,
                index.spec.hidden,
                index.spec.filter.is_some()
            )
        );
    }

    /// The element of a row for an index with this specification.
    fn element(listed: RawDocumentBuf, found: Option<MultikeyPaths>) -> RawDocumentBuf {
        let mut spec = IndexSpec::parse(&listed).expect("a specification");
        spec.multikey = found;
        let mut row = DocBuilder::new();
        row.start_array("indexes");
        begin_element(&mut row, &listed, &spec);
        row.end().end();
        let row = row.finish();
        let list = row.get_array("indexes").expect("written");
        let entry = pinion_bson::values(list).next().expect("one");
        entry.as_document().expect("a document").to_owned()
    }

    #[test]
    fn an_element_shows_every_component_whether_or_not_there_are_arrays() {
        let flags = |bytes: &[u8]| pinion_bson::Binary {
            subtype: BinarySubtype::Generic,
            bytes: bytes.to_vec(),
        };
        let check = |key: RawDocumentBuf, found: Option<MultikeyPaths>, expected| {
            let element = element(rawdoc! { "v": 2, "key": key, "name": "i" }, found);
            let paths = element.get_document("multikeyPaths").ok();
            assert_eq!(paths.map(RawDocument::to_owned), expected, "{element:?}");
            assert_eq!(element.get_i64("head").ok(), Some(0));
        };
        let key = || rawdoc! { "a.b": 1, "c": -1 };
        let none = rawdoc! { "a.b": flags(&[0, 0]), "c": flags(&[0]) };
        check(key(), None, Some(none));
        let some = rawdoc! { "a.b": flags(&[0, 1]), "c": flags(&[0]) };
        let found = MultikeyPaths::Fields(vec![vec![1], vec![]]);
        check(key(), Some(found), Some(some));
        check(key(), Some(MultikeyPaths::Anywhere), None);
        check(rawdoc! { "a": "hashed" }, None, None);
        let sphere = rawdoc! { "a.p": flags(&[0, 0]) };
        check(rawdoc! { "a.p": "2dsphere" }, None, Some(sphere));
    }

    #[test]
    fn rows() {
        let plain = || rawdoc! { "v": 2, "key": { "a.b": 1, "c": -1 }, "name": "i" };
        check(plain(), |_| {});
        check(plain(), |index| index.placement = IndexPlacement::ByKey);
        check(plain(), |index| {
            *index = index.with_multikey(&MultikeyPaths::Fields(vec![vec![1], vec![]]));
        });
        check(plain(), |index| {
            *index = index.with_multikey(&MultikeyPaths::Anywhere)
        });
        check(
            rawdoc! { "v": 2, "key": { "$**": 1 }, "name": "i" },
            |index| {
                let arrays = ["a.b".into(), "c".into()].into();
                *index = index.with_multikey(&MultikeyPaths::Arrays(arrays));
            },
        );
        check(plain(), |index| {
            let build = Uuid([7; 16]);
            let side = TreeId(18);
            *index = index.clone().in_build(Building { build, side });
        });
        check(
            rawdoc! {
                "v": 2, "key": { "a": 1 }, "name": "i", "unique": true, "hidden": true,
                "partialFilterExpression": { "a": { "$gt": 1 } },
            },
            |_| {},
        );
    }
}
