//! What a router looks at in the statements of commands that write: all else is the shards' to
//! judge.

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::{Matcher, Update, UpdateContext, Variables};
use pinion_service::generate::{new_object_id, next_timestamps};
use pinion_sharding_protocol::RoutingTable;
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, f64_lossy, missing_field};

use crate::reads::{CollationOption, parse_filter};

/// What a command calls the parts of its statements that others call differently.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub filter: &'static str,
    pub update: &'static str,
    pub constants: &'static str,
}

/// Those of `update` and `delete`.
pub(crate) const BATCH: Names = Names {
    filter: "q",
    update: "u",
    constants: "c",
};

/// Those of `findAndModify`.
pub(crate) const FIND_AND_MODIFY: Names = Names {
    filter: "query",
    update: "update",
    constants: "c",
};

/// Those of `bulkWrite`.
pub(crate) const BULK: Names = Names {
    filter: "filter",
    update: "updateMods",
    constants: "constants",
};

/// A statement that changes documents which match a filter.
pub(crate) struct Modify<'d> {
    pub filter: &'d RawDocument,
    /// `None`: they are deleted.
    pub update: Option<RawBsonRef<'d>>,
    pub is_multi: bool,
    pub is_upsert: bool,
    pub sort: Option<&'d RawDocument>,
    pub hint: Option<RawBsonRef<'d>>,
    pub collation: CollationOption<'d>,
    array_filters: Option<&'d RawArray>,
    constants: Option<&'d RawDocument>,
}

impl<'d> Modify<'d> {
    /// Reads an element of `updates`.
    ///
    /// # Errors
    /// Those of its fields.
    pub(crate) fn of_update(path: Path<'_>, document: &'d RawDocument) -> Result<Modify<'d>> {
        let reader = FieldReader::object(path, document)?;
        Modify::read_update(&reader, BATCH)
    }

    /// Reads a statement of an update.
    ///
    /// # Errors
    /// Those of its fields.
    pub(crate) fn read_update(reader: &FieldReader<'d, '_>, names: Names) -> Result<Modify<'d>> {
        let update = reader.value(names.update);
        let missing = || missing_field(reader.path().field(names.update));
        Ok(Modify {
            filter: reader.doc(names.filter)?,
            update: Some(update.ok_or_else(missing)?),
            is_multi: reader.opt_bool("multi")?.unwrap_or(false),
            is_upsert: reader.opt_bool("upsert")?.unwrap_or(false),
            sort: reader.opt_doc("sort")?,
            constants: reader.opt_doc(names.constants)?,
            ..Modify::common(reader, reader.doc(names.filter)?)?
        })
    }

    /// Reads an element of `deletes`.
    ///
    /// # Errors
    /// Those of its fields.
    pub(crate) fn of_delete(path: Path<'_>, document: &'d RawDocument) -> Result<Modify<'d>> {
        let reader = FieldReader::object(path, document)?;
        let filter = reader.doc("q")?;
        let limit = reader.value("limit");
        let limit = limit.ok_or_else(|| missing_field(reader.path().field("limit")))?;
        Ok(Modify {
            is_multi: f64_lossy(limit).is_none_or(|limit| limit == 0.0),
            ..Modify::common(&reader, filter)?
        })
    }

    /// Reads a `delete` of a `bulkWrite`.
    ///
    /// # Errors
    /// Those of its fields.
    pub(crate) fn read_bulk_delete(reader: &FieldReader<'d, '_>) -> Result<Modify<'d>> {
        Ok(Modify {
            is_multi: reader.opt_bool("multi")?.unwrap_or(false),
            ..Modify::common(reader, reader.doc(BULK.filter)?)?
        })
    }

    /// Reads a `findAndModify`.
    ///
    /// # Errors
    /// Those of its fields.
    pub(crate) fn of_find_and_modify(
        reader: &FieldReader<'d, '_>,
        empty: &'d RawDocument,
    ) -> Result<Modify<'d>> {
        let filter = reader.opt_doc(FIND_AND_MODIFY.filter)?.unwrap_or(empty);
        let is_removal = reader.opt_safe_bool("remove")?.unwrap_or(false);
        Ok(Modify {
            update: reader.value("update").filter(|_| !is_removal),
            is_upsert: reader.opt_safe_bool("upsert")?.unwrap_or(false),
            sort: reader.opt_doc("sort")?,
            ..Modify::common(reader, filter)?
        })
    }

    fn common(reader: &FieldReader<'d, '_>, filter: &'d RawDocument) -> Result<Modify<'d>> {
        Ok(Modify {
            filter,
            update: None,
            is_multi: false,
            is_upsert: false,
            sort: None,
            hint: reader.value("hint"),
            collation: CollationOption::read(reader)?,
            array_filters: reader.opt_array("arrayFilters")?,
            constants: None,
        })
    }

    /// Its filter, with the collation that it has in a collection.
    ///
    /// # Errors
    /// Those of the parser.
    pub(crate) fn matcher(
        &self,
        vars: &Variables,
        table: Option<&RoutingTable>,
    ) -> Result<std::sync::Arc<Matcher>> {
        parse_filter(Some(self.filter), &self.collation.variables(vars, table)?)
    }

    /// Parses the update, if it is one.
    ///
    /// # Errors
    /// Those of the update.
    pub(crate) fn check_update(&self, vars: &Variables, table: &RoutingTable) -> Result<()> {
        match self.update {
            None => Ok(()),
            Some(update) => self.parse_update(update, vars, table).map(drop),
        }
    }

    fn parse_update(
        &self,
        update: RawBsonRef<'_>,
        vars: &Variables,
        table: &RoutingTable,
    ) -> Result<Update> {
        let mut vars = self.collation.variables(vars, Some(table))?;
        for (name, value) in self.constants.into_iter().flat_map(pinion_bson::elements) {
            vars.bind(name, Some(value.into()));
        }
        Update::parse_with(update, self.array_filters, &vars)
    }

    /// The document that it inserts where nothing matches.
    ///
    /// # Errors
    /// Those of the update.
    pub(crate) fn upserted(
        &self,
        vars: &Variables,
        table: &RoutingTable,
    ) -> Result<RawDocumentBuf> {
        let matcher = self.matcher(vars, Some(table))?;
        let update = self.update.unwrap_or(RawBsonRef::Null);
        let update = self.parse_update(update, vars, table)?;
        let time = next_timestamps(update.timestamps());
        let context = UpdateContext {
            now_ms: pinion_runtime::wall_ms(),
            timestamp: pinion_bson::Timestamp {
                time: time.secs(),
                increment: time.inc(),
            },
            insert: true,
            position: None,
        };
        update.upsert(&matcher, &context, new_object_id())
    }
}

/// What takes the place of a statement's filter or update in a request.
pub(crate) enum Form<'f> {
    /// The statement as it is, for the documents that match this filter as well, and without
    /// inserting any.
    Within(&'f RawDocument),
    /// It matches nothing, and changes nothing.
    Nothing,
    /// It matches nothing, and inserts this document.
    Insert(&'f RawDocument),
}

impl Form<'_> {
    /// Appends a statement in this form.
    pub(crate) fn append(&self, out: &mut DocBuilder, statement: &RawDocument, names: Names) {
        let filter = pinion_bson::get(statement, names.filter);
        let filter = filter.and_then(|filter| filter.as_document());
        let mut changed = DocBuilder::new();
        match self {
            Form::Within(point) => {
                changed.start_document(names.filter).start_array("$and");
                if let Some(filter) = filter.filter(|filter| !filter.is_empty()) {
                    changed.push(filter);
                }
                changed.push(*point).end().end();
            }
            Form::Nothing => {
                changed.append(names.filter, &*rawdoc! { "$alwaysFalse": 1 });
            }
            Form::Insert(document) => {
                changed.start_document(names.filter);
                if let Some(id) = pinion_bson::get(document, "_id") {
                    changed.start_document("_id").append_raw("$eq", id).end();
                }
                changed.append("$alwaysFalse", 1i32).end();
                changed.append(names.update, *document);
                changed.append("upsert", true);
            }
        }
        let changed = changed.finish();
        let is_insert = matches!(self, Form::Insert(_));
        for elem in pinion_bson::raw_elements(statement) {
            let name = elem.name_str().unwrap_or_default();
            let is_of_update =
                matches!(name, "arrayFilters" | "sort" | "hint") || name == names.constants;
            if pinion_bson::get(&changed, name).is_some()
                || name == "upsert"
                || is_insert && is_of_update
            {
                continue;
            }
            out.append_elem(&elem);
        }
        out.append_all(&changed);
    }
}

/// What a document is known by: its `_id`, and its key, by which a shard finds it to be its
/// own. Of a measurement what it can be found by: there may be others that are alike.
pub(crate) fn identifying_paths(table: &RoutingTable) -> Vec<&str> {
    let mut paths = vec!["_id"];
    match &table.time_series {
        Some(series) => {
            paths.push(&series.time_field);
            paths.extend(series.meta_field.as_deref());
        }
        None => paths.extend(table.key.paths().filter(|path| !is_of_id(path))),
    }
    // The time of a measurement may be its `_id`.
    paths.dedup();
    paths
}

/// The filter of one document, by what it is known by.
pub(crate) fn point_of(paths: &[&str], document: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for path in paths {
        let value = pinion_bson::get_path(document, path).unwrap_or(RawBsonRef::Null);
        out.start_document(path).append_raw("$eq", value).end();
    }
    out.finish()
}

/// Whether a path is `_id`, or within it.
pub(crate) fn is_of_id(path: &str) -> bool {
    path == "_id" || path.starts_with("_id.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let statement = rawdoc! {
            "q": { "a": 1 }, "u": { "$set": { "b.$[x]": 1 } }, "upsert": true,
            "arrayFilters": [{ "x": 1 }], "hint": "a_1", "collation": { "locale": "de" },
        };
        let check = |form: Form<'_>, expected: RawDocumentBuf| {
            let mut out = DocBuilder::new();
            form.append(&mut out, &statement, BATCH);
            assert_eq!(out.finish(), expected);
        };
        let rest = rawdoc! {
            "u": { "$set": { "b.$[x]": 1 } }, "arrayFilters": [{ "x": 1 }], "hint": "a_1",
            "collation": { "locale": "de" },
        };
        let mut expected = rest.clone();
        expected.append(
            pinion_bson::cstr!("q"),
            rawdoc! { "$and": [{ "a": 1 }, { "_id": 3 }] },
        );
        check(Form::Within(&rawdoc! { "_id": 3 }), expected);
        let mut expected = rest;
        expected.append(pinion_bson::cstr!("q"), rawdoc! { "$alwaysFalse": 1 });
        check(Form::Nothing, expected);
        check(
            Form::Insert(&rawdoc! { "_id": 3, "a": 1 }),
            rawdoc! {
                "collation": { "locale": "de" }, "q": { "_id": { "$eq": 3 }, "$alwaysFalse": 1 },
                "u": { "_id": 3, "a": 1 }, "upsert": true,
            },
        );
    }

    #[test]
    fn points() {
        let document = rawdoc! { "_id": 1, "a": { "b": 2, "x": 3 }, "d": 4 };
        let expected = rawdoc! { "_id": { "$eq": 1 }, "a.b": { "$eq": 2 }, "c": { "$eq": null } };
        assert_eq!(point_of(&["_id", "a.b", "c"], &document), expected);
    }
}
