//! `count`.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::Collection;
use pinion_command::syntax::{CollationOption, hint};
use pinion_query::{Hint, Matcher};
use pinion_service::node_info::is_behind_v44;
use pinion_service::operator_counts::compute_counted;
use pinion_storage::storage;
use pinion_wire::idl::{CommandReader, Namespace, Types};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use super::aggregate;
use super::namespace_args::named_or_uuid;
use super::variables::of_filter;
use super::views::Rewritten;
use crate::acquire::{AcquiredCollection, ReadSource, ReadTarget, acquire_viewed};
use crate::read::{LeafReport, Output, ReadRequest, ReadStream, from_log_error, open};

/// A `count` as it is written.
pub(super) struct CountCommand<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    query: Option<&'d RawDocument>,
    collation: CollationOption,
    hint: Option<Hint>,
    skip: usize,
    limit: Option<usize>,
}

/// The stage that counts all documents of a collection.
pub(super) const FAST_COUNT: &str = "RECORD_STORE_FAST_COUNT";

/// A parsed `count`.
pub(super) struct Count {
    pub matcher: Matcher,
    hint: Option<Hint>,
    pub skip: usize,
    limit: Option<usize>,
}

/// Reads the command.
pub(super) fn read<'d>(body: &'d RawDocument, db: &str) -> Result<CountCommand<'d>> {
    let reader = CommandReader::new("count", body)?;
    let ns = named_or_uuid(&reader, "count", db)?;
    let query = reader.opt_doc("query")?;
    let hint = hint(&reader, is_behind_v44())?;
    let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
    // A negative limit is one that counts the same way, an inheritance of the shell.
    let limit = reader
        .opt_whole_number("limit")?
        .filter(|limit| *limit != 0);
    if limit == Some(i64::MIN) {
        return Err(Error::bad_value("limit value for count cannot be min long"));
    }
    let collation = CollationOption::read(&reader)?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.unsupported_unless_empty("includeQueryStatsMetrics", Types::BOOL)?;
    reader.ignore(&["fields", "queryOptions"]);
    reader.finish()?;
    Ok(CountCommand {
        ns,
        uuid,
        query,
        collation,
        hint,
        skip: skip as usize,
        limit: limit.map(|limit| limit.unsigned_abs() as usize),
    })
}

impl CountCommand<'_> {
    /// The pipeline that the command is on a view.
    pub(super) fn rewritten(&self, body: &RawDocument) -> RawDocumentBuf {
        Rewritten::new(&self.ns)
            .stage("$match", self.query)
            .bound("$skip", self.skip)
            .bound("$limit", self.limit.unwrap_or(0))
            .count("count")
            .options(body, &["collation", "hint"], None)
    }

    /// Parses the filter, for the collection that was acquired.
    pub(super) async fn parse(
        self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
    ) -> Result<Count> {
        let vars = self.collation.variables(&of_filter(), acquired.collation());
        let empty = RawDocumentBuf::new();
        let query = self.query.unwrap_or(&empty);
        let matcher = compute_counted(ctx, || Matcher::parse_query(query, &vars)).await?;
        Ok(Count {
            matcher,
            hint: self.hint,
            skip: self.skip,
            limit: self.limit,
        })
    }
}

impl Count {
    /// What skip and limit leave of a sum.
    pub(super) fn bounded(&self, total: u64) -> u64 {
        let total = total.saturating_sub(self.skip as u64);
        self.limit.map_or(total, |limit| total.min(limit as u64))
    }

    /// Whether no document has to be looked for: the trees know how many there are now. They do not
    /// know which of them are owned.
    pub(super) fn counts_all(&self, acquired: &AcquiredCollection) -> bool {
        let is_now = matches!(
            acquired.source(),
            ReadSource::Newest(_) | ReadSource::LastApplied(_)
        );
        is_now && acquired.owns_all() && self.matcher.is_empty() && self.hint.is_none()
    }

    /// The read that counts: skip and limit are applied to the sum.
    pub(super) fn request(&self, target: ReadTarget) -> ReadRequest {
        let mut request = ReadRequest::new(target, self.matcher.clone());
        request.hint = self.hint.clone();
        request.output = Output::Count;
        request.limit = self.limit.map(|limit| limit.saturating_add(self.skip));
        request
    }
}

/// `count`.
pub(crate) async fn count(cmd: Invocation) -> Result<Reply> {
    let command = read(cmd.body(), cmd.db())?;
    let acquired = acquire_viewed(&cmd.ctx, command.ns.clone(), command.uuid).await?;
    if acquired.view().is_some() {
        return count_view(&cmd, &command, acquired).await;
    }
    let parsed = command.parse(&cmd.ctx, &acquired).await?;
    let total = match acquired.collection() {
        Some(collection) => run(&cmd.ctx, &parsed, &acquired, collection).await?,
        None => {
            acquired.check_text(&parsed.matcher)?;
            0
        }
    };
    Ok(reply(parsed.bounded(total) as i64))
}

fn reply(total: i64) -> Reply {
    let mut out = Reply::new();
    match i32::try_from(total) {
        Ok(n) => out.append("n", n),
        Err(_) => out.append("n", RawBsonRef::Int64(total)),
    };
    out
}

/// Counts the documents of a view.
async fn count_view(
    cmd: &Invocation,
    command: &CountCommand<'_>,
    acquired: AcquiredCollection,
) -> Result<Reply> {
    let body = command.rewritten(cmd.body());
    let mut stream = aggregate::stream_for(cmd, &body, &acquired).await?;
    let counted = stream.next(&cmd.ctx).await?;
    let total = counted.as_ref().and_then(|counted| {
        let counted = pinion_catalog::stored_document(counted);
        pinion_bson::get(counted, "count").and_then(pinion_wire::idl::i64_clamped)
    });
    let mut out = reply(total.unwrap_or(0));
    out.ok_as_int();
    Ok(out)
}

/// How many documents match, before skip and limit.
async fn run(
    ctx: &OpContext,
    parsed: &Count,
    acquired: &AcquiredCollection,
    collection: &Arc<Collection>,
) -> Result<u64> {
    if parsed.counts_all(acquired) {
        ctx.work().planned(Arc::new(LeafReport(FAST_COUNT)));
        return count_all(collection).await;
    }
    let target = acquired.target(collection);
    let request = parsed.request(target);
    let opened = open(ctx, acquired.source(), request, usize::MAX).await?;
    let mut stream = opened.stream;
    sum(ctx, &mut stream).await
}

/// The sum of what the parts of a read have counted.
pub(super) async fn sum(ctx: &OpContext, stream: &mut ReadStream) -> Result<u64> {
    let mut total = 0;
    while let Some(part) = stream.next_raw(ctx).await? {
        let count = part.first_chunk().expect("a part's count has eight bytes");
        total += u64::from_le_bytes(*count);
    }
    Ok(total)
}

/// How many documents a collection has, which its trees know; of the oplog how many entries, as its
/// segments say.
pub(super) async fn count_all(collection: &Collection) -> Result<u64> {
    if collection.is_oplog() {
        let log = storage().log_stats(collection.log_through).await;
        return Ok(log.map_err(from_log_error)?.entries);
    }
    let tree = collection.tree();
    let stats = crate::stats::tree_stats(vec![tree]).await;
    Ok(stats.get(&tree).map_or(0, |stats| stats.records))
}
