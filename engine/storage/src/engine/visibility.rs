//! Waiting until writes are applied on every owner.

use pinion_clock::Timestamp;

use super::storage::Storage;
use crate::types::Fatal;

impl Storage {
    /// The timestamp for a read over several partitions: the last one allotted, once everything at or below it is
    /// applied. A read there sees every write that was acknowledged before this call.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn read_timestamp(&self) -> Result<Timestamp, Fatal> {
        let ts = self.last_allotted();
        self.wait_visible(ts).await?;
        Ok(ts)
    }

    /// Waits until every write at or below `ts` is applied on its owners.
    pub async fn wait_visible(&self, ts: Timestamp) -> Result<(), Fatal> {
        if self.visible() >= ts {
            return Ok(());
        }
        self.check_fatal()?;
        let waiting = self.visible.wait(ts);
        self.publish_wanted_visible();
        // Look again: a core that lifted its mark before the wish was published has not seen it.
        if self.visible() < ts {
            waiting.await;
        } else {
            drop(waiting);
        }
        self.publish_wanted_visible();
        if self.visible.reached() >= ts {
            Ok(())
        } else {
            Err(self.fatal().expect("only failure releases early"))
        }
    }

    pub(super) fn publish_wanted_visible(&self) {
        let low = self.visible.range().map(|(low, _)| low);
        self.shared
            .words
            .marks
            .want_visible(usize::from(self.core.0), low);
    }
}
