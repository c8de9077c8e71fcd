//! What a driver does: it performs effects, and reports what came of them.

use pinion_clock::OpTime;
use pinion_wire::idl::{WriteConcern, WriteConcernW};

use super::super::config as names;
use super::Planted;
use super::oracle::Reported;
use super::world::{Batch, CHAOS_MS, Event, Fetch, Origin, World, index, name, progress};
use crate::config::find_self;
use crate::decision::{
    CommonPointSearch, FirstBatch, FirstBatchVerdict, Oplog, SearchStep, judge_first_batch,
};
use crate::message::Request;
use crate::node::{
    Command, CommandId, Effect, Fetched, Input, Note, RequestId, SourceFailure, SyncPurpose,
};

type Outcome = Result<(), String>;

impl World {
    pub(super) fn happen(&mut self, at: usize, life: u64, event: Event) -> Outcome {
        match event {
            Event::Chaos => return self.interfere(),
            Event::Start => {
                return match self.members[at].life {
                    None => self.start(at),
                    Some(_) => Ok(()),
                };
            }
            _ => {}
        }
        if self.members[at].life.is_none() || self.members[at].lives != life {
            return Ok(());
        }
        let frozen_ms = self.members[at].frozen_until_ms;
        if frozen_ms > self.now.ms {
            self.at(at, life, frozen_ms - self.now.ms, event);
            return Ok(());
        }
        match event {
            Event::Tick => self.step(at, Input::Tick),
            Event::Input(input) => self.step(at, input),
            Event::StoredVote(vote) => {
                // Where a vote is forgotten by a crash, it takes one with another candidate of the
                // same term about.
                let crashes_of_four = match self.planted {
                    Planted::VoteNotDurable => 3,
                    _ => {
                        self.members[at].disk.vote = Some(vote);
                        1
                    }
                };
                self.step(at, Input::VoteStored(vote))?;
                if self.now.ms < CHAOS_MS && self.random.below(4) < crashes_of_four {
                    self.crash(at, 30);
                }
                Ok(())
            }
            Event::StoredConfig(config) => {
                self.members[at].disk.config = Some(config);
                self.account.configs += 1;
                self.step(at, Input::ConfigStored(Ok(())))
            }
            Event::Flushed { entries } => {
                let life = self.life(at);
                let entries = entries.min(life.log.len()).max(life.durable);
                life.durable = entries;
                let log = life.log[..entries].to_vec();
                self.members[at].disk.log = log;
                self.report_progress(at)
            }
            Event::Applied { entries } => {
                let life = self.life(at);
                life.applied = entries.min(life.log.len()).max(life.applied);
                self.report_progress(at)
            }
            Event::Command {
                from,
                life,
                id,
                request,
            } => self.asked(at, from, life, id, request),
            Event::Response { id, reply } => self.step(at, Input::Response { id, reply }),
            Event::Fetch { session } => self.fetch(at, session),
            Event::Fetched { session, batch } => self.fetched(at, session, batch),
            Event::Drained => {
                let life = self.life(at);
                life.applied = life.log.len();
                self.report_progress(at)?;
                self.step(at, Input::Drained)
            }
            Event::Write => self.write(at),
            Event::Copied { session, log } => self.copied(at, session, log),
            Event::Operator(command) => self.command(at, command, Origin::Operator),
            Event::RollBack { source } => self.roll_back(at, source),
            Event::Start | Event::Chaos => unreachable!("they happen to dead members too"),
        }
    }

    pub(super) fn step(&mut self, at: usize, input: Input) -> Outcome {
        self.steps += 1;
        let now = self.now;
        let effects = self.life(at).node.step(now, input);
        for effect in effects {
            self.perform(at, effect)?;
        }
        self.set_timer(at);
        Ok(())
    }

    fn perform(&mut self, at: usize, effect: Effect) -> Outcome {
        match effect {
            Effect::Send {
                id,
                to,
                request,
                timeout_ms,
            } => self.send(at, index(&to.host), id, request, timeout_ms),
            Effect::Reply { id, result } => return self.reply(at, id, result),
            Effect::StoreVote(vote) => self.in_order(at, Event::StoredVote(vote)),
            Effect::LocateSelf(config) => {
                let host = names::host(&name(at));
                let found = find_self(&config, |other| *other == host);
                self.soon(at, 3, Event::Input(Input::SelfLocated(found)));
            }
            Effect::StoreConfig(config) => self.soon(at, 10, Event::StoredConfig(config)),
            Effect::Initiate(_) => unreachable!("the sets are initiated"),
            Effect::StateChanged(_) | Effect::ViewChanged { .. } => {}
            Effect::StopWrites => {
                self.life(at).writable = false;
                self.soon(at, 20, Event::Input(Input::WritesStopped));
            }
            Effect::ResumeWrites => self.soon(at, 20, Event::Input(Input::WritesResumed)),
            Effect::AllowWrites { .. } => {
                self.life(at).writable = true;
                self.soon(at, 50, Event::Write);
            }
            Effect::Drain => self.soon(at, 20, Event::Drained),
            Effect::WriteNewPrimary { .. } => return self.begin_term(at),
            Effect::StartFetching { source, purpose } => {
                self.sessions += 1;
                let session = self.sessions;
                self.life(at).fetch = Some(Fetch {
                    source: index(&source.host),
                    purpose,
                    session,
                    rollback_id: None,
                });
                self.soon(at, 10, Event::Fetch { session });
            }
            Effect::StopFetching => self.life(at).fetch = None,
            Effect::StartInitialSync => {
                self.account.initial_syncs += 1;
                let member = &mut self.members[at];
                member.disk.needs_initial_sync = true;
                member.disk.log.clear();
                let life = self.life(at);
                life.log.clear();
                life.reported = Reported::default();
                (life.applied, life.durable) = (0, 0);
            }
            Effect::StartRollback {
                source,
                rollback_id,
            } => {
                self.members[at].disk.rollback_id = rollback_id;
                let source = index(&source.host);
                self.soon(at, 50, Event::RollBack { source });
            }
            Effect::CommitPoint { committed, stable } => {
                let life = self.members[at].life.as_mut().expect("it lives");
                let term = life.node.term();
                let (log, reported) = (&life.log, &mut life.reported);
                return self.oracle.commit_point_moved(
                    reported,
                    log,
                    term,
                    committed.optime,
                    stable,
                );
            }
            Effect::Note(Note::Elected { term }) => return self.oracle.elected(at, term),
            Effect::Note(Note::Election { .. }) => self.account.candidacies += 1,
            Effect::Note(Note::SteppedDown { .. }) => self.account.step_downs += 1,
            Effect::Note(_) => {}
        }
        Ok(())
    }

    /// Votes become durable one after the other.
    fn in_order(&mut self, at: usize, event: Event) {
        let life = self.members[at].lives;
        self.at(at, life, 5, event);
    }

    fn report_progress(&mut self, at: usize) -> Outcome {
        let life = self.life(at);
        let progress = progress(&life.log, life.applied, life.durable);
        self.step(at, Input::Progress(progress))
    }

    fn grown(&mut self, at: usize) -> Outcome {
        let entries = self.life(at).log.len();
        self.soon(at, 10, Event::Flushed { entries });
        self.soon(at, 10, Event::Applied { entries });
        self.report_progress(at)
    }

    // Commands.

    fn asked(
        &mut self,
        at: usize,
        from: usize,
        life: u64,
        id: RequestId,
        request: Request,
    ) -> Outcome {
        let command = match request {
            Request::Heartbeat(request) => Command::Heartbeat(request),
            Request::Votes(request) => Command::Votes(request),
            Request::Position(update) => Command::Position(update),
            Request::StepUp { skip_dry_run } => Command::StepUp { skip_dry_run },
        };
        let origin = Origin::Member { at: from, life, id };
        self.command(at, command, origin)
    }

    pub(super) fn command(&mut self, at: usize, command: Command, origin: Origin) -> Outcome {
        self.commands += 1;
        let id = CommandId(self.commands);
        self.life(at).commands.insert(id, origin);
        self.step(at, Input::Command { id, command })
    }

    fn reply(
        &mut self,
        at: usize,
        id: CommandId,
        result: pinion_wire::Result<pinion_bson::RawDocumentBuf>,
    ) -> Outcome {
        let life = self.life(at);
        let metadata = life.node.repl_metadata();
        let origin = life
            .commands
            .remove(&id)
            .ok_or("a command is answered twice")?;
        match origin {
            Origin::Operator => Ok(()),
            Origin::Writer { entry } => match result {
                Ok(_) => self.oracle.acknowledged(entry),
                Err(_) => Ok(()),
            },
            Origin::Member { at: to, life, id } => {
                let reply = result.map(|body| {
                    let mut out = pinion_bson::DocBuilder::new();
                    out.append_all(&body);
                    metadata.append_to(&mut out);
                    out.finish()
                });
                if let Some(delay) = self.way(at, to) {
                    self.at(to, life, delay, Event::Response { id, reply });
                }
                Ok(())
            }
        }
    }

    // A primary's writes.

    fn begin_term(&mut self, at: usize) -> Outcome {
        let log = &self.members[at].life.as_ref().expect("it lives").log;
        self.oracle.begins(log)?;
        let entry = self.next_entry(at);
        self.life(at).log.push(entry);
        let written = progress(&[entry], 1, 1).written;
        let input = Input::NewPrimaryWritten {
            term: entry.term,
            at: written,
        };
        let entries = self.life(at).log.len();
        self.soon(at, 5, Event::Input(input));
        self.soon(at, 10, Event::Flushed { entries });
        self.soon(at, 10, Event::Applied { entries });
        Ok(())
    }

    fn write(&mut self, at: usize) -> Outcome {
        if !self.life(at).writable {
            return Ok(());
        }
        let entry = self.next_entry(at);
        self.life(at).log.push(entry);
        self.grown(at)?;
        self.soon(at, 250, Event::Write);
        let concern = WriteConcern {
            w: Some(WriteConcernW::Majority),
            ..WriteConcern::default()
        };
        let ts = entry.ts;
        let origin = Origin::Writer { entry };
        self.command(at, Command::AwaitWriteConcern { ts, concern }, origin)
    }

    // Fetching.

    fn fetch(&mut self, at: usize, session: u64) -> Outcome {
        let Some(fetch) = &self.life(at).fetch else {
            return Ok(());
        };
        if fetch.session != session {
            return Ok(());
        }
        let (source, purpose) = (fetch.source, fetch.purpose);
        let last = self.life(at).log.last().copied().unwrap_or(OpTime::NULL);
        let life = self.members[at].lives;
        let ways = (self.way(at, source), self.way(source, at));
        let there = self.members.get(source);
        let frozen = there.is_some_and(|member| member.frozen_until_ms > self.now.ms);
        let there = there.and_then(|member| member.life.as_ref());
        let there = there.filter(|_| !frozen);
        let (Some(there), (Some(to), Some(back))) = (there, ways) else {
            let batch = None;
            let after_ms = if frozen { 2_500 } else { 300 };
            self.at(at, life, after_ms, Event::Fetched { session, batch });
            return Ok(());
        };
        if purpose == SyncPurpose::InitialSync {
            let log = there.log[..there.applied].to_vec();
            self.at(at, life, to + back, Event::Copied { session, log });
            return Ok(());
        }
        let visible = &there.log[..there.applied];
        let from = visible.partition_point(|entry| *entry < last);
        let batch = Batch {
            oldest: visible.first().copied().unwrap_or_default(),
            applied: visible.last().copied().unwrap_or_default(),
            entries: visible[from..].iter().take(8).copied().collect(),
            rollback_id: there.node.rollback_id(),
            repl: there.node.repl_metadata(),
            query: there.node.oplog_query_metadata(),
        };
        let batch = Some(Box::new(batch));
        self.at(at, life, to + back, Event::Fetched { session, batch });
        Ok(())
    }

    fn fetched(&mut self, at: usize, session: u64, batch: Option<Box<Batch>>) -> Outcome {
        let Some(fetch) = self
            .life(at)
            .fetch
            .as_ref()
            .filter(|f| f.session == session)
        else {
            return Ok(());
        };
        let source = names::host(&name(fetch.source));
        let first_rollback_id = fetch.rollback_id;
        let failed = |failure| Input::SourceFailed {
            source: names::host(&source.host),
            failure,
        };
        let Some(batch) = batch else {
            return self.step(at, failed(SourceFailure::Unreachable));
        };
        let last = self.life(at).log.last().copied().unwrap_or(OpTime::NULL);
        let ends = batch
            .entries
            .first()
            .copied()
            .zip(batch.entries.last().copied());
        let verdict = judge_first_batch(
            last,
            &FirstBatch {
                source_oldest: batch.oldest,
                source_last_applied: batch.applied,
                entries: ends,
            },
        );
        // A later batch that does not continue the log comes of a source that rolled back.
        match verdict {
            FirstBatchVerdict::Follow => {}
            FirstBatchVerdict::SourceBehind => return self.step(at, failed(SourceFailure::Behind)),
            FirstBatchVerdict::TooStale => return self.step(at, failed(SourceFailure::TooStale)),
            FirstBatchVerdict::Rollback => {
                return self.step(at, Input::NoCommonEntry { source });
            }
            FirstBatchVerdict::NothingToContinue => {
                return self.step(at, failed(SourceFailure::Stopped));
            }
        }
        let rollback_id = first_rollback_id.unwrap_or(batch.rollback_id);
        let fetch = self.life(at).fetch.as_mut().expect("it fetches");
        fetch.rollback_id = Some(rollback_id);
        let new = &batch.entries[1..];
        let is_news = !new.is_empty();
        let entries = new.len() as u64;
        self.life(at).log.extend_from_slice(new);
        let last_fetched = self.life(at).log.last().copied().unwrap_or_default();
        if is_news {
            self.grown(at)?;
        }
        self.step(
            at,
            Input::Fetched(Fetched {
                source,
                source_rollback_id: rollback_id,
                repl: batch.repl,
                query: batch.query,
                entries,
                last_fetched,
            }),
        )?;
        let within_ms = if is_news { 20 } else { 150 };
        self.soon(at, within_ms, Event::Fetch { session });
        Ok(())
    }

    fn copied(&mut self, at: usize, session: u64, log: Vec<OpTime>) -> Outcome {
        if self
            .life(at)
            .fetch
            .as_ref()
            .is_none_or(|f| f.session != session)
        {
            return Ok(());
        }
        let member = &mut self.members[at];
        member.disk.needs_initial_sync = false;
        member.disk.log = log.clone();
        let life = self.life(at);
        (life.applied, life.durable) = (log.len(), log.len());
        let progress = progress(&log, log.len(), log.len());
        life.log = log;
        self.step(at, Input::SyncDone(progress))
    }

    fn roll_back(&mut self, at: usize, source: usize) -> Outcome {
        let reachable = self.way(at, source).is_some() && self.way(source, at).is_some();
        let there = self
            .members
            .get(source)
            .and_then(|member| member.life.as_ref());
        let Some(there) = there.filter(|_| reachable) else {
            return self.step(at, Input::RollbackFailed);
        };
        let mut theirs = there.log[..there.applied].to_vec();
        let life = self.life(at);
        let mut ours = life.log.clone();
        let last = ours
            .last()
            .copied()
            .ok_or("a member without entries rolls back")?;
        let mut search = CommonPointSearch::new(life.node.commit_point().optime, last);
        let common = loop {
            let entry = match search.awaited() {
                Oplog::Local => ours.pop(),
                Oplog::Source => theirs.pop(),
            };
            match search.feed(entry) {
                Ok(SearchStep::Read(_)) => {}
                Ok(SearchStep::Found { common, .. }) => break common,
                Err(_) => return self.step(at, Input::RollbackFailed),
            }
        };
        self.account.rollbacks += 1;
        let life = self.life(at);
        let kept = life.log.partition_point(|entry| *entry <= common);
        life.log.truncate(kept);
        (life.applied, life.durable) = (kept, kept);
        let log = life.log.clone();
        let progress = progress(&log, kept, kept);
        self.members[at].disk.log = log;
        self.step(at, Input::RolledBack(progress))
    }
}
