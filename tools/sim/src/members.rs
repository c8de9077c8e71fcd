//! Members of simulated replica sets: how they are made, and how the run looks after them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_auth::MemberKeys;
use pinion_bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use pinion_node::node::{NodeConfig, run_core};
use pinion_replication_node::{MemberOptions, PlantedFault as MemberFault};
use pinion_runtime::sim::{NodeId, Sim, SimHandle};
use pinion_runtime::{CoreId, Duration, Instant, Rng};
use pinion_service::members::MemberAuth;
use pinion_service::node_info::ClusterRole;
use pinion_storage::StorageOptions;

use crate::fault::Fault;
use crate::sets::chaos;

pub const PORT: u16 = 27_017;
const DATA: &str = "/data";
/// How much of the oplog members keep.
const OPLOG_BYTES: u64 = 256 << 20;
/// The part of the sets whose members have little memory, and how much.
const WITH_SMALL_MEMORY: f64 = 0.4;
const SMALL_MEMORY: u64 = 512 * 1024;

/// What the main function of a process returned, once it has.
pub type Ended = Rc<RefCell<Option<Result<(), String>>>>;

/// A process that dies and comes back, as the run sees it.
pub struct Member {
    pub node: NodeId,
    pub ended: Ended,
    /// When it is started again, where it is down.
    pub restart_at: Option<Instant>,
    /// It is to end in order.
    pub is_ending: bool,
}

impl Member {
    /// Adds a process, which runs `main` on each core and notes what that returned on core 0.
    pub fn add<F, Fut>(sim: &Sim, name: &str, cores: usize, main: F) -> Member
    where
        F: Fn(CoreId) -> Fut + 'static,
        Fut: Future<Output = Result<(), String>> + 'static,
    {
        let ended = Ended::default();
        let own = ended.clone();
        let node = sim.add_node(name, cores, move |core| {
            let (ended, running) = (own.clone(), main(core));
            async move {
                let result = running.await;
                if core.0 == 0 {
                    *ended.borrow_mut() = Some(result);
                }
            }
        });
        Member {
            node,
            ended,
            restart_at: None,
            is_ending: false,
        }
    }

    /// Notices that it has died, and starts it when its time has come.
    ///
    /// # Errors
    /// What it has stopped with, where it was not to stop.
    pub fn look_after(&mut self, sim: &SimHandle, rng: &mut Rng) -> Result<(), Result<(), String>> {
        if sim.is_running(self.node) {
            return Ok(());
        }
        let ended = self.ended.borrow_mut().take();
        if let Some(ended) = ended
            && (!self.is_ending || ended.is_err())
        {
            return Err(ended);
        }
        let now = sim.now();
        let restart_at = *self
            .restart_at
            .get_or_insert_with(|| now + chaos::down_time(rng));
        if now >= restart_at {
            self.restart_at = None;
            self.is_ending = false;
            sim.restart(self.node, rng.between(1, 3) as usize);
        }
        Ok(())
    }

    /// Has it end in order.
    pub fn terminate(&mut self, sim: &SimHandle) {
        if sim.is_running(self.node) {
            self.is_ending = true;
            sim.terminate(self.node);
        }
    }
}

/// What all members of a set have in common.
pub struct SetKind {
    /// They know each other by a key.
    pub auth: Option<MemberAuth>,
    /// An initial sync copies files where it can; most members have this number of partitions then.
    pub copied_partitions: Option<u16>,
    /// Memory so small that old versions, and what is not stable yet, go to disk.
    pub cache_bytes: Option<u64>,
}

impl SetKind {
    pub fn draw(rng: &mut Rng, memory: &mut Rng) -> SetKind {
        let keys = MemberKeys::parse("simulatedkey").expect("a key");
        let auth = MemberAuth {
            keys,
            is_transition: false,
        };
        let auth = rng.chance(0.3).then_some(auth);
        let copies_files = rng.chance(0.4);
        SetKind {
            auth,
            copied_partitions: copies_files.then(|| rng.between(1, 6) as u16),
            cache_bytes: memory.chance(WITH_SMALL_MEMORY).then_some(SMALL_MEMORY),
        }
    }
}

/// A set of which members are made.
pub struct SetPlan<'a> {
    pub name: &'a str,
    pub role: ClusterRole,
    pub kind: &'a SetKind,
    pub fault: Fault,
}

/// Adds a member. Members are the first nodes of a run, whose addresses are known before they are
/// made: `number` is that of the node.
/// Each life begins with `start` on core 0.
pub fn add_member(
    sim: &Sim,
    plan: &SetPlan<'_>,
    number: usize,
    rng: &mut Rng,
    start: impl Fn() + 'static,
) -> Member {
    let kind = plan.kind;
    let options = MemberOptions {
        set_name: plan.name.into(),
        oplog_bytes: Some(OPLOG_BYTES),
        oplog_min_age: Duration::ZERO,
        planted_fault: match plan.fault {
            Fault::Member(fault) => fault,
            _ => MemberFault::None,
        },
    };
    let mut storage = StorageOptions::hostile(DATA);
    storage.is_member = true;
    storage.cache_bytes = kind.cache_bytes.unwrap_or(storage.cache_bytes);
    storage.log_retention = Some(options.first_retention());
    // Only a member with as many partitions takes files over.
    let alike = kind.copied_partitions.filter(|_| rng.chance(0.7));
    storage.partitions = Some(alike.unwrap_or_else(|| rng.between(1, 6) as u16));
    // A run lasts minutes of virtual time.
    storage.checkpoint_interval = Duration::from_millis([500, 2_000, 5_000][rng.below(3) as usize]);
    if let Fault::Storage(fault) = plan.fault {
        storage.planted_fault = fault;
    }
    let mut config = NodeConfig::for_simulation(storage, PORT, plan.fault.of_exec());
    config.node.process.host = host_of(number);
    config.node.cluster_role = plan.role;
    config.member = Some(options);
    config.node.process.member_auth = kind.auth.clone();
    config.planted_cluster_fault = plan.fault.of_cluster_node();
    if kind.copied_partitions.is_some() {
        let method = ("initialSyncMethod".into(), "fileCopyBased".into());
        config.set_parameters.push(method);
    }
    let host = config.node.process.host.clone();
    let (config, start) = (Arc::new(config), Rc::new(start));
    let cores = rng.between(1, 3) as usize;
    let name = match plan.role {
        ClusterRole::None => format!("member-{number}"),
        _ => format!("{}-{number}", plan.name),
    };
    let member = Member::add(sim, &name, cores, move |core| {
        let (config, start) = (config.clone(), start.clone());
        async move {
            if core.0 == 0 {
                start();
            }
            let ran = run_core(core, config).await;
            ran.map_err(|why| why.to_string())
        }
    });
    assert_eq!(format!("{}:{PORT}", sim.node_ip(member.node)), host);
    member
}

/// The name of the node of a number.
pub fn host_of(number: usize) -> String {
    format!("10.0.0.{}:{PORT}", number + 1)
}

/// The configuration of a set, with timeouts that make elections frequent.
pub fn set_config(
    name: &str,
    role: ClusterRole,
    members: &[SocketAddr],
    rng: &mut Rng,
) -> RawDocumentBuf {
    let with_priorities = rng.chance(0.3);
    let mut list = RawArrayBuf::new();
    for (at, address) in members.iter().enumerate() {
        let priority = match with_priorities {
            true => rng.between(1, 3) as f64,
            false => 1.0,
        };
        list.push(rawdoc! { "_id": at as i32, "host": address.to_string(), "priority": priority });
    }
    let election_timeout = [1_000_i32, 2_000, 10_000][rng.below(3) as usize];
    let heartbeat = [200_i32, 500, 2_000][rng.below(3) as usize];
    let catch_up = [-1_i32, 2_000, 10_000][rng.below(3) as usize];
    let mut config = rawdoc! {
        "_id": name,
        "members": list,
        "settings": {
            "electionTimeoutMillis": election_timeout,
            "heartbeatIntervalMillis": heartbeat,
            "catchUpTimeoutMillis": catch_up,
            "chainingAllowed": rng.chance(0.7),
        },
    };
    if role == ClusterRole::Config {
        config.append(cstr!("configsvr"), true);
    }
    config
}
