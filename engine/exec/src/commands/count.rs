//! `count`.

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::{Access, Collection, core_catalog};
use pinion_query::Matcher;
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};
use std::sync::Arc;

use super::collections::check_uuid;
use super::refuse;
use crate::compute::compute;
use crate::interrupt::interruptible;
use crate::read::{Output, ReadRequest, open, parse_hint};
use pinion_query::Hint;

/// A parsed `count`.
pub(super) struct Count {
    pub ns: Namespace,
    pub matcher: Matcher,
    pub hint: Option<Hint>,
    pub skip: usize,
    pub limit: Option<usize>,
}

/// Reads the command.
pub(super) async fn parse(ctx: &OpContext, body: &RawDocument, db: &str) -> Result<Count> {
    let reader = CommandReader::new("count", body)?;
    let ns = reader.namespace("count", db)?;
    let empty = RawDocumentBuf::new();
    let query = reader.opt_doc("query")?.unwrap_or(&empty);
    let hint = parse_hint(reader.value("hint"))?;
    let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
    // A negative limit is one that counts the same way, an inheritance of the shell.
    let limit = reader
        .opt_whole_number("limit")?
        .filter(|limit| *limit != 0);
    if limit == Some(i64::MIN) {
        return Err(Error::bad_value("limit value for count cannot be min long"));
    }
    refuse::collation(&reader)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.ignore(&["fields", "queryOptions", "maxTimeMS"]);
    reader.finish()?;
    check_uuid(&ns, uuid)?;
    let matcher = compute(ctx, || Matcher::parse(query)).await?;
    Ok(Count {
        ns,
        matcher,
        hint,
        skip: skip as usize,
        limit: limit.map(|limit| limit.unsigned_abs() as usize),
    })
}

impl Count {
    /// The read that counts: skip and limit are applied to the sum.
    pub(super) fn request(&self, collection: Arc<Collection>) -> ReadRequest {
        let mut request = ReadRequest::new(collection, self.matcher.clone());
        request.hint = self.hint.clone();
        request.output = Output::Count;
        request.limit = self.limit.map(|limit| limit.saturating_add(self.skip));
        request
    }
}

/// `count`.
pub(crate) async fn count(cmd: Invocation) -> Result<Reply> {
    let parsed = parse(&cmd.ctx, cmd.body(), cmd.db()).await?;
    let catalog = core_catalog();
    let _pass = interruptible(&cmd.ctx, catalog.gates().enter(&parsed.ns, Access::Read)).await?;
    let mut total = 0;
    if let Some(collection) = catalog.get(&parsed.ns) {
        total = run(&cmd.ctx, &parsed, collection).await?;
    }
    let total = total.saturating_sub(parsed.skip as u64);
    let total = parsed.limit.map_or(total, |limit| total.min(limit as u64));
    let mut out = Reply::new();
    match i32::try_from(total) {
        Ok(n) => out.append("n", n),
        Err(_) => out.append("n", RawBsonRef::Int64(total as i64)),
    };
    Ok(out)
}

/// How many documents match, before skip and limit.
async fn run(ctx: &OpContext, parsed: &Count, collection: Arc<Collection>) -> Result<u64> {
    if parsed.matcher.is_empty() && parsed.hint.is_none() {
        let tree = collection.tree();
        let stats = crate::stats::tree_stats(vec![tree]).await;
        return Ok(stats.get(&tree).map_or(0, |stats| stats.records));
    }
    let mut stream = open(ctx, parsed.request(collection), usize::MAX)
        .await?
        .stream;
    let mut total = 0;
    while let Some(part) = stream.next_raw(ctx).await? {
        total += u64::from_le_bytes(
            part[..8]
                .try_into()
                .expect("a part's count has eight bytes"),
        );
    }
    Ok(total)
}
