//! `find`, `count` and `distinct` on a view: the pipelines that they are there.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

/// An `aggregate` in the place of another command.
pub struct Rewritten {
    out: DocBuilder,
}

impl Rewritten {
    /// A pipeline without stages on this namespace.
    pub fn new(ns: &Namespace) -> Rewritten {
        let mut out = DocBuilder::new();
        out.append("aggregate", ns.collection())
            .start_array("pipeline");
        Rewritten { out }
    }

    /// Adds a stage, unless it would leave all documents as they are.
    pub(super) fn stage(mut self, name: &str, spec: Option<&RawDocument>) -> Rewritten {
        if let Some(spec) = spec.filter(|spec| !spec.is_empty()) {
            self.out.push_document().append(name, spec).end();
        }
        self
    }

    /// Adds a stage that takes a number, unless it is zero.
    pub(super) fn bound(mut self, name: &str, number: usize) -> Rewritten {
        if number > 0 {
            self.out.push_document().append(name, number as i64).end();
        }
        self
    }

    /// Adds the stage that counts.
    pub(super) fn count(mut self, field: &str) -> Rewritten {
        self.out.push_document().append("$count", field).end();
        self
    }

    /// Ends the pipeline, and takes over options of the command that mean the same there.
    pub fn options(
        mut self,
        body: &RawDocument,
        names: &[&str],
        batch_size: Option<usize>,
    ) -> RawDocumentBuf {
        self.out.end().start_document("cursor");
        if let Some(size) = batch_size {
            self.out.append("batchSize", size as i64);
        }
        self.out.end();
        for (name, value) in pinion_bson::elements(body) {
            let is_given = !matches!(value, RawBsonRef::Null | RawBsonRef::Undefined);
            if names.contains(&name) && is_given {
                self.out.append_raw(name, value);
            }
        }
        self.out.finish()
    }
}

/// The error for an option that no pipeline has.
pub(super) fn not_in_pipelines(option: &str) -> Error {
    Error::new(
        ErrorCode::INVALID_PIPELINE_OPERATOR,
        format!("Option {option} not supported in aggregation."),
    )
}

/// Refuses a sort by the order in which documents are stored: those of a view are not.
pub(super) fn check_sort(sort: Option<&RawDocument>) -> Result<()> {
    match sort {
        Some(sort) if pinion_bson::get(sort, "$natural").is_some() => Err(Error::new(
            ErrorCode::INVALID_PIPELINE_OPERATOR,
            "Sort option $natural cannot be set for a view",
        )),
        _ => Ok(()),
    }
}
