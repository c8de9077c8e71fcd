//! The whole cluster in the simulator: a config server, shards, a router of two cores and a client.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, get};
use pinion_runtime::sim::{Death, NodeId, Sim, SimHandle, SimOptions};
use pinion_runtime::{
    CoreId, Duration, Listener, Rng, on_all_cores, request_shutdown, set_core_local,
    shutdown_requested, sleep,
};
use pinion_server::{Introduction, PoolLimits, RemoteError, Resend, ServerOptions, serve};
use pinion_service::options::{HostInfo, ProcessOptions};
use pinion_sharding_protocol::ConnectionString;
use pinion_sharding_router::limits::SERVER_SELECTION_TIMEOUT;
use pinion_sharding_router::{
    Hosts, HostsOptions, PlantedFault, RouterProcess, install_hosts, open, register_commands,
};
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, HostPort, Registry};

use super::nodes::Member;
use super::world::{DB, Shared, World, host_of, shard_name};

const PORT: u16 = 27017;

/// A client of the router.
#[derive(Clone)]
pub struct Client {
    pub world: Shared,
    sim: SimHandle,
    router: HostPort,
}

impl Client {
    /// Runs a command on the database of the tests.
    pub async fn run(&self, command: &RawDocument) -> Result<RawDocumentBuf, Error> {
        let mut sent = command.to_owned();
        if pinion_bson::get(command, "$db").is_none() {
            sent.append(pinion_bson::cstr!("$db"), DB);
        }
        let hosts = Hosts::here();
        let limit = Duration::from_secs(600);
        let ran = hosts
            .run_at("none", &self.router, &sent, limit, Resend::Never)
            .await;
        match ran {
            Ok(reply) => Ok(reply.body().to_owned()),
            Err(RemoteError::Refused(error)) => Err(*error),
            Err(error) => panic!("the router does not answer: {error}"),
        }
    }

    pub async fn expect(&self, command: &RawDocument) -> RawDocumentBuf {
        let ran = self.run(command).await;
        ran.unwrap_or_else(|error| {
            panic!("{}: {error}", pinion_query::document_text(command));
        })
    }

    /// All documents of a command's cursor, read in batches of a size.
    pub async fn read(
        &self,
        command: &RawDocument,
        batch_size: i64,
    ) -> Result<Vec<RawDocumentBuf>, Error> {
        let mut reply = self.run(command).await?;
        let mut found = Vec::new();
        let mut batch = "firstBatch";
        loop {
            let cursor = get(&reply, "cursor").and_then(|cursor| cursor.as_document());
            let cursor = cursor.expect("it has a cursor");
            let Some(RawBsonRef::Array(documents)) = get(cursor, batch) else {
                panic!("a batch is an array");
            };
            for document in pinion_bson::values(documents) {
                found.push(document.as_document().expect("a document").to_owned());
            }
            let id = get(cursor, "id").and_then(i64_exact).expect("an id");
            if id == 0 {
                return Ok(found);
            }
            let name = pinion_bson::elements(command).next().expect("a command").1;
            let mut more = pinion_bson::DocBuilder::new();
            more.append("getMore", id)
                .append("collection", name.as_str().expect("a name"));
            more.append("batchSize", batch_size);
            reply = self.run(&more.finish()).await?;
            batch = "nextBatch";
        }
    }

    pub fn kill_config_server(&self) {
        self.sim.crash(NodeId(0), Death::Kill);
    }

    /// Ends the process of a shard.
    pub fn kill_shard(&self, shard: usize) {
        self.sim.crash(NodeId(shard + 1), Death::Kill);
    }

    /// How often the config servers were asked for something.
    pub fn config_reads(&self, name: &str) -> u32 {
        self.world
            .borrow()
            .config_reads
            .get(name)
            .copied()
            .unwrap_or(0)
    }
}

async fn serve_here() {
    let address = SocketAddr::from(([0, 0, 0, 0], PORT));
    let listener = Listener::bind(address).await.expect("the port is free");
    serve(vec![listener], ServerOptions::default(), ready(())).await;
}

fn router_process() -> RouterProcess {
    let config = HostPort::new(host_of(0).trim_end_matches(":27017").to_owned(), PORT);
    RouterProcess {
        planted_fault: PlantedFault::default(),
        process: ProcessOptions {
            version: "1".into(),
            git_version: String::new(),
            host: "router:27017".into(),
            port: PORT,
            pid: 1,
            argv: Vec::new(),
            parsed: RawDocumentBuf::new(),
            host_info: HostInfo::default(),
            member_auth: None,
        },
        config_servers: ConnectionString::new("cfg", vec![config]),
    }
}

/// Runs a test on a cluster with this number of shards, on two networks.
pub fn run<F, Fut>(seed: u64, shards: usize, test: F)
where
    F: Fn(Client, Rng) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let test = Rc::new(test);
    for options in [SimOptions::default(), SimOptions::random(seed)] {
        let sim = Sim::new(seed, options);
        let world: Shared = Rc::new(RefCell::new(World::new(shards)));
        for number in 0..=shards {
            add_member(&sim, number, &world);
        }
        add_router(&sim);
        let router = host_of(shards + 1);
        let router = HostPort::new(router.trim_end_matches(":27017").to_owned(), PORT);
        let sim_handle = sim.handle();
        let client = Client {
            world,
            sim: sim_handle,
            router,
        };
        let ended = Rc::new(Cell::new(false));
        let node = add_client(&sim, client, test.clone(), seed, ended.clone());
        sim.run_until_down(node).expect("the test ends");
        assert!(ended.get());
    }
}

fn add_member(sim: &Sim, number: usize, world: &Shared) {
    let member = Member {
        world: world.clone(),
        shard: number.checked_sub(1),
    };
    let name = member.shard.map_or("config".to_owned(), shard_name);
    sim.add_node(&name, 1, move |_| {
        let member = member.clone();
        async move {
            set_core_local(Rc::new(member.registry()));
            serve_here().await;
        }
    });
}

fn add_router(sim: &Sim) {
    sim.add_node("router", 2, |core| async move {
        if core != CoreId(0) {
            shutdown_requested().await;
            return;
        }
        open(router_process()).await;
        on_all_cores(|_| async {
            let mut registry = Registry::new();
            register_commands(&mut registry);
            set_core_local(Rc::new(registry));
        })
        .await;
        serve_here().await;
    });
}

fn add_client<F, Fut>(
    sim: &Sim,
    client: Client,
    test: Rc<F>,
    seed: u64,
    ended: Rc<Cell<bool>>,
) -> NodeId
where
    F: Fn(Client, Rng) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    sim.add_node("client", 1, move |_| {
        let (client, test, ended) = (client.clone(), test.clone(), ended.clone());
        async move {
            install_hosts(HostsOptions {
                introduction: Introduction {
                    name: "tester",
                    version: "1",
                    max_wire_version: 25,
                },
                auth: None,
                limits: PoolLimits::default(),
                server_selection_timeout: SERVER_SELECTION_TIMEOUT,
            });
            sleep(Duration::from_millis(500)).await;
            test(client, Rng::from_seed(seed)).await;
            ended.set(true);
            request_shutdown();
        }
    })
}
