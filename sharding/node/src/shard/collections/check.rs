//! The versions of collections: compared with those that requests carry.

use pinion_runtime::{CoreId, Queue, submit_to};
use pinion_sharding_protocol::{ShardVersion, StaleInfo, StaleReason, has_fixed_placement};
use pinion_wire::idl::{Namespace, SentShardVersion};
use pinion_wire::{Error, Result};

use super::super::databases::membership;
use super::super::refreshes::{EntryKey, is_under_way};
use super::known::Known;
use super::refresh::refresh_collection;
use crate::part::{Membership, Part, form, part};

/// The version that this shard has of a collection; `None` where it does not know it.
pub(super) fn version_of(shard: &Membership, known: &Known) -> Option<ShardVersion> {
    match known {
        Known::Unsharded => Some(ShardVersion::Unsharded),
        Known::Stale => None,
        Known::Table(table) => Some(table.shard_version(shard.shard())),
    }
}

/// The same of a collection.
///
/// # Errors
/// The node is none of a shard.
pub(crate) fn shard_version(part: &Part, ns: &Namespace) -> Result<Option<ShardVersion>> {
    let shard = membership(part)?;
    Ok(version_of(&shard, &part.collection(ns)))
}

/// `StaleConfig`.
pub(super) fn stale(
    shard: &Membership,
    ns: &Namespace,
    received: ShardVersion,
    wanted: Option<ShardVersion>,
) -> Error {
    let reason = match wanted {
        Some(_) => StaleReason::Mismatch,
        None => StaleReason::Unknown,
    };
    StaleInfo {
        ns: ns.clone(),
        received,
        wanted,
        shard: shard.shard().clone(),
    }
    .error(reason, form())
}

/// Compares the version of a collection with the known one.
///
/// # Errors
/// `StaleConfig`. The wanted version is absent where none is known.
pub(crate) fn check_collection(part: &Part, ns: &Namespace, sent: &SentShardVersion) -> Result<()> {
    let shard = membership(part)?;
    let received = ShardVersion::from_sent(*sent);
    if has_fixed_placement(ns.db()) || received == ShardVersion::Ignored {
        return Ok(());
    }
    match version_of(&shard, &part.collection(ns)) {
        Some(known) if known.is_placement_equal(received) => Ok(()),
        wanted => Err(stale(&shard, ns, received, wanted)),
    }
}

/// Whether the known version of a collection may be older than one that was sent.
pub(crate) fn is_behind(part: &Part, ns: &Namespace, sent: &SentShardVersion) -> bool {
    let Some(shard) = part.membership() else {
        return false;
    };
    let received = ShardVersion::from_sent(*sent);
    version_of(&shard, &part.collection(ns))
        .is_none_or(|known| received.is_older_than(known) != Some(true))
}

/// Refuses to read a sharded collection for which the request has no version.
///
/// # Errors
/// `StaleConfig`: the sender takes it for unsharded.
pub(crate) fn check_unsharded(part: &Part, ns: &Namespace) -> Result<()> {
    let shard = membership(part)?;
    if has_fixed_placement(ns.db()) {
        return Ok(());
    }
    match version_of(&shard, &part.collection(ns)) {
        Some(ShardVersion::Unsharded) => Ok(()),
        wanted => {
            if wanted.is_none() {
                begin_refresh(ns.clone());
            }
            Err(stale(&shard, ns, ShardVersion::Unsharded, wanted))
        }
    }
}

/// Has a stale entry refreshed, where it cannot be waited for.
pub(super) fn begin_refresh(ns: Namespace) {
    pinion_runtime::spawn(Queue::Foreground, async move {
        submit_to(CoreId(0), Queue::Foreground, move || async move {
            let is_known = {
                let ns = ns.clone();
                move |part: &Part| !matches!(part.collection(&ns), Known::Stale)
            };
            if is_known(&part()) || is_under_way(&EntryKey::collection(ns.as_str())) {
                return;
            }
            if let Err(error) = refresh_collection(&ns, is_known).await {
                tracing::info!(target: "SH_REFR", id = 4_619_904u64, ns = ns.as_str(), error = error.message, "Error refreshing cached collection");
            }
        })
        .await;
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use pinion_exec::placement::WrittenEntries;
    use pinion_sharding_protocol::{ChunkVersion, RoutingTable};

    use super::super::known::{install_collection, install_list};
    use super::super::settle::distrust;
    use super::super::testing::{incarnation, ns, on_shard, table};
    use super::*;

    fn placed(secs: u32, major: u32, minor: u32) -> ShardVersion {
        ShardVersion::Placed(ChunkVersion {
            of: incarnation(secs),
            major,
            minor,
        })
    }

    /// What a shard is to know.
    #[derive(Clone)]
    enum State {
        Unsharded,
        Stale,
        Table(Arc<RoutingTable>),
    }

    async fn have(state: State) {
        install_list(BTreeSet::new(), 0).await;
        match state {
            State::Unsharded => install_collection("d.c", None).await,
            State::Table(table) => install_collection("d.c", Some(table)).await,
            State::Stale => {
                distrust(&WrittenEntries::Named(BTreeSet::from(["d.c".to_owned()]))).await;
            }
        }
    }

    /// The wanted version of the answer to one that is sent, `Err` where that is accepted; and
    /// whether a newer one is asked for.
    fn check(state: State, sent: ShardVersion, expected: (Option<Option<ShardVersion>>, bool)) {
        on_shard(move || {
            let state = state.clone();
            async move {
                have(state).await;
                let (part, to_send) = (part(), sent.to_sent());
                let refused = check_collection(&part, &ns(), &to_send).err().map(|error| {
                    let info = StaleInfo::from_error(&error)
                        .expect("readable")
                        .expect("stale");
                    assert_eq!((info.received, &*info.shard), (sent, "s1"));
                    info.wanted
                });
                let found = (refused, is_behind(&part, &ns(), &to_send));
                assert_eq!(found, expected, "{sent:?}");
                let config = Namespace::new("config", "c").expect("a name");
                assert!(check_collection(&part, &config, &to_send).is_ok());
            }
        });
    }

    #[test]
    fn versions_of_collections() {
        let (unsharded, ignored) = (ShardVersion::Unsharded, ShardVersion::Ignored);
        let refused = |wanted| Some(Some(wanted));
        check(State::Unsharded, unsharded, (None, true));
        check(State::Unsharded, ignored, (None, true));
        check(
            State::Unsharded,
            placed(5, 1, 0),
            (refused(unsharded), true),
        );
        for sent in [unsharded, placed(5, 1, 0)] {
            check(State::Stale, sent, (Some(None), true));
        }
        check(State::Stale, ignored, (None, true));
        let of_both = || State::Table(table(5, &[0], &[("s1", 3, 1), ("s2", 4, 0)]));
        let mine = placed(5, 3, 1);
        check(of_both(), mine, (None, true));
        check(of_both(), placed(5, 3, 7), (None, true));
        check(of_both(), ignored, (None, true));
        check(of_both(), placed(5, 2, 9), (refused(mine), false));
        check(of_both(), placed(5, 4, 0), (refused(mine), true));
        check(of_both(), placed(4, 9, 0), (refused(mine), false));
        check(of_both(), placed(6, 1, 0), (refused(mine), true));
        check(of_both(), unsharded, (refused(mine), true));
        // A shard that owns no chunks.
        let others = || State::Table(table(5, &[], &[("s2", 4, 0)]));
        check(others(), placed(5, 0, 0), (None, true));
        check(others(), unsharded, (refused(placed(5, 0, 0)), true));
    }

    #[test]
    fn what_is_read_without_a_version() {
        on_shard(|| async {
            let wanted = || {
                let error = check_unsharded(&part(), &ns()).err()?;
                let info = StaleInfo::from_error(&error)
                    .expect("readable")
                    .expect("stale");
                assert_eq!((info.received, &info.ns), (ShardVersion::Unsharded, &ns()));
                Some(info.wanted)
            };
            have(State::Unsharded).await;
            assert_eq!(wanted(), None);
            have(State::Table(table(5, &[], &[("s1", 3, 1)]))).await;
            assert_eq!(wanted(), Some(Some(placed(5, 3, 1))));
        });
    }
}
