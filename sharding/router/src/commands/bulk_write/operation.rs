//! The operations of a `bulkWrite`, as far as a router looks at them.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_wire::idl::{FieldReader, Path, i64_exact};
use pinion_wire::{ErrorCode, Result, document_section};

use super::results::place_and_code;
use super::statements::Bulk;
use crate::request::Request;
use crate::writes::{BULK, Form, Modify, OneDocument, Said, number_of};

/// What an operation does.
pub(super) enum Operation<'d> {
    Insert(&'d RawDocument),
    Modify(Modify<'d>),
    /// A node says what is wrong with it.
    Unknown,
}

impl<'d> Operation<'d> {
    /// Reads an operation.
    ///
    /// # Errors
    /// Those of its fields.
    pub(super) fn read(path: Path<'_>, document: &'d RawDocument) -> Result<Operation<'d>> {
        let reader = FieldReader::object(path, document)?;
        let name = pinion_bson::elements(document).next().map(|(name, _)| name);
        Ok(match name {
            Some("insert") => Operation::Insert(reader.doc("document")?),
            Some("update") => Operation::Modify(Modify::read_update(&reader, BULK)?),
            Some("delete") => Operation::Modify(Modify::read_bulk_delete(&reader)?),
            _ => Operation::Unknown,
        })
    }
}

/// The place in `nsInfo` that an operation names.
pub(super) fn target_of(operation: &RawDocument) -> Option<usize> {
    let (_, at) = pinion_bson::elements(operation).next()?;
    usize::try_from(i64_exact(at)?).ok()
}

/// An operation that changes one document.
pub(super) struct One<'b> {
    pub bulk: &'b Bulk<'b>,
    pub at: usize,
    pub modify: Modify<'b>,
    pub ns: &'b pinion_wire::idl::Namespace,
}

impl OneDocument for One<'_> {
    fn cmd(&self) -> &pinion_wire::Invocation {
        self.bulk.cmd
    }

    fn ns(&self) -> &pinion_wire::idl::Namespace {
        self.ns
    }

    fn vars(&self) -> &pinion_query::Variables {
        self.bulk.vars()
    }

    fn modify(&self) -> &Modify<'_> {
        &self.modify
    }

    fn request(&self, form: &Form<'_>, versions: crate::request::Versions) -> Request {
        let mut out = DocBuilder::new();
        form.append(&mut out, self.bulk.operation(self.at), BULK);
        let section = document_section("ops", [&*out.finish()]);
        let target = target_of(self.bulk.operation(self.at));
        let versions = |at: usize| (Some(at) == target).then_some(versions);
        self.bulk.request_of(section, &[self.at], versions)
    }

    fn said(&self, reply: &RawDocument) -> Said {
        let counts = ["nInserted", "nMatched", "nUpserted", "nDeleted"];
        Said {
            n: counts.into_iter().map(|name| number_of(reply, name)).sum(),
            is_retried: pinion_bson::get(reply, "retriedStmtIds").is_some(),
        }
    }

    fn error<'r>(&self, reply: &'r RawDocument) -> Option<(ErrorCode, &'r RawDocument)> {
        let batch = pinion_bson::get_path(reply, "cursor.firstBatch");
        let Some(RawBsonRef::Array(batch)) = batch else {
            return None;
        };
        let first = pinion_bson::values(batch).next()?.as_document()?;
        let (_, code) = place_and_code(first)?;
        (code != ErrorCode::OK).then_some((code, first))
    }
}
