//! Documents that the node keeps for itself, by their `_id`.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::{Matcher, Update, Variables};
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::modify::Change;
use super::target::{ModifyOutcome, ModifyStatement, run};
use crate::acquire::acquire_write;

/// Replaces the document with this `_id` of its own, or makes it, and its collection with it. What
/// is the same already is not written again.
pub async fn upsert_by_id(
    ctx: &OpContext,
    ns: Namespace,
    id: &str,
    document: &RawDocument,
) -> Result<()> {
    upsert(ctx, ns, rawdoc! { "_id": id }, document).await
}

/// The same of the document with the `_id` that the filter names.
pub async fn upsert(
    ctx: &OpContext,
    ns: Namespace,
    filter: RawDocumentBuf,
    document: &RawDocument,
) -> Result<()> {
    let update = Update::parse_with(RawBsonRef::Document(document), None, &Variables::default())?;
    let matcher = Matcher::parse(&filter)?;
    let statement = ModifyStatement {
        upsert: true,
        ..ModifyStatement::plain(matcher, filter, Change::Update(update))
    };
    let acquired = acquire_write(ctx, ns, None).await?;
    run(ctx, acquired, &statement, &mut ModifyOutcome::default()).await
}
