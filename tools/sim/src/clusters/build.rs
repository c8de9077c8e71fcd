//! How a simulated cluster is made: its sets, its routers, and its clients.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, Timestamp};
use pinion_node::node::NodeConfig;
use pinion_router::router::{RouterConfig, run_core};
use pinion_runtime::sim::{NodeId, Sim};
use pinion_runtime::{LocalBoxFuture, Rng};
use pinion_server::ServerOptions;
use pinion_service::node_info::ClusterRole;
use pinion_sharding_protocol::ConnectionString;
use pinion_sharding_router::RouterProcess;
use pinion_storage::StorageOptions;

use super::cluster::{Cluster, Place, Set};
use super::verdict::PROBES;
use super::{clients, clocks, lives, movers, operator, series, strays, verdict};
use crate::fault::Fault;
use crate::members::{Member, PORT, SetKind, SetPlan, add_member, host_of, set_config};
use crate::sets::judge::{self, Orders};
use crate::sets::observer::{self, Sightings};
use crate::sets::workload::{self, Shared};

const SHARDS: [&str; 4] = ["s0", "s1", "s2", "s3"];
const CONFIG: &str = "cfg";
const STABLE: [&str; 2] = ["stable0", "stable1"];
const PLACES: [&str; 2] = ["place0", "place1"];
/// Clients that write and read the time series.
const SERIES_VISITORS: usize = 2;
/// Shortest and longest time between two questions to a member.
const OBSERVED_MS: (u64, u64) = (100, 700);
/// How far clocks are apart at most, where they differ.
const APART_MICROS: u64 = 60_000_000;

/// A replica set, as the run sees it.
pub struct SetRun {
    pub name: &'static str,
    pub members: Vec<Member>,
    /// What its judge and its observers share.
    pub shared: Rc<Shared>,
    pub orders: Rc<Orders>,
    pub sightings: Rc<RefCell<Sightings>>,
    config: RawDocumentBuf,
}

/// The sizes of a cluster's parts.
pub struct Sizes {
    pub config: usize,
    pub shards: Vec<usize>,
    pub routers: usize,
}

impl Sizes {
    pub fn draw(rng: &mut Rng) -> Sizes {
        let shards = [2, 2, 2, 3, 3, 4][rng.below(6) as usize];
        let mut members = || [1, 1, 2, 3, 3][rng.below(5) as usize];
        Sizes {
            shards: (0..shards).map(|_| members()).collect(),
            config: [1, 3, 3][rng.below(3) as usize],
            routers: rng.between(1, 2) as usize,
        }
    }
}

fn address(number: usize) -> SocketAddr {
    host_of(number).parse().expect("an address")
}

/// The cluster as its clients know it; the config servers are the first nodes, then come the
/// shards, and the routers behind them.
pub fn cluster_of(sizes: &Sizes, rng: &mut Rng) -> Rc<Cluster> {
    let mut next = 0;
    let mut take = |count: usize| -> Vec<SocketAddr> {
        let taken = (next..next + count).map(address).collect();
        next += count;
        taken
    };
    let config = Set {
        name: CONFIG,
        members: take(sizes.config),
    };
    let shards = sizes.shards.iter().zip(SHARDS).map(|(count, name)| Set {
        name,
        members: take(*count),
    });
    let shards: Vec<Set> = shards.collect();
    let routers = take(sizes.routers);
    let pause_ms = [60, 200, 600][rng.below(3) as usize];
    let shared = |db| {
        Rc::new(Shared {
            pause_ms,
            via_routers: true,
            ..Shared::new(routers.clone(), db)
        })
    };
    let places = PLACES.iter().take(rng.between(1, 2) as usize);
    Rc::new(Cluster {
        config,
        shards,
        stable: STABLE.into_iter().map(shared).collect(),
        plain: shared("plain"),
        moving: shared("moving"),
        routers: routers.clone(),
        places: places
            .map(|db| Place {
                db,
                lives: RefCell::default(),
            })
            .collect(),
        series: Default::default(),
        definitions: Default::default(),
        strays: Default::default(),
        made: RefCell::default(),
        placed: RefCell::default(),
        is_built: Cell::new(false),
        verdict: Default::default(),
        probes: Default::default(),
    })
}

/// Adds all members of all sets, which know nothing of each other yet.
pub fn add_sets(sim: &Sim, cluster: &Rc<Cluster>, rng: &mut Rng, fault: Fault) -> Vec<SetRun> {
    let kind = SetKind {
        auth: None,
        copied_partitions: None,
        ..SetKind::draw(rng, &mut sim.random_stream("memory"))
    };
    let mut number = 0;
    let shards = cluster.shards.iter().map(|set| (set, ClusterRole::Shard));
    let sets = [(&cluster.config, ClusterRole::Config)].into_iter();
    let sets = sets.chain(shards).map(|(set, role)| {
        let plan = SetPlan {
            name: set.name,
            role,
            kind: &kind,
            fault,
        };
        let members = set.members.iter().map(|_| {
            let watch = watch(cluster, format!("{}-{number}", set.name));
            let member = add_member(sim, &plan, number, rng, watch);
            number += 1;
            member
        });
        let members = members.collect();
        SetRun {
            name: set.name,
            members,
            shared: Rc::new(Shared {
                // Only change streams ask for it.
                beginning: Cell::new(Some(Timestamp {
                    time: 0,
                    increment: 1,
                })),
                // Config servers take no databases of clients.
                ..Shared::new(
                    set.members.clone(),
                    if set.name == CONFIG { "config" } else { PROBES },
                )
            }),
            orders: Rc::default(),
            sightings: Rc::default(),
            config: set_config(set.name, role, &set.members, rng),
        }
    });
    sets.collect()
}

/// Has a process watch its own clock.
fn watch(cluster: &Rc<Cluster>, name: String) -> impl Fn() + use<> + 'static {
    let cluster = cluster.clone();
    move || clocks::watch(cluster.clone(), name.clone())
}

/// Adds a router, which has no disk.
pub fn add_router(
    sim: &Sim,
    cluster: &Rc<Cluster>,
    name: &str,
    rng: &mut Rng,
    fault: Fault,
) -> Member {
    let storage = StorageOptions::hostile("/none");
    let of_node = NodeConfig::for_simulation(storage, PORT, fault.of_exec());
    let string = ConnectionString::parse(&cluster.config.string());
    let config = Arc::new(RouterConfig {
        router: RouterProcess {
            process: of_node.node.process,
            config_servers: string.expect("a connection string"),
            planted_fault: fault.of_router(),
        },
        server: ServerOptions::default(),
        listen: of_node.listen,
        set_parameters: Vec::new(),
        log_control: None,
        process: None,
        on_serving: None,
        startup_warnings: Vec::new(),
    });
    let watch = Rc::new(watch(cluster, name.to_owned()));
    let cores = rng.between(1, 3) as usize;
    Member::add(sim, name, cores, move |core| {
        let (config, watch) = (config.clone(), watch.clone());
        async move {
            if core.0 == 0 {
                watch();
            }
            let ran = run_core(core, config).await;
            ran.map_err(|why| why.to_string())
        }
    })
}

/// Adds the judge of each set, and an observer of each member.
pub fn add_judges(sim: &Sim, sets: &[SetRun]) {
    for set in sets {
        let (shared, orders) = (set.shared.clone(), set.orders.clone());
        let config = set.config.clone();
        sim.add_node(&format!("judge-{}", set.name), 1, move |_| {
            judge::judge(shared.clone(), orders.clone(), config.clone())
        });
        for (at, member) in set.members.iter().enumerate() {
            let (shared, sightings) = (set.shared.clone(), set.sightings.clone());
            let (handle, place) = (sim.handle(), (at, member.node));
            let name = format!("observer-{}-{at}", set.name);
            let rng = sim.random_stream(&name);
            sim.add_node(&name, 1, move |_| {
                let times = (rng.clone(), OBSERVED_MS);
                observer::observe(
                    shared.clone(),
                    sightings.clone(),
                    handle.clone(),
                    place,
                    times,
                )
            });
        }
    }
}

/// Adds a client, which has a stream of random numbers of its own.
fn add_client<F>(sim: &Sim, name: &str, client: impl Fn(Rng) -> F + 'static)
where
    F: Future<Output = ()> + 'static,
{
    let rng = sim.random_stream(name);
    sim.add_node(name, 1, move |_| client(rng.clone()));
}

/// Adds all clients, the operator, and the one that gives the verdict.
pub fn add_clients(sim: &Sim, cluster: &Rc<Cluster>, rng: &mut Rng) {
    let of_all = |name: &str, client: fn(Rc<Cluster>, Rng) -> LocalBoxFuture<'static, ()>| {
        let cluster = cluster.clone();
        add_client(sim, name, move |rng| client(cluster.clone(), rng));
    };
    of_all("operator", |cluster, rng| {
        Box::pin(operator::operate(cluster, rng))
    });
    of_all("verdict", |cluster, _| Box::pin(verdict::judge(cluster)));
    for number in 0..rng.between(1, 2) {
        of_all(&format!("visitor-{number}"), |cluster, rng| {
            Box::pin(lives::visit(cluster, rng))
        });
    }
    for number in 0..cluster.places.len() {
        let cluster = cluster.clone();
        add_client(sim, &format!("leader-{number}"), move |rng| {
            lives::lead(cluster.clone(), number, rng)
        });
    }
    of_all("wanderer", |cluster, rng| {
        Box::pin(strays::wander(cluster, rng))
    });
    add_clients_of_series(sim, cluster);
    let cluster_of_maker = cluster.clone();
    add_client(sim, "maker", move |rng| {
        clients::make(cluster_of_maker.clone(), 0, rng)
    });
    for (at, shared) in cluster.stable.iter().enumerate() {
        for number in 0..rng.between(1, 2) as usize {
            let shared = shared.clone();
            add_client(sim, &format!("writer-{at}-{number}"), move |rng| {
                workload::work(shared.clone(), number, rng)
            });
        }
    }
    for (name, shared) in [
        ("batches", &cluster.stable[0]),
        ("batches of shards", &cluster.plain),
        ("batches of what moves", &cluster.moving),
    ] {
        let shared = shared.clone();
        add_client(sim, name, move |rng| {
            clients::read_in_batches(shared.clone(), rng)
        });
    }
    for (name, shared) in [
        ("plain", &cluster.plain),
        ("plain of what moves", &cluster.moving),
    ] {
        let shared = shared.clone();
        add_client(sim, name, move |rng| {
            clients::write_plainly(shared.clone(), rng)
        });
    }
    of_all("mover", |cluster, rng| {
        Box::pin(movers::move_about(cluster, rng))
    });
    if rng.chance(0.7) {
        let shared = cluster.stable[1].clone();
        add_client(sim, "catalog", move |rng| {
            workload::change_catalog(shared.clone(), rng)
        });
    }
}

fn add_clients_of_series(sim: &Sim, cluster: &Rc<Cluster>) {
    let of_leader = cluster.clone();
    add_client(sim, "leader of the series", move |rng| {
        series::lead(of_leader.clone(), rng)
    });
    for number in 0..SERIES_VISITORS {
        let cluster = cluster.clone();
        let name = format!("visitor of the series {number}");
        add_client(sim, &name, move |rng| series::visit(cluster.clone(), rng));
    }
}

/// Has the clocks of processes differ; whether they do.
pub fn set_clocks(sim: &Sim, nodes: &[NodeId], rng: &mut Rng) -> bool {
    let differ = rng.chance(0.5);
    for node in nodes.iter().filter(|_| differ) {
        let apart = rng.below(APART_MICROS) as i64;
        sim.shift_wall_clock(*node, apart - APART_MICROS as i64 / 2);
    }
    differ
}
