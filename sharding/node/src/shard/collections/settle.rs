//! Which entries there are, and which of them are stale: at the start, as a new primary, and on a
//! secondary when it applies what its primary has written.

use pinion_exec::placement::WrittenEntries;
use pinion_runtime::sleep;
use pinion_storage::storage;
use pinion_wire::Result;

use super::super::refreshes::{EntryKey, outdate};
use super::cached;
use super::known::{Distrusted, install_collection, install_distrust, install_list};
use crate::data::{enter_data, open_data, unless_closed};
use crate::limits::RETRY_PAUSE;
use crate::part::part;

/// Makes entries stale, at once: they were written, or are as of another time, or this node leads
/// now. Called on core 0.
pub(crate) async fn distrust(written: &WrittenEntries) {
    match written {
        WrittenEntries::None => {}
        WrittenEntries::Named(names) => make_stale(Distrusted::Named(names.clone())).await,
        WrittenEntries::All => make_stale(Distrusted::Unlisted).await,
    }
}

async fn make_stale(which: Distrusted) {
    let part = part();
    let _turn = part.core_0.cache_turn.acquire().await;
    let number = part.core_0.distrusts.get() + 1;
    part.core_0.distrusts.set(number);
    outdate(|key| match (key, &which) {
        (EntryKey::Collection(ns), Distrusted::Named(names)) => names.contains(ns),
        (EntryKey::Collection(_), _) => true,
        (EntryKey::Database(_), _) => false,
    });
    install_distrust(which, number).await;
}

/// A new primary relies on no table that the one before has left: that may have missed a change.
/// Which there are is read again: reads of what was applied before may have been given up. Called
/// on core 0.
pub(crate) async fn begin_as_primary() {
    make_stale(Distrusted::All).await;
    part().core_0.begin(async {
        let applied = async { storage().wait_visible(storage().last_allotted()).await };
        if let Ok(Ok(())) = unless_closed(applied).await {
            settle(&WrittenEntries::All).await;
        }
    });
}

/// Finds out which of the stale entries are kept; those that are not, are of collections that are
/// not sharded. Called on core 0, once what was written can be read.
pub(crate) async fn settle(written: &WrittenEntries) {
    loop {
        let outcome = match written {
            WrittenEntries::None => return,
            WrittenEntries::Named(names) => settle_named(names.iter()).await,
            WrittenEntries::All => list().await,
        };
        // Data that are opened again are read then.
        let is_closed = enter_data().is_err();
        match outcome {
            Err(error) if !is_closed && !part().core_0.is_stopping() => {
                tracing::warn!(target: "SHARDING", id = 7_500_009u64, error = error.message, "What this shard keeps of its collections cannot be read; it is tried again");
                sleep(RETRY_PAUSE).await;
            }
            _ => return,
        }
    }
}

async fn settle_named(names: impl Iterator<Item = &String>) -> Result<()> {
    let part = part();
    let number = part.core_0.distrusts.get();
    for ns in names {
        if cached::is_stored(ns).await? {
            continue;
        }
        let _turn = part.core_0.cache_turn.acquire().await;
        if part.collections.is_stale_until(ns, number) {
            install_collection(ns, None).await;
        }
    }
    Ok(())
}

/// Reads which collections have an entry: those of which nothing newer is known are stale. Called
/// on core 0.
///
/// # Errors
/// They cannot be read.
pub(crate) async fn list() -> Result<()> {
    let part = part();
    let number = part.core_0.distrusts.get();
    let names = {
        let _open = open_data().await;
        cached::names().await?
    };
    let _turn = part.core_0.cache_turn.acquire().await;
    install_list(names, number).await;
    Ok(())
}
