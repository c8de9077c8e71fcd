//! A core of a node that is a shard, for tests.

use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{ObjectId, RawDocumentBuf};
use pinion_service::node_info::ClusterRole;
use pinion_sharding_protocol::documents::ShardIdentityDocument;

use crate::part::{Membership, Part, install_membership};
use crate::planted::PlantedFault;

/// Gives the core its part, which is of no cluster yet.
pub(crate) fn start_part() {
    let part = Part::new(ClusterRole::Shard, PlantedFault::None);
    pinion_runtime::set_core_local(Rc::new(part));
}

/// The identity of a shard.
pub(crate) fn membership_of(name: &str) -> Membership {
    let document = ShardIdentityDocument {
        shard: name.into(),
        cluster: ObjectId::from_bytes([1; 12]),
        config_servers: "cfg/a:1".into(),
        other: RawDocumentBuf::new(),
    };
    Membership::of(document).expect("an identity")
}

/// Makes the node the shard `s1`.
pub(crate) async fn become_shard() {
    install_membership(Some(Arc::new(membership_of("s1")))).await;
}
