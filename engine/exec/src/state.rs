//! What the executor keeps on each core.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::ObjectId;
use pinion_clock::Timestamp;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{Instant, Rng};

use crate::applier::KeptTransactions;
use crate::capped::CappedTable;
use crate::cluster_parameters::ClusterParameters;
use crate::concern::DefaultsCache;
use crate::db_check::DbCheckTasks;
use crate::fail_points::FailPoints;
use crate::fsync_lock::FsyncLock;
use crate::members::{Conversations, MemberAccess};
use crate::metrics::Metrics;
use crate::ops::OpTable;
use crate::options::NodeOptions;
use crate::parameters::Parameters;
use crate::parking::Parking;
use crate::plan_cache::{IndexFilters, PlanCache};
use crate::profile::Profiles;
use crate::query_settings::SettingsTable;
use crate::read::{ChangeFeed, CursorTable, PartTable};
use crate::replication::{FlowControl, NodeTickets};
use crate::sessions::{SessionCatalog, SessionRefresh, SessionTable};
use crate::spill::NodeMemory;
use crate::time_keys::TimeKeys;
use crate::topology::ReplicaSet;
use crate::transactions::{TransactionMemory, Transactions};
use crate::ttl::TtlMonitor;
use crate::write::OpenBuckets;

/// The state of one core of a node.
pub struct NodeState {
    pub shared: Arc<NodeShared>,
    /// What drives this node as a member of a replica set; a standalone has none.
    pub(crate) replica_set: RefCell<Option<Rc<dyn ReplicaSet>>>,
    pub(crate) metrics: Metrics,
    pub(crate) cursors: CursorTable,
    pub(crate) parts: PartTable,
    /// What reads the log for this core's change streams.
    pub(crate) change_feed: Rc<ChangeFeed>,
    pub(crate) sessions: SessionTable,
    /// Retryable writes of the sessions whose home this core is.
    pub(crate) session_catalog: SessionCatalog,
    pub(crate) session_refresh: SessionRefresh,
    pub(crate) transactions: Transactions,
    /// The first entry of the transaction that the log ends with, where its last one has not come; on the core that applies.
    pub(crate) open_chain: Cell<Option<Timestamp>>,
    /// Transactions that are prepared and whose entries an initial sync, or recovery, keeps; on the core that applies.
    pub(crate) kept_prepared: RefCell<KeptTransactions>,
    pub(crate) ops: OpTable,
    pub(crate) conversations: Conversations,
    pub(crate) parking: Parking,
    /// Taken while the data directory is opened again, and by whoever closes the node; on core 0.
    pub(crate) reopening: Semaphore,
    pub(crate) fsync_lock: FsyncLock,
    pub(crate) fail_points: FailPoints,
    pub(crate) parameters: RefCell<Parameters>,
    pub(crate) cluster_parameters: RefCell<ClusterParameters>,
    /// One that sets a cluster parameter at a time; core 0 has it.
    pub(crate) cluster_parameters_turn: Semaphore,
    pub(crate) default_concerns: DefaultsCache,
    /// One that sets the default concerns at a time; core 0 has it.
    pub(crate) default_concerns_turn: Semaphore,
    pub(crate) profiles: RefCell<Profiles>,
    /// Whether some database is profiled.
    pub(crate) profiling: Cell<bool>,
    /// The task that compacts in the background, by its number, or 0; core 0 has it.
    pub(crate) auto_compact: Cell<u64>,
    /// The last number of such a task.
    pub(crate) last_compact: Cell<u64>,
    /// The number of the last file that an operation of this core spilled into.
    last_spill_file: Cell<u64>,
    pub(crate) flow_control: FlowControl,
    pub(crate) ttl: TtlMonitor,
    /// What is compared between the members; core 0 has it.
    pub(crate) db_check: DbCheckTasks,
    /// What cluster times are signed with.
    pub(crate) time_keys: TimeKeys,
    /// The capped collections whose documents this core owns.
    pub(crate) capped: CappedTable,
    pub(crate) plan_cache: PlanCache,
    pub(crate) index_filters: RefCell<IndexFilters>,
    /// One that sets an index filter at a time; core 0 has it.
    pub(crate) index_filters_turn: Semaphore,
    pub(crate) open_buckets: RefCell<OpenBuckets>,
    pub(crate) query_settings: RefCell<Arc<SettingsTable>>,
    /// One that changes query settings at a time; core 0 has it.
    pub(crate) query_settings_turn: Semaphore,
    rng: RefCell<Rng>,
    /// Seeds the streams of `$rand`.
    expression_rng: RefCell<Rng>,
    object_ids: ObjectIds,
    last_timestamp: Cell<Timestamp>,
}

/// What all cores of a node know and none changes.
pub struct NodeShared {
    /// How the node was started.
    pub options: NodeOptions,
    /// Names this process in `topologyVersion`.
    pub process_id: ObjectId,
    /// When it started, monotonic and wall clock.
    pub started: Instant,
    pub started_wall_ms: i64,
    /// What its operations hold.
    pub(crate) memory: NodeMemory,
    /// What its open transactions keep.
    pub(crate) transactions: Arc<TransactionMemory>,
    /// How other members prove to be that, where they have to.
    pub(crate) member_access: Option<MemberAccess>,
    /// What writes take while the set lags.
    pub(crate) tickets: NodeTickets,
}

struct ObjectIds {
    process: [u8; 5],
    counter: Cell<u32>,
}

impl NodeState {
    pub(crate) fn new(shared: Arc<NodeShared>) -> NodeState {
        let mut rng = pinion_runtime::random_stream("exec");
        let mut process = [0; 5];
        rng.fill_bytes(&mut process);
        let counter = Cell::new(rng.next_u64() as u32 & 0x00ff_ffff);
        NodeState {
            shared,
            replica_set: RefCell::new(None),
            metrics: Metrics::default(),
            cursors: CursorTable::new(),
            parts: PartTable::default(),
            change_feed: Rc::default(),
            sessions: SessionTable::default(),
            session_catalog: SessionCatalog::default(),
            session_refresh: SessionRefresh::default(),
            transactions: Transactions::default(),
            open_chain: Cell::new(None),
            kept_prepared: RefCell::default(),
            ops: OpTable::default(),
            conversations: Conversations::default(),
            parking: Parking::default(),
            reopening: Semaphore::new(1),
            fsync_lock: FsyncLock::default(),
            fail_points: FailPoints::default(),
            parameters: RefCell::new(Parameters::default()),
            cluster_parameters: RefCell::new(ClusterParameters::default()),
            cluster_parameters_turn: Semaphore::new(1),
            default_concerns: DefaultsCache::default(),
            default_concerns_turn: Semaphore::new(1),
            profiles: RefCell::new(Profiles::default()),
            profiling: Cell::new(false),
            auto_compact: Cell::new(0),
            last_compact: Cell::new(0),
            last_spill_file: Cell::new(0),
            flow_control: FlowControl::default(),
            ttl: TtlMonitor::default(),
            db_check: DbCheckTasks::default(),
            time_keys: TimeKeys::default(),
            capped: CappedTable::default(),
            plan_cache: PlanCache::default(),
            index_filters: RefCell::new(IndexFilters::default()),
            index_filters_turn: Semaphore::new(1),
            open_buckets: RefCell::new(OpenBuckets::default()),
            query_settings: RefCell::default(),
            query_settings_turn: Semaphore::new(1),
            rng: RefCell::new(rng),
            expression_rng: RefCell::new(pinion_runtime::random_stream("expressions")),
            object_ids: ObjectIds { process, counter },
            last_timestamp: Cell::new(Timestamp::MIN),
        }
    }

    /// A random number below `n`.
    pub(crate) fn jitter(&self, n: u64) -> u64 {
        self.rng.borrow_mut().below(n)
    }

    /// Numbers the files that operations spill into.
    pub(crate) fn next_spill_file(&self) -> u64 {
        self.last_spill_file.set(self.last_spill_file.get() + 1);
        self.last_spill_file.get()
    }

    /// The random numbers of one command's expressions.
    pub(crate) fn random(&self) -> pinion_query::Random {
        pinion_query::Random::seeded(self.expression_rng.borrow_mut().next_u64())
    }

    pub(crate) fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.rng.borrow_mut().fill_bytes(&mut bytes);
        bytes
    }

    /// A new ObjectId: seconds, bytes of this core, a counter.
    pub fn new_object_id(&self) -> ObjectId {
        let secs = (pinion_runtime::wall_ms() / 1000) as u32;
        let count = self.object_ids.counter.get();
        self.object_ids.counter.set((count + 1) & 0x00ff_ffff);
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&secs.to_be_bytes());
        bytes[4..9].copy_from_slice(&self.object_ids.process);
        bytes[9..].copy_from_slice(&count.to_be_bytes()[1..]);
        ObjectId::from_bytes(bytes)
    }

    /// A timestamp for a field that asks for the present time; each call gives a later one.
    pub(crate) fn next_timestamp(&self) -> Timestamp {
        self.next_timestamps(1)
    }

    /// As many, one after the other: the first of them.
    pub(crate) fn next_timestamps(&self, count: usize) -> Timestamp {
        let now = Timestamp::new((pinion_runtime::wall_ms() / 1000) as u32, 1);
        let first = now.max(self.last_timestamp.get().next());
        if count > 0 {
            let last = Timestamp::from_u64(first.as_u64() + count as u64 - 1);
            self.last_timestamp.set(last);
        }
        first
    }
}

/// This core's state.
///
/// # Panics
/// Before the node is open on this core.
pub fn state() -> Rc<NodeState> {
    pinion_runtime::core_local::<NodeState>()
}

pub(crate) fn try_state() -> Option<Rc<NodeState>> {
    pinion_runtime::try_core_local::<NodeState>()
}
