//! What a shard owns of a collection, as the executor asks for it.

use std::sync::Arc;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_exec::placement::Ownership;
use pinion_query::DocumentKeyPattern;
use pinion_sharding_protocol::{
    Form, OwnershipFilter, RoutingTable, ShardVersion, has_fixed_placement,
};
use pinion_wire::idl::{Namespace, SentShardVersion};
use pinion_wire::{Error, Result};

use super::check::{begin_refresh, stale};
use super::known::Known;
use crate::part::{Membership, Part};

/// The ownership by one table.
#[derive(Debug)]
struct OwnedKeys {
    filter: OwnershipFilter,
    key: RawDocumentBuf,
    document_key: DocumentKeyPattern,
}

impl OwnedKeys {
    fn new(table: Arc<RoutingTable>, shard: &Membership, at: Option<Timestamp>) -> OwnedKeys {
        OwnedKeys {
            key: table.key.to_bson(),
            document_key: DocumentKeyPattern::of_shard_key(table.key.paths()),
            filter: OwnershipFilter::new(table, shard.shard(), at),
        }
    }
}

impl Ownership for OwnedKeys {
    fn key(&self) -> &RawDocument {
        &self.key
    }

    fn document_key(&self) -> &DocumentKeyPattern {
        &self.document_key
    }

    fn owns_all(&self) -> bool {
        self.filter.owns_all()
    }

    fn owns_document(&self, document: &RawDocument) -> Result<bool> {
        self.filter.owns_document(document)
    }
}

/// A request of MongoDB 4.4's routers that ignores versions, since it goes to all shards: every
/// document is meant, and none may get another key.
#[derive(Debug)]
struct OfAllShards(Arc<dyn Ownership>);

impl Ownership for OfAllShards {
    fn key(&self) -> &RawDocument {
        self.0.key()
    }

    fn document_key(&self) -> &DocumentKeyPattern {
        self.0.document_key()
    }

    fn owns_all(&self) -> bool {
        true
    }

    fn keeps_keys(&self) -> bool {
        true
    }

    fn owns_document(&self, _: &RawDocument) -> Result<bool> {
        Ok(true)
    }
}

/// It is not known what the shard owns: an operation that has to know fails.
#[derive(Debug)]
struct UnknownOwnership {
    key: RawDocumentBuf,
    error: Error,
}

impl Ownership for UnknownOwnership {
    fn key(&self) -> &RawDocument {
        &self.key
    }

    fn document_key(&self) -> &DocumentKeyPattern {
        static ID: DocumentKeyPattern = DocumentKeyPattern::ID;
        &ID
    }

    fn owns_all(&self) -> bool {
        false
    }

    fn owns_document(&self, _: &RawDocument) -> Result<bool> {
        Err(self.error.clone())
    }
}

/// What the shard owns of a collection that is reached with a version which was checked; without a
/// version by a task of the node. `None` where nothing is filtered.
pub(crate) fn ownership(
    part: &Part,
    ns: &Namespace,
    sent: Option<&SentShardVersion>,
    at: Option<Timestamp>,
) -> Option<Arc<dyn Ownership>> {
    let shard = part.membership()?;
    if has_fixed_placement(ns.db()) || ns.db() == "local" {
        return None;
    }
    let sent = sent.map(|sent| ShardVersion::from_sent(*sent));
    if sent == Some(ShardVersion::Ignored) {
        return match part.form {
            // Routers of Pinion do not send such writes.
            Form::Own => None,
            Form::Mongo44 => of_all_shards(part, &shard, ns),
        };
    }
    let received = sent.unwrap_or(ShardVersion::Unsharded);
    let unsharded = Some(ShardVersion::Unsharded);
    match (part.collection(ns), sent) {
        (Known::Unsharded, None | Some(ShardVersion::Unsharded)) => None,
        // It was not sharded when the version was checked.
        (Known::Stale, Some(ShardVersion::Unsharded)) => None,
        (Known::Unsharded, Some(_)) => Some(unknown(stale(&shard, ns, received, unsharded))),
        (Known::Stale, None) => {
            begin_refresh(ns.clone());
            Some(unknown(stale(&shard, ns, received, None)))
        }
        (Known::Table(_), _) | (Known::Stale, Some(_)) => {
            let owned = owned_keys(part, &shard, ns, at);
            Some(owned.unwrap_or_else(|| unknown(stale(&shard, ns, received, None))))
        }
    }
}

/// `None` of a collection that is not sharded.
fn of_all_shards(part: &Part, shard: &Membership, ns: &Namespace) -> Option<Arc<dyn Ownership>> {
    if matches!(part.collection(ns), Known::Unsharded) {
        return None;
    }
    let Some(owned) = owned_keys(part, shard, ns, None) else {
        begin_refresh(ns.clone());
        return Some(unknown(stale(shard, ns, ShardVersion::Ignored, None)));
    };
    Some(Arc::new(OfAllShards(owned)))
}

/// By the last table: where that has become stale, the version was checked before.
fn owned_keys(
    part: &Part,
    shard: &Membership,
    ns: &Namespace,
    at: Option<Timestamp>,
) -> Option<Arc<dyn Ownership>> {
    let name = ns.as_str();
    match at {
        None => part
            .collections
            .ownership(name, |table| Arc::new(OwnedKeys::new(table, shard, None))),
        Some(_) => {
            let table = part.collections.table(name)?;
            Some(Arc::new(OwnedKeys::new(table, shard, at)))
        }
    }
}

fn unknown(error: Error) -> Arc<dyn Ownership> {
    Arc::new(UnknownOwnership {
        key: RawDocumentBuf::new(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pinion_bson::rawdoc;
    use pinion_sharding_protocol::ChunkVersion;
    use pinion_wire::ErrorCode;

    use super::super::known::{install_collection, install_list};
    use super::super::testing::{incarnation, ns, on_shard, table};
    use super::*;
    use crate::part::part;

    #[test]
    fn what_is_owned() {
        on_shard(|| async {
            install_list(BTreeSet::new(), 0).await;
            let placed = ShardVersion::Placed(ChunkVersion {
                of: incarnation(5),
                major: 3,
                minor: 1,
            });
            let owned = |sent: Option<ShardVersion>| {
                let sent = sent.map(ShardVersion::to_sent);
                ownership(&part(), &ns(), sent.as_ref(), None)
            };
            assert!(owned(None).is_none() && owned(Some(ShardVersion::Unsharded)).is_none());
            let unknown = owned(Some(placed)).expect("it is not known");
            let refused = unknown
                .owns_document(&rawdoc! { "a": 1 })
                .expect_err("unknown");
            assert_eq!(refused.code, ErrorCode::STALE_CONFIG);

            install_collection("d.c", Some(table(5, &[0], &[("s1", 3, 1), ("s2", 4, 0)]))).await;
            assert!(owned(Some(ShardVersion::Ignored)).is_none());
            let both = owned(Some(placed)).expect("it is sharded");
            assert!(Arc::ptr_eq(&both, &owned(None).expect("it is sharded")));
            assert_eq!(both.key(), &*rawdoc! { "a": 1 });
            assert!(!both.owns_all());
            for (key, expected) in [(-1, true), (1, false)] {
                assert_eq!(
                    both.owns_document(&rawdoc! { "a": key }).ok(),
                    Some(expected)
                );
            }
            // What an operation holds does not change.
            install_collection("d.c", Some(table(5, &[], &[("s1", 5, 0)]))).await;
            assert!(owned(None).is_some_and(|owned| owned.owns_all()));
            assert!(!both.owns_all());
        });
    }
}
