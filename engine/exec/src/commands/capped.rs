//! `cloneCollectionAsCapped` and `convertToCapped`.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocumentBuf};
use pinion_catalog::{Capped, Collection, CopyDocuments};
use pinion_clock::Timestamp;
use pinion_query::Matcher;
use pinion_wire::idl::{CommandReader, Namespace, i64_clamped, idl_type_name};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::acknowledge;
use crate::acquire::{PrepareConflictBehavior, ReadSource, ReadTarget};
use crate::limits::{INSERT_GROUP_BYTES, INSERT_GROUP_STATEMENTS};
use crate::read::{ReadRequest, open};
use crate::write::insert_capped;

/// `cloneCollectionAsCapped`. It takes no notice of fields that it does not know.
pub(crate) async fn clone_collection_as_capped(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = |field: &str| match reader.value(field) {
        Some(RawBsonRef::String(name)) => Namespace::new(cmd.db(), name),
        other => {
            let found = other.map_or("missing", |value| idl_type_name(value.element_type()));
            Err(Error::type_mismatch(format!(
                "'{field}' must be of type String, not {found}"
            )))
        }
    };
    let (from, to) = (name("cloneCollectionAsCapped")?, name("toCollection")?);
    let size = size(&reader)?;
    let copy = copying(&cmd.ctx);
    let ts = pinion_catalog::clone_as_capped(&cmd.ctx, from, to, size, copy).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(ts), &mut out).await?;
    Ok(out)
}

/// `convertToCapped`, which takes no notice of such fields either.
pub async fn convert_to_capped(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = reader.sought("convertToCapped", cmd.db())?;
    let ts = convert(&cmd.ctx, ns, size(&reader)?).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(ts), &mut out).await?;
    Ok(out)
}

/// Puts a capped collection of this size in the place of a collection.
///
/// # Errors
/// Those of [`pinion_catalog::convert_to_capped`].
pub async fn convert(ctx: &OpContext, ns: Namespace, size_bytes: i64) -> Result<Timestamp> {
    pinion_catalog::convert_to_capped(ctx, ns, size_bytes, copying(ctx)).await
}

/// The size that a command asks for. What is no number counts as zero, and that is no size.
///
/// # Errors
/// `InvalidOptions`, `BadValue` for no size of a capped collection.
pub fn size(reader: &CommandReader<'_>) -> Result<i64> {
    let size = reader.value("size").and_then(i64_clamped).unwrap_or(0);
    if size <= 0 {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "Capped collection size must be greater than zero",
        ));
    }
    if size > Capped::MAX_SIZE_BYTES {
        return Err(Error::bad_value("size cannot exceed 1 PB"));
    }
    Ok(size)
}

fn copying(ctx: &OpContext) -> CopyDocuments {
    let ctx = ctx.clone();
    Box::new(move |from, to| Box::pin(async move { copy(&ctx, from, &to).await }))
}

/// Copies all documents in their natural order. They have been found valid once, and are not
/// examined again.
async fn copy(ctx: &OpContext, from: Arc<Collection>, to: &Arc<Collection>) -> Result<()> {
    let everything = Matcher::parse(&RawDocumentBuf::new())?;
    let read = ReadRequest::new(ReadTarget::unfiltered(from), everything);
    let wanted = INSERT_GROUP_STATEMENTS;
    let mut stream = open(
        ctx,
        ReadSource::Newest(PrepareConflictBehavior::Enforce),
        read,
        wanted,
    )
    .await?
    .stream;
    loop {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while group.len() < INSERT_GROUP_STATEMENTS && bytes < INSERT_GROUP_BYTES {
            let Some(document) = stream.next_wanted(ctx, wanted).await? else {
                break;
            };
            bytes += document.len();
            group.push(document);
        }
        if group.is_empty() {
            return Ok(());
        }
        insert_capped(ctx, to, group).await?;
    }
}
