//! Waiting until writes are applied on every owner, or can be read in the log.

use pinion_clock::Timestamp;

use crate::engine::storage::Storage;
use crate::types::Fatal;
use crate::watermarks::Mark;

impl Storage {
    /// The timestamp for a read over several partitions: the last one allotted, once everything at
    /// or below it is applied. A read there sees every write that was acknowledged before this
    /// call. While the node follows another it is what is applied by now.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn read_timestamp(&self) -> Result<Timestamp, Fatal> {
        let ts = self.readable();
        self.wait_visible(ts).await?;
        Ok(ts)
    }

    /// Where a read sees all that this node has acknowledged, once that is visible.
    fn readable(&self) -> Timestamp {
        match self.leads() {
            true => self.last_allotted(),
            false => self.visible(),
        }
    }

    /// Waits until every write at or below `ts` is applied on its owners.
    pub async fn wait_visible(&self, ts: Timestamp) -> Result<(), Fatal> {
        if self.visible() >= ts {
            return Ok(());
        }
        self.check_fatal()?;
        self.wait_reached(Mark::Applying, ts, || ()).await
    }

    /// Waits until the log can be read beyond `ts`: until [`Storage::oplog_read_timestamp`] is
    /// above it.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn wait_log_beyond(&self, ts: Timestamp) -> Result<(), Fatal> {
        if self.oplog_read_timestamp() > ts {
            return Ok(());
        }
        self.check_fatal()?;
        let next = Timestamp::from_u64(ts.as_u64().saturating_add(1));
        self.wait_reached(Mark::Appending, next, || ()).await
    }
}
