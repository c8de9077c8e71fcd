//! The language of scripts, and how they are played.
//!
//! A line that begins with `>` is an event, maybe after `+ms` of time: `name: core=1 within=h drop
//! c` begins an operation of that name on core 1, as a part of the critical section `h`; without a
//! name it has that of its verb. What becomes of operations follows, indented, once nothing happens
//! any more by itself: what they wait for, or what they have done; then what the gates keep out.
//! `setup` makes what most scripts begin with. `read`, `stay` and `write` are statements, which
//! stay behind the gate until `leave`; `hold` is a critical section.
//!
//! Each script is played on nodes of several sizes, to the same trace. With `PINION_UPDATE=1` the
//! scripts are rewritten.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pinion_catalog::{
    BuildPhase, ClosedBy, GateAccess, Hold, awaited_locks, core_catalog, end_holds, hold,
    hold_database, index_builds, kill_build, set_build_hold,
};
use pinion_runtime::{
    CoreId, Duration, Instant, JoinHandle, Queue, core_count, now, on_all_cores, sleep, spawn,
    submit_to,
};
use pinion_service::interrupt::interruptible;
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, ErrorCode, OpContext, Result};

use crate::act::{access, act, mode, namespace};
use crate::documents;
use crate::node::with_node;

static SCRIPT: CommandSpec = CommandSpec::of_task("script");

/// How long a player waits after each line before it reports what the operations do; a wait checks
/// at least this often whether it was killed.
const SETTLED: Duration = Duration::from_millis(400);

/// Seed, cores and partitions of the nodes that a script is played on.
const NODES: [(u64, usize, u16); 3] = [(1, 3, 3), (2, 1, 1), (3, 2, 3)];

const SETUP: [&str; 8] = [
    "drop-database d",
    "create c",
    "insert c 0..6",
    "index c a",
    "index c c",
    "modify c prepare-unique c",
    "create b",
    "insert b 10..13",
];

type Outcome = Result<String>;

/// An operation that was started.
struct Operation {
    ctx: OpContext,
    core: CoreId,
    /// What it does with the gate, if it is a statement.
    statement: Option<(Namespace, GateAccess)>,
    is_behind: Arc<AtomicBool>,
    leaves: Arc<AtomicBool>,
    task: JoinHandle<Outcome>,
    reported: String,
}

struct Player {
    operations: BTreeMap<String, Operation>,
    holds: Rc<RefCell<BTreeMap<String, Hold>>>,
    /// What scripts have named, whose gates are shown.
    named: BTreeSet<Namespace>,
    gates: String,
    op_ids: i32,
    /// The number of the phase that builds wait in; 0 while they run.
    held_phase: Arc<AtomicI32>,
    out: Rc<RefCell<String>>,
}

fn phase(name: &str) -> BuildPhase {
    match name {
        "Scanning" => BuildPhase::Scanning,
        "Loading" => BuildPhase::Loading,
        "Draining" => BuildPhase::Draining,
        _ => panic!("there is no phase {name}"),
    }
}

fn after(ms: &str) -> Instant {
    now() + Duration::from_millis(ms.parse().expect("milliseconds"))
}

impl Player {
    fn say(&self, line: &str) {
        writeln!(self.out.borrow_mut(), "  {line}").expect("a text takes more");
    }

    async fn event(&mut self, line: &str) {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if let Some(ms) = words[0].strip_prefix('+') {
            sleep(Duration::from_millis(ms.parse().expect("milliseconds"))).await;
            words.remove(0);
        }
        if !words.is_empty() {
            let named = words[0].strip_suffix(':').map(str::to_owned);
            if named.is_some() {
                words.remove(0);
            }
            let name = named.unwrap_or_else(|| words[0].clone());
            self.begin(name, words).await;
        }
        sleep(SETTLED).await;
        self.report().await;
    }

    async fn begin(&mut self, name: String, mut words: Vec<String>) {
        let (mut core, mut within) = (CoreId(0), None);
        while let Some((option, value)) = words[0].split_once('=') {
            match option {
                "core" => {
                    let number: u16 = value.parse().expect("a core");
                    core = CoreId(number % core_count() as u16);
                }
                "within" => within = Some(value.to_owned()),
                _ => panic!("there is no option {option}"),
            }
            words.remove(0);
        }
        if self.at_once(&words).await {
            return;
        }
        self.op_ids += 1;
        let mut ctx = OpContext::internal(self.op_ids, &SCRIPT, "d", now().as_nanos());
        if let Some(within) = within {
            ctx = self.holds.borrow()[&within].admit(&ctx);
        }
        let mut operation = Operation {
            core,
            statement: None,
            is_behind: Arc::default(),
            leaves: Arc::default(),
            task: spawn(Queue::Foreground, async { Ok(String::new()) }),
            reported: String::new(),
            ctx: ctx.clone(),
        };
        operation.task = match words[0].as_str() {
            "hold" | "hold-database" => self.take_hold(name.clone(), core, words),
            "set" => self.set_hold(words),
            "read" | "stay" | "write" => {
                let access = access(&words[0]).expect("an access");
                let ns = namespace(&words[1]);
                self.named.insert(ns.clone());
                operation.statement = Some((ns.clone(), access));
                let (is_behind, leaves) = (operation.is_behind.clone(), operation.leaves.clone());
                let run = move || stand(ctx, ns, access, is_behind, leaves);
                spawn(Queue::Foreground, submit_to(core, Queue::Foreground, run))
            }
            _ => {
                let count = match words[0].as_str() {
                    "rename" => 2,
                    "drop-database" => 0,
                    _ => 1,
                };
                let names = words[1..].iter().take(count);
                self.named.extend(names.map(|name| namespace(name)));
                let run = move || act(ctx, words);
                spawn(Queue::Foreground, submit_to(core, Queue::Foreground, run))
            }
        };
        let displaced = self.operations.insert(name, operation);
        assert!(displaced.is_none(), "two operations have one name");
    }

    /// Does what is no operation; false where it is one.
    async fn at_once(&mut self, words: &[String]) -> bool {
        match words[0].as_str() {
            "leave" => self.operations[&words[1]]
                .leaves
                .store(true, Ordering::Relaxed),
            "kill" => {
                let killed = self.operations[&words[1]].ctx.kill(ErrorCode::INTERRUPTED);
                assert!(killed, "it was killed before");
            }
            "release" => {
                let held = self.holds.borrow_mut().remove(&words[1]);
                held.expect("it is held").release().await;
            }
            "drop-hold" => {
                let held = self.holds.borrow_mut().remove(&words[1]);
                drop(held.expect("it is held"));
            }
            // One that is being taken goes with its task.
            "abort" => self.operations[&words[1]].task.abort(),
            "hold-builds" => {
                let (_, number) = phase(&words[1]).name();
                self.held_phase.store(number, Ordering::Relaxed);
            }
            "run-builds" => self.held_phase.store(0, Ordering::Relaxed),
            "abort-builds" => {
                for build in index_builds().await {
                    assert!(kill_build(build.op_id).await, "it runs");
                }
            }
            "step-down" => {
                on_all_cores(|_| async { core_catalog().gates().give_up_changes(true) }).await;
                end_holds().await;
            }
            "step-up" => {
                on_all_cores(|_| async { core_catalog().gates().give_up_changes(false) }).await;
            }
            "setup" => self.set_up().await,
            "show" => self.show().await,
            _ => return false,
        }
        true
    }

    /// Makes the database `d` of two collections as most scripts begin with it.
    async fn set_up(&mut self) {
        for line in SETUP {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let ctx = OpContext::internal(0, &SCRIPT, "d", now().as_nanos());
            act(ctx, words).await.expect("nothing is in its way");
        }
        self.named.extend(["b", "c"].map(namespace));
    }

    fn take_hold(&mut self, name: String, core: CoreId, words: Vec<String>) -> JoinHandle<Outcome> {
        let holds = self.holds.clone();
        let (mode, deadline) = (mode(&words[2]), after(&words[3]));
        let of = words[1].clone();
        let is_database = words[0] == "hold-database";
        if !is_database {
            self.named.insert(namespace(&of));
        }
        let take = move || match is_database {
            true => hold_database(of, mode, deadline),
            false => hold(namespace(&of), mode, deadline),
        };
        spawn(Queue::Foreground, async move {
            let held = submit_to(core, Queue::Foreground, take).await?;
            holds.borrow_mut().insert(name, held);
            Ok("held".to_owned())
        })
    }

    fn set_hold(&self, words: Vec<String>) -> JoinHandle<Outcome> {
        let holds = self.holds.clone();
        spawn(Queue::Foreground, async move {
            let held = holds.borrow_mut().remove(&words[1]).expect("it is held");
            let set = held.set_mode(mode(&words[2]), after(&words[3])).await;
            holds.borrow_mut().insert(words[1].clone(), held);
            set.map(|()| format!("set to {}", words[2]))
        })
    }

    /// Writes what has become of operations, and of gates.
    async fn report(&mut self) {
        let closing = on_all_cores(|_| async { core_catalog().gates().closing() }).await;
        let closing: Vec<i32> = closing.into_iter().flatten().map(|(op, _)| op).collect();
        let builds = index_builds().await.len();
        let mut ended = Vec::new();
        let mut operations = std::mem::take(&mut self.operations);
        for (name, operation) in &mut operations {
            let now = match operation.task.is_finished() {
                true => {
                    ended.push(name.clone());
                    match (&mut operation.task).await {
                        Ok(Ok(done)) => done,
                        Ok(Err(error)) => error.code.name().into_owned(),
                        Err(_) => "aborted".to_owned(),
                    }
                }
                false => wait_of(operation, &closing, builds).await,
            };
            if operation.reported != now {
                self.say(&format!("{name}: {now}"));
                operation.reported = now;
            }
        }
        operations.retain(|name, _| !ended.contains(name));
        self.operations = operations;
        self.report_gates().await;
    }

    async fn report_gates(&mut self) {
        let mut gates = String::new();
        for ns in &self.named {
            let of = ns.clone();
            let on_each = on_all_cores(move |_| {
                let of = of.clone();
                async move { kept_out(&of) }
            });
            let on_each = on_each.await;
            let is_same = on_each.iter().all(|other| *other == on_each[0]);
            assert!(is_same, "the gates of {ns} differ: {on_each:?}");
            if !on_each[0].is_empty() {
                write!(gates, " {ns} {}", on_each[0]).expect("a text takes more");
            }
        }
        if gates != self.gates {
            let shown = match gates.as_str() {
                "" => " open",
                gates => gates,
            };
            self.say(&format!("gates:{shown}"));
            self.gates = gates;
        }
    }

    /// Writes what is in the catalog, and checks what is in the indexes.
    async fn show(&self) {
        let catalog = core_catalog().current();
        for collection in catalog.collections() {
            let documents = documents::check(collection).await;
            let mut line = format!("{}: {documents} documents", collection.ns);
            for index in collection.secondary_indexes() {
                let is_unique = index.spec.enforces_unique();
                let states = [
                    (index.building.is_some(), " building"),
                    (is_unique, " unique"),
                    (
                        index.listed.get("hidden").is_ok_and(|v| v.is_some()),
                        " hidden",
                    ),
                ];
                let states = states.iter().filter(|(is_so, _)| *is_so);
                let states: String = states.map(|(_, state)| *state).collect();
                write!(line, ", index {}{states}", index.name()).expect("a text takes more");
            }
            if collection.options.capped.is_some() {
                line.push_str(", capped");
            }
            self.say(&line);
        }
    }

    /// Nothing may wait, be held or be closed where a script ends.
    async fn end(mut self) {
        assert!(self.operations.is_empty(), "operations have not ended");
        assert!(self.holds.borrow().is_empty(), "something is held");
        self.show_nothing().await;
    }

    async fn show_nothing(&mut self) {
        self.report_gates().await;
        assert_eq!(self.gates, "", "gates are closed");
        for collection in core_catalog().current().collections() {
            documents::check(collection).await;
        }
    }
}

/// A statement: it passes the gate, and stays behind it.
async fn stand(
    ctx: OpContext,
    ns: Namespace,
    access: GateAccess,
    is_behind: Arc<AtomicBool>,
    leaves: Arc<AtomicBool>,
) -> Outcome {
    let catalog = core_catalog();
    let pass = interruptible(&ctx, catalog.gates().enter(&ns, access)).await?;
    is_behind.store(true, Ordering::Relaxed);
    while !leaves.load(Ordering::Relaxed) {
        sleep(Duration::from_millis(1)).await;
    }
    drop(pass);
    Ok("left".to_owned())
}

/// What an operation that has not ended is at.
async fn wait_of(operation: &Operation, closing: &[i32], builds: usize) -> String {
    if operation.is_behind.load(Ordering::Relaxed) {
        return "behind the gate".to_owned();
    }
    if let Some((ns, access)) = operation.statement.clone() {
        let closed_by = submit_to(operation.core, Queue::Foreground, move || async move {
            core_catalog().gates().closed_by(&ns, access)
        });
        return match closed_by.await {
            Some(ClosedBy::Ddl) => "waits for a change".to_owned(),
            Some(ClosedBy::CriticalSection) => "waits for a critical section".to_owned(),
            None => "waits".to_owned(),
        };
    }
    let op_id = operation.ctx.op_id;
    let locks = awaited_locks();
    let lock = locks.iter().find(|lock| lock.op_id == op_id);
    match lock {
        Some(lock) if lock.by_critical_section => "waits for a critical section".to_owned(),
        Some(_) => "waits for a change".to_owned(),
        None if closing.contains(&op_id) => "waits for statements".to_owned(),
        None if builds > 0 => "waits for a build".to_owned(),
        None => "waits".to_owned(),
    }
}

/// What the gate of this core keeps out.
fn kept_out(ns: &Namespace) -> &'static str {
    let catalog = core_catalog();
    let admits = |access| catalog.gates().admits(ns, access);
    match () {
        () if !admits(GateAccess::Read) => "Closed",
        () if !admits(GateAccess::ReadAndStay) => "NoStaying",
        () if !admits(GateAccess::Write) => "NoWrites",
        () => "",
    }
}

async fn play_on_node(script: Rc<str>, out: Rc<RefCell<String>>) {
    let held_phase = Arc::new(AtomicI32::new(0));
    let asked = held_phase.clone();
    on_all_cores(move |_| {
        let asked = asked.clone();
        async move {
            set_build_hold(Rc::new(move |phase| {
                let is_held = asked.load(Ordering::Relaxed) == phase.name().1;
                Box::pin(async move { is_held })
            }));
        }
    })
    .await;
    let mut player = Player {
        operations: BTreeMap::new(),
        holds: Rc::default(),
        named: BTreeSet::new(),
        gates: String::new(),
        op_ids: 0,
        held_phase,
        out: out.clone(),
    };
    for line in script.lines() {
        if let Some(event) = line.strip_prefix('>') {
            writeln!(out.borrow_mut(), "{line}").expect("a text takes more");
            player.event(event.trim()).await;
        } else if !line.starts_with("  ") {
            writeln!(out.borrow_mut(), "{line}").expect("a text takes more");
        }
    }
    player.end().await;
}

fn play(name: &str, script: &str, (seed, cores, partitions): (u64, usize, u16)) -> String {
    /// What was played so far shows why an assertion failed.
    struct Shown(Rc<RefCell<String>>, String);
    impl Drop for Shown {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{}:\n{}", self.1, self.0.borrow());
            }
        }
    }
    let out = Rc::new(RefCell::new(String::new()));
    let _shown = Shown(out.clone(), format!("{name} on {cores} cores"));
    let script: Rc<str> = script.into();
    let traced = out.clone();
    with_node(seed, cores, partitions, move || {
        play_on_node(script.clone(), traced.clone())
    });
    out.take()
}

#[allow(clippy::disallowed_methods)] // A test that reads, and on request rewrites, its own data.
pub fn play_all() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ddl/scripts");
    let update = std::env::var_os("PINION_UPDATE").is_some();
    let mut played = 0;
    let mut wrong = String::new();
    for file in std::fs::read_dir(folder).expect("the scripts are there") {
        let path = file.expect("a script is there").path();
        let script = std::fs::read_to_string(&path).expect("a script is a text");
        let name = path.display().to_string();
        played += 1;
        let first = play(&name, &script, NODES[0]);
        if update {
            std::fs::write(&path, &first).expect("a script can be written");
        }
        let expected = if update { &first } else { &script };
        for (index, node) in NODES.into_iter().enumerate() {
            let trace = match index {
                0 => first.clone(),
                _ => play(&name, &script, node),
            };
            let mut lines = expected.lines().zip(trace.lines()).enumerate();
            if trace != *expected {
                let first = lines.find(|(_, (expected, found))| expected != found);
                writeln!(wrong, "{name} on {node:?}: {first:?}").expect("a text takes more");
            }
        }
    }
    assert!(played > 0, "there are scripts");
    assert!(wrong.is_empty(), "{wrong}");
}
