//! What changed in the cluster: `config.changelog`.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, Path, missing_field};

use super::{append_document, other_fields};
use crate::values::date;

pub const CHANGELOG: &str = "config.changelog";
/// The collection is capped at this size.
pub const CHANGELOG_BYTES: i64 = 200 * 1024 * 1024;

/// `{_id, server, shard?, clientAddr, time, what, ns, details}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangelogEntry {
    pub id: String,
    pub server: String,
    pub shard: Option<String>,
    pub client: String,
    /// Milliseconds since the Unix epoch.
    pub time_ms: i64,
    /// "moveChunk.start", "split", ...
    pub what: String,
    /// Empty where no collection is concerned.
    pub ns: String,
    pub details: RawDocumentBuf,
    pub other: RawDocumentBuf,
}

const FIELDS: [&str; 8] = [
    "_id",
    "server",
    "shard",
    "clientAddr",
    "time",
    "what",
    "ns",
    "details",
];

impl ChangelogEntry {
    /// # Errors
    /// A field that is missing or of a wrong type.
    pub fn parse(document: &RawDocument) -> Result<ChangelogEntry> {
        let reader = FieldReader::object(Path::root(CHANGELOG), document)?;
        Ok(ChangelogEntry {
            id: reader.str("_id")?.to_owned(),
            server: reader.str("server")?.to_owned(),
            shard: reader.opt_str("shard")?.map(str::to_owned),
            client: reader.str("clientAddr")?.to_owned(),
            time_ms: reader
                .opt_date_ms("time")?
                .ok_or_else(|| missing_field(reader.path().field("time")))?,
            what: reader.str("what")?.to_owned(),
            ns: reader.opt_str("ns")?.unwrap_or_default().to_owned(),
            details: reader.doc("details")?.to_owned(),
            other: other_fields(document, &FIELDS),
        })
    }

    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append("_id", self.id.as_str())
            .append("server", self.server.as_str());
        if let Some(shard) = &self.shard {
            out.append("shard", shard.as_str());
        }
        out.append("clientAddr", self.client.as_str())
            .append_raw("time", date(self.time_ms))
            .append("what", self.what.as_str())
            .append("ns", self.ns.as_str());
        append_document(&mut out, "details", &self.details);
        out.append_all(&self.other);
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{DateTime, rawdoc};

    use super::super::testing::{check_kept, check_required, check_types};
    use super::*;

    #[test]
    fn forms() {
        let full = rawdoc! {
            "_id": "h-1", "server": "h:1", "shard": "s1", "clientAddr": "10.0.0.1:5",
            "time": DateTime::from_millis(9), "what": "moveChunk.start", "ns": "d.c",
            "details": { "min": { "a": 1 } }, "x": 1,
        };
        let found = check_kept(&full, ChangelogEntry::parse, ChangelogEntry::to_bson);
        assert_eq!((found.time_ms, &*found.what), (9, "moveChunk.start"));
        check_types(&full, &FIELDS, ChangelogEntry::parse, CHANGELOG);
        let required = ["_id", "server", "clientAddr", "time", "what", "details"];
        check_required(&full, &required, ChangelogEntry::parse);
    }
}
