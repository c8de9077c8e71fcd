//! What changes in the cluster is noted in `config.changelog`, for people.

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_runtime::wall_ms;
use pinion_service::generate::new_object_id;
use pinion_service::node_info::node_info;
use pinion_sharding_protocol::ShardId;
use pinion_sharding_protocol::documents::ChangelogEntry;
use pinion_wire::OpContext;

use crate::local::LocalClient;

/// What is noted of a change that a shard, or the config servers, have made now.
pub(crate) fn changelog_entry(
    shard: &str,
    from: &str,
    what: &str,
    ns: &str,
    details: RawDocumentBuf,
) -> RawDocumentBuf {
    let host = &node_info().options.host;
    let (time_ms, id) = (wall_ms(), new_object_id().to_hex());
    let entry = ChangelogEntry {
        id: format!("{host}-{id}"),
        server: host.clone(),
        shard: Some(shard.to_owned()),
        client: from.to_owned(),
        time_ms,
        what: what.to_owned(),
        ns: ns.to_owned(),
        details,
        other: RawDocumentBuf::new(),
    };
    entry.to_bson()
}

/// Notes a change. That it could not be noted does not undo it.
pub(super) async fn note(
    client: &LocalClient,
    from: &str,
    what: &str,
    ns: &str,
    details: RawDocumentBuf,
) {
    let entry = changelog_entry(ShardId::CONFIG, from, what, ns, details);
    let insert = rawdoc! {
        "insert": "changelog", "documents": [entry], "$db": "config",
    };
    if let Err(error) = client.run(&insert).await {
        tracing::warn!(target: "SHARDING", id = 7_500_013u64, what, ns, error = %error, "A change of the cluster could not be noted");
    }
}

/// Who has asked for a change: the address of a connection, empty of the node itself.
pub(super) fn sender(ctx: &OpContext) -> String {
    let remote = ctx.client.remote;
    remote.map_or_else(String::new, |address| address.to_string())
}
