//! What the machine wants done, done.

use std::future::Future;
use std::rc::Rc;

use pinion_apply::log_note;
use pinion_bson::{JsonMode, ObjectId, rawdoc, to_extended_json};
use pinion_clock::{Term, Timestamp};
use pinion_exec::{
    Transition, choose_oplog_format, forget_default_concerns, forget_sessions, hold_prepared,
    replication_parameters,
};
use pinion_instance::{begin_as_primary, interrupt_writers, writes_ended};
use pinion_replication_protocol::config::{Config, HostPort, find_self};
use pinion_replication_protocol::decision::LastVote;
use pinion_replication_protocol::node::{Effect, Input, Note, SyncPurpose};
use pinion_runtime::sim::event;
use pinion_runtime::sync::channel;
use pinion_runtime::{JoinHandle, Queue, join_all, on_all_cores, sleep, spawn};
use pinion_service::generate::new_object_id;
use pinion_service::node_info::node_info;
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, Result};

use crate::driver::Driver;
use crate::give_up::stop_node;
use crate::idle::is_config_server;
use crate::limits::{
    MAX_SELF_CHECK_PAUSE, SELF_CHECK, SELF_CHECK_PAUSE, SELF_CHECKS, WRITERS_POLL,
};
use crate::peers::Peers;
use crate::persisted;
use crate::planted::PlantedFault;

/// What has to be on the device before the machine continues.
#[derive(Clone, Debug)]
pub(crate) enum Persist {
    Vote(LastVote),
    Config(Box<Config>),
}

impl Driver {
    pub(crate) fn perform(self: &Rc<Self>, effect: Effect) {
        match effect {
            Effect::Send {
                id,
                to,
                request,
                timeout_ms,
            } => {
                let driver = self.clone();
                spawn(Queue::Foreground, async move {
                    let limit = pinion_runtime::Duration::from_millis(timeout_ms);
                    let reply = driver.peers.run(&to, &request.to_bson(), limit).await;
                    let reply = reply.map(|reply| reply.body().to_owned());
                    driver.report_progress();
                    driver.step(Input::Response {
                        id,
                        reply: reply.map_err(|error| error.into_error()),
                    });
                });
            }
            Effect::Reply { id, result } => self.answer(id, result),
            Effect::StoreVote(vote) => self.queue(Persist::Vote(vote)),
            Effect::StoreConfig(config) => self.queue(Persist::Config(Box::new(config))),
            Effect::LocateSelf(config) => {
                let driver = self.clone();
                self.carry_out(async move {
                    let index = driver.locate_learned(&config).await;
                    driver.step(Input::SelfLocated(index));
                });
            }
            Effect::Initiate(config) => {
                self.carry_out(self.clone().initiate(config));
            }
            Effect::StopWrites => {
                self.carry_out(self.clone().stop_writes());
            }
            Effect::ResumeWrites => {
                self.carry_out(self.clone().resume_writes());
            }
            Effect::WriteNewPrimary { term } => {
                self.carry_out(self.clone().begin_term(term));
            }
            Effect::Drain => {
                self.carry_out(self.clone().drain());
            }
            Effect::StateChanged(state) => {
                let before = self.last_state.replace(state);
                tracing::info!(target: "REPL", id = 21_358u64, newState = state.name(), oldState = before.name(), "Replica set state transition");
                self.publish_view();
            }
            Effect::ViewChanged { .. } => self.publish_view(),
            Effect::CommitPoint { stable, .. } => {
                self.keep_history(stable.ts);
                if is_config_server() {
                    storage().tick_config_to(stable.ts);
                }
                self.publish();
            }
            Effect::StartFetching {
                source,
                purpose: SyncPurpose::Steady | SyncPurpose::CatchUp,
            } => {
                self.metrics.chose_source(&source);
                let fetch = spawn(Queue::Foreground, self.clone().fetch(source));
                self.fetching.replace(Some(fetch));
            }
            Effect::AllowWrites { term } => {
                self.publish_view();
                self.carry_out(self.clone().begin_writable(term));
            }
            Effect::StopFetching => self.stop_fetching(),
            Effect::StartFetching {
                source,
                purpose: SyncPurpose::InitialSync,
            } => {
                self.metrics.chose_source(&source);
                self.copy_from(source);
            }
            Effect::StartInitialSync => self.begin_initial_sync(),
            Effect::StartRollback {
                source,
                rollback_id,
            } => {
                self.carry_out(self.clone().roll_back(source, rollback_id));
            }
            Effect::Note(note) => self.take_note(&note),
        }
    }

    fn take_note(&self, note: &Note) {
        if let Note::NewConfig(config) = note {
            self.peers.forget_former(config);
        }
        write_to_log(note);
    }

    /// Does what the machine wants done, beside what comes next.
    fn carry_out(&self, work: impl Future<Output = ()> + 'static) {
        let in_progress = self.metrics.begin_effect();
        spawn(Queue::Foreground, async move {
            work.await;
            drop(in_progress);
        });
    }

    /// Nothing up to here is ever rolled back, so a checkpoint may hold it; of what is before some
    /// history is kept.
    pub(crate) fn keep_history(&self, stable: Timestamp) {
        if stable.is_null() {
            return;
        }
        let storage = storage();
        storage.set_stable(stable);
        let history_secs = replication_parameters().snapshot_history_secs;
        let oldest = stable.secs().saturating_sub(history_secs.unsigned_abs());
        storage.set_oldest(Timestamp::new(oldest, 0));
    }

    pub(crate) fn stop_fetching(&self) {
        self.stop_copying();
        if let Some(fetch) = self.fetching.take() {
            fetch.abort();
        }
    }

    fn queue(&self, persist: Persist) {
        self.persists.borrow_mut().push_back(persist);
        self.persist_due.notify_one();
    }

    /// Makes votes and configurations durable, one after another.
    pub(crate) async fn persist(self: Rc<Self>) {
        loop {
            let due = self.persist_due.notified();
            let turn = self.storing.acquire().await;
            let next = self.persists.borrow_mut().pop_front();
            match next {
                None => {
                    drop(turn);
                    due.await;
                }
                Some(Persist::Vote(vote))
                    if self.options.planted_fault == PlantedFault::VoteForgotten =>
                {
                    self.step(Input::VoteStored(vote));
                }
                Some(Persist::Vote(vote)) => match persisted::store_vote(vote).await {
                    Ok(()) => {
                        event("vote stored");
                        self.step(Input::VoteStored(vote));
                    }
                    // A vote that may be forgotten must not be sent.
                    Err(error) => stop_node("the last vote cannot be stored", &error),
                },
                Some(Persist::Config(config)) => {
                    let stored = persisted::store_config(&config).await;
                    event("configuration stored");
                    self.step(Input::ConfigStored(stored));
                }
            }
        }
    }

    /// The first entry of a new set, and its configuration.
    async fn initiate(self: Rc<Self>, config: Config) {
        let _turn = self.role_turn.acquire().await;
        let outcome = async {
            if !self.lead().await {
                return Err(Error::internal(
                    "what this node has logged cannot be applied",
                ));
            }
            let first = log_note(&rawdoc! { "msg": "initiating set" }).await?;
            let written = storage().wait_durable(first).await;
            written.map_err(pinion_catalog::from_fatal)?;
            persisted::store_synced().await?;
            persisted::store_config(&config).await?;
            self.terms.borrow_mut().begin(first, Term::UNINITIALIZED);
            self.follow().await?;
            Ok(self.progress())
        };
        let outcome = outcome.await;
        // One that has no configuration does not lead, and may be asked again.
        if outcome.is_err()
            && storage().leads()
            && let Err(error) = self.follow().await
        {
            return stop_node("the log cannot be followed", &error);
        }
        self.step(Input::Initiated(outcome));
    }

    /// Ends all writes of clients: none passes the door any more, and those behind it come to their
    /// ends.
    async fn stop_writes(self: Rc<Self>) {
        self.publish_view();
        // The first entry of the term may be about to be written.
        let _turn = self.role_turn.acquire().await;
        self.all_published().await;
        let (killed, running) = interrupt_writers().await;
        self.metrics.changed_state(Transition {
            name: "stepDown",
            killed,
            running,
        });
        let cores = pinion_runtime::core_count();
        let mut ended = vec![false; cores];
        while ended.contains(&false) {
            let drained =
                on_all_cores(|_| async { pinion_instance::no_writer_is_behind_a_gate() }).await;
            for (ended, drained) in ended.iter_mut().zip(drained) {
                *ended |= drained;
            }
            if ended.contains(&false) {
                sleep(WRITERS_POLL).await;
            }
        }
        if let Err(error) = self.follow().await {
            return stop_node("the log cannot be followed", &error);
        }
        writes_ended().await;
        event("writes stopped");
        self.report_progress();
        self.step(Input::WritesStopped);
    }

    /// What clients write is logged again: another was to take over, and did not.
    async fn resume_writes(self: Rc<Self>) {
        let _turn = self.role_turn.acquire().await;
        if !self.lead().await {
            return;
        }
        // They had let go when writers were stopped.
        hold_prepared().await;
        event("writes resumed");
        self.report_progress();
        self.step(Input::WritesResumed);
    }

    /// Clients write, and the node does what a primary does first.
    async fn begin_writable(self: Rc<Self>, term: Term) {
        self.all_published().await;
        self.metrics.changed_state(Transition {
            name: "stepUp",
            killed: 0,
            running: pinion_instance::running_operations().await,
        });
        // It may have taken writes up again in the same term.
        if self.writable_in.replace(term) != term {
            tracing::info!(target: "REPL", id = 21_331u64, ctx = "OplogApplier-0", term = term.0, "Transition to primary complete; database writes are now permitted");
        }
        if let Err(error) = begin_as_primary().await {
            tracing::warn!(target: "REPL", id = 7_400_004u64, error = error.message, "What a primary does first is not done");
        }
    }

    /// Everything that was fetched is applied: a primary takes no more from others.
    async fn drain(self: Rc<Self>) {
        if !self.apply_all().await {
            return;
        }
        event("drained");
        self.report_progress();
        self.step(Input::Drained);
    }

    /// The first entry of a primary's term.
    async fn begin_term(self: Rc<Self>, term: Term) {
        let _turn = self.role_turn.acquire().await;
        // What was applied for another primary is not in them.
        if self.options.planted_fault != PlantedFault::SessionsRemembered {
            forget_sessions().await;
        }
        forget_default_concerns().await;
        if !self.lead().await {
            return;
        }
        // Before anybody may change what prepared transactions have written to.
        hold_prepared().await;
        if let Err(error) = choose_oplog_format().await {
            return stop_node("the version of the data cannot be read", &error);
        }
        // Whatever this node writes from now on is of its term, before anybody can see it.
        let first = storage().last_allotted().next();
        self.terms.borrow_mut().begin(first, term);
        self.publish();
        self.all_published().await;
        on_all_cores(move |_| async move { storage().set_term(term.0) }).await;
        match log_note(&rawdoc! { "msg": "new primary" }).await {
            Ok(first) => {
                event("term begun");
                self.learn_wall(first).await;
                let optime = self.terms.borrow().optime(first);
                let at = self.walls.borrow().with_wall(optime);
                self.report_progress();
                self.step(Input::NewPrimaryWritten { term, at });
            }
            Err(error) => stop_node("the first entry of a term cannot be written", &error),
        }
    }
}

/// The place of this node in a configuration: of the member that says to be this process.
///
/// # Errors
/// As of [`find_self`].
pub(crate) async fn locate(peers: &Peers, config: &Config) -> Result<usize> {
    let asked = config
        .members
        .iter()
        .map(|member| is_self(peers, &member.host));
    let answers = join_all(asked).await;
    let own: Vec<&HostPort> = config
        .members
        .iter()
        .zip(answers)
        .filter_map(|(member, is_self)| (is_self == Some(true)).then_some(&member.host))
        .collect();
    find_self(config, |host| own.contains(&host))
}

/// What the members of a configuration say of which of them this node is.
pub(crate) enum Located {
    At(usize),
    Nowhere,
    /// None says to be it, and not all have answered.
    Unknown,
}

/// As [`locate`], of a configuration that was checked before, by the primary that made it or by
/// this node: no two of its members are one node, so the first that says to be this one is it. Of
/// the others one may be silent, and a new primary's configuration must not wait for it. Members of
/// whom `may_be` says no are not asked.
pub(crate) async fn locate_accepted(
    peers: &Rc<Peers>,
    config: &Config,
    may_be: impl Fn(&HostPort) -> bool,
) -> Located {
    let (sender, mut answers) = channel(config.members.len().max(1));
    let members = config.members.iter().enumerate();
    let asked = members.filter(|(_, member)| may_be(&member.host));
    let asked = asked.map(|(at, member)| {
        let (peers, host, sender) = (peers.clone(), member.host.clone(), sender.clone());
        spawn(Queue::Foreground, async move {
            let answer = is_self(&peers, &host).await;
            // Another may have answered before.
            let _ = sender.send((at, answer)).await;
        })
    });
    let asked: Vec<JoinHandle<()>> = asked.collect();
    drop(sender);
    let mut located = Located::Nowhere;
    while let Some((at, answer)) = answers.recv().await {
        match answer {
            Some(true) => {
                located = Located::At(at);
                break;
            }
            Some(false) => {}
            None => located = Located::Unknown,
        }
    }
    for question in asked {
        question.abort();
    }
    located
}

impl Driver {
    /// The place of this node in a configuration that another member has sent.
    ///
    /// # Errors
    /// As of [`find_self`]: it was removed. A member counts as removed while no host of the
    /// configuration answers for a while, until one does.
    async fn locate_learned(self: &Rc<Self>, config: &Config) -> Result<usize> {
        let known = self.with_node(|node| Some((node.config()?.clone(), node.self_index()?)));
        let own = known.as_ref().map(|(known, at)| &known.members[*at].host);
        // Whose address did not change is asked nothing: it may be busy, with a rollback for
        // example, and must not take that for its removal.
        let located = find_self(config, |host| own == Some(host));
        if located.is_ok() {
            return located;
        }
        // Nor is another member, which may be down.
        let may_be = |host: &HostPort| match &known {
            Some((known, _)) => known.members.iter().all(|member| member.host != *host),
            None => true,
        };
        for _ in 0..SELF_CHECKS {
            match locate_accepted(&self.peers, config, may_be).await {
                Located::At(at) => return Ok(at),
                Located::Nowhere => return located,
                Located::Unknown => sleep(SELF_CHECK_PAUSE).await,
            }
        }
        self.start_locating();
        located
    }

    /// Finds out later which member of its configuration this node is, where that is unknown.
    pub(crate) fn start_locating(self: &Rc<Self>) {
        if !self.locates.replace(true) {
            spawn(Queue::Foreground, self.clone().locate_late());
        }
    }

    async fn locate_late(self: Rc<Self>) {
        let mut pause = SELF_CHECK_PAUSE;
        loop {
            sleep(pause).await;
            pause = (pause * 2).min(MAX_SELF_CHECK_PAUSE);
            let config = self.with_node(|node| match node.self_index() {
                Some(_) => None,
                None => node.config().cloned(),
            });
            let Some(config) = config else {
                break;
            };
            match locate_accepted(&self.peers, &config, |_| true).await {
                Located::At(index) => {
                    let config = config.config_version();
                    // If another one came meanwhile that was not heard, and is asked about next.
                    self.step(Input::SelfFound { config, index });
                }
                Located::Nowhere => break,
                Located::Unknown => {}
            }
        }
        self.locates.set(false);
    }
}

/// Whether a host is this process; `None` if it does not say.
async fn is_self(peers: &Peers, host: &HostPort) -> Option<bool> {
    let command = rawdoc! { "_isSelf": 1, "$db": "admin" };
    let reply = peers.run(host, &command, SELF_CHECK).await.ok()?;
    let id = reply.body().get_object_id("id").ok();
    Some(id == Some(node_info().process_id))
}

/// Refuses a configuration in which this node has no place, as `replSetInitiate` does.
pub(crate) async fn locate_for_initiate(peers: &Peers, config: &Config) -> Result<usize> {
    let located = locate(peers, config).await;
    located.map_err(|error| Error::new(ErrorCode::INVALID_REPLICA_SET_CONFIG, error.message))
}

pub(crate) fn new_set_id() -> ObjectId {
    new_object_id()
}

fn write_to_log(note: &Note) {
    match note {
        Note::Election {
            reason,
            term,
            dry_run,
        } => {
            tracing::info!(target: "ELECTION", id = 21_450u64, reason, term = term.0, dryRun = dry_run, "Starting an election");
        }
        Note::ElectionLost { term, reason } => {
            event("election lost");
            tracing::info!(target: "ELECTION", id = 21_445u64, term = term.0, reason, "Not becoming primary");
        }
        Note::Elected { term } => {
            event("elected");
            tracing::info!(target: "ELECTION", id = 21_446u64, term = term.0, "Election succeeded, assuming primary role");
        }
        Note::SteppedDown { term, reason } => {
            event("stepped down");
            tracing::info!(target: "REPL", id = 21_475u64, term = term.0, reason, "Stepping down from primary");
        }
        Note::Voted {
            term,
            candidate_index,
            refused,
        } => {
            let refused = refused.as_deref().unwrap_or_default();
            tracing::info!(target: "ELECTION", id = 23_980u64, term = term.0, candidateIndex = candidate_index, refused, "Responding to vote request");
        }
        Note::MemberState { host, state } => {
            tracing::info!(target: "REPL", id = 21_215u64, hostAndPort = %host, newState = state.name(), "Member is in new state");
        }
        Note::NewConfig(config) => {
            let config = to_extended_json(&config.to_bson(), JsonMode::Relaxed);
            tracing::info!(target: "REPL", id = 21_392u64, config = display(config), "New replica set config in use");
        }
        Note::CatchUp { outcome } => {
            tracing::info!(target: "REPL", id = 21_363u64, outcome, "Exited primary catch-up mode");
        }
        Note::MemberDown { host, why } => {
            tracing::info!(target: "REPL", id = 23_974u64, host = %host, why, "Heartbeat failed after max retries");
        }
        Note::NewSyncSource { source, why } => {
            let source = source.as_ref().map(HostPort::to_string).unwrap_or_default();
            tracing::info!(target: "REPL", id = 21_799u64, syncSource = source, why, "Sync source chosen");
        }
        Note::TooStale => {
            event("too stale");
            tracing::error!(target: "REPL", id = 21_803u64, "Too stale to catch up");
        }
        Note::ConfigRefused { why } => {
            tracing::warn!(target: "REPL", id = 21_417u64, why, "Ignoring a configuration received in a heartbeat");
        }
    }
}
