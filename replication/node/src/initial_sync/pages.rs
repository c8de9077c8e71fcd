//! The pages of one partition: read from a frozen checkpoint of the source, and written into the
//! file of the copy.

use std::sync::Arc;

use pinion_bson::rawdoc;
use pinion_exec::replication_parameters;
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::{Duration, now};
use pinion_storage::{CheckpointCopy, CopyError, PageFileCopy, PartitionId};

use super::frozen::read_frozen;
use super::source::Source;
use super::status::CopyCounters;
use super::{Failed, Halt};
use crate::limits::{MAX_PAGES_RETRY, RETRY_PAUSE};

/// A partition whose file is to be copied. It may go to another core.
pub(super) struct PagesJob {
    pub copy: CheckpointCopy,
    /// The source's number of the checkpoint.
    pub number: u64,
    pub partition: PartitionId,
    pub source: HostPort,
    pub halt: Halt,
    pub counters: Arc<CopyCounters>,
}

impl From<CopyError> for Failed {
    fn from(error: CopyError) -> Failed {
        Failed::new(error.to_string())
    }
}

/// Copies the file of a partition, which is durable on return. A connection that breaks is opened
/// again, and reading continues where it was, as long as the source has the checkpoint.
///
/// # Errors
/// The source cannot be read any more; the attempt is given up; the disk fails.
pub(super) async fn copy_pages(job: PagesJob) -> Result<(), Failed> {
    let mut source = Source::new(job.source.clone(), job.halt.clone());
    let file = job.copy.create(job.partition).await?;
    let mut at = 0;
    // Since when nothing more has come.
    let mut failing_since = None;
    loop {
        let before = at;
        let failed = match read(&job, &mut source, &file, &mut at).await {
            Ok(()) => break,
            Err(failed) => failed,
        };
        if at > before {
            failing_since = None;
        }
        let since = *failing_since.get_or_insert_with(now);
        let secs = replication_parameters().initial_sync_retry_secs;
        let patience = Duration::from_secs(secs.unsigned_abs().into()).min(MAX_PAGES_RETRY);
        if !failed.is_broken() || since.elapsed() >= patience {
            return Err(failed);
        }
        job.halt.pause(RETRY_PAUSE).await?;
    }
    Ok(file.finish().await?)
}

/// Reads from an offset to the end.
async fn read(
    job: &PagesJob,
    source: &mut Source,
    file: &PageFileCopy,
    at: &mut u64,
) -> Result<(), Failed> {
    loop {
        job.halt.check()?;
        let ask = rawdoc! {
            "_replReadCheckpoint": 1,
            "number": job.number as i64,
            "partition": i32::from(job.partition.0),
            "offset": *at as i64,
            "$db": "admin",
        };
        let reply = source.run_once(&ask).await?;
        let (offset, data) = read_frozen(reply.body())?;
        if data.is_empty() {
            return Ok(());
        }
        if offset < *at {
            return Err(Failed::new(
                "the source sends other pages than it was asked for",
            ));
        }
        file.write(offset, data).await?;
        *at = offset + data.len() as u64;
        job.counters.add(0, data.len() as u64);
    }
}
