//! `$out`: what comes takes the place of a collection of one shard. It is written into another one
//! there, which gets the name in the end.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid};
use pinion_merge::Node;
use pinion_query::OutputTo;
use pinion_runtime::{Queue, spawn};
use pinion_service::generate::random_bytes;
use pinion_sharding_protocol::Targets;
use pinion_wire::idl::{Namespace, truthy};
use pinion_wire::limits::MAX_NAMESPACE_BYTES;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::target::{indexes_of, listed, no_sharded_output};
use super::writer::{Filling, Writer};
use crate::dispatch::{Answer, WhenAbsent, at_primary};
use crate::limits::DROP_OUTPUT_TIME;
use crate::placement::table_of;
use crate::reads::sources::Routed;
use crate::request::{Request, Versions};
use crate::writes::BatchKind;

/// Runs the stage.
///
/// # Errors
/// Those of the source, of the writes, and of the way there. The target is what it was then.
pub(super) async fn run(
    ctx: &OpContext,
    around: &Routed,
    stage: &OutputTo,
    source: Node<Routed>,
) -> Result<()> {
    let target = target_of(stage, around)?;
    if stage.time_series.is_some() {
        return Err(no_series(&target));
    }
    let model = Model::of(&around.cmd, &target).await?;
    let name = format!("tmp.agg_out.{}", Uuid::from_bytes(random_bytes()));
    let temporary = Namespace::new(target.db(), &name)?;
    let replacement = Replacement {
        ctx,
        around,
        target,
        temporary,
    };
    let done = replacement.perform(&model, source).await;
    if done.is_err() {
        drop_in_background(&around.cmd, replacement.temporary);
    }
    done
}

fn target_of(stage: &OutputTo, around: &Routed) -> Result<Namespace> {
    let db = stage.db.as_deref().unwrap_or(around.ns.db());
    if db.len() + 1 + stage.collection.len() > MAX_NAMESPACE_BYTES {
        let why = format!("invalid $out target: {db}.{} is too long", stage.collection);
        return Err(Error::new(ErrorCode::ILLEGAL_OPERATION, why));
    }
    Namespace::new(db, &stage.collection)
}

fn no_series(target: &Namespace) -> Error {
    Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        format!("$out of several shards into the time-series collection {target} is not supported"),
    )
}

/// The options and the indexes of what takes the target's place.
#[derive(Default)]
struct Model {
    options: RawDocumentBuf,
    indexes: Vec<RawDocumentBuf>,
}

impl Model {
    /// Those of the collection that there is.
    async fn of(cmd: &Invocation, target: &Namespace) -> Result<Model> {
        let Some(found) = listed(cmd, target).await? else {
            return Ok(Model::default());
        };
        match pinion_bson::get(&found, "type").and_then(|kind| kind.as_str()) {
            Some("view") => {
                return Err(Error::new(
                    ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
                    format!("Namespace {target} is a view, not a collection"),
                ));
            }
            Some("timeseries") => return Err(no_series(target)),
            _ => {}
        }
        let options = pinion_bson::get(&found, "options").and_then(|found| found.as_document());
        let options = options.map(RawDocument::to_owned).unwrap_or_default();
        if pinion_bson::get(&options, "capped").is_some_and(truthy) {
            let why = format!("namespace '{target}' is capped so it can't be used for $out");
            return Err(Error::new(ErrorCode(17152), why));
        }
        let mut indexes = indexes_of(cmd, target).await?.unwrap_or_default();
        indexes.retain(|index| {
            let name = pinion_bson::get(index, "name").and_then(|name| name.as_str());
            name != Some("_id_") && pinion_bson::get(index, "clustered").is_none()
        });
        Ok(Model { options, indexes })
    }
}

struct Replacement<'r> {
    ctx: &'r OpContext,
    around: &'r Routed,
    target: Namespace,
    temporary: Namespace,
}

impl Replacement<'_> {
    async fn perform(&self, model: &Model, source: Node<Routed>) -> Result<()> {
        self.define(|out| {
            out.append("create", self.temporary.collection());
            for elem in pinion_bson::raw_elements(&model.options) {
                if elem.name != b"temp" {
                    out.append_elem(&elem);
                }
            }
            // One that is never renamed is gone with the next start of the node.
            out.append("temp", true);
        })
        .await?;
        if !model.indexes.is_empty() {
            self.define(|out| {
                out.append("createIndexes", self.temporary.collection());
                out.start_array("indexes");
                for index in &model.indexes {
                    out.push(&**index);
                }
                out.end();
            })
            .await?;
        }
        self.fill(source).await?;
        // It may have become sharded meanwhile.
        if table_of(&self.target, Targets::Unknown).await?.is_some() {
            return Err(no_sharded_output());
        }
        self.rename().await
    }

    async fn fill(&self, mut source: Node<Routed>) -> Result<()> {
        let writer = Writer {
            ctx: self.ctx,
            around: self.around,
            ns: &self.temporary,
        };
        let mut batch = Filling::new();
        loop {
            let next = source.next(self.ctx).await?;
            let ended = next.is_none();
            let mut is_full = false;
            if let Some(document) = next {
                let bytes = document.as_bytes().len();
                is_full = batch.add(RawDocument::to_owned(&document), bytes);
            }
            if !batch.is_empty() && (ended || is_full) {
                let written = writer.write(BatchKind::Insert, true, &batch.take()).await?;
                if let Some(error) = written.failed {
                    return Err(error);
                }
            }
            if ended {
                return Ok(());
            }
        }
    }

    async fn rename(&self) -> Result<()> {
        let make = |versions: Versions| {
            Request::own("admin", versions.database, |out| {
                out.append("renameCollection", self.temporary.as_str())
                    .append("to", self.target.as_str())
                    .append("dropTarget", true);
                self.around.append_write_concern(out);
            })
        };
        let db = self.target.db();
        let answer = at_primary(&self.around.cmd, db, WhenAbsent::Answer, make).await?;
        self.note(&answer);
        Ok(())
    }

    /// Sends a definition of the temporary collection to its shard.
    async fn define(&self, fields: impl Fn(&mut DocBuilder)) -> Result<()> {
        let make = |versions| {
            Request::own(self.temporary.db(), versions, |out| {
                fields(out);
                self.around.append_write_concern(out);
            })
        };
        let db = self.temporary.db();
        let answer = at_primary(&self.around.cmd, db, WhenAbsent::Make, make).await?;
        self.note(&answer);
        Ok(())
    }

    fn note(&self, answer: &Answer) {
        let error = pinion_bson::get(answer.body(), "writeConcernError");
        if let Some(error) = error.and_then(|error| error.as_document()) {
            self.around.note_concern_error(error);
        }
    }
}

/// Drops what has not got its name, while the client has its answer already.
fn drop_in_background(cmd: &Invocation, temporary: Namespace) {
    let mut cmd = cmd.clone();
    // What interrupted the operation does not interrupt this.
    let now = pinion_runtime::now();
    cmd.ctx.renew(cmd.ctx.op_id, now.as_nanos());
    let until = now + DROP_OUTPUT_TIME;
    cmd.ctx = cmd.ctx.with_deadline(Some(until.as_nanos()));
    spawn(Queue::Background, async move {
        let make = |versions| {
            Request::own(temporary.db(), versions, |out| {
                out.append("drop", temporary.collection());
            })
        };
        if let Err(error) = at_primary(&cmd, temporary.db(), WhenAbsent::Answer, make).await {
            tracing::debug!(target: "SHARDING", id = 7_300_071u64, ns = temporary.as_str(), error = error.message, "What a $out left behind was not dropped");
        }
    });
}
