//! `insert`.

use pinion_bson::RawDocument;
use pinion_command::syntax::BatchSyntax;
use pinion_service::command_checks::check_batch_size;
use pinion_service::fail_points;
use pinion_service::fail_points::fail_points;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::{Error, Invocation, OpContext, Reply, Result, Written};

use super::reply::acknowledged;
use crate::acquire::{AcquiredCollection, acquire_statement};
use crate::concern::{self, WriteKind};
use crate::limits::{TEST_GROUP_BYTES, TEST_GROUP_DOCUMENTS};
use crate::open_transactions::{ends_command, no_measurements};
use crate::sessions::{self, RetryableWrite};
use crate::write::{
    BatchOutcome, InsertOptions, Stamps, Validation, insert_documents, insert_measurements,
    prepare_for_insert,
};

/// `insert`.
pub(crate) async fn insert(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let BatchSyntax {
        ns,
        uuid,
        ordered,
        bypasses_validation,
        keep_empty_timestamps,
        ids,
        lets: _,
    } = BatchSyntax::read(&reader, cmd.db(), "insert", "documents")?;
    let documents = cmd.documents("documents")?;
    check_batch_size(&documents)?;
    let retryable = sessions::begin(&cmd.ctx, ids, documents.len()).await?;
    let acquired = acquire_statement(&cmd.ctx, &ns, uuid, 0).await?;
    let mut outcome = BatchOutcome::default();
    let batch = InsertBatch {
        options: InsertOptions {
            ordered,
            validation: Validation::unless(bypasses_validation),
            stamps: retryable.as_deref().map_or(Stamps::None, Stamps::Batch),
            ..InsertOptions::default()
        },
        keep_empty_timestamps,
    };
    let count = documents.len();
    let documents = documents.iter().enumerate();
    match (&retryable, acquired) {
        (None, Ok(acquired)) => {
            (batch.insert(&cmd.ctx, acquired, documents, &mut outcome)).await?;
        }
        (Some(retryable), Ok(acquired)) => {
            let rest = not_inserted(retryable, documents, &mut outcome)?;
            let rest = rest.into_iter();
            (batch.insert(&cmd.ctx, acquired, rest, &mut outcome)).await?;
        }
        // Those that were inserted before are sent again too.
        (_, Err(stale)) => {
            outcome.fail_from(&cmd.ctx, 0..count, ordered, stale)?;
        }
    }
    if let Some(retryable) = retryable {
        outcome.retried = retryable.take_retried();
        outcome.upserted.clear();
        retryable.end();
    }
    acknowledged(&cmd.ctx, &outcome, false).await
}

/// The documents that were not inserted when the command was sent before; the others are counted.
fn not_inserted<'d>(
    retryable: &RetryableWrite,
    documents: impl Iterator<Item = (usize, &'d RawDocument)>,
    outcome: &mut BatchOutcome,
) -> Result<Vec<(usize, &'d RawDocument)>> {
    let mut rest = Vec::new();
    for (index, document) in documents {
        match retryable.executed(index)? {
            Some(executed) => outcome.retried(index, executed),
            None => rest.push((index, document)),
        }
    }
    Ok(rest)
}

/// How several documents are inserted.
pub struct InsertBatch<'s> {
    pub options: InsertOptions<'s>,
    pub keep_empty_timestamps: bool,
}

/// Takes out the documents whose insert the fail point of retryable writes fails, and says with
/// what. It is asked once for each group of documents that MongoDB inserts at a time; with order
/// not for the groups behind the first that fails.
async fn fail_by_test<D: AsRef<[u8]>>(
    ctx: &OpContext,
    ordered: bool,
    documents: &mut Vec<(usize, D)>,
) -> Vec<(usize, Error)> {
    let (mut kept, mut failed) = (Vec::with_capacity(documents.len()), Vec::new());
    let mut rest = std::mem::take(documents).into_iter().peekable();
    while rest.peek().is_some() {
        let (mut group, mut bytes) = (Vec::new(), 0);
        while group.len() < TEST_GROUP_DOCUMENTS
            && bytes < TEST_GROUP_BYTES
            && let Some(document) = rest.next()
        {
            bytes += document.1.as_ref().len();
            group.push(document);
        }
        match fail_points::on_retryable_write(ctx).await {
            Ok(()) => kept.append(&mut group),
            Err(error) if ordered => {
                failed.push((group[0].0, error));
                break;
            }
            Err(error) => failed.extend(group.iter().map(|(index, _)| (*index, error.clone()))),
        }
    }
    *documents = kept;
    failed
}

impl InsertBatch<'_> {
    /// Inserts documents, each with its place in the client's batch. What becomes of a single one
    /// stands in the outcome; an error is one of the whole command.
    pub async fn insert<'d>(
        &self,
        ctx: &OpContext,
        acquired: AcquiredCollection,
        documents: impl ExactSizeIterator<Item = (usize, &'d RawDocument)>,
        outcome: &mut BatchOutcome,
    ) -> Result<()> {
        let mut prepared = Vec::with_capacity(documents.len());
        let mut refused = Vec::new();
        for (index, document) in documents {
            match prepare_for_insert(document, self.keep_empty_timestamps).await {
                Ok(document) => prepared.push((index, document)),
                Err(error) => {
                    refused.push((index, error));
                    if self.options.ordered {
                        break;
                    }
                }
            }
            pinion_runtime::yield_if_due().await;
        }
        let metrics = metrics();
        let counters = &metrics.counters;
        let count = (prepared.len() + refused.len()) as u64;
        counters.insert.add(count);
        concern::count_writes(ctx, WriteKind::Insert, count).await;
        let (before, failed) = (outcome.n, outcome.errors.len());
        let mut planted = Vec::new();
        if let Stamps::Batch(_) = self.options.stamps
            && fail_points().any_is_on()
        {
            planted = fail_by_test(ctx, self.options.ordered, &mut prepared).await;
        }
        let result = match acquired.series() {
            None => insert_documents(ctx, acquired, prepared, self.options, outcome).await,
            Some(_) if is_in(ctx) => Err(no_measurements("insert into", acquired.ns())),
            Some(_) => {
                let into = insert_measurements(ctx, acquired, prepared, self.options, outcome);
                Box::pin(into).await
            }
        };
        let inserted = (outcome.n - before) as u64;
        counters.documents_inserted.add(inserted);
        ctx.work().wrote(Written {
            inserted,
            ..Written::default()
        });
        result?;
        // With order, a refused document is reached only when nothing before it failed.
        if !self.options.ordered || outcome.errors.len() == failed {
            for (index, error) in planted {
                if ends_command(ctx, &error) {
                    return Err(error);
                }
                outcome.failed(index, error);
            }
        }
        if !self.options.ordered || outcome.errors.len() == failed {
            for (index, error) in refused {
                outcome.failed(index, error);
            }
            outcome.errors.sort_by_key(|failure| failure.index);
        }
        Ok(())
    }
}
