//! Stages at the front of a pipeline that make their documents themselves.

use bytes::Bytes;
use pinion_bson::{DateTime, DocBuilder, RawArray, RawArrayBuf, RawBsonRef};
use pinion_query::{Document, Pipeline, Variables};
use pinion_wire::idl::FieldReader;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::current_op::operations;
use super::stats::{append_collection_stats, index_stats};
use crate::acquire::Acquired;
use crate::compute::compute;
use crate::state::state;

/// A first stage that makes its documents itself.
#[derive(Clone, Debug)]
pub(super) enum FirstStage {
    CollStats(pinion_bson::RawDocumentBuf),
    CurrentOp {
        idle_cursors: bool,
    },
    /// `$documents`, with the pipeline that it stands in.
    Documents(RawArrayBuf),
    IndexStats,
    /// `$listLocalSessions`; there are none of named users.
    Sessions {
        of_users: bool,
    },
}

/// A first stage that makes its documents itself.
pub(super) fn first_stage(stages: &RawArray, collectionless: bool) -> Result<Option<FirstStage>> {
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
        Some(("$documents", _)) if collectionless => FirstStage::Documents(stages.to_owned()),
        Some(("$documents", _)) => {
            return Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                "'$documents' can only be run with {aggregate: 1}",
            ));
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

/// The documents that a first stage makes.
pub(super) async fn documents_of(
    ctx: &OpContext,
    stage: &FirstStage,
    acquired: &Acquired,
    vars: &Variables,
) -> Result<Vec<Bytes>> {
    Ok(match stage {
        FirstStage::Documents(stages) => {
            let made = compute(ctx, || Pipeline::documents(stages, vars)).await?;
            let made = made.into_iter().flatten();
            made.map(Document::into_bytes).collect()
        }
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
