//! Reads of the config servers, which are at least as new as what this process has heard of.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_runtime::Duration;
use pinion_wire::Result;
use pinion_wire::idl::{Namespace, ReadPreference, ReadPreferenceMode};

use crate::clock::{append_gossip, bson_time, learn_from};
use crate::cluster::Cluster;
use crate::hosts::{Hosts, Retry};
use crate::limits::{CONFIG_READ_TIME, CONFIG_WRITE_TIME};

/// All documents of a collection of the config servers that fit a filter, in an order. A majority
/// has them, and they are those of the config time that this process knows, or later ones.
///
/// # Errors
/// No config server answers in time, or they refuse.
pub(crate) async fn find_all(
    ns: &str,
    filter: RawDocumentBuf,
    sort: Option<RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>> {
    let ns = &Namespace::parse(ns)?;
    let cluster = Cluster::here();
    let hosts = Hosts::here();
    let set = &cluster.config_servers.set;
    let (config_time, preference) = (
        cluster.clock.time().config(),
        ReadPreference::from(ReadPreferenceMode::Nearest),
    );
    let mut find = DocBuilder::new();
    find.append("find", ns.collection())
        .append("filter", &*filter);
    if let Some(sort) = &sort {
        find.append("sort", &**sort);
    }
    find.start_document("readConcern")
        .append("level", "majority");
    if !config_time.is_null() {
        find.append("afterClusterTime", bson_time(config_time));
    }
    find.end();
    find.append("$readPreference", &*preference.to_document())
        .append("$db", ns.db());
    append_gossip(&mut find, &*cluster.clock);
    let (host, reply) = hosts
        .run(
            set,
            &preference,
            &find.finish(),
            CONFIG_READ_TIME,
            Retry::Idempotent,
        )
        .await?;
    let learn = |reply: &RawDocument| {
        learn_from(&*cluster.clock, reply);
    };
    learn(reply.body());
    hosts
        .read_to_end(set, &host, ns, reply.body(), CONFIG_READ_TIME, learn)
        .await
}

/// Runs a command at the primary of the config servers. `fields` appends all but the database and
/// what every request has.
///
/// # Errors
/// The command's, and those of the way there.
pub(crate) async fn run_at_config(
    db: &str,
    fields: impl FnOnce(&mut DocBuilder),
    limit: Option<Duration>,
) -> Result<RawDocumentBuf> {
    let cluster = Cluster::here();
    let mut command = DocBuilder::new();
    fields(&mut command);
    command.append("$db", db);
    append_gossip(&mut command, &*cluster.clock);
    let (_, reply) = Hosts::here()
        .run(
            &cluster.config_servers.set,
            &ReadPreference::default(),
            &command.finish(),
            limit.unwrap_or(CONFIG_WRITE_TIME),
            Retry::Idempotent,
        )
        .await?;
    learn_from(&*cluster.clock, reply.body());
    Ok(reply.body().to_owned())
}
