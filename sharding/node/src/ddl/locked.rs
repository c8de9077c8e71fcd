//! Work that no definition of a database, or of a collection, runs beside.

use std::rc::Rc;

use pinion_runtime::{Instant, now, timeout_at};
use pinion_sharding_protocol::DatabaseVersion;
use pinion_sharding_protocol::ddl::{LockId, LockScope};
use pinion_wire::{Error, ErrorCode, Result};

use super::leadership::{Leadership, lead};
use crate::limits::DDL_LOCK_WAIT;
use crate::part::part;
use crate::shard::check_database;

/// A lock, held or waited for.
struct Lock {
    leadership: Rc<Leadership>,
    id: LockId,
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.leadership.locks.borrow_mut().release(self.id);
        part().core_0.definitions.notify();
    }
}

/// Does something while it has the lock of a database or a collection, of which this is the
/// primary shard. Called on core 0.
///
/// # Errors
/// `LockBusy`; `StaleDbVersion`; the node is no primary, or not any more; those of the work.
pub(crate) async fn locked<T>(
    db: &str,
    scope: LockScope,
    version: DatabaseVersion,
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let leadership = lead().await?;
    let lock = Lock {
        id: leadership.locks.borrow_mut().request(scope),
        leadership: leadership.clone(),
    };
    let latest = now() + DDL_LOCK_WAIT;
    let latest = deadline.map_or(latest, |deadline| deadline.min(latest));
    let work = async {
        let part = part();
        let definitions = &part.core_0.definitions;
        let holds = || leadership.locks.borrow().holds(lock.id).then_some(());
        let waited = timeout_at(latest, definitions.until(holds)).await;
        waited.map_err(|_| {
            Error::new(
                ErrorCode::LOCK_BUSY,
                format!("Failed to acquire DDL lock of '{db}' in time: definitions run there"),
            )
        })?;
        // It may have been dropped while the lock was waited for.
        check_database(&part, db, &version.to_sent())?;
        work.await
    };
    leadership.unless_over(work).await?
}
