//! `aggregate`.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawArray, RawBsonRef, RawDocument};
use pinion_query::{Hint, Pipeline, PipelineParts, PipelineRun, Variables};
use pinion_wire::idl::{CommandReader, FieldReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::current_op::operations;
use super::cursors::{CursorRequest, first_batch};
use super::refuse;
use super::stats::{append_collection_stats, index_stats};
use super::variables::variables;
use crate::acquire::{Acquired, acquire_read};
use crate::compute::{compute, compute_bytes};
use crate::interrupt::pause;
use crate::limits::{DEFAULT_FIRST_BATCH, PART_BATCH_DOCUMENTS};
use crate::read::{PipelineStream, ReadRequest, Source, Stream, open, parse_hint};
use crate::state::state;

/// A first stage that makes its documents itself.
#[derive(Clone, Debug)]
enum FirstStage {
    CollStats(pinion_bson::RawDocumentBuf),
    CurrentOp {
        idle_cursors: bool,
    },
    Documents(Vec<Bytes>),
    IndexStats,
    /// `$listLocalSessions`; there are none of named users.
    Sessions {
        of_users: bool,
    },
}

/// An `aggregate` as it is written.
pub(super) struct AggregateCommand<'d> {
    pub ns: Namespace,
    pub uuid: Option<[u8; 16]>,
    /// `{aggregate: 1}`: the first stage makes the documents.
    collectionless: bool,
    stages: &'d RawArray,
    vars: Variables,
    hint: Option<Hint>,
    batch_size: Option<usize>,
    explain: bool,
}

/// A parsed `aggregate`.
pub(super) struct Aggregate {
    first: Option<FirstStage>,
    pub parts: PipelineParts,
    hint: Option<Hint>,
}

/// Reads the command; `explaining` when it stands inside an `explain`, which has no cursor.
pub(super) async fn read<'d>(
    ctx: &OpContext,
    body: &'d RawDocument,
    db: &str,
    explaining: bool,
) -> Result<AggregateCommand<'d>> {
    let reader = CommandReader::new("aggregate", body)?;
    let collectionless = match reader.value("aggregate") {
        Some(RawBsonRef::String(_)) | None => false,
        Some(value)
            if pinion_wire::idl::is_number(value)
                && pinion_wire::idl::i64_exact(value) == Some(1) =>
        {
            true
        }
        Some(value) if pinion_wire::idl::is_number(value) => {
            return Err(Error::failed_to_parse(
                "Invalid command format: the 'aggregate' field must specify a collection name or 1",
            ));
        }
        Some(_) => {
            return Err(Error::failed_to_parse(
                "Invalid command format: the 'aggregate' field must specify a collection name or 1",
            ));
        }
    };
    let ns = if collectionless {
        Namespace::new(db, "$cmd.aggregate")?
    } else {
        reader.namespace("aggregate", db)?
    };
    let stages = match reader.value("pipeline") {
        Some(RawBsonRef::Array(stages)) => stages,
        Some(_) => {
            return Err(Error::type_mismatch(
                "'pipeline' option must be specified as an array",
            ));
        }
        None => {
            return Err(pinion_wire::idl::missing_field(
                reader.path().field("pipeline"),
            ));
        }
    };
    let explain = match reader.value("explain") {
        None => false,
        Some(RawBsonRef::Boolean(explain)) => explain,
        Some(_) => return Err(Error::type_mismatch("explain must be a boolean")),
    };
    let cursor = match reader.value("cursor") {
        None => None,
        Some(RawBsonRef::Document(cursor)) => Some(cursor),
        Some(_) => {
            return Err(Error::type_mismatch(
                "cursor field must be missing or an object",
            ));
        }
    };
    if cursor.is_none() && !explain && !explaining {
        return Err(Error::failed_to_parse(
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ));
    }
    let batch_size = match cursor {
        None => None,
        Some(cursor) => {
            let path = reader.path().field("cursor");
            let options = FieldReader::object(path, cursor)?;
            let size = options.opt_non_negative("batchSize")?;
            options.finish()?;
            size.map(|size| size as usize)
        }
    };
    let hint = parse_hint(reader.value("hint"))?;
    let vars = variables(ctx, reader.opt_doc("let")?).await?;
    reader.opt_flag("allowDiskUse")?;
    reader.opt_safe_bool("bypassDocumentValidation")?;
    refuse::collation(&reader)?;
    for option in [
        "exchange",
        "requestReshardingResumeToken",
        "needsMerge",
        "fromMongos",
        "fromRouter",
        "encryptionInformation",
    ] {
        reader.unsupported_unless_empty(option)?;
    }
    reader.ignore(&[
        "isMapReduceCommand",
        "runtimeConstants",
        "legacyRuntimeConstants",
        "maxTimeMS",
    ]);
    let uuid = reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    Ok(AggregateCommand {
        ns,
        uuid,
        collectionless,
        stages,
        vars,
        hint,
        batch_size,
        explain: explain || explaining,
    })
}

impl AggregateCommand<'_> {
    /// Acquires the collection that the pipeline reads.
    pub(super) async fn acquire(&self, ctx: &OpContext) -> Result<Acquired> {
        // Without a collection there is none whose UUID could be meant.
        let uuid = self.uuid.filter(|_| !self.collectionless);
        acquire_read(ctx, self.ns.clone(), uuid).await
    }

    /// Parses the pipeline, for the collection that was acquired.
    pub(super) async fn parse(self, ctx: &OpContext) -> Result<Aggregate> {
        let AggregateCommand { stages, vars, .. } = self;
        let first = compute(ctx, || first_stage(stages, self.collectionless)).await?;
        let taken = usize::from(first.is_some());
        let parse_stages = || Pipeline::parse_from(stages, taken, &vars)?.divide(&vars);
        let parts = compute(ctx, parse_stages).await?;
        Ok(Aggregate {
            first,
            parts,
            hint: self.hint,
        })
    }
}

/// A first stage that makes its documents itself.
fn first_stage(stages: &RawArray, collectionless: bool) -> Result<Option<FirstStage>> {
    let first = match pinion_bson::values(stages).next() {
        Some(RawBsonRef::Document(stage)) => pinion_bson::elements(stage).next(),
        _ => None,
    };
    let stage = match first {
        Some(("$collStats", RawBsonRef::Document(spec))) if !collectionless => {
            let reader = FieldReader::object(pinion_wire::idl::Path::root("$collStats"), spec)?;
            reader.opt_doc("count")?;
            reader.opt_doc("storageStats")?;
            reader.unsupported("latencyStats")?;
            reader.unsupported("queryExecStats")?;
            reader.unsupported("operationStats")?;
            reader.finish()?;
            FirstStage::CollStats(spec.to_owned())
        }
        Some(("$collStats", RawBsonRef::Document(_))) => {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "{aggregate: 1} is not valid for '$collStats'; a collection is required.",
            ));
        }
        Some(("$collStats", other)) => {
            return Err(Error::new(
                ErrorCode(5447000),
                format!(
                    "$collStats must take a nested object but found a {}",
                    pinion_bson::type_name(other.element_type())
                ),
            ));
        }
        Some(("$indexStats", RawBsonRef::Document(spec))) if spec.is_empty() => {
            if collectionless {
                return Err(Error::new(
                    ErrorCode::INVALID_NAMESPACE,
                    "{aggregate: 1} is not valid for '$indexStats'; a collection is required.",
                ));
            }
            FirstStage::IndexStats
        }
        Some(("$indexStats", _)) => {
            return Err(Error::new(
                ErrorCode(28803),
                "The $indexStats stage specification must be an empty object",
            ));
        }
        Some(("$currentOp", RawBsonRef::Document(spec))) => {
            if !collectionless {
                return Err(Error::new(
                    ErrorCode::INVALID_NAMESPACE,
                    "$currentOp must be run against the 'admin' database with {aggregate: 1}",
                ));
            }
            let reader = FieldReader::object(pinion_wire::idl::Path::root("$currentOp"), spec)?;
            let idle_cursors = reader.opt_bool("idleCursors")?.unwrap_or(false);
            for option in [
                "allUsers",
                "idleConnections",
                "idleSessions",
                "localOps",
                "truncateOps",
                "backtrace",
            ] {
                reader.opt_bool(option)?;
            }
            reader.finish()?;
            FirstStage::CurrentOp { idle_cursors }
        }
        Some(("$listLocalSessions", RawBsonRef::Document(spec))) if collectionless => {
            FirstStage::Sessions {
                of_users: super::sessions::parse_list(spec)?,
            }
        }
        Some(("$listLocalSessions", RawBsonRef::Document(_))) => {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "$listLocalSessions must be run against the database with {aggregate: 1}, not a collection",
            ));
        }
        Some(("$listLocalSessions", other)) => {
            return Err(Error::type_mismatch(format!(
                "$listLocalSessions options must be specified in an object, but found: {}",
                pinion_bson::type_name(other.element_type())
            )));
        }
        Some(("$documents", RawBsonRef::Array(documents))) if collectionless => {
            pinion_query::work::spend_bytes(documents.as_bytes().len())?;
            let mut list = Vec::new();
            for document in pinion_bson::values(documents) {
                match document {
                    RawBsonRef::Document(document) => {
                        list.push(Bytes::copy_from_slice(document.as_bytes()))
                    }
                    _ => {
                        return Err(Error::new(
                            ErrorCode(40228),
                            "an element of the array that '$documents' is given is no object",
                        ));
                    }
                }
            }
            FirstStage::Documents(list)
        }
        Some((name, _)) if collectionless => {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required."),
            ));
        }
        None if collectionless => {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "{aggregate: 1} is not valid for an empty pipeline.",
            ));
        }
        _ => return Ok(None),
    };
    Ok(Some(stage))
}

impl Aggregate {
    /// The read in front of the pipeline.
    pub(super) fn request(
        &self,
        collection: std::sync::Arc<pinion_catalog::Collection>,
    ) -> ReadRequest {
        let mut request = ReadRequest::new(collection, self.parts.matcher.clone());
        request.sort = self.parts.sort.clone();
        request.hint = self.hint.clone();
        request.limit = self.parts.limit.map(|limit| limit as usize);
        request
    }
}

/// `aggregate`.
pub(crate) async fn aggregate(cmd: Invocation) -> Result<Reply> {
    let command = read(&cmd.ctx, cmd.body(), cmd.db(), false).await?;
    if command.explain {
        return super::explain::explain_aggregate(&cmd, cmd.body()).await;
    }
    let acquired = command.acquire(&cmd.ctx).await?;
    let first = command.batch_size.unwrap_or(DEFAULT_FIRST_BATCH);
    let parsed = command.parse(&cmd.ctx).await?;
    pinion_runtime::yield_if_due().await;
    let mut out = Reply::new();
    let mut cursor = CursorRequest {
        ns: acquired.ns().clone(),
        uuid: None,
        indexes: Vec::new(),
        batch_size: Some(first),
        single_batch: false,
        no_timeout: false,
    };
    // A run has the stages' constants for itself, which may be as large as the command.
    let rest = &parsed.parts.rest;
    let run = compute_bytes(cmd.body().as_bytes().len(), || PipelineRun::new(rest)).await;
    if let Some(stage) = &parsed.first {
        let documents = documents_of(stage, &acquired).await?;
        let documents = filtered(&cmd.ctx, documents, &parsed.parts).await?;
        let stream = PipelineStream::new(Source::List(documents), run);
        first_batch(&cmd, Stream::Pipeline(Box::new(stream)), cursor, &mut out).await?;
        return Ok(out);
    }
    let Some(collection) = acquired.collection() else {
        let stream = PipelineStream::new(Source::List(VecDeque::new()), run);
        first_batch(&cmd, Stream::Pipeline(Box::new(stream)), cursor, &mut out).await?;
        return Ok(out);
    };
    cursor.uuid = Some(collection.uuid);
    let wanted = if parsed.parts.rest.is_empty() {
        first
    } else {
        PART_BATCH_DOCUMENTS
    };
    let request = parsed.request(collection.clone());
    let opened = open(&cmd.ctx, acquired.source(), request, wanted).await?;
    cursor.indexes = opened.indexes;
    let stream = PipelineStream::new(Source::Read(Box::new(opened.stream)), run);
    first_batch(&cmd, Stream::Pipeline(Box::new(stream)), cursor, &mut out).await?;
    Ok(out)
}

async fn documents_of(stage: &FirstStage, acquired: &Acquired) -> Result<Vec<Bytes>> {
    Ok(match stage {
        FirstStage::Documents(documents) => documents.clone(),
        FirstStage::Sessions { of_users: true } => Vec::new(),
        FirstStage::Sessions { of_users: false } => super::sessions::list_local().await,
        FirstStage::CurrentOp { idle_cursors } => operations(*idle_cursors)
            .await
            .into_iter()
            .map(|op| Bytes::from(op.into_bytes()))
            .collect(),
        FirstStage::IndexStats => match acquired.collection() {
            Some(collection) => index_stats(collection).await,
            None => Vec::new(),
        },
        FirstStage::CollStats(spec) => {
            let ns = acquired.ns();
            let Some(collection) = acquired.collection() else {
                return Err(Error::new(
                    ErrorCode::NAMESPACE_NOT_FOUND,
                    format!("Collection [{ns}] not found."),
                ));
            };
            let mut out = DocBuilder::new();
            out.append("ns", ns.as_str())
                .append("host", state().shared.options.host.as_str())
                .append(
                    "localTime",
                    RawBsonRef::DateTime(DateTime::from_millis(pinion_runtime::wall_ms())),
                );
            if let Some(RawBsonRef::Document(options)) = pinion_bson::get(spec, "storageStats") {
                let scale = pinion_bson::get(options, "scale")
                    .and_then(pinion_wire::idl::i64_clamped)
                    .unwrap_or(1)
                    .max(1);
                let mut stats = DocBuilder::new();
                append_collection_stats(&mut stats, acquired, scale).await;
                let stats = stats.finish();
                out.start_document("storageStats");
                for elem in pinion_bson::raw_elements(&stats).filter(|elem| elem.name != b"ns") {
                    out.append_elem(&elem);
                }
                out.end();
            }
            if pinion_bson::get(spec, "count").is_some() {
                let tree = collection.tree();
                let stats = crate::stats::tree_stats(vec![tree]).await;
                out.append(
                    "count",
                    stats.get(&tree).map_or(0, |stats| stats.records) as i64,
                );
            }
            vec![Bytes::from(out.finish_bytes())]
        }
    })
}

/// What a read would have done with these documents: filter, sort, limit.
async fn filtered(
    ctx: &OpContext,
    documents: Vec<Bytes>,
    parts: &PipelineParts,
) -> Result<VecDeque<Bytes>> {
    let mut kept = Vec::new();
    for document in documents {
        pause(ctx).await?;
        let matches = || {
            let document = pinion_catalog::stored_document(&document);
            parts.matcher.matches(document)
        };
        if compute(ctx, matches).await? {
            kept.push(document);
        }
    }
    if let Some(sort) = &parts.sort {
        let mut keyed = Vec::with_capacity(kept.len());
        for document in kept {
            let key = || sort.sort_key(pinion_catalog::stored_document(&document));
            let key = compute(ctx, key).await?;
            keyed.push((key, document));
        }
        keyed.sort_by(|a, b| a.0.cmp(&b.0));
        kept = keyed.into_iter().map(|(_, document)| document).collect();
    }
    if let Some(limit) = parts.limit {
        kept.truncate(limit as usize);
    }
    Ok(kept.into())
}
