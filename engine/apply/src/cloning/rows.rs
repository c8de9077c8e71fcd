//! `_replCatalogRows`: the rows of the catalog, as one member gives them to another.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{CatalogRows, replicated_rows};
use pinion_exec::limits::MAX_METADATA_REPLY_BYTES;
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, Invocation, Reply, Result};

/// `_replCatalogRows`: those with numbers above `above`, which the previous reply gave if there are
/// more.
pub(crate) async fn catalog_rows(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["_replCatalogRows"]);
    let above = reader.opt_long("above")?.unwrap_or(0);
    reader.finish()?;
    let above = u64::try_from(above).map_err(|_| Error::bad_value("'above' is negative"))?;
    let found = replicated_rows(above, MAX_METADATA_REPLY_BYTES).await;
    let mut out = Reply::new();
    out.start_array("rows");
    for row in &found.rows {
        out.push(&**row);
    }
    out.end();
    if let Some(above) = found.above {
        out.append("above", above as i64);
    }
    out.append("nextNumber", found.next_number as i64);
    Ok(out)
}

/// Reads a reply of `_replCatalogRows`.
///
/// # Errors
/// It has another shape.
pub fn parse_catalog_rows(reply: &RawDocument) -> Result<CatalogRows> {
    let field = |name: &str| pinion_bson::get(reply, name);
    let number = |name: &str| {
        let value = field(name).and_then(i64_exact);
        value.and_then(|value| u64::try_from(value).ok())
    };
    let malformed = || Error::failed_to_parse("a reply to _replCatalogRows has another shape");
    let Some(RawBsonRef::Array(listed)) = field("rows") else {
        return Err(malformed());
    };
    let mut rows = Vec::new();
    for row in pinion_bson::values(listed) {
        match row {
            RawBsonRef::Document(row) => rows.push(row.to_owned()),
            _ => return Err(malformed()),
        }
    }
    Ok(CatalogRows {
        rows,
        above: number("above"),
        next_number: number("nextNumber").ok_or_else(malformed)?,
    })
}
