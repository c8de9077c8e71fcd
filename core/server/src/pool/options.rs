//! What a pool is made with.

use pinion_auth::MemberAuth;
use pinion_runtime::Duration;

use crate::limits::{
    ABANDONED_SETUP, POOL_CONNECTING, POOL_CONNECTIONS, POOL_HOSTS, POOL_IDLE, POOL_IDLE_TIME,
    POOL_SETUP_TIME, POOL_WAITING,
};

/// What a pool knows of the process that it belongs to.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    pub introduction: Introduction,
    /// The keys of the set or cluster; `None` where its members admit every process.
    pub auth: Option<MemberAuth>,
    pub limits: PoolLimits,
}

/// What this process says of itself at the start of each connection.
#[derive(Clone, Copy, Debug)]
pub struct Introduction {
    /// How it calls itself, and its version: the other side logs both.
    pub name: &'static str,
    pub version: &'static str,
    /// The newest wire version that it speaks to other processes of its kind.
    pub max_wire_version: i32,
}

/// How much a pool does at once and keeps, for each host.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// The most connections: in use, left over and being set up.
    pub connections: usize,
    /// How many of them are set up at a time: `maxConnecting`.
    pub connecting: usize,
    /// The most that are left over and kept, and for how long.
    pub idle: usize,
    pub idle_time: Duration,
    /// How long one may take to be set up. Then it is closed, and what still waits has another
    /// tried.
    pub setup_time: Duration,
    /// The most requests that wait for a connection.
    pub waiting: usize,
    /// Known hosts at which those without a connection are forgotten.
    pub hosts: usize,
}

impl Default for PoolLimits {
    fn default() -> PoolLimits {
        PoolLimits {
            connections: POOL_CONNECTIONS,
            connecting: POOL_CONNECTING,
            idle: POOL_IDLE,
            idle_time: POOL_IDLE_TIME,
            setup_time: POOL_SETUP_TIME,
            waiting: POOL_WAITING,
            hosts: POOL_HOSTS,
        }
    }
}

impl PoolLimits {
    /// # Panics
    /// The limits contradict each other.
    pub(super) fn check(&self) {
        assert!(self.connecting > 0, "a pool has to connect");
        assert!(self.connecting <= self.connections && self.idle <= self.connections);
        assert!(self.setup_time > ABANDONED_SETUP);
    }
}
