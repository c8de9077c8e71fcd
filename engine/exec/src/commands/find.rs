//! `find`.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_catalog::{Access, core_catalog};
use pinion_query::{Hint, KeyBounds, Matcher, Projection};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use super::collections::check_uuid;
use super::cursors::{CursorRequest, append_cursor, first_batch};
use super::variables::variables;
use super::{express, refuse};
use crate::compute::compute;
use crate::interrupt::interruptible;
use crate::limits::DEFAULT_FIRST_BATCH;
use crate::read::{Output, ReadRequest, Stream, open, parse_hint, parse_sort};
use crate::state::state;

/// A parsed `find`.
#[derive(Clone)]
pub(super) struct Find {
    pub ns: Namespace,
    pub matcher: Matcher,
    pub sort: Option<RawDocumentBuf>,
    pub hint: Option<Hint>,
    pub skip: usize,
    pub limit: Option<usize>,
    pub projection: Option<Projection>,
    pub projection_spec: Option<RawDocumentBuf>,
    pub key_bounds: Option<KeyBounds>,
    pub return_key: bool,
    pub show_record_id: bool,
    pub batch_size: Option<usize>,
    pub single_batch: bool,
    pub no_timeout: bool,
}

/// Reads the command. `explain` reads it too, so nothing in here depends on how the body came.
pub(super) async fn parse(ctx: &OpContext, body: &RawDocument, db: &str) -> Result<Find> {
    let reader = CommandReader::new("find", body)?;
    let ns = reader.namespace("find", db)?;
    let filter = reader.opt_owned_doc("filter")?;
    let sort = reader.opt_owned_doc("sort")?;
    let projection = reader.opt_owned_doc("projection")?;
    let hint = parse_hint(reader.value("hint"))?;
    let skip = reader.opt_non_negative("skip")?.unwrap_or(0);
    let limit = reader.opt_non_negative("limit")?.filter(|limit| *limit > 0);
    let batch_size = reader.opt_non_negative("batchSize")?;
    let single_batch = reader.opt_flag("singleBatch")?.unwrap_or(false);
    let no_timeout = reader.opt_flag("noCursorTimeout")?.unwrap_or(false);
    let vars = variables(ctx, reader.opt_doc("let")?).await?;
    reader.opt_flag("allowPartialResults")?;
    reader.opt_flag("mirrored")?;
    reader.opt_flag("allowDiskUse")?;
    reader.opt_flag("oplogReplay")?;
    let tailable = reader.opt_flag("tailable")?.unwrap_or(false);
    let await_data = reader.opt_flag("awaitData")?.unwrap_or(false);
    if await_data && !tailable {
        return Err(Error::failed_to_parse(
            "Cannot set 'awaitData' without also setting 'tailable'",
        ));
    }
    if tailable {
        // There are no capped collections, and only those can be tailed.
        return Err(Error::bad_value(format!(
            "error processing query: ns={ns} tailable cursor requested on non capped collection"
        )));
    }
    refuse::collation(&reader)?;
    let key_bounds = KeyBounds::parse(reader.opt_owned_doc("min")?, reader.opt_owned_doc("max")?)?;
    let return_key = reader.opt_flag("returnKey")?.unwrap_or(false);
    let show_record_id = reader.opt_flag("showRecordId")?.unwrap_or(false);
    for option in [
        "requestResumeToken",
        "resumeAfter",
        "startAt",
        "includeQueryStatsMetrics",
        "encryptionInformation",
        "querySettings",
    ] {
        reader.unsupported_unless_empty(option)?;
    }
    reader.ignore(&[
        "term",
        "readOnce",
        "maxTimeMS",
        "legacyRuntimeConstants",
        "runtimeConstants",
        "ntoreturn",
    ]);
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    check_uuid(&ns, uuid)?;
    let empty = RawDocumentBuf::new();
    let filter = filter.unwrap_or(&empty);
    let parse_both = || {
        let matcher = Matcher::parse_with(filter, &vars)?;
        let projection = projection
            .map(|spec| Projection::parse_find(spec, &vars))
            .transpose()?
            .filter(|p| !p.is_identity());
        if let Some(projection) = &projection {
            projection.check_filter(&matcher)?;
        }
        Ok((matcher, projection))
    };
    let (matcher, parsed_projection) = compute(ctx, parse_both).await?;
    let projection_spec = projection
        .filter(|spec| !spec.is_empty())
        .map(RawDocument::to_owned);
    parse_sort(sort)?;
    Ok(Find {
        ns,
        matcher,
        sort: sort
            .filter(|sort| !sort.is_empty())
            .map(RawDocument::to_owned),
        hint,
        skip: skip as usize,
        limit: limit.map(|limit| limit as usize),
        projection: parsed_projection.filter(|_| !return_key),
        projection_spec,
        key_bounds,
        return_key,
        show_record_id,
        batch_size: batch_size.map(|size| size as usize),
        single_batch,
        no_timeout,
    })
}

impl Find {
    /// The read of this command.
    pub(super) fn into_request(
        self,
        collection: std::sync::Arc<pinion_catalog::Collection>,
    ) -> Result<ReadRequest> {
        Ok(ReadRequest {
            collection,
            matcher: self.matcher,
            sort: parse_sort(self.sort.as_deref())?,
            hint: self.hint,
            skip: self.skip,
            limit: self.limit,
            projection: self.projection,
            output: if self.return_key {
                Output::Keys
            } else {
                Output::Documents
            },
            key_bounds: self.key_bounds,
            show_record_id: self.show_record_id,
        })
    }
}

/// `find`.
pub(crate) async fn find(cmd: Invocation) -> Result<Reply> {
    if let Some(express) = express::parse(cmd.body(), cmd.db()) {
        return express::run(&cmd, express).await;
    }
    let find = parse(&cmd.ctx, cmd.body(), cmd.db()).await?;
    state().metrics.counters.query.inc();
    let mut out = Reply::new();
    let catalog = core_catalog();
    let _pass = interruptible(&cmd.ctx, catalog.gates().enter(&find.ns, Access::Read)).await?;
    let Some(collection) = catalog.get(&find.ns) else {
        append_cursor(&mut out, "firstBatch", &[], 0, find.ns.as_str());
        return Ok(out);
    };
    let first = find.batch_size.unwrap_or(DEFAULT_FIRST_BATCH);
    let mut request = CursorRequest {
        ns: find.ns.clone(),
        uuid: Some(collection.uuid),
        indexes: Vec::new(),
        batch_size: find.batch_size,
        single_batch: find.single_batch,
        no_timeout: find.no_timeout,
    };
    let opened = open(&cmd.ctx, find.into_request(collection)?, first).await?;
    request.indexes = opened.indexes;
    first_batch(
        &cmd,
        Stream::Merged(Box::new(opened.stream)),
        request,
        &mut out,
    )
    .await?;
    Ok(out)
}
