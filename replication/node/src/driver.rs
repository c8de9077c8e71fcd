//! The driver of the state machine, on core 0: it feeds the machine with inputs and carries out its
//! effects.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocumentBuf};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_exec::{Buffered, MemberFigures, SetView, set_replica_set};
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::message::OpTimeAndWallTime;
use pinion_replication_protocol::node::{
    Command, CommandId, Identity, Input, Node, Now, Persisted, Progress,
};
use pinion_runtime::sync::{Notify, OneshotSender, Semaphore, oneshot};
use pinion_runtime::{
    CoreId, Instant, JoinHandle, LocalBoxFuture, Queue, core_id, now, on_all_cores, sleep,
    sleep_until, spawn, timeout, timeout_at, wall_ms,
};
use pinion_service::node_info::node_info;
use pinion_storage::{LogRetention, storage};
use pinion_wire::{Error, ErrorCode, MemberState, Result, interruption};

use crate::effects::{Located, Persist, locate_accepted};
use crate::fetch::bson_ts;
use crate::follower::{Follower, StorageFollows};
use crate::idle::machine_parameters;
use crate::initial_sync::InitialSync;
use crate::limits::{MAX_OPLOG_BYTES, MIN_OPLOG_BYTES, OPLOG_SHARE, START_PATIENCE, TICK_PAUSE};
use crate::metrics::Metrics;
use crate::peers::Peers;
use crate::planted::PlantedFault;
use crate::seam::{CoreTopology, Seam, core_topology};
use crate::terms::Terms;
use crate::topology_snapshot::{TopologySnapshot, set_view};
use crate::walls::{Walls, read_wall};
use crate::{MemberOptions, persisted};

/// What drives this node's member. It lives on core 0.
pub(crate) struct Driver {
    pub(crate) options: MemberOptions,
    /// How the node calls itself before a configuration names it.
    pub(crate) host: HostPort,
    node: RefCell<Node>,
    /// What the machine's view says, made when it has changed.
    view: RefCell<Arc<SetView>>,
    pub(crate) peers: Rc<Peers>,
    /// Commands that wait for the machine's answer.
    waiting: RefCell<BTreeMap<CommandId, OneshotSender<Result<RawDocumentBuf>>>>,
    last_request: Cell<u64>,
    /// The machine's deadline may have changed.
    due: Notify,
    pub(crate) terms: RefCell<Terms>,
    pub(crate) walls: RefCell<Walls>,
    /// The log has grown, or become durable.
    pub(crate) moved: Notify,
    /// How much of the oplog is kept.
    pub(crate) retention: Cell<LogRetention>,
    pub(crate) follower: Follower,
    pub(crate) metrics: Metrics,
    /// A task that has storage lead or follow holds the turn: turns come in the order in which the
    /// machine asked for them.
    pub(crate) role_turn: Semaphore,
    /// Watches how far the oplog is durable.
    watching: RefCell<Option<JoinHandle<()>>>,
    /// What fetches from the sync source.
    pub(crate) fetching: RefCell<Option<JoinHandle<()>>>,
    /// While the data of this node are copied.
    pub(crate) initial_sync: RefCell<Option<Rc<InitialSync>>>,
    last_reported: Cell<Progress>,
    /// Storage is opened again as of an earlier time, which is reported to the machine when that
    /// has ended.
    pub(crate) reopens: Cell<bool>,
    /// It is being found out which member of its configuration this node is.
    pub(crate) locates: Cell<bool>,
    /// What has to be durable, in this order.
    pub(crate) persists: RefCell<VecDeque<Persist>>,
    pub(crate) persist_due: Notify,
    /// A task that stores something of those holds the turn, and so does one that opens the
    /// directory again.
    pub(crate) storing: Semaphore,
    publishing: Cell<bool>,
    unpublished: Cell<bool>,
    pub(crate) published: Notify,
    /// The state that was logged last, and the term in which this node was last said to take
    /// writes.
    pub(crate) last_state: Cell<MemberState>,
    pub(crate) writable_in: Cell<Term>,
    /// When the process ends at the latest, once a command has asked for that.
    pub(crate) leaves_until: Cell<Option<Instant>>,
    /// The member does nothing more: storage is about to be closed.
    pub(crate) has_left: Cell<bool>,
}

/// Makes every core part of a member, before it serves clients. Called on core 0.
///
/// # Errors
/// The oplog cannot be shown as a collection, or the data directory is of a form that a member
/// cannot have.
pub fn join(options: &MemberOptions) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        pinion_instance::check_own_collections()?;
        pinion_instance::show_oplog(retention(options).await?).await?;
        let snapshot = Arc::new(TopologySnapshot::before_start(&options.set_name));
        on_all_cores(move |_| {
            let snapshot = snapshot.clone();
            async move {
                let member = CoreTopology::new(snapshot);
                set_replica_set(Rc::new(Seam(member.clone())));
                pinion_runtime::set_core_local(member);
            }
        })
        .await;
        Ok(())
    })
}

/// How much of its oplog a member keeps. Its size is what it was when the member began: a disk that
/// fills does not make it shorter.
async fn retention(options: &MemberOptions) -> Result<LogRetention> {
    let bytes = match (
        pinion_instance::stored_oplog_bytes().await?,
        options.oplog_bytes,
    ) {
        (Some(bytes), _) => bytes,
        (None, asked) => {
            let bytes = match asked {
                Some(bytes) => bytes,
                None => share_of_disk().await?,
            };
            pinion_instance::store_oplog_bytes(bytes).await?;
            bytes
        }
    };
    Ok(LogRetention {
        bytes,
        min_age: options.oplog_min_age,
    })
}

/// The bytes of oplog that a member keeps where no option says how many: as mongod, a twentieth of
/// what is free.
async fn share_of_disk() -> Result<u64> {
    let space = pinion_runtime::fs::space(storage().dir()).await;
    let free = space
        .map_err(|error| Error::internal(error.to_string()))?
        .free_bytes;
    Ok((free / OPLOG_SHARE).clamp(MIN_OPLOG_BYTES, MAX_OPLOG_BYTES))
}

/// Takes up what the node knows of its set, and drives the member from then on. Called on core 0
/// once the node listens.
///
/// # Errors
/// What the node keeps of its set cannot be read.
pub fn start(options: MemberOptions) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        assert!(core_id() == CoreId(0), "a member is driven on core 0");
        let follows = StorageFollows::begin().await?;
        // Before anything is fetched: what comes to be durable beside them may be an entry that
        // ends them.
        pinion_catalog::begin_builds().await?;
        let host = HostPort::parse(&node_info().options.host)?;
        if options.planted_fault == PlantedFault::ReadersNotFenced {
            pinion_catalog::plant_unfenced_reads();
        }
        let peers = Peers::here();
        crate::kept::remove_unfinished().await?;
        let config = persisted::config(&options.set_name).await?;
        let last = pinion_instance::last_logged().await?;
        let needs_initial_sync =
            !persisted::is_synced().await? || pinion_apply::has_partial_clone();
        let rollback_id = persisted::rollback_id_at_start(config.is_some()).await?;
        let located = match &config {
            Some(config) => locate_accepted(&peers, config, |_| true).await,
            None => Located::Nowhere,
        };
        let found = Persisted {
            self_index: match located {
                Located::At(index) => Some(index),
                Located::Nowhere | Located::Unknown => None,
            },
            needs_initial_sync,
            config,
            last_vote: persisted::last_vote().await?,
            progress: match needs_initial_sync {
                true => Progress::default(),
                false => Progress::all_at(OpTimeAndWallTime {
                    optime: last,
                    wall_ms: read_wall(last.ts).await.unwrap_or(0),
                }),
            },
            min_valid: OpTime::NULL,
            rollback_id,
        };
        let identity = Identity {
            set_name: options.set_name.clone(),
            host: host.clone(),
            seed: pinion_runtime::random_stream("replication").next_u64(),
            parameters: machine_parameters(options.planted_fault),
        };
        let retention = retention(&options).await?;
        let node = Node::new(identity, found, time());
        let driver = Rc::new(Driver {
            options,
            host,
            view: RefCell::new(set_view(&node)),
            node: RefCell::new(node),
            peers,
            waiting: RefCell::default(),
            last_request: Cell::new(0),
            due: Notify::new(),
            terms: RefCell::new(Terms::starting_at(last)),
            walls: RefCell::default(),
            moved: Notify::new(),
            retention: Cell::new(retention),
            follower: Follower::behind(&follows, last),
            metrics: Metrics::default(),
            role_turn: Semaphore::new(1),
            watching: RefCell::default(),
            fetching: RefCell::default(),
            initial_sync: RefCell::default(),
            last_reported: Cell::new(Progress::default()),
            reopens: Cell::new(false),
            locates: Cell::new(false),
            persists: RefCell::default(),
            persist_due: Notify::new(),
            storing: Semaphore::new(1),
            publishing: Cell::new(false),
            unpublished: Cell::new(false),
            published: Notify::new(),
            last_state: Cell::new(MemberState::Startup),
            writable_in: Cell::new(Term::UNINITIALIZED),
            leaves_until: Cell::new(None),
            has_left: Cell::new(false),
        });
        driver.start_following();
        pinion_runtime::set_core_local(driver.clone());
        arrival().0.notify_all();
        if matches!(located, Located::Unknown) {
            driver.start_locating();
        }
        spawn(Queue::Foreground, driver.clone().keep_time());
        spawn(Queue::Foreground, driver.clone().persist());
        spawn(Queue::Foreground, driver.clone().watch_walls());
        spawn(Queue::Foreground, driver.clone().write_noops());
        spawn(Queue::Foreground, driver.clone().control_flow());
        driver.watch_storage();
        driver.step(Input::Tick);
        driver.publish_view();
        Ok(())
    })
}

/// Notifies the waiters for the driver.
#[derive(Default)]
struct Arrival(Notify);

fn arrival() -> Rc<Arrival> {
    pinion_runtime::try_core_local().unwrap_or_else(|| {
        let arrival = Rc::new(Arrival::default());
        pinion_runtime::set_core_local(arrival.clone());
        arrival
    })
}

/// The driver. A node that has just started to listen reads what it knows of its set first: that is
/// waited for, within a time.
pub(crate) async fn awaited_driver() -> Option<Rc<Driver>> {
    if driver().is_none() {
        let _ = timeout(START_PATIENCE, arrival().0.notified()).await;
    }
    driver()
}

/// The driver; `None` while the node has not read what it knows of its set.
pub(crate) fn driver() -> Option<Rc<Driver>> {
    pinion_runtime::try_core_local::<Driver>()
}

pub(crate) fn time() -> Now {
    Now {
        ms: now().as_nanos() / 1_000_000,
        wall_ms: wall_ms(),
    }
}

fn optimes(progress: &Progress) -> [OpTime; 3] {
    [progress.written, progress.applied, progress.durable].map(|at| at.optime)
}

impl Driver {
    /// Gives the machine an input, and starts to perform its effects.
    pub(crate) fn step(self: &Rc<Self>, input: Input) {
        let effects = {
            let mut node = self.node.borrow_mut();
            node.set_parameters(machine_parameters(self.options.planted_fault));
            node.step(time(), input)
        };
        for effect in effects {
            self.perform(effect);
        }
        self.due.notify_one();
    }

    /// Reports how far this node's own storage is, if it is further.
    pub(crate) fn report_progress(self: &Rc<Self>) {
        if self.reopens.get() {
            return;
        }
        let (progress, before) = (self.progress(), self.last_reported.get());
        // When an entry was written may be learned later: that alone moves nothing.
        if optimes(&progress) != optimes(&before) {
            self.last_reported.set(progress);
            self.moved.notify_one();
            self.step(Input::Progress(progress));
        }
    }

    /// As [`Driver::report_progress`], and when the entries were written, which is shown to people.
    pub(crate) fn report_all_progress(self: &Rc<Self>) {
        self.report_progress();
        if self.reopens.get() {
            return;
        }
        let progress = self.progress();
        if progress != self.last_reported.replace(progress) {
            self.step(Input::Progress(progress));
        }
    }

    /// How far this node's own storage is.
    pub(crate) fn progress(&self) -> Progress {
        // What is logged while the data are incomplete must not be relied upon.
        if self.initial_sync.borrow().is_some() {
            return Progress::default();
        }
        let (storage, terms, walls) = (storage(), self.terms.borrow(), self.walls.borrow());
        let at = |ts: Timestamp| walls.with_wall(terms.optime(ts));
        // In this order, so that none is reported ahead of the one that it follows.
        let (mut durable, applied) = (storage.all_durable(), storage.visible());
        if self.options.planted_fault == PlantedFault::DurableBeforeFlush {
            durable = storage.last_allotted();
        }
        Progress {
            written: at(storage.last_allotted()),
            applied: at(applied),
            durable: at(durable),
        }
    }

    /// Looks at the machine.
    pub(crate) fn with_node<T>(&self, look: impl FnOnce(&Node) -> T) -> T {
        look(&self.node.borrow())
    }

    /// Has the machine answer a command.
    ///
    /// # Errors
    /// Those of the command.
    pub(crate) async fn command(self: &Rc<Self>, command: Command) -> Result<RawDocumentBuf> {
        self.report_all_progress();
        let id = CommandId(self.last_request.get() + 1);
        self.last_request.set(id.0);
        let (answer, answered) = oneshot();
        self.waiting.borrow_mut().insert(id, answer);
        let _withdrawn = Withdraws { driver: self, id };
        self.step(Input::Command { id, command });
        let stopped = || interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
        answered.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// What this member has counted, and what it is doing.
    pub(crate) fn figures(&self) -> MemberFigures {
        let counts = self.with_node(|node| *node.counts());
        let mut figures = self.metrics.figures(&counts);
        let (entries, bytes) = self.follower.unapplied();
        figures.apply_buffer = Buffered { entries, bytes };
        figures.requests_in_progress = self.peers.running();
        figures.timers = u64::from(self.node.borrow().next_deadline_ms().is_some());
        figures.commands_waiting = self.waiting.borrow().len() as u64;
        figures.oplog_min_age = self.retention.get().min_age;
        figures
    }

    /// `replSetGetStatus`.
    pub(crate) fn status(self: &Rc<Self>, initial_sync: bool) -> Result<RawDocumentBuf> {
        self.report_all_progress();
        let recovers_at = storage().checkpoint_timestamp();
        self.with_node(|node| {
            node.status(time(), |out| {
                if !recovers_at.is_null() {
                    let ts = RawBsonRef::Timestamp(bson_ts(recovers_at));
                    out.append("lastStableRecoveryTimestamp", ts);
                }
                if initial_sync {
                    self.append_initial_sync(out);
                }
            })
        })
    }

    /// The answer to a command.
    pub(crate) fn answer(&self, id: CommandId, result: Result<RawDocumentBuf>) {
        let waiting = self.waiting.borrow_mut().remove(&id);
        // The client may have gone away.
        let _ = waiting.map(|answer| answer.send(result));
    }

    /// Gives the machine the time when the one that it waits for has come.
    async fn keep_time(self: Rc<Self>) {
        while !self.has_left.get() {
            let changed = self.due.notified();
            let deadline = self.node.borrow().next_deadline_ms();
            match deadline {
                None => changed.await,
                Some(ms) => {
                    let at = pinion_runtime::Instant::from_nanos(ms.saturating_mul(1_000_000));
                    if now() < at && timeout_at(at, changed).await.is_ok() {
                        continue;
                    }
                    sleep_until(at).await;
                    if self.has_left.get() {
                        return;
                    }
                    self.report_progress();
                    self.step(Input::Tick);
                    // The machine may have to wait for something else behind its deadline.
                    sleep(TICK_PAUSE).await;
                }
            }
        }
    }

    /// Watches the storage that there is now.
    pub(crate) fn watch_storage(self: &Rc<Self>) {
        let watching = spawn(Queue::Foreground, self.clone().watch_progress());
        if let Some(before) = self.watching.replace(Some(watching)) {
            before.abort();
        }
    }

    /// Reports to the machine how far this node's oplog is durable, as it moves.
    async fn watch_progress(self: Rc<Self>) {
        let storage = storage();
        loop {
            let durable = storage.all_durable();
            self.report_progress();
            if storage.wait_durable_beyond(durable).await.is_err() {
                return;
            }
        }
    }

    /// Sends every core what is known now, of which the machine's view has changed.
    pub(crate) fn publish_view(self: &Rc<Self>) {
        self.view.replace(set_view(&self.node.borrow()));
        self.publish();
    }

    /// Sends every core what is known now. What changes while that is on its way is sent behind it.
    pub(crate) fn publish(self: &Rc<Self>) {
        self.unpublished.set(true);
        if self.publishing.replace(true) {
            return;
        }
        let driver = self.clone();
        spawn(Queue::Foreground, async move {
            while driver.unpublished.replace(false) {
                let snapshot = Arc::new(driver.snapshot());
                on_all_cores(move |_| {
                    let snapshot = snapshot.clone();
                    async move { core_topology().replace(snapshot) }
                })
                .await;
            }
            driver.publishing.set(false);
            driver.published.notify_all();
        });
    }

    /// Completes when every core knows what is known now.
    pub(crate) async fn all_published(&self) {
        while self.publishing.get() {
            self.published.notified().await;
        }
    }

    fn snapshot(&self) -> TopologySnapshot {
        let (node, view, terms) = (self.node.borrow(), self.view.borrow(), self.terms.borrow());
        TopologySnapshot::of(&node, &view, &terms, &self.walls.borrow())
    }

    pub(crate) fn not_initialized() -> Error {
        Error::new(
            ErrorCode::NOT_YET_INITIALIZED,
            "no replset config has been received",
        )
    }
}

/// Takes a command back that is not waited for any more.
struct Withdraws<'d> {
    driver: &'d Rc<Driver>,
    id: CommandId,
}

impl Drop for Withdraws<'_> {
    fn drop(&mut self) {
        if self.driver.waiting.borrow_mut().remove(&self.id).is_some() {
            self.driver.step(Input::Withdrawn(self.id));
        }
    }
}
