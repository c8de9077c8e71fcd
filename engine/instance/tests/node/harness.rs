//! Starts nodes in the simulator and runs commands on them.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use pinion_administration::{register_test_commands, register_unreplicated};
use pinion_bson::{Bson, Document, RawBsonRef, RawDocument, RawDocumentBuf, doc};
use pinion_exec::NodeOptions;
use pinion_instance::{begin_standalone_builds, close_node, open_node, register_commands};
use pinion_runtime::sim::{Death, NodeId, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue};
use pinion_service::options::{HostInfo, ProcessOptions};
use pinion_storage::StorageOptions;
use pinion_wire::idl::GenericArguments;
use pinion_wire::{
    Attempt, ClientInfo, Error, ErrorCode, Flags, Invocation, Message, OpContext, Prepared,
    Registry, Repeatable, ReplyFrame, check_permitted, encode_request, error_reply, parse_message,
};

pub type Script = Rc<dyn Fn(Client) -> Pin<Box<dyn Future<Output = ()>>>>;

/// Options of a node whose partitions, cores and storage are tiny.
pub fn options(partitions: u16) -> NodeOptions {
    let mut storage = StorageOptions::hostile("/data");
    storage.partitions = Some(partitions);
    storage.cache_bytes = 64 * 1024 * 1024;
    let process = ProcessOptions {
        version: "0.0.0-test".into(),
        git_version: String::new(),
        host: "test:27017".into(),
        port: 27017,
        pid: 1,
        argv: vec!["pinion".into()],
        parsed: RawDocumentBuf::new(),
        host_info: HostInfo::default(),
        member_auth: None,
    };
    NodeOptions {
        process,
        storage,
        db_path: "/data".into(),
        cluster_role: Default::default(),
        cluster_version: Default::default(),
        planted_fault: Default::default(),
    }
}

/// Where a client's commands run, and in which database.
#[derive(Clone)]
pub struct Client {
    pub core: CoreId,
    pub db: &'static str,
    next_op: Rc<Cell<i32>>,
    /// What the next find may be like.
    prepared: Rc<RefCell<Option<Prepared>>>,
    /// The one connection of all its commands; without one each comes on a connection of its own.
    connection: Option<Arc<ClientInfo>>,
}

impl Client {
    pub fn new() -> Client {
        Client {
            core: CoreId(0),
            db: "test",
            next_op: Rc::new(Cell::new(1)),
            prepared: Rc::default(),
            connection: None,
        }
    }

    /// The same client with a connection that all its commands come on.
    pub fn connected(&self, connection_id: i32) -> Client {
        self.connected_from([127, 0, 0, 1], connection_id)
    }

    /// The same client with a connection from this address.
    pub fn connected_from(&self, address: [u8; 4], connection_id: i32) -> Client {
        let address = SocketAddr::from((address, 1));
        Client {
            connection: Some(Arc::new(ClientInfo::new(connection_id, address, address))),
            ..self.clone()
        }
    }

    /// The same client connected to another core.
    pub fn on(&self, core: u16) -> Client {
        Client {
            core: CoreId(core % pinion_runtime::core_count() as u16),
            ..self.clone()
        }
    }

    pub fn at(&self, db: &'static str) -> Client {
        Client { db, ..self.clone() }
    }

    /// Runs a command and gives its reply, whether it succeeded or not.
    pub async fn run(&self, command: Document) -> Document {
        let mut body = command;
        body.insert("$db", self.db);
        let body = RawDocumentBuf::try_from(&body).expect("a command is a document");
        let op = self.next_op.get();
        self.next_op.set(op + 1);
        let op = op * 64 + i32::from(self.core.0);
        let connection = self.connection.clone();
        let bytes = pinion_runtime::submit_to(self.core, Queue::Foreground, move || async move {
            dispatch(op, body, connection).await
        })
        .await;
        let reply = RawDocument::from_bytes(&bytes).expect("a reply is a document");
        pinion_bson::validate(reply.as_bytes()).expect("a reply is valid");
        Document::try_from(reply).expect("a reply is a document")
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn ok(&self, command: Document) -> impl Future<Output = Document> + use<> {
        let caller = std::panic::Location::caller();
        let client = self.clone();
        async move {
            let shown = command.to_string();
            let reply = client.run(command).await;
            assert_eq!(
                reply.get_f64("ok").ok(),
                Some(1.0),
                "{caller}: {shown} answered {reply}"
            );
            reply
        }
    }

    /// Runs a command that must fail with this code.
    #[track_caller]
    pub fn fails(&self, command: Document, code: i32) -> impl Future<Output = String> + use<> {
        let caller = std::panic::Location::caller();
        let client = self.clone();
        async move {
            let shown = command.to_string();
            let reply = client.run(command).await;
            assert_eq!(
                reply.get_i32("code").ok(),
                Some(code),
                "{caller}: {shown} answered {reply}"
            );
            reply
                .get_str("errmsg")
                .expect("an error has a message")
                .to_owned()
        }
    }

    /// Inserts a document into `c`, which must fail with this code.
    pub async fn fails_to_insert(&self, document: Document, code: i32) {
        let reply = self
            .ok(pinion_bson::doc! { "insert": "c", "documents": [document] })
            .await;
        let errors = reply.get_array("writeErrors").expect("an error");
        let error = errors[0].as_document().expect("a document");
        assert_eq!(error.get_i32("code").ok(), Some(code), "{reply}");
    }

    /// Runs a find as its connection does. One that repeats the find before it is answered at once,
    /// which gives whether there was a document; `None` for any other.
    pub async fn repeat(&self, body: Document) -> Option<bool> {
        let body = RawDocumentBuf::try_from(&body).expect("a command is a document");
        let bytes = encode_request(1, Flags(0), &body);
        let now_ns = pinion_runtime::now().as_nanos();
        let attempt = self
            .prepared
            .borrow()
            .as_ref()
            .map(|known| known.run_now(&bytes, now_ns));
        let ran = match attempt {
            Some(Attempt::Ran(ran)) => Some(ran),
            Some(Attempt::Asked(asked)) => asked.await,
            Some(Attempt::Not) | None => None,
        };
        if let Some(ran) = ran {
            let cursor = ran.reply.get("cursor").expect("a cursor");
            let cursor = cursor.as_document().expect("a document");
            let batch = cursor.get_array("firstBatch").expect("a batch");
            return Some(!batch.is_empty());
        }
        let message = parse_message(bytes).expect("a valid message");
        let connection = self.connection.clone();
        let invocation = begin(0, &message, connection).expect("a command");
        let (command, ctx) = (invocation.command.clone(), invocation.ctx.clone());
        let left = attempt_and_take(invocation).await;
        *self.prepared.borrow_mut() = left.map(|left| Prepared::new(left, command, ctx));
        None
    }

    /// Makes the collection `p` of these documents, with an index on `a`.
    pub async fn make_indexed(&self, documents: Vec<Document>) {
        self.ok(doc! { "insert": "p", "documents": documents })
            .await;
        let index = doc! { "key": { "a": 1 }, "name": "a" };
        self.ok(doc! { "createIndexes": "p", "indexes": [index] })
            .await;
    }

    /// All documents of a find, through as many batches as it takes.
    pub async fn find(&self, command: Document) -> Vec<Document> {
        let collection = command
            .get_str("find")
            .or_else(|_| command.get_str("aggregate"))
            .or_else(|_| command.get_str("listIndexes"))
            .expect("a cursor command")
            .to_owned();
        let reply = self.ok(command).await;
        let cursor = reply.get_document("cursor").expect("a cursor");
        let mut found: Vec<Document> = batch(cursor, "firstBatch");
        let mut id = cursor.get_i64("id").expect("an id");
        let mut turn = 0;
        while id != 0 {
            // Every batch over another connection.
            turn += 1;
            let reply = self
                .on(turn)
                .ok(pinion_bson::doc! { "getMore": id, "collection": &collection, "batchSize": 3 })
                .await;
            let cursor = reply.get_document("cursor").expect("a cursor");
            found.extend(batch(cursor, "nextBatch"));
            id = cursor.get_i64("id").expect("an id");
        }
        found
    }
}

/// The documents of a batch of a cursor.
pub fn batch(cursor: &Document, name: &str) -> Vec<Document> {
    let array = cursor.get_array(name).expect("a batch");
    array
        .iter()
        .map(|value| value.as_document().expect("a document").clone())
        .collect()
}

async fn dispatch(op: i32, body: RawDocumentBuf, connection: Option<Arc<ClientInfo>>) -> Vec<u8> {
    let message = Message::from_body(body);
    let registry = pinion_runtime::core_local::<Registry>();
    let (ctx, outcome) = match begin(op, &message, connection) {
        Ok(invocation) => {
            let ctx = invocation.ctx.clone();
            (Some(ctx), attempt(invocation).await)
        }
        Err(error) => (None, Err(error)),
    };
    let (mut reply, failure) = match outcome {
        Ok(mut reply) => {
            reply.append("ok", 1.0);
            let failure = reply.get("writeConcernError").and_then(code_of);
            (reply, failure)
        }
        Err(error) => (error_reply(&error, &[]), Some(error.code)),
    };
    if let Some(epilogue) = registry.epilogue() {
        epilogue.append(ctx.as_ref(), failure, &mut reply);
    }
    let _ = reply.take_next();
    if reply.is_withheld() {
        reply.append("withheld", true);
    }
    let bytes = reply.encode(ReplyFrame::answering(&message, 1));
    // Behind the header: flags and the section's kind.
    bytes[21..].to_vec()
}

fn code_of(error: RawBsonRef<'_>) -> Option<ErrorCode> {
    let code = pinion_bson::get(error.as_document()?, "code")?.as_i32()?;
    Some(ErrorCode(code))
}

fn begin(
    op: i32,
    message: &Message,
    connection: Option<Arc<ClientInfo>>,
) -> Result<Invocation, Error> {
    let registry = pinion_runtime::core_local::<Registry>();
    let command = registry.find(message.command_name())?.clone();
    let args = GenericArguments::parse(message.command_name(), message.body())?;
    let now = pinion_runtime::now().as_nanos();
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let client = connection.unwrap_or_else(|| Arc::new(ClientInfo::new(1, address, address)));
    let ctx = OpContext::new(op, client, command.spec, message.database()?, args, now);
    Ok(Invocation {
        message: message.clone(),
        ctx,
        command,
        exhaust_allowed: false,
    })
}

async fn attempt_and_take(invocation: Invocation) -> Option<Box<Repeatable>> {
    attempt(invocation).await.ok()?.take_repeatable()
}

async fn attempt(invocation: Invocation) -> Result<pinion_wire::Reply, Error> {
    let command = invocation.command.clone();
    check_permitted(command.spec, &invocation.message, &invocation.ctx)?;
    command.count_start();
    command.invoke(invocation).await
}

/// What a node's cores run: core 0 opens the node and runs the script.
fn node_main(
    core: CoreId,
    options: NodeOptions,
    script: Script,
) -> Pin<Box<dyn Future<Output = ()>>> {
    Box::pin(async move {
        let mut registry = Registry::new();
        register_commands(&mut registry);
        register_unreplicated(&mut registry);
        register_test_commands(&mut registry);
        pinion_runtime::set_core_local(Rc::new(registry));
        if core == CoreId(0) {
            let is_member = options.storage.is_member;
            if let Err(error) = open_node(options).await {
                panic!("the node did not open: {error}");
            }
            if !is_member {
                let started = begin_standalone_builds().await;
                started.expect("builds begin");
            }
            script(Client::new()).await;
            close_node().await;
            pinion_runtime::request_shutdown();
        } else {
            pinion_runtime::shutdown_requested().await;
        }
    })
}

/// Runs a script on a fresh node.
pub fn with_node<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: usize,
    partitions: u16,
    script: impl Fn(Client) -> Fut + 'static,
) {
    with_lives(seed, &[cores], partitions, move |_, client| script(client));
}

/// Runs a script on a fresh node with these options.
pub fn with_options<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: usize,
    options: NodeOptions,
    script: impl Fn(Client) -> Fut + 'static,
) {
    run_lives(seed, &[cores], options, None, move |_, client| {
        script(client)
    });
}

/// Runs a script on a fresh node that keeps all entries in its rings, cuts its power, and runs the
/// other script beside what it leaves.
pub fn with_whole_log<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: usize,
    partitions: u16,
    script: impl Fn(Client) -> Fut + 'static,
    inspect: impl Fn() -> Pin<Box<dyn Future<Output = ()>>> + 'static,
) {
    let mut options = options(partitions);
    options.storage.checkpoint_interval = Duration::from_secs(3600);
    options.storage.ring_bytes_per_checkpoint = 1 << 30;
    options.storage.stamp_bits = u32::BITS;
    let sim = Sim::new(seed, SimOptions::default());
    let done = Rc::new(Cell::new(0));
    let (script, inspect) = (Rc::new(script), Rc::new(inspect));
    let node = {
        let done = done.clone();
        sim.add_node("node", cores, move |core| {
            let (done, script, inspect) = (done.clone(), script.clone(), inspect.clone());
            if done.get() == 0 {
                let script: Script = Rc::new(move |client| {
                    let (done, script) = (done.clone(), script.clone());
                    Box::pin(async move {
                        script(client).await;
                        done.set(1);
                        std::future::pending::<()>().await;
                    })
                });
                return node_main(core, options.clone(), script);
            }
            Box::pin(async move {
                if core == CoreId(0) {
                    inspect().await;
                    done.set(2);
                }
            })
        })
    };
    let reached = |turn| {
        let done = done.clone();
        let reached = sim.run_until(move || done.get() == turn);
        assert!(
            reached.is_ok(),
            "seed {seed}: part {turn} did not end: {reached:?}"
        );
    };
    reached(1);
    sim.crash(node, Death::PowerCut);
    sim.restart(node, 1);
    reached(2);
}

/// Runs a script in each life of a node; the node is closed between them, and may have another
/// number of cores in each.
pub fn with_lives<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: &[usize],
    partitions: u16,
    script: impl Fn(usize, Client) -> Fut + 'static,
) {
    run_lives(seed, cores, options(partitions), None, script);
}

/// As `with_lives`; gives how often the node said that this happened, in all of its lives.
pub fn count_in_lives<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: &[usize],
    options: NodeOptions,
    event: &str,
    script: impl Fn(usize, Client) -> Fut + 'static,
) -> u64 {
    let (sim, node) = run_lives(seed, cores, options, None, script);
    sim.event_count(node, event)
}

/// As `with_lives`, but the node is killed when a life's script is done.
pub fn with_crashes<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: &[usize],
    partitions: u16,
    script: impl Fn(usize, Client) -> Fut + 'static,
) {
    let death = Some(Death::PowerCut);
    run_lives(seed, cores, options(partitions), death, script);
}

/// As `with_lives` for a node that is to be a member of a replica set; with a death it is killed
/// when a life's script is done.
pub fn with_member<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: &[usize],
    partitions: u16,
    death: Option<Death>,
    script: impl Fn(usize, Client) -> Fut + 'static,
) {
    let mut options = options(partitions);
    options.storage.is_member = true;
    run_lives(seed, cores, options, death, script);
}

fn run_lives<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: &[usize],
    options: NodeOptions,
    death: Option<Death>,
    script: impl Fn(usize, Client) -> Fut + 'static,
) -> (Sim, NodeId) {
    let sim = Sim::new(seed, SimOptions::default());
    let life = Rc::new(Cell::new(0));
    let done = Rc::new(RefCell::new(Vec::new()));
    let script = Rc::new(script);
    let run: Script = {
        let (life, done) = (life.clone(), done.clone());
        Rc::new(move |client| {
            let (life, done, script) = (life.get(), done.clone(), script.clone());
            Box::pin(async move {
                script(life, client).await;
                done.borrow_mut().push(life);
                if death.is_some() {
                    // Killed from outside.
                    std::future::pending::<()>().await;
                }
            })
        })
    };
    let node = sim.add_node("node", cores[0], move |core| {
        node_main(core, options.clone(), run.clone())
    });
    for (turn, count) in cores.iter().enumerate() {
        if turn > 0 {
            life.set(turn);
            sim.restart(node, *count);
        }
        let reached = {
            let done = done.clone();
            sim.run_until(move || done.borrow().contains(&turn))
        };
        assert!(
            reached.is_ok(),
            "seed {seed}: life {turn} did not end: {reached:?}"
        );
        match death {
            Some(death) => sim.crash(node, death),
            None => assert!(
                sim.run_until_down(node).is_ok(),
                "seed {seed}: the node did not close"
            ),
        }
    }
    (sim, node)
}

/// The field of every document.
pub fn column(documents: &[Document], field: &str) -> Vec<Bson> {
    documents
        .iter()
        .map(|document| document.get(field).cloned().unwrap_or(Bson::Null))
        .collect()
}
