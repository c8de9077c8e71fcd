//! Opening and closing a node: storage, catalog, recovery, and what runs in the background.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_access::{AccessTurn, KnownUsers, NodeDirectory};
use pinion_administration::db_check::{DbCheckParameters, DbCheckTasks};
use pinion_administration::{AutoCompact, ValidateMemory};
use pinion_apply::applier::{CheckFollower, KeptTransactions, OpenChain};
use pinion_apply::recovery::{OpenNodeError, recover};
use pinion_apply::ttl::{TtlMonitor, TtlParameters};
use pinion_bson::ObjectId;
use pinion_catalog::{Collection, Observers, begin_builds, core_catalog};
use pinion_exec::TreeMetrics;
use pinion_exec::capped::CappedTable;
use pinion_exec::commands::StageCounts;
use pinion_exec::concern::{ConcernCounts, DefaultsCache};
use pinion_exec::fsync_lock::FsyncLock;
use pinion_exec::open_transactions::{TransactionMemory, Transactions};
use pinion_exec::options::NodeOptions;
use pinion_exec::parameters::NodeParameters;
use pinion_exec::placement::ClusterMembership;
use pinion_exec::plan_cache::{IndexFilters, PlanCache};
use pinion_exec::read::{ChangeFeed, PartTable, change_feed};
use pinion_exec::replication::{FlowControl, NodeTickets};
use pinion_exec::session_refresh::SessionRefresh;
use pinion_exec::sessions::{SessionCatalog, session_catalog};
use pinion_exec::time_keys::TimeKeys;
use pinion_exec::topology::Membership;
use pinion_exec::user_write_block::UserWriteBlock;
use pinion_exec::write::{AllSeriesCounts, OpenBuckets};
use pinion_runtime::{CoreId, LocalBoxFuture, Queue};
use pinion_service::cluster_parameters::ClusterParameters;
use pinion_service::cursors::{CursorTable, cursors};
use pinion_service::fail_points::FailPoints;
use pinion_service::generate::Generators;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::login::{AuthenticationCounts, Conversations, LoginSecret, Users};
use pinion_service::members::MemberAccess;
use pinion_service::metrics::{Metrics, metrics};
use pinion_service::node_info::NodeInfo;
use pinion_service::operator_counts::OperatorCounts;
use pinion_service::ops::OpTable;
use pinion_service::parameters::{
    ParameterChanges, ParameterRegistry, Parameters, Row, parameters,
};
use pinion_service::parking::Parking;
use pinion_service::profile_settings::Profiles;
use pinion_service::query_settings::SettingsTable;
use pinion_service::session_table::{self, SessionTable};
use pinion_service::settable::Settable;
use pinion_service::spill::{NodeMemory, SpillFiles};
use pinion_storage::RecoveryReport;
use pinion_wire::{ErrorCode, Registry};

use crate::limits::REAP_INTERVAL;
use crate::maintenance;
use crate::reopen::ReopenTurn;

/// What all cores of a node share.
#[derive(Clone)]
struct Shared {
    options: NodeOptions,
    info: NodeInfo,
    memory: NodeMemory,
    transactions: TransactionMemory,
    member_access: Option<MemberAccess>,
    tickets: NodeTickets,
    login_secret: LoginSecret,
}

/// Sets what the modules keep on each core. The last is dropped first: what others count in, and
/// are listed in, comes before them.
fn set_core_locals(shared: Shared) {
    fn set<T: 'static>(value: T) {
        pinion_runtime::set_core_local(Rc::new(value));
    }
    let data = shared.options.storage.dir.clone();
    set(shared.options);
    set(shared.info);
    set(shared.memory);
    set(shared.transactions);
    set(shared.tickets);
    set(shared.login_secret);
    if let Some(access) = shared.member_access {
        set(access);
    }
    set(Generators::default());
    set(Metrics::default());
    set(TreeMetrics::default());
    set(ConcernCounts::default());
    set(StageCounts::default());
    set(OperatorCounts::default());
    set(AuthenticationCounts::default());
    set(AllSeriesCounts::default());
    set(RefCell::<Parameters>::default());
    set(RefCell::<NodeParameters>::default());
    set(RefCell::<TtlParameters>::default());
    set(RefCell::<DbCheckParameters>::default());
    set(ValidateMemory::default());
    set(ParameterRegistry::of(parameter_rows()));
    set(ParameterChanges::default());
    set(Membership::default());
    set(ClusterMembership::default());
    set(OpTable::default());
    set(Parking::default());
    set(ReopenTurn::default());
    set(FailPoints::default());
    set(FsyncLock::default());
    set(FlowControl::default());
    set(Conversations::default());
    set(Users::default());
    set(KnownUsers::default());
    set(AccessTurn::default());
    set(TimeKeys::default());
    set(Settable::<ClusterParameters>::default());
    set(UserWriteBlock::default());
    set(Settable::<IndexFilters>::default());
    set(Settable::<Arc<SettingsTable>>::default());
    set(PlanCache::<Collection>::default());
    set(DefaultsCache::default());
    set(RefCell::<Profiles>::default());
    set(SessionTable::default());
    set(SessionCatalog::default());
    set(SessionRefresh::default());
    set(Transactions::default());
    set(SpillFiles::new(data));
    set(CappedTable::default());
    set(RefCell::<OpenBuckets>::default());
    set(TtlMonitor::default());
    set(DbCheckTasks::default());
    set(AutoCompact::default());
    set(CheckFollower(pinion_administration::db_check::follow));
    set(OpenChain::default());
    set(RefCell::<KeptTransactions>::default());
    set(CursorTable::default());
    set(PartTable::default());
    set(ChangeFeed::default());
    if pinion_runtime::try_core_local::<Observers>().is_none() {
        set(Observers::default());
    }
}

/// The server parameters of a node: each crate gives the rows of what it owns.
fn parameter_rows() -> Vec<Row> {
    [
        pinion_service::parameters::rows(),
        pinion_exec::parameters::parameter_rows(),
        pinion_apply::parameter_rows(),
        pinion_administration::parameter_rows(),
    ]
    .concat()
}

/// Attaches the handlers that every node has. Called on each core for its own registry.
pub fn register_commands(registry: &mut Registry) {
    pinion_exec::register_commands(registry);
    pinion_access::register_commands(registry);
    pinion_apply::register_commands(registry);
    pinion_administration::register_commands(registry);
}

/// Opens a node. Called once, on core 0; afterwards every core can serve.
///
/// # Errors
/// The data directory cannot be opened, or is damaged.
pub fn open_node(
    options: NodeOptions,
) -> LocalBoxFuture<'static, Result<RecoveryReport, OpenNodeError>> {
    Box::pin(async move {
        assert!(
            pinion_runtime::core_id() == CoreId(0),
            "a node is opened on core 0"
        );
        let storage_options = options.storage.clone();
        let is_member = storage_options.is_member;
        let mut process_id = [0; 12];
        pinion_runtime::random_stream("process").fill_bytes(&mut process_id);
        let member_access = options.process.member_auth.as_ref();
        let shared = Shared {
            member_access: member_access.map(MemberAccess::new),
            memory: NodeMemory::new(storage_options.cache_bytes),
            transactions: TransactionMemory::new(storage_options.cache_bytes),
            tickets: NodeTickets::default(),
            login_secret: LoginSecret::generate(),
            info: NodeInfo {
                options: options.process.clone(),
                cluster_role: options.cluster_role,
                cluster_version: options.cluster_version,
                process_id: ObjectId::from_bytes(process_id),
                started: pinion_runtime::now(),
                started_wall_ms: pinion_runtime::wall_ms(),
            },
            options,
        };
        pinion_runtime::on_all_cores(move |_| {
            let shared = shared.clone();
            async move {
                set_core_locals(shared);
                pinion_service::login::set_user_directory(Rc::new(NodeDirectory));
                pinion_exec::guard::start();
                pinion_exec::feature_compatibility::observe();
            }
        })
        .await;
        let opened = pinion_storage::open(storage_options)
            .await
            .map_err(OpenNodeError::Storage)?;
        let mut report = recover(opened).await?;
        let ended_in_order = pinion_storage::storage().was_closed();
        if is_member && let Some(rejoined) = maintenance::rejoin_set().await? {
            report = rejoined;
        }
        let is_of_set = is_member || maintenance::begin_as_standalone().await?;
        if core_catalog().current().is_partial() {
            let dropped = pinion_catalog::begin_copy().await;
            dropped.map_err(OpenNodeError::Catalog)?;
        }
        pinion_apply::builds::start();
        if !is_of_set {
            pinion_apply::applier::end_open_chain();
            let dropped = pinion_catalog::drop_temporary().await;
            dropped.map_err(OpenNodeError::Catalog)?;
        }
        pinion_catalog::reap(ended_in_order)
            .await
            .map_err(OpenNodeError::Catalog)?;
        pinion_exec::cluster_parameter_store::load()
            .await
            .map_err(OpenNodeError::Catalog)?;
        pinion_exec::user_write_block_store::load()
            .await
            .map_err(OpenNodeError::Catalog)?;
        pinion_runtime::on_all_cores(|_| async {
            pinion_runtime::spawn(Queue::Background, reap_idle());
            pinion_exec::transactions::start();
        })
        .await;
        // The set of a member that runs without it has its own primary, which expires documents.
        if is_member || !is_of_set {
            pinion_apply::ttl::start();
        }
        pinion_administration::db_check::start();
        pinion_exec::session_refresh::start();
        pinion_exec::time_keys::start();
        Ok(report)
    })
}

/// Begins the builds of indexes that a standalone has not ended, or continues with them. Over the
/// data of a member they wait until it is one again. Call it on core 0, once the parameters are
/// set.
///
/// # Errors
/// Storage has failed.
pub fn begin_standalone_builds() -> LocalBoxFuture<'static, pinion_wire::Result<()>> {
    Box::pin(async {
        match pinion_storage::storage().standalone_above() {
            Some(_) => Ok(()),
            None => begin_builds().await,
        }
    })
}

/// Stops a node: call it on core 0 when no command runs any more.
pub fn close_node() -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        // Two storages would write to one directory. None is opened again afterwards.
        crate::reopen::end_reopening().await;
        pinion_runtime::on_all_cores(|_| async { change_feed().stop().await }).await;
        pinion_catalog::keep_builds().await;
        pinion_apply::ttl::stop().await;
        pinion_administration::db_check::stop().await;
        pinion_exec::session_refresh::stop().await;
        pinion_exec::time_keys::stop().await;
        pinion_exec::transactions::abort_all(ErrorCode::INTERRUPTED_AT_SHUTDOWN).await;
        pinion_storage::storage().close().await;
    })
}

/// Kills cursors and forgets sessions that no client uses.
async fn reap_idle() {
    while !pinion_runtime::is_shutdown_requested() {
        pinion_runtime::sleep(REAP_INTERVAL).await;
        let now = pinion_runtime::now();
        let timeout = parameters().borrow().cursor_timeout;
        let killed = cursors().reap(now - timeout);
        metrics().counters.cursors_timed_out.add(killed);
        session_catalog().reap(now - SESSION_TIMEOUT);
        for lsid in session_table::reap_unused(now - SESSION_TIMEOUT).await {
            cursors().kill_session(&lsid);
        }
    }
}
