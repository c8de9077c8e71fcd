//! A collection as one shard has it, as nodes send it to each other.

use pinion_bson::{DocBuilder, Number, RawBsonRef, RawDocument, RawDocumentBuf, Uuid};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Namespace, Path, missing_field};

use crate::key::ShardKeyPattern;
use crate::values::append_uuid;

/// By what the shard goes for a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownTable {
    /// It takes it for unsharded.
    Unsharded,
    /// It asks before it uses it.
    Stale,
    Table,
}

const TABLES: [(&str, KnownTable); 3] = [
    ("unsharded", KnownTable::Unsharded),
    ("stale", KnownTable::Stale),
    ("table", KnownTable::Table),
];

/// `{ns, uuid, options, indexes, table, series?}`.
#[derive(Clone, Debug, PartialEq)]
pub struct CollectionOnShard {
    pub ns: Namespace,
    pub uuid: Uuid,
    pub options: RawDocumentBuf,
    /// Those that are complete, as they are listed.
    pub indexes: Vec<RawDocumentBuf>,
    pub table: KnownTable,
    /// Of buckets: the options of what has the name of their series; `None` where nothing has it.
    pub series: Option<RawDocumentBuf>,
}

/// A time series that a shard has without its buckets: `{ns, options}`.
#[derive(Clone, Debug, PartialEq)]
pub struct BareSeries {
    pub ns: Namespace,
    pub options: RawDocumentBuf,
}

impl BareSeries {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<BareSeries> {
        let reader = FieldReader::object(Path::root("bareSeries"), document)?;
        Ok(BareSeries {
            ns: Namespace::parse_sought(reader.str("ns")?)?,
            options: reader.doc("options")?.to_owned(),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("ns", self.ns.as_str())
            .append("options", &*self.options);
        out.finish()
    }
}

impl CollectionOnShard {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<CollectionOnShard> {
        let reader = FieldReader::object(Path::root("collections"), document)?;
        let missing = |name| missing_field(reader.path().field(name));
        let mut indexes = Vec::new();
        if let Some(objects) = reader.opt_objects("indexes")? {
            for object in objects {
                indexes.push(object?.1.to_owned());
            }
        }
        let table = reader.opt_one_of("table", &TABLES)?;
        Ok(CollectionOnShard {
            ns: Namespace::parse_sought(reader.str("ns")?)?,
            uuid: Uuid::from_bytes(reader.opt_uuid("uuid")?.ok_or_else(|| missing("uuid"))?),
            options: reader.doc("options")?.to_owned(),
            indexes,
            table: table.ok_or_else(|| missing("table"))?,
            series: reader.opt_doc("series")?.map(RawDocument::to_owned),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("ns", self.ns.as_str());
        append_uuid(&mut out, "uuid", self.uuid);
        out.append("options", &*self.options);
        out.start_array("indexes");
        for index in &self.indexes {
            out.push(&**index);
        }
        out.end();
        let table = TABLES.iter().find(|(_, table)| *table == self.table);
        out.append("table", table.expect("each has a name").0);
        if let Some(series) = &self.series {
            out.append("series", &**series);
        }
        out.finish()
    }

    /// Whether an index holds all documents in the order of the shard key.
    pub(super) fn has_index_of(&self, key: &ShardKeyPattern) -> bool {
        self.indexes.iter().any(|index| {
            let is_restricted = ["sparse", "partialFilterExpression", "collation"];
            let restricted = is_restricted.iter().any(|name| is_set(index, name));
            let pattern = pinion_bson::get(index, "key").and_then(|key| key.as_document());
            !restricted && pattern.is_some_and(|pattern| key.is_prefix_of_index(pattern))
        })
    }
}

fn is_set(index: &RawDocument, name: &str) -> bool {
    match pinion_bson::get(index, name) {
        None | Some(RawBsonRef::Boolean(false)) => false,
        Some(value) => Number::from_value(value).is_none_or(|n| n.to_i64_saturating() != 0),
    }
}
