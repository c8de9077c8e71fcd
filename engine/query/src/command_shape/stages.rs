//! The shape of a pipeline: what its stages name stays, what they compare with becomes its type.

use pinion_bson::{DocBuilder, RawArray, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::filter::filter;
use super::values::{append_kind, expression};
use crate::value::{elements, is_number, is_true, items};
use crate::work;

/// Appends the shape of a pipeline.
pub(super) fn pipeline(out: &mut DocBuilder, name: &str, stages: &RawArray) -> Result<()> {
    out.start_array(name);
    for (position, written) in items(stages).enumerate() {
        out.start_document(&position.to_string());
        if let RawBsonRef::Document(written) = written {
            for (name, spec) in elements(written) {
                stage(out, name, spec)?;
            }
        }
        out.end();
    }
    out.end();
    Ok(())
}

fn stage(out: &mut DocBuilder, name: &str, spec: RawBsonRef<'_>) -> Result<()> {
    work::spend_bytes(name.len() + 8)?;
    match (name, spec) {
        ("$match", RawBsonRef::Document(spec)) => {
            out.start_document(name);
            filter(out, spec)?;
            out.end();
            Ok(())
        }
        ("$project", RawBsonRef::Document(spec)) => projection(out, name, spec),
        ("$limit" | "$skip", spec) => append_kind(out, name, spec),
        ("$facet", RawBsonRef::Document(spec)) => {
            out.start_document(name);
            for (branch, stages) in elements(spec) {
                match stages {
                    RawBsonRef::Array(stages) => pipeline(out, branch, stages)?,
                    other => append_kind(out, branch, other)?,
                }
            }
            out.end();
            Ok(())
        }
        (
            "$lookup" | "$graphLookup" | "$unionWith" | "$geoNear" | "$merge" | "$sample",
            RawBsonRef::Document(spec),
        ) => {
            out.start_document(name);
            for (field, value) in elements(spec) {
                option(out, field, value)?;
            }
            out.end();
            Ok(())
        }
        (
            "$sort" | "$count" | "$unset" | "$unwind" | "$out" | "$unionWith" | "$merge"
            | "$densify",
            spec,
        ) => {
            work::spend_bytes(crate::value::bytes(spec))?;
            out.append(name, spec);
            Ok(())
        }
        (name, spec) => expression(out, name, spec),
    }
}

/// An option of a stage that reads or writes a collection that it names.
fn option(out: &mut DocBuilder, name: &str, value: RawBsonRef<'_>) -> Result<()> {
    match (name, value) {
        ("pipeline" | "whenMatched", RawBsonRef::Array(stages)) => pipeline(out, name, stages),
        ("query" | "restrictSearchWithMatch", RawBsonRef::Document(written)) => {
            out.start_document(name);
            filter(out, written)?;
            out.end();
            Ok(())
        }
        ("let" | "startWith", value) => expression(out, name, value),
        ("from" | "into" | "on", value)
        | (_, value @ (RawBsonRef::String(_) | RawBsonRef::Boolean(_))) => {
            work::spend_bytes(crate::value::bytes(value))?;
            out.append(name, value);
            Ok(())
        }
        (name, value) => append_kind(out, name, value),
    }
}

/// Appends a projection: whether a field is kept or left out is shown by a boolean.
pub(super) fn projection(out: &mut DocBuilder, name: &str, spec: &RawDocument) -> Result<()> {
    out.start_document(name);
    for (path, value) in elements(spec) {
        match value {
            RawBsonRef::Boolean(kept) => {
                out.append(path, kept);
            }
            number if is_number(number) => {
                out.append(path, is_true(number));
            }
            other => expression(out, path, other)?,
        }
    }
    out.end();
    Ok(())
}
