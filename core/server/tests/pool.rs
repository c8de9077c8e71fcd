//! Pools of outgoing connections on simulated nodes: a server of one core that takes its time, and
//! a process that speaks to it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, pending, poll_fn, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::Poll;

use pinion_auth::{
    ClientFirst, Hash, MIN_ITERATIONS, MemberAuth, MemberKeys, Secrets, ServerConversation,
};
use pinion_bson::{Binary, BinarySubtype, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::sim::{Death, NodeId, Sim, SimHandle, SimOptions};
use pinion_runtime::{
    Duration, Instant, JoinHandle, Listener, Queue, Rng, join_all, now, random_stream,
    set_core_local, sleep, spawn, timeout,
};
use pinion_server::{
    HostFigures, Introduction, Pool, PoolLimits, PoolOptions, RemoteError, RemoteReply, Resend,
    ServerOptions, serve,
};
use pinion_wire::{
    CommandRole, CommandSpec, Error, ErrorCode, HostPort, Invocation, Registry, Reply, Result,
};

const PORT: u16 = 27017;
const SALT: &[u8] = b"salt of the other side";

/// How the server answers hellos, and what it has seen of them.
#[derive(Default)]
struct Hellos {
    /// How long each takes.
    delay: Cell<Duration>,
    /// How many are never answered.
    hanging: Cell<u32>,
    /// The code with which all are refused; zero if they are not.
    refused_with: Cell<i32>,
    count: Cell<u32>,
    under_way: Cell<u32>,
    most_under_way: Cell<u32>,
    last: RefCell<RawDocumentBuf>,
}

/// What the server and the test share.
#[derive(Default)]
struct Seen {
    hellos: Hellos,
    /// The keys that the server knows; without any it admits every process.
    keys: RefCell<Vec<String>>,
    /// Its conversations, by connection.
    conversations: RefCell<BTreeMap<i32, ServerConversation>>,
    logins: Cell<u32>,
    challenges: Cell<u32>,
}

struct UnderWay<'h>(&'h Hellos);

impl<'h> UnderWay<'h> {
    fn begin(hellos: &'h Hellos) -> UnderWay<'h> {
        let under_way = hellos.under_way.get() + 1;
        hellos.under_way.set(under_way);
        let most = hellos.most_under_way.get();
        hellos.most_under_way.set(most.max(under_way));
        UnderWay(hellos)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}

fn plain(name: &'static str) -> &'static CommandSpec {
    Box::leak(Box::new(CommandSpec::of_task(name)))
}

/// Attaches a handler that shares what the server has seen.
fn attach<F, Fut>(registry: &mut Registry, spec: &'static CommandSpec, seen: &Rc<Seen>, run: F)
where
    F: Fn(Rc<Seen>, Invocation) -> Fut + 'static,
    Fut: Future<Output = Result<Reply>> + 'static,
{
    let seen = seen.clone();
    registry.attach(spec, move |inv| run(seen.clone(), inv));
}

fn registry(seen: &Rc<Seen>) -> Registry {
    let mut registry = Registry::new();
    let hello = Box::leak(Box::new(CommandSpec {
        aliases: &["isMaster"],
        role: CommandRole::Hello,
        ..CommandSpec::of_task("hello")
    }));
    let r = &mut registry;
    attach(r, hello, seen, hello_of);
    attach(r, plain("saslStart"), seen, |seen, inv| async move {
        let mut reply = Reply::new();
        challenge(&seen, &inv, inv.body(), &mut reply)?;
        Ok(reply)
    });
    attach(r, plain("saslContinue"), seen, |seen, inv| async move {
        prove(&seen, &inv)
    });
    attach(r, plain("ping"), seen, |_, inv| async move {
        let mut reply = Reply::new();
        reply.append("connection", inv.ctx.client.connection_id);
        Ok(reply)
    });
    attach(r, plain("wait"), seen, |_, inv| async move {
        let ms = inv.body().get_i32("wait").expect("a number");
        sleep(Duration::from_millis(ms as u64)).await;
        let mut reply = Reply::new();
        reply.append("connection", inv.ctx.client.connection_id);
        Ok(reply)
    });
    attach(r, plain("refuse"), seen, |_, inv| async move {
        let code = inv.body().get_i32("refuse").expect("a number");
        Err(Error::new(ErrorCode(code), "as asked"))
    });
    attach(r, plain("withhold"), seen, |_, _| async {
        let mut reply = Reply::new();
        reply.withhold();
        Ok(reply)
    });
    registry
}

async fn hello_of(seen: Rc<Seen>, inv: Invocation) -> Result<Reply> {
    let hellos = &seen.hellos;
    hellos.count.set(hellos.count.get() + 1);
    hellos.last.replace(inv.body().to_owned());
    let _under_way = UnderWay::begin(hellos);
    if hellos.hanging.get() > 0 {
        hellos.hanging.set(hellos.hanging.get() - 1);
        pending::<()>().await;
    }
    sleep(hellos.delay.get()).await;
    if hellos.refused_with.get() != 0 {
        let code = ErrorCode(hellos.refused_with.get());
        return Err(Error::new(code, "as asked"));
    }
    let mut reply = Reply::new();
    reply.append("ismaster", true);
    if !seen.keys.borrow().is_empty()
        && let Some(RawBsonRef::Document(asked)) =
            pinion_bson::get(inv.body(), "speculativeAuthenticate")
    {
        reply.start_document("speculativeAuthenticate");
        challenge(&seen, &inv, asked, &mut reply)?;
        reply.end();
    }
    Ok(reply)
}

fn text_of(body: &RawDocument) -> &str {
    match pinion_bson::get(body, "payload") {
        Some(RawBsonRef::Binary(binary)) => std::str::from_utf8(binary.bytes).expect("text"),
        other => panic!("{other:?} is no payload"),
    }
}

fn payload(text: String, is_done: bool, reply: &mut Reply) {
    let payload = Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.into_bytes(),
    };
    let fields = rawdoc! { "conversationId": 1, "done": is_done, "payload": payload };
    for name in ["conversationId", "done", "payload"] {
        reply.append(name, pinion_bson::get(&fields, name).expect("it is there"));
    }
}

fn challenge(seen: &Seen, inv: &Invocation, start: &RawDocument, reply: &mut Reply) -> Result<()> {
    if seen.keys.borrow().is_empty() {
        let code = ErrorCode::MECHANISM_UNAVAILABLE;
        return Err(Error::new(code, "there are no keys here"));
    }
    seen.challenges.set(seen.challenges.get() + 1);
    let first = ClientFirst::parse(text_of(start)).expect("a first message");
    let (conversation, text) =
        first.challenge(Hash::Sha256, "a nonce of the server", SALT, MIN_ITERATIONS);
    let mut conversations = seen.conversations.borrow_mut();
    conversations.insert(inv.ctx.client.connection_id, conversation);
    payload(text, false, reply);
    Ok(())
}

fn prove(seen: &Seen, inv: &Invocation) -> Result<Reply> {
    let mut conversations = seen.conversations.borrow_mut();
    let conversation = conversations.remove(&inv.ctx.client.connection_id);
    let keys = seen.keys.borrow();
    let derive = |key: &String| Secrets::derive(Hash::Sha256, key, SALT, MIN_ITERATIONS);
    let secrets: Vec<Secrets> = keys.iter().map(derive).collect();
    let conversation = conversation.expect("a conversation is under way");
    let proven = conversation.finish(text_of(inv.body()), &secrets);
    let failed = |_| Error::new(ErrorCode::AUTHENTICATION_FAILED, "Authentication failed.");
    let mut reply = Reply::new();
    payload(proven.map_err(failed)?, true, &mut reply);
    seen.logins.set(seen.logins.get() + 1);
    Ok(reply)
}

/// What a test has in its hands.
#[derive(Clone)]
struct World {
    pool: Rc<Pool>,
    host: HostPort,
    seen: Rc<Seen>,
    sim: SimHandle,
    server: NodeId,
    client: NodeId,
}

const LONG: Duration = Duration::from_secs(30);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1, "$db": "admin" }
}

fn wait(ms: i32) -> RawDocumentBuf {
    rawdoc! { "wait": ms, "$db": "admin" }
}

impl World {
    async fn run(
        &self,
        command: RawDocumentBuf,
        limit: Duration,
    ) -> Result<RemoteReply, RemoteError> {
        let resend = Resend::Never;
        self.pool.run(&self.host, &command, limit, resend).await
    }

    /// Runs a command that succeeds: the connection that it ran on.
    async fn connection_of(&self, command: RawDocumentBuf) -> i32 {
        let reply = self.run(command, LONG).await.expect("a reply");
        reply.body().get_i32("connection").expect("a number")
    }

    /// Runs a command in a task of its own.
    fn start(
        &self,
        command: RawDocumentBuf,
        limit: Duration,
    ) -> JoinHandle<Result<RemoteReply, RemoteError>> {
        let world = self.clone();
        spawn(
            Queue::Foreground,
            async move { world.run(command, limit).await },
        )
    }

    fn figures(&self) -> HostFigures {
        let figures = self.pool.figures();
        let mut of_host = figures.into_iter().filter(|of| of.host == self.host);
        of_host.next().expect("the host is counted")
    }

    #[track_caller]
    fn check(&self, in_use: u64, available: u64, refreshing: u64, created: u64) {
        let expected = HostFigures {
            host: self.host.clone(),
            in_use,
            available,
            refreshing,
            created,
        };
        assert_eq!(self.figures(), expected);
    }

    async fn restart(&self) {
        self.sim.crash(self.server, Death::Kill);
        self.sim.restart(self.server, 1);
        sleep(ms(50)).await;
    }
}

/// Runs a test with a pool of these limits and keys, on several networks.
fn run_with<F, Fut>(limits: PoolLimits, auth: Option<MemberAuth>, test: F)
where
    F: Fn(World) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let test = Rc::new(test);
    for seed in 1..=10 {
        run_seed(seed, limits, auth.clone(), test.clone());
    }
}

fn run_seed<F, Fut>(seed: u64, limits: PoolLimits, auth: Option<MemberAuth>, test: Rc<F>)
where
    F: Fn(World) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(seed, SimOptions::default());
    let seen = Rc::new(Seen::default());
    let shared = seen.clone();
    let server = sim.add_node("server", 1, move |_| {
        let seen = shared.clone();
        async move {
            set_core_local(Rc::new(registry(&seen)));
            let address = SocketAddr::from(([0, 0, 0, 0], PORT));
            let listener = Listener::bind(address).await.unwrap();
            serve(vec![listener], ServerOptions::default(), ready(())).await;
        }
    });
    let host = HostPort::new(sim.node_ip(server).to_string(), PORT);
    let handle = sim.handle();
    let ended = Rc::new(Cell::new(false));
    let end = ended.clone();
    let client = sim.add_node("client", 1, move |_| {
        let test = test.clone();
        let (host, seen, sim) = (host.clone(), seen.clone(), handle.clone());
        let (auth, end) = (auth.clone(), end.clone());
        async move {
            sleep(ms(20)).await;
            let introduction = Introduction {
                name: "tester",
                version: "1",
                max_wire_version: 25,
            };
            let pool = Rc::new(Pool::new(PoolOptions {
                introduction,
                auth,
                limits,
            }));
            test(World {
                pool,
                host,
                seen,
                sim,
                server,
                client: NodeId(server.0 + 1),
            })
            .await;
            end.set(true);
        }
    });
    sim.run_until_down(client).expect("the test ends");
    assert!(ended.get());
}

fn run<F, Fut>(limits: PoolLimits, test: F)
where
    F: Fn(World) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    run_with(limits, None, test);
}

/// One connection at most.
fn one() -> PoolLimits {
    PoolLimits {
        connections: 1,
        connecting: 1,
        idle: 1,
        ..PoolLimits::default()
    }
}

#[track_caller]
fn code(reply: Result<RemoteReply, RemoteError>) -> ErrorCode {
    reply.expect_err("no reply").into_error().code
}

#[test]
fn a_connection_is_introduced_and_used_again() {
    run(PoolLimits::default(), |w| async move {
        let first = w.connection_of(ping()).await;
        w.check(0, 1, 0, 1);
        assert_eq!(w.connection_of(ping()).await, first);
        w.check(0, 1, 0, 1);
        let hello = w.seen.hellos.last.borrow().clone();
        let internal = hello.get_document("internalClient").expect("it says so");
        assert_eq!(internal.get_i32("maxWireVersion").unwrap(), 25);
        let driver = hello.get_document("client").unwrap();
        let driver = driver.get_document("driver").unwrap();
        assert_eq!(driver.get_str("name").unwrap(), "tester");
        assert!(hello.get_document("speculativeAuthenticate").is_err());
    });
}

#[test]
fn a_command_has_its_connection_to_itself() {
    run(PoolLimits::default(), |w| async move {
        let running: Vec<_> = (0..3).map(|_| w.start(wait(100), LONG)).collect();
        sleep(ms(50)).await;
        assert_eq!((w.figures().in_use, w.pool.running()), (3, 3));
        let mut used = vec![];
        for reply in join_all(running).await {
            let reply = reply.expect("not cancelled").expect("a reply");
            used.push(reply.body().get_i32("connection").expect("a number"));
        }
        used.sort_unstable();
        used.dedup();
        assert_eq!(used.len(), 3);
        assert_eq!((w.figures().in_use, w.pool.running()), (0, 0));
    });
}

#[test]
fn at_most_two_connections_are_set_up_at_a_time() {
    run(PoolLimits::default(), |w| async move {
        w.seen.hellos.delay.set(ms(100));
        let running: Vec<_> = (0..10).map(|_| w.start(wait(1000), LONG)).collect();
        sleep(ms(50)).await;
        w.check(0, 0, 2, 0);
        sleep(ms(100)).await;
        w.check(2, 0, 2, 2);
        for reply in join_all(running).await {
            reply.expect("not cancelled").expect("a reply");
        }
        assert_eq!(w.seen.hellos.most_under_way.get(), 2);
    });
}

#[test]
fn there_are_no_more_connections_than_the_limit() {
    let limits = PoolLimits {
        connections: 3,
        idle: 2,
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        let running: Vec<_> = (0..20).map(|_| w.start(wait(50), LONG)).collect();
        sleep(ms(90)).await;
        w.check(3, 0, 0, 3);
        for reply in join_all(running).await {
            reply.expect("not cancelled").expect("a reply");
        }
        // One more than are kept was closed.
        w.check(0, 2, 0, 3);
    });
}

#[test]
fn requests_are_served_in_order() {
    run(one(), |w| async move {
        let order = Rc::new(RefCell::new(vec![]));
        let asked = (0..6).map(|at| {
            let (w, order) = (w.clone(), order.clone());
            spawn(Queue::Foreground, async move {
                // Tasks do not run in the order in which they are started.
                sleep(ms(at)).await;
                w.connection_of(wait(10)).await;
                order.borrow_mut().push(at);
            })
        });
        join_all(asked).await;
        assert_eq!(*order.borrow(), [0, 1, 2, 3, 4, 5]);
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn a_request_waits_for_a_connection_within_its_time() {
    run(one(), |w| async move {
        let holder = w.start(wait(500), LONG);
        sleep(ms(100)).await;
        let (since, late) = (now(), w.start(ping(), LONG));
        let error = w.run(ping(), ms(50)).await.expect_err("no connection");
        assert_eq!(since.elapsed(), ms(50));
        assert!(matches!(error, RemoteError::NoConnection(_)), "{error:?}");
        let text = "Couldn't get a connection within the time limit of 50ms";
        assert_eq!(error.to_string(), text);
        let expected = ErrorCode::POOLED_CONNECTION_ACQUISITION_EXCEEDED_TIME_LIMIT;
        assert_eq!(error.into_error().code, expected);
        // One that came before is served, and the place of the other does not stay occupied.
        holder.await.unwrap().expect("a reply");
        late.await.unwrap().expect("a reply");
        w.check(0, 1, 0, 1);
        let late = w.run(wait(200), ms(50)).await;
        assert_eq!(code(late), ErrorCode::NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT);
        w.check(0, 0, 0, 1);
    });
}

#[test]
fn what_a_dropped_request_was_given_serves_another() {
    run(one(), |w| async move {
        let holder = w.start(wait(100), LONG);
        sleep(ms(50)).await;
        let mut dropped = Box::pin(w.run(ping(), LONG));
        let waits = poll_fn(|cx| Poll::Ready(dropped.as_mut().poll(cx).is_pending()));
        assert!(waits.await);
        let next = w.start(ping(), LONG);
        // The connection is handed to the first of them, which is not polled any more.
        holder.await.unwrap().expect("a reply");
        w.check(1, 0, 0, 1);
        drop(dropped);
        next.await.unwrap().expect("a reply");
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn a_request_that_is_dropped_leaves_the_line() {
    run(one(), |w| async move {
        let holder = w.start(wait(100), LONG);
        sleep(ms(50)).await;
        let dropped = w.start(wait(10_000), LONG);
        let next = w.start(ping(), ms(1000));
        sleep(ms(1)).await;
        dropped.abort();
        holder.await.unwrap().expect("a reply");
        next.await.unwrap().expect("a reply");
        assert_eq!(w.pool.running(), 0);
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn only_some_requests_may_wait() {
    let limits = PoolLimits {
        waiting: 2,
        ..one()
    };
    run(limits, |w| async move {
        let holder = w.start(wait(500), LONG);
        sleep(ms(50)).await;
        let waiting = [w.start(ping(), LONG), w.start(ping(), LONG)];
        sleep(ms(1)).await;
        let refused = w.run(ping(), LONG).await;
        assert_eq!(
            code(refused),
            ErrorCode::POOLED_CONNECTION_ACQUISITION_REJECTED
        );
        holder.await.unwrap().expect("a reply");
        for reply in join_all(waiting).await {
            reply.unwrap().expect("a reply");
        }
    });
}

#[test]
fn a_host_that_hangs_occupies_no_place_of_requests_that_are_gone() {
    run(PoolLimits::default(), |w| async move {
        w.seen.hellos.hanging.set(2);
        let gone = join_all((0..2).map(|_| w.run(ping(), ms(100)))).await;
        for reply in gone {
            let expected = ErrorCode::POOLED_CONNECTION_ACQUISITION_EXCEEDED_TIME_LIMIT;
            assert_eq!(code(reply), expected);
        }
        w.check(0, 0, 2, 0);
        w.run(ping(), ms(1500)).await.expect("a reply");
        // One attempt made room; the other ends with its time.
        w.check(0, 1, 1, 1);
        sleep(PoolLimits::default().setup_time).await;
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn a_host_that_is_slower_than_requests_are_patient_gets_a_connection() {
    run(PoolLimits::default(), |w| async move {
        w.seen.hellos.delay.set(ms(300));
        let mut tries = 0;
        while w.run(ping(), ms(100)).await.is_err() {
            tries += 1;
        }
        assert!((1..=3).contains(&tries), "{tries}");
    });
}

#[test]
fn a_connection_that_takes_too_long_to_set_up_is_tried_again() {
    let limits = PoolLimits {
        setup_time: Duration::from_secs(2),
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        w.seen.hellos.hanging.set(1);
        let since: Instant = now();
        w.run(ping(), LONG).await.expect("a reply");
        let took = since.elapsed();
        assert!(took >= ms(2000) && took < ms(2500), "{took:?}");
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn a_host_that_is_reached_again_is_found_soon() {
    run(PoolLimits::default(), |w| async move {
        w.connection_of(ping()).await;
        w.pool.forget(&w.host);
        w.sim.cut(w.client, w.server);
        let waiting = w.start(ping(), LONG);
        sleep(ms(4500)).await;
        w.check(0, 0, 1, 1);
        w.sim.heal();
        let since = now();
        waiting.await.unwrap().expect("a reply");
        assert!(since.elapsed() <= ms(1000), "{:?}", since.elapsed());
    });
}

#[test]
fn a_connection_that_was_left_over_and_is_closed_is_replaced_once() {
    run(PoolLimits::default(), |w| async move {
        join_all((0..3).map(|_| w.connection_of(wait(100)))).await;
        w.check(0, 3, 0, 3);
        w.restart().await;
        let resend = Resend::OverNewConnection;
        let reply = w.pool.run(&w.host, &ping(), LONG, resend).await;
        reply.expect("a reply over a new connection");
        // The others most likely were closed too.
        w.check(0, 1, 0, 4);
        w.restart().await;
        let broken = w
            .run(ping(), LONG)
            .await
            .expect_err("it may not be sent twice");
        assert!(matches!(broken, RemoteError::Broken(_)), "{broken:?}");
        w.check(0, 0, 0, 4);
        // A new connection that breaks is not replaced: the command may be why.
        let withhold = rawdoc! { "withhold": 1, "$db": "admin" };
        let broken = w.pool.run(&w.host, &withhold, LONG, resend).await;
        assert!(matches!(broken, Err(RemoteError::Broken(_))));
        w.check(0, 0, 0, 5);
    });
}

#[test]
fn a_refusal_leaves_the_connection_as_it_was() {
    run(PoolLimits::default(), |w| async move {
        let first = w.connection_of(ping()).await;
        for refused in [
            ErrorCode::NOT_WRITABLE_PRIMARY,
            ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            ErrorCode::BAD_VALUE,
        ] {
            let refuse = rawdoc! { "refuse": refused.0, "$db": "admin" };
            assert_eq!(code(w.run(refuse, LONG).await), refused);
        }
        assert_eq!(w.connection_of(ping()).await, first);
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn what_is_left_over_is_closed_after_a_while() {
    let limits = PoolLimits {
        idle_time: Duration::from_secs(10),
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        w.connection_of(ping()).await;
        sleep(ms(6000)).await;
        join_all((0..2).map(|_| w.connection_of(wait(100)))).await;
        sleep(ms(9000)).await;
        w.check(0, 2, 0, 2);
        sleep(ms(1500)).await;
        // Without any request.
        w.check(0, 0, 0, 2);
        assert_eq!(w.sim.connection_count(), 0);
        w.connection_of(ping()).await;
        sleep(ms(10_500)).await;
        w.check(0, 0, 0, 3);
    });
}

#[test]
fn a_host_that_is_forgotten_keeps_no_connection() {
    run(PoolLimits::default(), |w| async move {
        w.connection_of(ping()).await;
        let running = w.start(wait(500), LONG);
        sleep(ms(50)).await;
        let other = w.connection_of(ping()).await;
        w.check(1, 1, 0, 2);
        w.pool.forget_others(|host| *host == w.host);
        w.check(1, 1, 0, 2);
        w.pool.forget_others(|_| false);
        w.check(1, 0, 0, 2);
        running.await.unwrap().expect("it runs to its end");
        w.check(0, 0, 0, 2);
        // What waits for a connection gets another one.
        w.seen.hellos.delay.set(ms(100));
        let waiting = w.start(ping(), LONG);
        sleep(ms(50)).await;
        w.pool.forget(&w.host);
        w.check(0, 0, 1, 2);
        let reply = waiting.await.unwrap().expect("a reply");
        assert!(reply.body().get_i32("connection").unwrap() > other);
        w.check(0, 1, 0, 3);
    });
}

#[test]
fn an_opened_connection_is_new_and_closed_at_the_end() {
    let limits = PoolLimits {
        connections: 2,
        idle: 2,
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        join_all((0..2).map(|_| w.connection_of(wait(100)))).await;
        w.check(0, 2, 0, 2);
        // One of those left over makes room.
        let mut opened = w.pool.open(&w.host, LONG).await.expect("a connection");
        w.check(1, 1, 0, 3);
        opened.run(&ping()).await.expect("a reply");
        let second = w.pool.open(&w.host, LONG).await.expect("a connection");
        w.check(2, 0, 0, 4);
        let none = w.pool.open(&w.host, ms(50)).await.map(|_| ());
        assert!(
            matches!(none, Err(RemoteError::NoConnection(_))),
            "{none:?}"
        );
        let waiting = w.start(ping(), LONG);
        sleep(ms(10)).await;
        drop(second);
        waiting.await.unwrap().expect("a reply");
        drop(opened);
        w.check(0, 1, 0, 5);
    });
}

#[test]
fn an_acquired_connection_is_given_back() {
    run(one(), |w| async move {
        let first = w.connection_of(ping()).await;
        let mut held = w.pool.acquire(&w.host, LONG).await.expect("a connection");
        assert!(held.was_used());
        w.check(1, 0, 0, 1);
        let waiting = w.start(ping(), LONG);
        for _ in 0..3 {
            let reply = held.run(&ping()).await.expect("a reply");
            assert_eq!(reply.body().get_i32("connection").unwrap(), first);
        }
        assert!(!waiting.is_finished());
        let refuse = rawdoc! { "refuse": ErrorCode::BAD_VALUE.0, "$db": "admin" };
        let refused = held.run(&refuse).await;
        held.give_back(&refused);
        waiting.await.unwrap().expect("a reply");
        w.check(0, 1, 0, 1);
    });
}

#[test]
fn an_acquired_connection_that_breaks_is_closed_with_those_left_over() {
    run(PoolLimits::default(), |w| async move {
        join_all((0..3).map(|_| w.connection_of(wait(100)))).await;
        let mut held = w.pool.acquire(&w.host, LONG).await.expect("a connection");
        w.check(1, 2, 0, 3);
        let broken = held.run(&rawdoc! { "withhold": 1, "$db": "admin" }).await;
        assert!(matches!(broken, Err(RemoteError::Broken(_))), "{broken:?}");
        held.give_back(&broken);
        w.check(0, 0, 0, 3);
        // One that is dropped in the middle of a command is closed alone.
        w.connection_of(ping()).await;
        let mut held = w.pool.acquire(&w.host, LONG).await.expect("a connection");
        assert!(timeout(ms(50), held.run(&wait(500))).await.is_err());
        drop(held);
        w.check(0, 0, 0, 4);
    });
}

#[test]
fn nothing_listens() {
    run(PoolLimits::default(), |w| async move {
        let host = HostPort::new(w.host.host.clone(), PORT + 1);
        let asked = (0..10).map(|_| async {
            let (ping, resend) = (ping(), Resend::OverNewConnection);
            let reply = w.pool.run(&host, &ping, LONG, resend);
            reply.await.expect_err("nothing is there")
        });
        for error in join_all(asked).await {
            assert!(error.is_refused_connection(), "{error:?}");
            assert_eq!(error.into_error().code, ErrorCode::HOST_UNREACHABLE);
        }
        let figures = w.pool.figures();
        assert!(figures.iter().all(|of| of.refreshing + of.in_use == 0));
    });
}

#[test]
fn a_host_that_refuses_is_not_asked_for_each_request() {
    run(PoolLimits::default(), |w| async move {
        w.seen.hellos.delay.set(ms(10));
        let shutdown = ErrorCode::SHUTDOWN_IN_PROGRESS;
        w.seen.hellos.refused_with.set(shutdown.0);
        for reply in join_all((0..100).map(|_| w.run(ping(), LONG))).await {
            assert_eq!(code(reply), shutdown);
        }
        let asked = w.seen.hellos.count.get();
        assert!(asked <= 5, "{asked}");
        // A request that comes later is not refused by what was tried before it.
        w.seen.hellos.refused_with.set(0);
        w.connection_of(ping()).await;
        sleep(ms(100)).await;
        assert_eq!((w.figures().in_use, w.figures().refreshing), (0, 0));
    });
}

#[test]
fn hosts_without_a_connection_are_counted_up_to_a_limit() {
    let limits = PoolLimits {
        hosts: 3,
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        w.connection_of(ping()).await;
        for port in 1..20 {
            let host = HostPort::new(w.host.host.clone(), PORT + port);
            let reply = w.pool.run(&host, &ping(), LONG, Resend::Never).await;
            assert_eq!(code(reply), ErrorCode::HOST_UNREACHABLE);
        }
        assert!(w.pool.figures().len() <= 3);
        w.check(0, 1, 0, 1);
    });
}

/// Starts one of all kinds of requests.
fn start_any(w: &World, rng: &mut Rng) -> JoinHandle<Result<RemoteReply, RemoteError>> {
    let command = match rng.below(10) {
        0 => rawdoc! { "withhold": 1, "$db": "admin" },
        1 => rawdoc! { "refuse": 10107, "$db": "admin" },
        2..5 => wait(rng.below(80) as i32),
        _ => ping(),
    };
    w.start(command, ms(1 + rng.below(300)))
}

async fn disturb(w: &World, rng: &mut Rng) {
    match rng.below(60) {
        0 => w.restart().await,
        1 => w.seen.hellos.hanging.set(2),
        2 => w.pool.forget(&w.host),
        3 => w.sim.clog(w.client, w.server, ms(rng.below(400))),
        4 => w.seen.hellos.delay.set(ms(rng.below(40))),
        _ => {}
    }
}

#[test]
fn whatever_happens_the_limits_hold_and_nothing_is_left() {
    let limits = PoolLimits {
        connections: 3,
        idle: 2,
        setup_time: Duration::from_secs(2),
        idle_time: Duration::from_secs(5),
        ..PoolLimits::default()
    };
    run(limits, |w| async move {
        let mut rng = random_stream("requests");
        let mut running = vec![];
        w.connection_of(ping()).await;
        for _ in 0..500 {
            let request = start_any(&w, &mut rng);
            disturb(&w, &mut rng).await;
            if rng.chance(0.1) {
                request.abort();
            }
            running.push(request);
            sleep(ms(rng.below(20))).await;
            let of = w.figures();
            assert!(of.in_use + of.available + of.refreshing <= 3, "{of:?}");
            assert!(of.available <= 2 && of.refreshing <= 2, "{of:?}");
        }
        let replies = join_all(running).await;
        let answered = replies.iter().flatten().filter(|reply| reply.is_ok());
        assert!(answered.count() > 100);
        w.seen.hellos.hanging.set(0);
        sleep(ms(2500)).await;
        let of = w.figures();
        assert_eq!((of.in_use, of.refreshing, w.pool.running()), (0, 0, 0));
        w.connection_of(ping()).await;
        sleep(ms(6000)).await;
        assert_eq!(w.figures().available, 0);
    });
}

const KEYS: [&str; 2] = ["first/key", "second/key"];

/// Runs one command with these keys, of a server with others: how it ends, and how many challenges
/// the server has sent by then.
#[track_caller]
fn login(text: &str, of_server: &'static [&'static str], is_transition: bool, expected: Login) {
    let keys = MemberKeys::parse(text).expect("keys");
    let auth = MemberAuth {
        keys,
        is_transition,
    };
    run_with(PoolLimits::default(), Some(auth), move |w| async move {
        let keys = of_server.iter().map(|key| (*key).to_owned());
        w.seen.keys.replace(keys.collect());
        let reply = w.run(ping(), LONG).await;
        let (logins, challenges) = (w.seen.logins.get(), w.seen.challenges.get());
        let seen = match reply {
            Ok(_) => Login::Succeeds { logins, challenges },
            Err(error) => Login::Fails(error.into_error().code),
        };
        assert_eq!(seen, expected);
        let kept = u64::from(matches!(seen, Login::Succeeds { .. }));
        w.check(0, kept, 0, kept);
    });
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Login {
    Succeeds { logins: u32, challenges: u32 },
    Fails(ErrorCode),
}

#[test]
fn logins() {
    let both = "- first/key\n- second/key\n";
    let once = |challenges| Login::Succeeds {
        logins: 1,
        challenges,
    };
    login(KEYS[0], &KEYS[..1], false, once(1));
    login(KEYS[0], &KEYS, false, once(1));
    // While keys are changed the other side may know only the later one.
    login(both, &KEYS[1..], false, once(2));
    let fails = Login::Fails(ErrorCode::AUTHENTICATION_FAILED);
    login(KEYS[0], &KEYS[1..], false, fails);
    let unavailable = Login::Fails(ErrorCode::MECHANISM_UNAVAILABLE);
    login(KEYS[0], &[], false, unavailable);
    let none = Login::Succeeds {
        logins: 0,
        challenges: 0,
    };
    login(KEYS[0], &[], true, none);
}
