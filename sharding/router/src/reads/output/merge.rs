//! `$merge`: each document that comes is written into a collection.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf};
use pinion_merge::{Node, Spool};
use pinion_query::{Document, Merge, MergeWrite, NotMatched, Variables};
use pinion_service::compute::compute;
use pinion_service::interrupt::is_interruption;
use pinion_sharding_protocol::Targets;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::target::{indexes_of, makes_unique};
use super::writer::{Filling, Writer};
use crate::placement::table_of;
use crate::reads::sources::Routed;
use crate::writes::BatchKind;

/// Runs the stage.
///
/// # Errors
/// Those of the source and of the writes, which stay where they are.
pub(super) async fn run(
    ctx: &OpContext,
    around: &Routed,
    stage: &Merge,
    mut source: Node<Routed>,
) -> Result<()> {
    let db = stage.db.as_deref().unwrap_or(around.ns.db());
    let target = Namespace::new(db, &stage.collection)?;
    let stage = identified(around, stage, &target).await?;
    let mut spool = match around.writes_into_source {
        true => {
            let spool = Box::pin(Spool::of(ctx, &mut source, &around.memory)).await?;
            source = Node::nothing();
            Some(spool)
        }
        false => None,
    };
    let merging = Merging {
        stage: &stage,
        writer: Writer {
            ctx,
            around,
            ns: &target,
        },
    };
    let mut batch = Filling::new();
    loop {
        let next = match &mut spool {
            Some(spool) => spool.next(ctx).await?,
            None => source.next(ctx).await?,
        };
        let ended = next.is_none();
        let mut is_full = false;
        if let Some(document) = next {
            let vars = &around.vars;
            let write = compute(ctx, || stage.write(&document, vars)).await?;
            let bytes = document.as_bytes().len();
            is_full = batch.add((document, write), bytes);
        }
        if ended || is_full {
            merging.write(batch.take()).await?;
        }
        if ended {
            return Ok(());
        }
    }
}

/// The stage with the fields that identify a document of the target: those of the shard key are
/// among them where the stage names none.
///
/// # Errors
/// 51183 where no index says that they do; those of the shard that has it, and of the way there.
async fn identified(around: &Routed, stage: &Merge, target: &Namespace) -> Result<Merge> {
    if !stage.names_fields()
        && let Some(table) = table_of(target, Targets::Unknown).await?
        && table.time_series.is_none()
    {
        let paths = table.key.paths().filter(|path| *path != "_id");
        let fields = std::iter::once("_id").chain(paths);
        return Ok(stage
            .clone()
            .identified_by(fields.map(str::to_owned).collect()));
    }
    let on = stage.on();
    let found = match indexes_of(&around.cmd, target).await? {
        None => on == ["_id"],
        Some(indexes) => {
            let mut found = false;
            for index in &indexes {
                found |= makes_unique(index, &on, &around.vars)?;
            }
            found
        }
    };
    match found {
        true => Ok(stage.clone()),
        false => Err(Error::new(
            ErrorCode(51183),
            "Cannot find index to verify that join fields will be unique",
        )),
    }
}

fn not_found() -> Error {
    Error::new(
        ErrorCode(13113),
        "$merge could not find a matching document in the target collection for at least one document in the source \
         collection",
    )
}

struct Merging<'m> {
    stage: &'m Merge,
    writer: Writer<'m>,
}

impl Merging<'_> {
    /// Performs the writes of a batch. One that fails does not keep the others from being done, and
    /// its error ends the stage.
    async fn write(&self, batch: Vec<(Document, MergeWrite)>) -> Result<()> {
        let (mut inserts, mut updates) = (Vec::new(), Vec::new());
        let mut failed = None;
        for (document, write) in batch {
            match write {
                MergeWrite::Update {
                    filter,
                    update,
                    variables,
                } => {
                    let inserts_apart = self.inserts_apart(&update);
                    let statement = self.statement(&filter, &update, &variables);
                    if inserts_apart {
                        note(&mut failed, self.change(&document, statement).await)?;
                    } else {
                        updates.push(statement);
                    }
                }
                MergeWrite::Unmatched if self.stage.not_matched == NotMatched::Discard => {}
                MergeWrite::Unmatched if self.stage.not_matched == NotMatched::Fail => {
                    note(&mut failed, Err(not_found()))?;
                }
                MergeWrite::Insert | MergeWrite::Unmatched => inserts.push(owned(&document)),
            }
        }
        if !updates.is_empty() {
            note(&mut failed, self.update(&updates).await)?;
        }
        if !inserts.is_empty() {
            let inserted = self.writer.write(BatchKind::Insert, false, &inserts);
            let outcome = inserted.await.and_then(|written| match written.failed {
                Some(error) => Err(error),
                None => Ok(()),
            });
            note(&mut failed, outcome)?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Whether the update says nothing of a document that is not there, which is inserted as it has
    /// come: nodes have no update that does so.
    fn inserts_apart(&self, update: &RawBson) -> bool {
        matches!(update, RawBson::Array(_)) && self.stage.not_matched == NotMatched::Insert
    }

    /// An element of `updates`.
    fn statement(
        &self,
        filter: &RawDocument,
        update: &RawBson,
        variables: &Variables,
    ) -> RawDocumentBuf {
        let is_pipeline = matches!(update, RawBson::Array(_));
        let inserts = self.stage.not_matched == NotMatched::Insert && !is_pipeline;
        let mut out = DocBuilder::new();
        out.append("q", filter)
            .append_raw("u", update.as_raw_bson_ref())
            .append("upsert", inserts)
            .append("collation", &*self.writer.around.collation);
        if is_pipeline {
            out.start_document("c");
            for (name, value) in &variables.values {
                out.append_raw(name, value.as_raw_bson_ref());
            }
            out.end();
        }
        out.finish()
    }

    async fn update(&self, statements: &[RawDocumentBuf]) -> Result<()> {
        let written = self
            .writer
            .write(BatchKind::Update, false, statements)
            .await?;
        if let Some(error) = written.failed {
            return Err(error);
        }
        let is_whole = written.n >= statements.len() as i64;
        match self.stage.not_matched == NotMatched::Fail && !is_whole {
            true => Err(not_found()),
            false => Ok(()),
        }
    }

    /// Changes the document that has the same key; where there is none, the one that came is
    /// inserted as it is.
    async fn change(&self, document: &Document, statement: RawDocumentBuf) -> Result<()> {
        let statements = [statement];
        let mut taken = None;
        loop {
            let written = self
                .writer
                .write(BatchKind::Update, true, &statements)
                .await?;
            match (written.failed, taken) {
                (Some(error), _) => return Err(error),
                (None, _) if written.n > 0 => return Ok(()),
                // It is another key that was taken.
                (None, Some(error)) => return Err(error),
                (None, None) => {}
            }
            let inserted = [owned(document)];
            let written = self
                .writer
                .write(BatchKind::Insert, true, &inserted)
                .await?;
            match written.failed {
                None => return Ok(()),
                // Another client may have inserted one with this key meanwhile: then it is there to
                // be changed.
                Some(error) if error.code == ErrorCode::DUPLICATE_KEY => taken = Some(error),
                Some(error) => return Err(error),
            }
        }
    }
}

fn owned(document: &Document) -> RawDocumentBuf {
    RawDocument::to_owned(document)
}

/// Keeps the first error; an interruption ends all at once.
fn note(failed: &mut Option<Error>, outcome: Result<()>) -> Result<()> {
    match outcome {
        Ok(()) => Ok(()),
        Err(error) if is_interruption(&error) => Err(error),
        Err(error) => {
            failed.get_or_insert(error);
            Ok(())
        }
    }
}
