//! The shape of a command that reads: what it asks for, with types in the place of the values.
//!
//! Query settings apply to all commands of one shape. A shape is a document, so that it can be
//! shown; two commands have the same shape where these documents are the same.

mod filter;
mod stages;
#[cfg(test)]
mod tests;
mod values;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::Result;

use crate::value::{field, first, is_number, is_true};

/// What is shown of a pipeline that reads no collection.
const NO_COLLECTION: &str = "$cmd.aggregate";

/// The shape of a `find`, `distinct` or `aggregate` of this database; `None` for any other command.
///
/// # Errors
/// Only where it takes more work than it may.
pub fn command_shape(command: &RawDocument, db: &str) -> Result<Option<RawDocumentBuf>> {
    let Some((name @ ("find" | "distinct" | "aggregate"), target)) = first(command) else {
        return Ok(None);
    };
    let collection = match target {
        RawBsonRef::String(collection) => collection,
        _ => NO_COLLECTION,
    };
    let mut out = DocBuilder::new();
    out.start_document("cmdNs")
        .append("db", db)
        .append("coll", collection)
        .end()
        .append("command", name);
    match name {
        "find" => find(&mut out, command)?,
        "distinct" => distinct(&mut out, command)?,
        _ => aggregate(&mut out, command)?,
    }
    if let Some(RawBsonRef::Document(collation)) = field(command, "collation") {
        out.append("collation", collation);
    }
    if let Some(lets @ RawBsonRef::Document(_)) = field(command, "let") {
        values::expression(&mut out, "let", lets)?;
    }
    Ok(Some(out.finish()))
}

/// Whether a command is a `find` that looks for one `_id` and nothing else: that is not planned.
pub fn find_of_one_id(command: &RawDocument) -> bool {
    let Some(("find", _)) = first(command) else {
        return false;
    };
    let Some(RawBsonRef::Document(filter)) = field(command, "filter") else {
        return false;
    };
    let mut fields = crate::value::elements(filter);
    let Some(("_id", value)) = fields.next() else {
        return false;
    };
    let is_equality = match value {
        RawBsonRef::Document(operators) => match first(operators) {
            Some(("$eq", _)) => crate::value::count(operators) == 1,
            Some((name, _)) => !name.starts_with('$'),
            None => true,
        },
        RawBsonRef::RegularExpression(_) => false,
        _ => true,
    };
    is_equality && fields.next().is_none()
}

fn find(out: &mut DocBuilder, command: &RawDocument) -> Result<()> {
    filter_of(out, command, "filter")?;
    if let Some(RawBsonRef::Document(sort)) = field(command, "sort")
        && !sort.is_empty()
    {
        out.append("sort", sort);
    }
    if let Some(RawBsonRef::Document(projection)) = field(command, "projection")
        && !projection.is_empty()
    {
        stages::projection(out, "projection", projection)?;
    }
    for bound in ["skip", "limit"] {
        if let Some(value) = field(command, bound).filter(|value| is_true(*value)) {
            values::append_kind(out, bound, value)?;
        }
    }
    for bounds in ["min", "max"] {
        if let Some(value @ RawBsonRef::Document(_)) = field(command, bounds) {
            values::expression(out, bounds, value)?;
        }
    }
    let flags = [
        "singleBatch",
        "returnKey",
        "showRecordId",
        "tailable",
        "awaitData",
        "mirrored",
        "oplogReplay",
    ];
    for flag in flags {
        if field(command, flag).is_some_and(is_true) {
            out.append(flag, true);
        }
    }
    append_disk_use(out, command);
    Ok(())
}

fn distinct(out: &mut DocBuilder, command: &RawDocument) -> Result<()> {
    if let Some(key @ RawBsonRef::String(_)) = field(command, "key") {
        out.append("key", key);
    }
    filter_of(out, command, "query")
}

fn aggregate(out: &mut DocBuilder, command: &RawDocument) -> Result<()> {
    if let Some(RawBsonRef::Array(pipeline)) = field(command, "pipeline") {
        stages::pipeline(out, "pipeline", pipeline)?;
    }
    append_disk_use(out, command);
    Ok(())
}

fn append_disk_use(out: &mut DocBuilder, command: &RawDocument) {
    let allowed = field(command, "allowDiskUse");
    if let Some(allowed) =
        allowed.filter(|value| is_number(*value) || matches!(value, RawBsonRef::Boolean(_)))
    {
        out.append("allowDiskUse", is_true(allowed));
    }
}

fn filter_of(out: &mut DocBuilder, command: &RawDocument, name: &str) -> Result<()> {
    out.start_document(name);
    if let Some(RawBsonRef::Document(written)) = field(command, name) {
        filter::filter(out, written)?;
    }
    out.end();
    Ok(())
}
