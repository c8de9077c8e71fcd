//! The connection layer on simulated nodes: a server of two cores, clients that speak OP_MSG.

use std::cell::{Cell, RefCell};
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use pinion_bson::{
    Binary, BinarySubtype, DocBuilder, Document, RawBsonRef, RawDocument, RawDocumentBuf, cstr,
    doc, elements, rawdoc,
};
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_runtime::{
    Connection, Duration, Listener, connect, core_id, core_local, now, on_all_cores,
    request_shutdown, set_core_local, sleep,
};
use pinion_server::{Remote, RemoteError, ServerOptions, serve};
use pinion_wire::{
    CommandClass, CommandRole, CommandSpec, CompressionState, Compressor, Error, ErrorCode, Flags,
    Header, InTransaction, Message, OpCode, OpContext, Registry, Reply, ReplyEpilogue,
    ServerCounters, encode_request, message_length, parse_message,
};

const PORT: u16 = 27017;

/// What the test commands share with the test.
#[derive(Default)]
struct Seen {
    inserted: Cell<usize>,
    killed_with: Cell<i32>,
    served: Cell<bool>,
}

/// Records the error of some commands behind their replies, if they failed.
struct Failures;

impl ReplyEpilogue for Failures {
    fn append(&self, ctx: Option<&OpContext>, failure: Option<ErrorCode>, reply: &mut DocBuilder) {
        let is_meant =
            ctx.is_some_and(|ctx| matches!(ctx.command.name, "ping" | "refuse" | "concern"));
        if let Some(failure) = failure.filter(|_| is_meant) {
            reply.append("failure", failure.0);
        }
    }
}

/// A command without special rights.
fn plain(name: &'static str) -> &'static CommandSpec {
    with(CommandSpec::of_task(name))
}

fn with(spec: CommandSpec) -> &'static CommandSpec {
    Box::leak(Box::new(spec))
}

/// A command that takes a write concern.
fn write(name: &'static str, sequences: &'static [&'static str]) -> &'static CommandSpec {
    with(CommandSpec {
        class: CommandClass::Write,
        supports_write_concern: true,
        sequences,
        ..CommandSpec::of_task(name)
    })
}

fn ends(name: &'static str, in_transaction: InTransaction) -> &'static CommandSpec {
    with(CommandSpec {
        in_transaction,
        ..CommandSpec::of_task(name)
    })
}

fn registry(seen: Rc<Seen>) -> Registry {
    let mut registry = Registry::new();
    let hello = with(CommandSpec {
        aliases: &["isMaster", "ismaster"],
        role: CommandRole::Hello,
        in_api_v1: true,
        ..CommandSpec::of_task("hello")
    });
    registry.attach(hello, |_| async {
        let mut reply = Reply::new();
        reply.append("isWritablePrimary", true);
        Ok(reply)
    });
    registry.attach(plain("ping"), |_| async { Ok(Reply::new()) });
    registry.attach(plain("echo"), |inv| async move {
        let reader = inv.reader()?;
        let value = reader.value("echo");
        reader.finish()?;
        let mut reply = Reply::new();
        reply.append_raw("echo", value.unwrap());
        reply
            .append("connection", inv.ctx.client.connection_id)
            .append("core", i32::from(core_id().0));
        Ok(reply)
    });
    let counted = seen.clone();
    registry.attach(write("insert", &["documents"]), move |inv| {
        let seen = counted.clone();
        async move {
            let documents = inv.documents("documents")?;
            sleep(Duration::from_millis(1)).await;
            seen.inserted.set(seen.inserted.get() + documents.len());
            let mut reply = Reply::new();
            reply.append("n", documents.len() as i32);
            Ok(reply)
        }
    });
    registry.attach(plain("withhold"), |_| async {
        let mut reply = Reply::new();
        reply.withhold();
        Ok(reply)
    });
    // Fails where the command asks for it, and its write concern with the code asked for.
    registry.attach(write("concern", &[]), |inv| async move {
        let failed = rawdoc! { "code": inv.body().get_i32("concern").unwrap_or(0) };
        if inv.body().get_bool("fails").is_ok() {
            let extra = rawdoc! { "writeConcernError": failed };
            return Err(Error::bad_value("as asked").with_extra(extra));
        }
        let mut reply = Reply::new();
        reply.append("writeConcernError", RawBsonRef::Document(&failed));
        Ok(reply)
    });
    registry.attach(plain("refuse"), |_| async {
        Err(Error::new(ErrorCode::NOT_WRITABLE_PRIMARY, "not primary"))
    });
    // Answer with the configured code, and with that of a write concern error.
    for spec in [
        ends("commitTransaction", InTransaction::Commit),
        ends("abortTransaction", InTransaction::Abort),
        ends("prepareTransaction", InTransaction::Prepare),
        plain("find"),
    ] {
        registry.attach(spec, |inv| async move {
            let code = inv.body().get_i32("code").unwrap_or(0);
            let error = Error::new(ErrorCode(code), "as asked");
            Err(match inv.body().get_i32("concern") {
                Ok(code) => error.with_extra(rawdoc! { "writeConcernError": { "code": code } }),
                Err(_) => error,
            })
        });
    }
    registry.set_epilogue(Rc::new(Failures));
    registry.attach(plain("panic"), |_| async { panic!("as asked") });
    let shutdown = with(CommandSpec {
        admin_only: true,
        ..CommandSpec::of_task("shutdown")
    });
    registry.attach(shutdown, |_| async {
        request_shutdown();
        Ok(Reply::new())
    });
    registry.attach(plain("countdown"), |inv| async move {
        let left = inv.body().get_i32("countdown").unwrap_or(0);
        let mut reply = Reply::new();
        reply.append("left", left);
        if inv.exhaust_allowed && left > 0 {
            sleep(Duration::from_millis(1)).await;
            reply.stream_next(rawdoc! { "countdown": left - 1, "$db": "test" });
        }
        Ok(reply)
    });
    let wait = with(CommandSpec {
        class: CommandClass::Read,
        ..CommandSpec::of_task("wait")
    });
    registry.attach(wait, move |inv| {
        let seen = seen.clone();
        async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                if let Err(error) = inv.ctx.check(now().as_nanos()) {
                    seen.killed_with.set(error.code.0);
                    return Err(error);
                }
            }
        }
    });
    registry
}

/// Runs a server of two cores and one client task against it.
fn run<F, Fut>(seed: u64, options: ServerOptions, client: F) -> Rc<Seen>
where
    F: FnOnce(SocketAddr, Rc<Seen>) -> Fut + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(seed, SimOptions::default());
    let seen = Rc::new(Seen::default());
    let shared = seen.clone();
    let server = sim.add_node("server", 2, move |core| {
        let (seen, options) = (shared.clone(), options.clone());
        async move {
            set_core_local(Rc::new(registry(seen.clone())));
            if core.0 == 0 {
                // The other core sets its registry meanwhile.
                sleep(Duration::from_millis(5)).await;
                let listener = Listener::bind(SocketAddr::from(([0, 0, 0, 0], PORT)))
                    .await
                    .unwrap();
                serve(vec![listener], options, ready(())).await;
                seen.served.set(true);
            } else {
                pinion_runtime::shutdown_requested().await;
            }
        }
    });
    let addr = SocketAddr::new(sim.node_ip(server), PORT);
    let client = RefCell::new(Some(client));
    let shared = seen.clone();
    let client_node = sim.add_node("client", 1, move |_| {
        let (client, seen) = (client.borrow_mut().take().unwrap(), shared.clone());
        async move {
            sleep(Duration::from_millis(20)).await;
            client(addr, seen).await;
        }
    });
    sim.run_until_down(client_node).expect("the client ends");
    sim.run_for(Duration::from_secs(1));
    seen
}

struct Client {
    connection: Connection,
    buffer: BytesMut,
    next_id: i32,
}

impl Client {
    async fn connect(addr: SocketAddr) -> Client {
        Client {
            connection: connect(addr).await.unwrap(),
            buffer: BytesMut::new(),
            next_id: 0,
        }
    }

    async fn send(&mut self, flags: u32, body: RawDocumentBuf) -> i32 {
        self.next_id += 1;
        self.connection
            .send(encode_request(self.next_id, Flags(flags), &body))
            .await
            .unwrap();
        self.next_id
    }

    async fn send_bytes(&self, bytes: impl Into<Bytes>) {
        self.connection.send(bytes.into()).await.unwrap();
    }

    /// The next message; `None` when the server closed.
    async fn receive_bytes(&mut self) -> Option<Bytes> {
        loop {
            if let Some(length) = message_length(&self.buffer).unwrap()
                && self.buffer.len() >= length
            {
                return Some(self.buffer.split_to(length).freeze());
            }
            match self.connection.recv(&mut self.buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    }

    async fn receive(&mut self) -> Option<Message> {
        self.receive_bytes()
            .await
            .map(|bytes| parse_message(bytes).unwrap())
    }

    async fn command(&mut self, body: RawDocumentBuf) -> RawDocumentBuf {
        let id = self.send(0, body).await;
        let bytes = self.receive_bytes().await.expect("an answer");
        assert_eq!(Header::read(&bytes).unwrap().response_to, id);
        parse_message(bytes).unwrap().body().to_owned()
    }
}

fn code(reply: &RawDocument) -> i32 {
    assert_eq!(reply.get_f64("ok").unwrap(), 0.0, "{reply:?}");
    reply.get_i32("code").unwrap()
}

#[test]
fn commands_and_errors() {
    run(1, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        assert_eq!(
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await,
            rawdoc! { "ok": 1.0 }
        );
        let reply = client
            .command(rawdoc! { "nothing": 1, "$db": "test" })
            .await;
        assert_eq!(
            reply,
            rawdoc! { "ok": 0.0, "errmsg": "no such command: 'nothing'", "code": 59, "codeName": "CommandNotFound" }
        );
        for (body, expected) in [
            (rawdoc! { "ping": 1 }, 40571),
            (rawdoc! { "shutdown": 1, "$db": "test" }, 13),
            (rawdoc! { "echo": 1, "foo": 1, "$db": "test" }, 40415),
            (rawdoc! { "echo": 1, "maxTimeMS": -1, "$db": "test" }, 2),
            (rawdoc! { "wait": 1, "maxTimeMS": 50, "$db": "test" }, 50),
            (rawdoc! { "insert": "c", "$db": "test" }, 40414),
        ] {
            assert_eq!(code(&client.command(body).await), expected);
        }
    });
}

#[test]
fn a_reply_that_is_withheld_closes_the_connection() {
    run(20, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let before = client.send(0, rawdoc! { "ping": 1, "$db": "test" }).await;
        client
            .send(0, rawdoc! { "withhold": 1, "$db": "test" })
            .await;
        client.send(0, rawdoc! { "ping": 1, "$db": "test" }).await;
        let bytes = client.receive_bytes().await.expect("the reply before");
        assert_eq!(Header::read(&bytes).unwrap().response_to, before);
        assert!(client.receive_bytes().await.is_none());
    });
}

#[test]
fn retryable_writes_are_labelled_by_their_write_concern_too() {
    run(21, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let lsid = rawdoc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![7; 16] } };
        for (code, retryable, fails, expected) in [
            (91, true, false, true),
            (91, true, true, true),
            (91, false, false, false),
            (100, true, false, false),
        ] {
            let mut body = rawdoc! { "concern": code, "$db": "test" };
            if retryable {
                body.append(cstr!("lsid"), lsid.clone());
                body.append(cstr!("txnNumber"), 1i64);
            }
            if fails {
                body.append(cstr!("fails"), true);
            }
            let reply = client.command(body).await;
            let labels = reply.get_array("errorLabels").ok();
            let labels: Vec<_> = labels.map_or(Vec::new(), |labels| {
                pinion_bson::values(labels)
                    .map(|label| label.as_str().unwrap())
                    .collect()
            });
            let wanted: &[&str] = if expected {
                &["RetryableWriteError"]
            } else {
                &[]
            };
            assert_eq!(labels, wanted, "{code} {retryable} {fails}: {reply:?}");
        }
    });
}

#[test]
fn connections_are_spread_over_the_cores() {
    run(2, ServerOptions::default(), |addr, _| async move {
        let mut cores = Vec::new();
        let mut clients = Vec::new();
        for n in 1..=6 {
            let mut client = Client::connect(addr).await;
            let reply = client
                .command(rawdoc! { "echo": "x".repeat(n * 1000), "$db": "test" })
                .await;
            assert_eq!(reply.get_str("echo").unwrap().len(), n * 1000);
            assert_eq!(reply.get_i32("connection").unwrap(), n as i32);
            cores.push(reply.get_i32("core").unwrap());
            clients.push(client);
        }
        assert_eq!(cores, [0, 1, 0, 1, 0, 1]);
    });
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    run(3, ServerOptions::default(), |addr, seen| async move {
        let mut client = Client::connect(addr).await;
        let mut ids = Vec::new();
        for n in 0..200 {
            let body = match n % 3 {
                0 => rawdoc! { "insert": "c", "documents": [{}], "$db": "test" },
                _ => rawdoc! { "echo": n, "$db": "test" },
            };
            // Of the inserts every second asks for no answer.
            let flags = if n % 6 == 0 { Flags::MORE_TO_COME.0 } else { 0 };
            let id = client.send(flags, body).await;
            if flags == 0 {
                ids.push(id);
            }
        }
        for id in ids {
            let bytes = client.receive_bytes().await.unwrap();
            assert_eq!(Header::read(&bytes).unwrap().response_to, id);
        }
        assert_eq!(seen.inserted.get(), 67);
    });
}

#[test]
fn a_client_may_write_and_leave() {
    let seen = run(4, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        for _ in 0..20 {
            client
                .send(
                    Flags::MORE_TO_COME.0,
                    rawdoc! { "insert": "c", "documents": [{}, {}], "$db": "t" },
                )
                .await;
        }
        client.connection.flush().await.unwrap();
        client.connection.shutdown_write();
        assert!(client.receive_bytes().await.is_none());
    });
    assert_eq!(seen.inserted.get(), 40);
}

#[test]
fn large_messages() {
    run(5, ServerOptions::default(), |addr, seen| async move {
        let mut client = Client::connect(addr).await;
        let document = rawdoc! { "x": "y".repeat(100_000) };
        let mut sequence = b"documents\0".to_vec();
        for _ in 0..50 {
            sequence.extend_from_slice(document.as_bytes());
        }
        let mut bytes =
            encode_request(1, Flags(0), &rawdoc! { "insert": "c", "$db": "test" }).to_vec();
        bytes.push(1);
        bytes.extend_from_slice(&(sequence.len() as i32 + 4).to_le_bytes());
        bytes.extend_from_slice(&sequence);
        let length = bytes.len() as u32;
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        client.send_bytes(bytes).await;
        assert_eq!(
            client.receive().await.unwrap().body().get_i32("n").unwrap(),
            50
        );
        assert_eq!(seen.inserted.get(), 50);
    });
}

#[test]
fn legacy_handshake() {
    run(6, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let mut rest = vec![0; 4];
        rest.extend_from_slice(b"admin.$cmd\0");
        rest.extend_from_slice(&[0, 0, 0, 0, 255, 255, 255, 255]);
        rest.extend_from_slice(rawdoc! { "ismaster": 1, "helloOk": true }.as_bytes());
        let length = 16 + rest.len() as u32;
        let header = Header {
            length,
            request_id: 9,
            response_to: 0,
            opcode: OpCode::QUERY,
        };
        let mut bytes = header.to_bytes().to_vec();
        bytes.extend_from_slice(&rest);
        client.send_bytes(bytes).await;
        let reply = client.receive_bytes().await.unwrap();
        let header = Header::read(&reply).unwrap();
        assert_eq!((header.opcode, header.response_to), (OpCode::REPLY, 9));
        assert_eq!(
            &reply[36..],
            rawdoc! { "isWritablePrimary": true, "ok": 1.0 }.as_bytes()
        );
        // The same connection continues with OP_MSG.
        assert_eq!(
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await,
            rawdoc! { "ok": 1.0 }
        );
    });
}

#[test]
fn compressed_requests_get_compressed_replies() {
    run(7, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let mut state = CompressionState::default();
        let body = rawdoc! { "echo": "abc".repeat(10_000), "$db": "test" };
        for compressor in Compressor::OFFERED {
            let request = state.wrap(encode_request(1, Flags(0), &body), compressor);
            assert_eq!(Header::read(&request).unwrap().opcode, OpCode::COMPRESSED);
            client.send_bytes(request).await;
            let reply = client.receive_bytes().await.unwrap();
            assert!(reply.len() < 10_000);
            let (plain, used) = state.unwrap(&reply).unwrap();
            assert_eq!(used, compressor);
            let message = parse_message(plain).unwrap();
            assert_eq!(message.body().get_str("echo").unwrap().len(), 30_000);
        }
        let mut broken = state
            .wrap(encode_request(1, Flags(0), &body), Compressor::Zlib)
            .to_vec();
        broken[40] ^= 0xff;
        client.send_bytes(broken).await;
        assert!(client.receive_bytes().await.is_none());
    });
}

#[test]
fn exhaust_streams() {
    run(8, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let body = rawdoc! { "countdown": 5, "$db": "test" };
        let mut answered = client.send(Flags::EXHAUST_ALLOWED.0, body.clone()).await;
        for left in (0..=5).rev() {
            let bytes = client.receive_bytes().await.unwrap();
            let header = Header::read(&bytes).unwrap();
            // The first answers the request, each other one the reply before it.
            assert_eq!(header.response_to, answered);
            answered = header.request_id;
            let message = parse_message(bytes).unwrap();
            assert_eq!(message.body().get_i32("left").unwrap(), left);
            assert_eq!(message.flags().has(Flags::MORE_TO_COME), left > 0);
        }
        // Without the flag there is one reply.
        assert_eq!(client.command(body).await.get_i32("left").unwrap(), 5);
        assert_eq!(
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await,
            rawdoc! { "ok": 1.0 }
        );
    });
}

#[test]
fn a_node_runs_commands_on_another() {
    run(3, ServerOptions::default(), |addr, _| async move {
        let host = addr.ip().to_string();
        let mut remote = Remote::open(&host, addr.port()).await.unwrap();
        let echo = rawdoc! { "echo": 7, "$db": "test" };
        let reply = remote.run(&echo).await.unwrap();
        assert_eq!(reply.body().get_i32("echo").unwrap(), 7);

        let unknown = rawdoc! { "unknown": 1, "$db": "test" };
        let refused = remote.run(&unknown).await.unwrap_err();
        assert_eq!(
            refused.refusal().map(|e| e.code),
            Some(ErrorCode::COMMAND_NOT_FOUND)
        );

        let countdown = rawdoc! { "countdown": 3, "$db": "test" };
        remote.stream(&countdown).await.unwrap();
        for left in (0..=3).rev() {
            let reply = remote.next().await.unwrap();
            assert_eq!(reply.body().get_i32("left").unwrap(), left);
            assert_eq!(reply.more_to_come(), left > 0);
        }
        // A refusal and a stream leave the connection as it was.
        assert!(remote.run(&echo).await.is_ok());

        let unreachable = Remote::open(&host, PORT + 1).await;
        assert!(unreachable.is_err());
        assert!(Remote::open("a.name.nobody.has", PORT).await.is_err());
        let shutdown = rawdoc! { "shutdown": 1, "$db": "admin" };
        remote.run(&shutdown).await.unwrap();
        let broken = loop {
            if let Err(error) = remote.run(&echo).await {
                break error;
            }
        };
        assert!(matches!(broken, RemoteError::Broken(_)), "{broken:?}");
    });
}

#[test]
fn malformed_messages() {
    run(9, ServerOptions::default(), |addr, _| async move {
        // Broken BSON is answered and the connection kept.
        let mut client = Client::connect(addr).await;
        let mut broken =
            encode_request(1, Flags(0), &rawdoc! { "ping": 1, "$db": "test" }).to_vec();
        broken[25] = 99;
        client.send_bytes(broken).await;
        assert_eq!(code(client.receive().await.unwrap().body()), 22);
        client.command(rawdoc! { "ping": 1, "$db": "test" }).await;
        // An unknown required flag is answered and the connection closed.
        client
            .send(1 << 3, rawdoc! { "ping": 1, "$db": "test" })
            .await;
        assert_eq!(code(client.receive().await.unwrap().body()), 223);
        assert!(client.receive_bytes().await.is_none());
        // Lengths no message has, and opcodes that are gone, close it without a word.
        for bytes in [
            vec![0xff; 64],
            vec![3, 0, 0, 0, 1],
            [&24u32.to_le_bytes()[..], &[0; 20]].concat(),
        ] {
            let mut client = Client::connect(addr).await;
            client.send_bytes(bytes).await;
            assert!(client.receive_bytes().await.is_none());
        }
    });
}

#[test]
fn garbage_does_not_stop_the_server() {
    run(10, ServerOptions::default(), |addr, _| async move {
        let mut rng = pinion_runtime::random_stream("garbage");
        for _ in 0..300 {
            let client = Client::connect(addr).await;
            let mut bytes = encode_request(
                1,
                Flags(0),
                &rawdoc! { "echo": [1, { "a": "b" }], "$db": "test" },
            )
            .to_vec();
            for _ in 0..1 + rng.below(6) {
                let at = rng.below(bytes.len() as u64) as usize;
                bytes[at] = rng.next_u64() as u8;
            }
            client.send_bytes(bytes).await;
            let _ = client.connection.flush().await;
        }
        let mut client = Client::connect(addr).await;
        assert_eq!(
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await,
            rawdoc! { "ok": 1.0 }
        );
    });
}

#[test]
fn a_panic_ends_the_command_alone() {
    run(11, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let reply = client.command(rawdoc! { "panic": 1, "$db": "test" }).await;
        assert_eq!(code(&reply), 1);
        assert!(reply.get_str("errmsg").unwrap().contains("as asked"));
        assert_eq!(
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await,
            rawdoc! { "ok": 1.0 }
        );
    });
}

#[test]
fn a_read_ends_when_its_client_leaves() {
    let seen = run(12, ServerOptions::default(), |addr, seen| async move {
        let mut client = Client::connect(addr).await;
        client.send(0, rawdoc! { "wait": 1, "$db": "test" }).await;
        client.connection.flush().await.unwrap();
        sleep(Duration::from_millis(100)).await;
        client.connection.close();
        let mut other = Client::connect(addr).await;
        for _ in 0..100 {
            other.command(rawdoc! { "ping": 1, "$db": "test" }).await;
            sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(seen.killed_with.get(), ErrorCode::CLIENT_DISCONNECT.0);
    });
    assert_eq!(seen.killed_with.get(), ErrorCode::CLIENT_DISCONNECT.0);
}

#[test]
fn too_many_connections_are_refused() {
    let options = ServerOptions {
        max_connections: 3,
        ..ServerOptions::default()
    };
    run(13, options, |addr, _| async move {
        let mut clients = Vec::new();
        for _ in 0..3 {
            let mut client = Client::connect(addr).await;
            client.command(rawdoc! { "ping": 1, "$db": "test" }).await;
            clients.push(client);
        }
        let mut refused = Client::connect(addr).await;
        assert!(refused.receive_bytes().await.is_none());
        // A place that becomes free is given away again.
        clients.pop().unwrap().connection.close();
        sleep(Duration::from_millis(100)).await;
        let mut client = Client::connect(addr).await;
        client.command(rawdoc! { "ping": 1, "$db": "test" }).await;
    });
}

#[test]
fn shutdown_drains() {
    let seen = run(14, ServerOptions::default(), |addr, _| async move {
        let mut idle = Client::connect(addr).await;
        idle.command(rawdoc! { "ping": 1, "$db": "test" }).await;
        let mut reading = Client::connect(addr).await;
        reading.send(0, rawdoc! { "wait": 1, "$db": "test" }).await;
        let mut writing = Client::connect(addr).await;
        writing
            .send(
                0,
                rawdoc! { "insert": "c", "documents": [{}], "$db": "test" },
            )
            .await;
        sleep(Duration::from_millis(50)).await;
        let mut admin = Client::connect(addr).await;
        let reply = admin
            .command(rawdoc! { "shutdown": 1, "$db": "admin" })
            .await;
        assert_eq!(reply, rawdoc! { "ok": 1.0 });
        assert_eq!(
            code(reading.receive().await.unwrap().body()),
            ErrorCode::INTERRUPTED_AT_SHUTDOWN.0
        );
        assert!(reading.receive().await.is_none());
        assert_eq!(
            writing
                .receive()
                .await
                .unwrap()
                .body()
                .get_i32("n")
                .unwrap(),
            1
        );
        assert!(idle.receive().await.is_none());
    });
    assert_eq!(seen.inserted.get(), 1);
    assert!(seen.served.get(), "serve returned");
}

/// Slow links, tiny segments, tiny queues: whatever the network does, each client gets its own
/// answers in its own order, and one that leaves in the middle disturbs no other.
#[test]
fn hostile_networks() {
    for seed in 100..116 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let server = sim.add_node("server", 2, |core| async move {
            set_core_local(Rc::new(registry(Rc::default())));
            if core.0 == 0 {
                sleep(Duration::from_millis(50)).await;
                let listener = Listener::bind(SocketAddr::from(([0, 0, 0, 0], PORT)))
                    .await
                    .unwrap();
                serve(vec![listener], ServerOptions::default(), ready(())).await;
            } else {
                pinion_runtime::shutdown_requested().await;
            }
        });
        let addr = SocketAddr::new(sim.node_ip(server), PORT);
        let answered = Rc::new(Cell::new(0));
        let count = answered.clone();
        let clients = sim.add_node("clients", 1, move |_| {
            let count = count.clone();
            async move {
                sleep(Duration::from_millis(500)).await;
                let tasks = (0..8).map(|task| {
                    let count = count.clone();
                    pinion_runtime::spawn(pinion_runtime::Queue::Foreground, async move {
                        let mut rng = pinion_runtime::random_stream("clients");
                        for round in 0..4 {
                            let mut client = Client::connect(addr).await;
                            for n in 0..rng.below(12) {
                                let size = rng.below(20_000) as usize;
                                let text = format!("{task} {round} {n} {}", "z".repeat(size));
                                let reply = client
                                    .command(rawdoc! { "echo": text.as_str(), "$db": "test" })
                                    .await;
                                assert_eq!(reply.get_str("echo").unwrap(), text);
                                count.set(count.get() + 1);
                            }
                            // Leave in the middle of a request, or of an answer.
                            match rng.below(3) {
                                0 => client.send_bytes(vec![200, 0, 0, 0, 1, 2, 3]).await,
                                1 => {
                                    client
                                        .send(
                                            0,
                                            rawdoc! { "echo": "x".repeat(100_000), "$db": "test" },
                                        )
                                        .await;
                                }
                                _ => {}
                            }
                            client.connection.close();
                        }
                    })
                });
                for task in tasks.collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                let mut last = Client::connect(addr).await;
                last.command(rawdoc! { "shutdown": 1, "$db": "admin" })
                    .await;
            }
        });
        sim.run_until_down(clients)
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
        sim.run_until_down(server)
            .unwrap_or_else(|stuck| panic!("seed {seed}: {stuck:?}"));
        assert!(answered.get() > 50, "seed {seed}: {}", answered.get());
    }
}

#[test]
fn counters_move() {
    let sim = Sim::new(15, SimOptions::default());
    let outcome = Rc::new(RefCell::new(None));
    let shared = outcome.clone();
    let node = sim.add_node("both", 1, move |_| {
        let outcome = shared.clone();
        async move {
            set_core_local(Rc::new(registry(Rc::default())));
            let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], PORT)))
                .await
                .unwrap();
            let addr = listener.local_addr();
            drop(pinion_runtime::spawn(
                pinion_runtime::Queue::Foreground,
                async move {
                    serve(vec![listener], ServerOptions::default(), ready(())).await;
                },
            ));
            let mut client = Client::connect(addr).await;
            for _ in 0..10 {
                client.command(rawdoc! { "ping": 1, "$db": "test" }).await;
            }
            client.command(rawdoc! { "panic": 1, "$db": "test" }).await;
            let numbers = on_all_cores(|_| async {
                let counters = core_local::<ServerCounters>();
                let clients = counters.clients().len() as u64;
                let registry = core_local::<Registry>();
                let ping = registry.lookup("ping").unwrap().total();
                let failed = registry.lookup("panic").unwrap().failed();
                assert!(counters.bytes_in.get() > 300 && counters.bytes_out.get() > 300);
                (
                    counters.current.get(),
                    counters.total_created.get(),
                    counters.requests.get(),
                    clients,
                    ping,
                    failed,
                )
            })
            .await;
            *outcome.borrow_mut() = Some(numbers[0]);
        }
    });
    sim.run_until_down(node).expect("the node ends");
    assert_eq!(*outcome.borrow(), Some((1, 1, 11, 1, 10, 1)));
}

/// What ends a transaction may have taken place although its answer is that of another member: only
/// that the transaction is not known, with a write concern that was reached, says that it is
/// nowhere.
#[test]
fn what_ends_a_transaction_is_labelled_by_what_is_known() {
    run(22, ServerOptions::default(), |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let retryable = &["RetryableWriteError"][..];
        let transient = &["TransientTransactionError"][..];
        let ends = [
            "commitTransaction",
            "abortTransaction",
            "prepareTransaction",
        ];
        for (commands, code, concern, expected) in [
            (&ends[..], 10_107, None, retryable),
            (&ends, 11_602, None, retryable),
            (&ends, 112, None, transient),
            (&ends, 251, None, transient),
            (&ends, 251, Some(64), &[]),
            (&ends, 251, Some(189), retryable),
            (&["find"], 10_107, None, transient),
            (&["find"], 251, None, transient),
        ] {
            for command in commands {
                let id = Binary {
                    subtype: BinarySubtype::Uuid,
                    bytes: vec![7; 16],
                };
                let mut body = doc! { *command: 1, "code": code, "lsid": { "id": id }, "txnNumber": 1i64,
                "autocommit": false, "$db": "admin" };
                if let Some(concern) = concern {
                    body.insert("concern", concern);
                }
                let body = RawDocumentBuf::try_from(&body).unwrap();
                let reply = client.command(body).await;
                let labels = reply.get_array("errorLabels").ok();
                let labels: Vec<_> = labels.map_or(Vec::new(), |labels| {
                    let labels = pinion_bson::values(labels);
                    labels.map(|label| label.as_str().unwrap()).collect()
                });
                assert_eq!(labels, expected, "{command} {code} {concern:?}: {reply:?}");
            }
        }
    });
}

#[test]
fn failures_have_labels_and_an_epilogue() {
    let retryable = |command: &str| {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![7; 16],
        };
        doc! { command: 189, "lsid": { "id": id }, "txnNumber": 1i64, "$db": "test" }
    };
    run(40, ServerOptions::default(), move |addr, _| async move {
        let mut client = Client::connect(addr).await;
        let mut check = async |command: Document, expected: &[&str], failure: Option<i32>| {
            let command = RawDocumentBuf::try_from(&command).unwrap();
            let reply = client.command(command).await;
            let fields: Vec<&str> = elements(&reply).map(|(name, _)| name).collect();
            assert_eq!(fields, expected);
            assert_eq!(reply.get_i32("failure").ok(), failure);
        };
        let plain = |command: &str| doc! { command: 189, "$db": "test" };
        check(plain("ping"), &["ok"], None).await;
        let failed = ["ok", "errmsg", "code", "codeName", "failure"];
        check(plain("refuse"), &failed, Some(10107)).await;
        let labelled = ["ok", "errmsg", "code", "codeName", "errorLabels", "failure"];
        check(retryable("refuse"), &labelled, Some(10107)).await;
        let failed = ["writeConcernError", "ok", "failure"];
        check(plain("concern"), &failed, Some(189)).await;
        let labelled = ["writeConcernError", "ok", "errorLabels", "failure"];
        check(retryable("concern"), &labelled, Some(189)).await;
    });
}

#[test]
fn a_write_to_the_wrong_member_that_wants_no_reply_ends_the_connection() {
    run(41, ServerOptions::default(), |addr, _| async move {
        let refuse = || rawdoc! { "refuse": 1, "$db": "test" };
        let mut client = Client::connect(addr).await;
        client.command(refuse()).await;
        client.command(rawdoc! { "ping": 1, "$db": "test" }).await;
        client.send(Flags::MORE_TO_COME.0, refuse()).await;
        assert!(client.receive_bytes().await.is_none());
    });
}
