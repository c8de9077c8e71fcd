//! The host layer on simulated nodes: three members of a set that answer hellos, and a process of
//! two cores that monitors them.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::rc::Rc;

use pinion_bson::{ObjectId, RawArrayBuf, RawDocumentBuf, cstr, get, rawdoc};
use pinion_runtime::sim::{Death, NodeId, Sim, SimHandle, SimOptions};
use pinion_runtime::{
    CoreId, Duration, Listener, Rng, call_on, core_id, now, random_stream, request_shutdown,
    set_core_local, shutdown_requested, sleep, timeout,
};
use pinion_server::{HostFigures, Introduction, PoolLimits, Resend, ServerOptions, serve};
use pinion_sharding_protocol::{ConnectionString, MemberKind};
use pinion_sharding_router::limits::SERVER_SELECTION_TIMEOUT;
use pinion_sharding_router::{Hosts, HostsOptions, Retry, ShownHost, install_hosts};
use pinion_wire::idl::{ReadPreference, ReadPreferenceMode, TagSet};
use pinion_wire::{
    CommandRole, CommandSpec, Error, ErrorCode, HostPort, Invocation, OpContext, Registry, Reply,
    Result,
};

const PORT: u16 = 27017;
const MEMBERS: usize = 3;
const LONG: Duration = Duration::from_secs(60);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The set as its members see it.
struct Cluster {
    primary: Cell<Option<usize>>,
    /// Its hosts, by the numbers of their members.
    listed: RefCell<Vec<usize>>,
    election: Cell<u8>,
    /// `topologyVersion.counter` of all members.
    counter: Cell<i64>,
    /// Members that know no `topologyVersion`.
    is_old: Cell<bool>,
    hellos: Cell<u32>,
    writes: Cell<u32>,
}

impl Cluster {
    fn new() -> Cluster {
        Cluster {
            primary: Cell::new(Some(0)),
            listed: RefCell::new((0..MEMBERS).collect()),
            election: Cell::new(1),
            counter: Cell::new(1),
            is_old: Cell::new(false),
            hellos: Cell::new(0),
            writes: Cell::new(0),
        }
    }

    fn change(&self) {
        self.counter.set(self.counter.get() + 1);
    }

    fn elect(&self, primary: Option<usize>) {
        self.primary.set(primary);
        self.election.set(self.election.get() + 1);
        self.change();
    }
}

fn address(member: usize) -> HostPort {
    // As the simulation gives addresses to its nodes.
    HostPort::new(format!("10.0.0.{}", member + 1), PORT)
}

fn object_id(first: u8, last: u8) -> ObjectId {
    let mut bytes = [0; 12];
    (bytes[0], bytes[11]) = (first, last);
    ObjectId::from_bytes(bytes)
}

/// One life of a member.
#[derive(Clone)]
struct Member {
    cluster: Rc<Cluster>,
    number: usize,
    process: ObjectId,
}

impl Member {
    fn is_primary(&self) -> bool {
        self.cluster.primary.get() == Some(self.number)
    }

    fn version(&self) -> RawDocumentBuf {
        rawdoc! { "processId": self.process, "counter": self.cluster.counter.get() }
    }

    async fn hello(self, inv: Invocation) -> Result<Reply> {
        self.cluster.hellos.set(self.cluster.hellos.get() + 1);
        let awaited = get(inv.body(), "topologyVersion").and_then(|version| version.as_document());
        if let Some(version) = awaited {
            let limit_ms = inv
                .body()
                .get_i64("maxAwaitTimeMS")
                .expect("it limits its wait");
            let until = now() + ms(limit_ms as u64);
            while *version == *self.version() && now() < until {
                sleep(ms(5)).await;
            }
        }
        let mut reply = Reply::new();
        let listed = self.cluster.listed.borrow().clone();
        reply.append("ismaster", self.is_primary());
        reply.append("secondary", !self.is_primary());
        reply.append("setName", "rs").append("setVersion", 1i32);
        let mut hosts = RawArrayBuf::new();
        for number in listed {
            hosts.push(address(number).to_string());
        }
        let mut fields = rawdoc! { "hosts": hosts, "tags": { "n": self.number.to_string() } };
        if self.is_primary() {
            fields.append(
                cstr!("electionId"),
                object_id(0x7f, self.cluster.election.get()),
            );
        }
        if !self.cluster.is_old.get() {
            fields.append(cstr!("topologyVersion"), self.version());
        }
        for (name, value) in pinion_bson::elements(&fields) {
            reply.append(name, value);
        }
        reply.append("me", &*address(self.number).to_string());
        reply.append("maxWireVersion", 25i32);
        if inv.exhaust_allowed && awaited.is_some() {
            reply.stream_next(rawdoc! {
                "isMaster": 1, "topologyVersion": self.version(), "maxAwaitTimeMS": 10_000i64,
                "$db": "admin",
            });
        }
        Ok(reply)
    }

    /// What only a primary does.
    fn write(&self) -> Result<Reply> {
        if !self.is_primary() {
            let code = ErrorCode::NOT_WRITABLE_PRIMARY;
            return Err(Error::new(code, "not primary"));
        }
        self.cluster.writes.set(self.cluster.writes.get() + 1);
        let mut reply = Reply::new();
        reply.append("by", self.number as i32);
        Ok(reply)
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::new();
        let hello = Box::leak(Box::new(CommandSpec {
            aliases: &["isMaster"],
            role: CommandRole::Hello,
            ..CommandSpec::of_task("hello")
        }));
        let member = self.clone();
        registry.attach(hello, move |inv| member.clone().hello(inv));
        let write = Box::leak(Box::new(CommandSpec::of_task("write")));
        let member = self.clone();
        registry.attach(write, move |_| ready(member.write()));
        let ping = Box::leak(Box::new(CommandSpec::of_task("ping")));
        registry.attach(ping, |_| ready(Ok(Reply::new())));
        registry
    }
}

/// What a test has in its hands.
struct World {
    cluster: Rc<Cluster>,
    sim: SimHandle,
    client: NodeId,
}

fn write() -> RawDocumentBuf {
    rawdoc! { "write": 1, "$db": "admin" }
}

fn mode(mode: ReadPreferenceMode) -> ReadPreference {
    ReadPreference::from(mode)
}

impl World {
    /// Has this core know the set, of which it is given some members.
    async fn watch(&self, seeds: &[usize]) {
        let hosts = seeds.iter().map(|number| address(*number)).collect();
        Hosts::here()
            .watch(&ConnectionString::new("rs", hosts))
            .await;
    }

    async fn select(&self, of: ReadPreferenceMode) -> Result<usize> {
        let host = Hosts::here().select("rs", &mode(of), None, None).await?;
        let found = (0..MEMBERS).find(|number| address(*number) == host);
        Ok(found.expect("one of the members"))
    }

    /// Waits until the primary of this core's view is this one.
    async fn expect_primary(&self, number: usize, within: Duration) {
        let reached = timeout(within, async {
            while self.select(ReadPreferenceMode::Primary).await.ok() != Some(number) {
                sleep(ms(5)).await;
            }
        });
        reached.await.expect("the primary is found in time");
    }

    /// Runs a write at the primary: by which member.
    async fn write(&self, limit: Duration, retry: Retry) -> Result<usize> {
        let preference = mode(ReadPreferenceMode::Primary);
        let hosts = Hosts::here();
        let ran = hosts.run("rs", &preference, &write(), limit, retry).await;
        let (host, reply) = ran?;
        let by = reply.body().get_i32("by").expect("it says so") as usize;
        assert_eq!(address(by), host);
        Ok(by)
    }

    fn kill(&self, number: usize) {
        self.sim.crash(NodeId(number), Death::Kill);
    }

    fn restart(&self, number: usize) {
        if !self.sim.is_running(NodeId(number)) {
            self.sim.restart(NodeId(number), 1);
        }
    }
}

fn install() {
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
}

/// Runs a test on core 1, while the monitors are on core 0, on several networks.
fn run<F, Fut>(test: F)
where
    F: Fn(World) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let test = Rc::new(test);
    for seed in 1..=10 {
        run_seed(seed, SimOptions::default(), test.clone());
        run_seed(seed, SimOptions::random(seed), test.clone());
    }
}

fn run_seed<F, Fut>(seed: u64, options: SimOptions, test: Rc<F>)
where
    F: Fn(World) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(seed, options);
    let cluster = Rc::new(Cluster::new());
    let starts = Rc::new(Cell::new(0));
    for number in 0..MEMBERS {
        let (cluster, starts) = (cluster.clone(), starts.clone());
        let node = sim.add_node(&format!("member {number}"), 1, move |_| {
            starts.set(starts.get() + 1);
            let member = Member {
                cluster: cluster.clone(),
                number,
                process: object_id(1, starts.get()),
            };
            async move {
                set_core_local(Rc::new(member.registry()));
                let address = SocketAddr::from(([0, 0, 0, 0], PORT));
                let listener = Listener::bind(address).await.unwrap();
                serve(vec![listener], ServerOptions::default(), ready(())).await;
            }
        });
        assert_eq!(sim.node_ip(node).to_string(), address(number).host);
    }
    let handle = sim.handle();
    let ended = Rc::new(Cell::new(false));
    let end = ended.clone();
    let client = sim.add_node("client", 2, move |core| {
        let (test, end) = (test.clone(), end.clone());
        let (cluster, sim) = (cluster.clone(), handle.clone());
        async move {
            install();
            if core == CoreId(0) {
                shutdown_requested().await;
                return;
            }
            sleep(ms(50)).await;
            let client = NodeId(MEMBERS);
            test(World {
                cluster,
                sim,
                client,
            })
            .await;
            end.set(true);
            request_shutdown();
        }
    });
    sim.run_until_down(client).expect("the test ends");
    assert!(ended.get());
}

#[test]
fn selection_follows_the_set() {
    run(|w| async move {
        w.watch(&[2]).await;
        assert_eq!(w.select(ReadPreferenceMode::Primary).await.unwrap(), 0);
        let topology = Hosts::here().topology("rs").expect("it is monitored");
        assert_eq!(topology.members.len(), MEMBERS);
        // Each member streams its changes, so that none has to be asked.
        w.cluster.elect(Some(1));
        w.expect_primary(1, ms(300)).await;
        sleep(ms(500)).await;
        assert_ne!(w.select(ReadPreferenceMode::Secondary).await.unwrap(), 1);
        // One that has stepped down itself.
        w.cluster.elect(None);
        sleep(ms(300)).await;
        let none = Hosts::here().topology("rs").expect("it is monitored");
        assert_eq!(none.primary(), None);
        w.cluster.elect(Some(2));
        w.expect_primary(2, ms(300)).await;
    });
}

#[test]
fn the_other_core_has_the_same_view() {
    run(|w| async move {
        assert_eq!(core_id(), CoreId(1));
        w.watch(&[0, 1]).await;
        let number = || Hosts::here().topology("rs").map(|topology| topology.number);
        assert!(call_on(CoreId(0), number).await.is_some() && number().is_some());
        w.select(ReadPreferenceMode::Primary).await.unwrap();
        sleep(ms(3000)).await;
        assert_eq!(call_on(CoreId(0), number).await, number());
        // What is monitored already stays as it is while there is a primary.
        w.watch(&[0]).await;
        assert_eq!(Hosts::here().topology("rs").unwrap().members.len(), MEMBERS);
    });
}

#[test]
fn a_member_that_dies_is_left_out_and_comes_back() {
    run(|w| async move {
        w.watch(&[0, 1, 2]).await;
        w.expect_primary(0, ms(1000)).await;
        w.kill(0);
        let written = async {
            let started = now();
            let by = w.write(LONG, Retry::Idempotent).await;
            (
                by.expect("another member becomes primary"),
                started.elapsed(),
            )
        };
        let elected = async {
            sleep(ms(2000)).await;
            w.cluster.elect(Some(1));
        };
        let elected = async {
            elected.await;
            (0, Duration::ZERO)
        };
        let both: Vec<_> = join(written, elected).await;
        let (by, took) = both[0];
        assert_eq!(by, 1);
        assert!(took >= ms(1900) && took < ms(3500), "{took:?}");
        let shown = Hosts::here().shown_sets().await;
        let dead: Vec<&ShownHost> = shown[0].hosts.iter().filter(|host| !host.ok).collect();
        assert_eq!(dead.len(), 1);
        assert_eq!(dead[0].addr, address(0));
        w.restart(0);
        sleep(ms(11_000)).await;
        let topology = Hosts::here().topology("rs").unwrap();
        let back = topology.member(&address(0)).expect("it is listed");
        assert_eq!(back.kind, MemberKind::Secondary);
    });
}

/// Runs two futures of the same output side by side.
async fn join<T>(a: impl Future<Output = T>, b: impl Future<Output = T>) -> Vec<T> {
    let futures: [std::pin::Pin<Box<dyn Future<Output = T> + '_>>; 2] = [Box::pin(a), Box::pin(b)];
    pinion_runtime::join_all(futures).await
}

#[test]
fn a_refusal_is_known_before_the_command_returns() {
    run(|w| async move {
        w.cluster.is_old.set(true);
        w.watch(&[0, 1, 2]).await;
        w.expect_primary(0, ms(1000)).await;
        sleep(ms(1000)).await;
        // Without streams no member reports that.
        w.cluster.elect(Some(2));
        let hosts = Hosts::here();
        let (old, command) = (address(0), write());
        let refused = hosts.run_at("rs", &old, &command, LONG, Resend::Never);
        let refused = refused.await.expect_err("it is no primary any more");
        let code = ErrorCode::NOT_WRITABLE_PRIMARY;
        assert_eq!(refused.refusal().map(|error| error.code), Some(code));
        assert_ne!(hosts.topology("rs").unwrap().primary(), Some(&old));
        let started = now();
        assert_eq!(w.write(LONG, Retry::Never).await.unwrap(), 2);
        assert!(started.elapsed() < ms(800), "{:?}", started.elapsed());
        assert_eq!(w.cluster.writes.get(), 1);
    });
}

#[test]
fn commands_are_sent_again_where_they_may_be() {
    run(|w| async move {
        w.cluster.is_old.set(true);
        w.watch(&[0]).await;
        w.expect_primary(0, ms(1000)).await;
        sleep(ms(1000)).await;
        w.cluster.elect(Some(1));
        assert_eq!(w.write(LONG, Retry::Idempotent).await.unwrap(), 1);
        sleep(ms(1000)).await;
        w.cluster.elect(Some(2));
        let refused = w.write(LONG, Retry::Never).await.expect_err("not primary");
        assert_eq!(refused.code, ErrorCode::NOT_WRITABLE_PRIMARY);
        assert_eq!(w.cluster.writes.get(), 1);
    });
}

#[test]
fn a_process_that_shuts_down_waits_for_no_member() {
    run(|w| async move {
        w.watch(&[0]).await;
        w.expect_primary(0, ms(1000)).await;
        let hosts = Hosts::here();
        let primary = mode(ReadPreferenceMode::Primary);
        let missing = ReadPreference {
            tags: vec![TagSet::new(rawdoc! { "n": "none" })],
            ..mode(ReadPreferenceMode::Secondary)
        };
        let waits = hosts.select("rs", &missing, None, None);
        let stopped = async {
            sleep(ms(100)).await;
            hosts.stop();
            Ok(address(0))
        };
        let started = now();
        let ended = join(waits, stopped).await;
        let error = ended[0].as_ref().expect_err("no member fits");
        assert_eq!(error.code, ErrorCode::SHUTDOWN_IN_PROGRESS);
        assert!(started.elapsed() < ms(200), "{:?}", started.elapsed());
        // What runs comes to its end.
        let selected = hosts.select("rs", &primary, None, None).await;
        assert_eq!(selected.expect("it is known"), address(0));
        assert_eq!(w.write(LONG, Retry::Never).await.unwrap(), 0);
    });
}

#[test]
fn no_member_fits() {
    run(|w| async move {
        w.cluster.elect(None);
        w.watch(&[0]).await;
        let started = now();
        let none = w
            .select(ReadPreferenceMode::Primary)
            .await
            .expect_err("none");
        let took = started.elapsed();
        assert!(took >= SERVER_SELECTION_TIMEOUT && took < SERVER_SELECTION_TIMEOUT + ms(500));
        assert_eq!(none.code, ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE);
        let text = "Could not find host matching read preference { mode: \"primary\" } for set rs";
        assert_eq!(none.message, text);
        // A command does not wait for longer than it may take.
        let started = now();
        let none = w.write(ms(700), Retry::Idempotent).await.expect_err("none");
        assert_eq!(none.code, ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE);
        let took = started.elapsed();
        assert!(took >= ms(700) && took < ms(800), "{took:?}");
        assert!(w.select(ReadPreferenceMode::Nearest).await.is_ok());
    });
}

#[test]
fn a_wait_ends_with_its_operation() {
    static SPEC: CommandSpec = CommandSpec::of_task("find");
    run(|w| async move {
        w.cluster.elect(None);
        w.watch(&[0]).await;
        let primary = mode(ReadPreferenceMode::Primary);
        let started = now();
        let mut ctx = OpContext::internal(1, &SPEC, "test", started.as_nanos());
        ctx.deadline_ns = Some((started + ms(400)).as_nanos());
        let hosts = Hosts::here();
        let late = hosts.select("rs", &primary, None, Some(&ctx)).await;
        assert_eq!(late.expect_err("none").code, ErrorCode::MAX_TIME_MS_EXPIRED);
        assert!(started.elapsed() < ms(500), "{:?}", started.elapsed());
        let ctx = OpContext::internal(2, &SPEC, "test", started.as_nanos());
        let killed = async {
            sleep(ms(400)).await;
            ctx.kill(ErrorCode::INTERRUPTED);
            Ok(address(0))
        };
        let selected = join(hosts.select("rs", &primary, None, Some(&ctx)), killed).await;
        let killed = selected[0].as_ref().expect_err("none");
        assert_eq!(killed.code, ErrorCode::INTERRUPTED);
    });
}

#[test]
fn changes_of_the_hosts_are_reported() {
    run(|w| async move {
        let strings: fn() -> Rc<RefCell<Vec<String>>> = || pinion_runtime::core_local();
        call_on(CoreId(0), move || {
            set_core_local(Rc::new(RefCell::new(Vec::<String>::new())));
            Hosts::here()
                .on_new_string(move |string| strings().borrow_mut().push(string.to_string()));
        })
        .await;
        w.watch(&[1]).await;
        w.expect_primary(0, ms(1000)).await;
        w.cluster.listed.borrow_mut().pop();
        w.cluster.change();
        sleep(ms(500)).await;
        let seen = call_on(CoreId(0), move || strings().borrow().clone()).await;
        let all = "rs/10.0.0.1:27017,10.0.0.2:27017,10.0.0.3:27017";
        assert_eq!(seen, [all, "rs/10.0.0.1:27017,10.0.0.2:27017"]);
        assert_eq!(Hosts::here().topology("rs").unwrap().members.len(), 2);
    });
}

#[test]
fn what_is_not_monitored_any_more_is_left_alone() {
    run(|w| async move {
        w.watch(&[0]).await;
        w.expect_primary(0, ms(1000)).await;
        w.write(LONG, Retry::Never).await.unwrap();
        assert!(pinion_runtime::stats().connections_open > 0);
        Hosts::here().unwatch("rs").await;
        let gone = || Hosts::here().topology("rs").is_none();
        assert!(gone() && call_on(CoreId(0), gone).await);
        let none = w
            .select(ReadPreferenceMode::Primary)
            .await
            .expect_err("none");
        assert_eq!(none.code, ErrorCode::REPLICA_SET_MONITOR_REMOVED);
        let open = |figures: Vec<HostFigures>| {
            let open = figures
                .iter()
                .map(|of| of.in_use + of.available + of.refreshing);
            open.sum::<u64>()
        };
        sleep(ms(1000)).await;
        assert_eq!(open(Hosts::here().figures()), 0);
        let of_monitors = call_on(CoreId(0), || Hosts::here().monitor_figures()).await;
        assert_eq!(open(of_monitors), 0);
        let connections = || pinion_runtime::stats().connections_open;
        let open = [connections(), call_on(CoreId(0), connections).await];
        assert_eq!(open, [0, 0]);
        // A member that streams notices only when it sends to the closed connection.
        sleep(ms(40_000)).await;
        let hellos = w.cluster.hellos.get();
        sleep(LONG).await;
        assert_eq!(w.cluster.hellos.get(), hellos);
        // It can be monitored again.
        w.cluster.elect(Some(1));
        w.watch(&[0]).await;
        w.expect_primary(1, ms(1000)).await;
    });
}

#[test]
fn members_are_not_asked_all_the_time() {
    run(|w| async move {
        w.watch(&[0, 1, 2]).await;
        w.expect_primary(0, ms(1000)).await;
        // Once all connections are there.
        sleep(ms(12_000)).await;
        let before = w.cluster.hellos.get();
        sleep(LONG).await;
        let asked = w.cluster.hellos.get() - before;
        // Each streams one in ten seconds.
        assert!((15..=24).contains(&asked), "{asked}");
    });
}

async fn disturb(w: &World, rng: &mut Rng) {
    let number = rng.below(MEMBERS as u64) as usize;
    match rng.below(12) {
        0 | 1 => w.cluster.elect(Some(number)),
        2 => w.cluster.elect(None),
        3 => w.kill(number),
        4 | 5 => w.restart(number),
        6 => w.sim.cut(w.client, NodeId(number)),
        7 => w.sim.heal(),
        8 => w.sim.clog(w.client, NodeId(number), ms(rng.below(3000))),
        _ => {}
    }
}

#[test]
fn whatever_happens_the_primary_is_found() {
    run(|w| async move {
        let mut rng = random_stream("disturbances");
        w.watch(&[0, 1, 2]).await;
        assert_eq!(w.write(LONG, Retry::Never).await.unwrap(), 0);
        for _ in 0..40 {
            disturb(&w, &mut rng).await;
            sleep(ms(rng.below(1500))).await;
            let limit = ms(100 + rng.below(2000));
            let started = now();
            let written = w.write(limit, Retry::Idempotent).await;
            assert!(started.elapsed() <= limit + ms(200), "{written:?}");
        }
        w.sim.heal();
        for number in 0..MEMBERS {
            w.restart(number);
        }
        let primary = rng.below(MEMBERS as u64) as usize;
        w.cluster.elect(Some(primary));
        // A host that was cut off is asked within ten seconds, or given up within twenty.
        w.expect_primary(primary, Duration::from_secs(31)).await;
        assert_eq!(w.write(LONG, Retry::Idempotent).await.unwrap(), primary);
        sleep(Duration::from_secs(31)).await;
        let shown = Hosts::here().shown_sets().await;
        assert!(shown[0].hosts.iter().all(|host| host.ok), "{shown:?}");
        let figures = Hosts::here().figures();
        assert!(
            figures
                .iter()
                .all(|of| of.in_use == 0 && of.refreshing == 0)
        );
    });
}
