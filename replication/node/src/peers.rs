//! The connections to the other members: a pool on each core.

use std::rc::Rc;

use pinion_bson::RawDocument;
use pinion_replication_protocol::config::{Config, HostPort};
use pinion_runtime::Duration;
use pinion_server::{
    HostFigures, Introduction, Pool, PoolLimits, PoolOptions, PooledConnection, RemoteError,
    RemoteReply, Resend,
};
use pinion_service::connections::HostConnections;
use pinion_service::hello::MAX_WIRE_VERSION;
use pinion_service::node_info::node_info;

use crate::limits::{IDLE_CONNECTIONS, KNOWN_HOSTS, MAX_CONNECTIONS, SETUP_TIME};

/// Connections of one core to other members.
pub(crate) struct Peers(Pool);

impl Peers {
    /// Those of this core.
    pub(crate) fn here() -> Rc<Peers> {
        pinion_runtime::try_core_local::<Peers>().unwrap_or_else(|| {
            let peers = Rc::new(Peers(Pool::new(options())));
            pinion_runtime::set_core_local(peers.clone());
            peers
        })
    }

    /// Runs a command on a member, which names its database, within a time. It may be run twice: a
    /// connection that was left over may turn out to be closed.
    ///
    /// # Errors
    /// As of [`Pool::run`].
    pub(crate) async fn run(
        &self,
        address: &HostPort,
        command: &RawDocument,
        limit: Duration,
    ) -> Result<RemoteReply, RemoteError> {
        let resend = Resend::OverNewConnection;
        self.0.run(address, command, limit, resend).await
    }

    /// A connection for a reader of a member's oplog or data, set up within a time.
    ///
    /// # Errors
    /// As of [`Pool::open`].
    pub(crate) async fn open(
        &self,
        address: &HostPort,
        limit: Duration,
    ) -> Result<PooledConnection, RemoteError> {
        self.0.open(address, limit).await
    }

    /// Closes what is left over to a member, which may have restarted.
    pub(crate) fn forget(&self, address: &HostPort) {
        self.0.forget(address);
    }

    /// Closes what is left over to those that are no members any more.
    pub(crate) fn forget_former(&self, config: &Config) {
        let is_member = |host: &HostPort| config.members.iter().any(|member| member.host == *host);
        self.0.forget_others(is_member);
    }

    /// How many commands are not answered yet.
    pub(crate) fn running(&self) -> u64 {
        self.0.running()
    }

    /// What `connPoolStats` shows of this core.
    pub(crate) fn shown(&self) -> Vec<HostConnections> {
        let hosts = self.0.figures().into_iter();
        hosts.map(shown).collect()
    }
}

fn options() -> PoolOptions {
    PoolOptions {
        introduction: Introduction {
            name: "NetworkInterfacePinion",
            version: env!("CARGO_PKG_VERSION"),
            max_wire_version: MAX_WIRE_VERSION,
        },
        auth: node_info().options.member_auth.clone(),
        limits: PoolLimits {
            connections: MAX_CONNECTIONS,
            idle: IDLE_CONNECTIONS,
            setup_time: SETUP_TIME,
            hosts: KNOWN_HOSTS,
            ..PoolLimits::default()
        },
    }
}

fn shown(figures: HostFigures) -> HostConnections {
    HostConnections {
        host: figures.host.to_string(),
        in_use: figures.in_use,
        available: figures.available,
        refreshing: figures.refreshing,
        created: figures.created,
    }
}
