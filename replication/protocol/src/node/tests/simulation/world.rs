//! The world: its events in their order, its members, its network.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Timestamp};
use pinion_wire::{Error, ErrorCode, Result};

use super::super::config::{self as names, SET};
use super::oracle::{Oracle, Reported};
use super::silence::parameters;
use super::{Account, Planted};
use crate::config::Config;
use crate::decision::LastVote;
use crate::message::{OpTimeAndWallTime, OplogQueryMetadata, ReplSetMetadata, Request};
use crate::node::random::Random;
use crate::node::{
    Command, CommandId, Identity, Input, Node, Now, Persisted, Progress, RequestId, SyncPurpose,
};

pub(super) const ELECTION_TIMEOUT_MS: i64 = 1_000;
const HEARTBEAT_INTERVAL_MS: i64 = 400;
/// How long things go wrong.
pub(super) const CHAOS_MS: u64 = 8_000;
/// How long the set has to come to rest after that: for so long a source that failed is denied, and
/// some elections.
const REST_MS: u64 = 14_000;

/// What survives a crash.
#[derive(Default)]
pub(super) struct Disk {
    pub(super) config: Option<Config>,
    pub(super) vote: Option<LastVote>,
    pub(super) log: Vec<OpTime>,
    pub(super) rollback_id: i32,
    pub(super) needs_initial_sync: bool,
}

/// A member while it lives.
pub(super) struct Life {
    pub(super) node: Node,
    pub(super) log: Vec<OpTime>,
    /// How many entries of the log are applied, and durable.
    pub(super) applied: usize,
    pub(super) durable: usize,
    pub(super) writable: bool,
    pub(super) fetch: Option<Fetch>,
    pub(super) commands: BTreeMap<CommandId, Origin>,
    pub(super) reported: Reported,
    /// When it gets the time next.
    tick_ms: Option<u64>,
}

/// The one that waits for the answer to a command.
pub(super) enum Origin {
    Member { at: usize, life: u64, id: RequestId },
    Writer { entry: OpTime },
    Operator,
}

pub(super) struct Fetch {
    pub(super) source: usize,
    pub(super) purpose: SyncPurpose,
    pub(super) session: u64,
    /// The source's, once it is known.
    pub(super) rollback_id: Option<i32>,
}

pub(super) struct Member {
    pub(super) disk: Disk,
    pub(super) life: Option<Life>,
    /// How often it has started: what was started in an earlier life is over.
    pub(super) lives: u64,
    /// How far its clock is ahead.
    skew_secs: u32,
    /// Until then it is not scheduled.
    pub(super) frozen_until_ms: u64,
    silence_ms: u32,
}

/// A batch of a source's oplog.
pub(super) struct Batch {
    pub(super) oldest: OpTime,
    pub(super) applied: OpTime,
    /// The entry that the fetcher had, if the source has it, and what follows it.
    pub(super) entries: Vec<OpTime>,
    pub(super) rollback_id: i32,
    pub(super) repl: ReplSetMetadata,
    pub(super) query: OplogQueryMetadata,
}

/// What will happen to a member.
pub(super) enum Event {
    Tick,
    Input(Input),
    StoredVote(LastVote),
    StoredConfig(Config),
    Flushed {
        entries: usize,
    },
    Applied {
        entries: usize,
    },
    Command {
        from: usize,
        life: u64,
        id: RequestId,
        request: Request,
    },
    Response {
        id: RequestId,
        reply: Result<RawDocumentBuf>,
    },
    Fetch {
        session: u64,
    },
    Fetched {
        session: u64,
        batch: Option<Box<Batch>>,
    },
    Drained,
    Write,
    Copied {
        session: u64,
        log: Vec<OpTime>,
    },
    RollBack {
        source: usize,
    },
    Operator(Command),
    Start,
    Chaos,
}

pub(super) struct World {
    pub(super) now: Now,
    pub(super) random: Random,
    pub(super) planted: Planted,
    events: BTreeMap<(u64, u64), (usize, u64, Event)>,
    order: u64,
    pub(super) steps: u64,
    pub(super) members: Vec<Member>,
    /// Ways on which nothing arrives.
    pub(super) cut: BTreeSet<(usize, usize)>,
    pub(super) loss_percent: u64,
    /// What messages to and from members take beside the usual.
    pub(super) slow: BTreeMap<usize, u64>,
    pub(super) oracle: Oracle,
    pub(super) account: Account,
    pub(super) commands: u64,
    pub(super) sessions: u64,
}

impl World {
    pub(super) fn new(seed: u64, planted: Planted) -> World {
        let mut world = World::empty(seed, planted);
        let count = [1, 2, 3, 3, 3, 4, 5, 5, 7][world.random.below(9) as usize];
        let config = world.first_config(count);
        for at in 0..count {
            // Not all of them need to look for a silent primary.
            let silence_ms = [0, 300, 300][world.random.below(3) as usize];
            world.add(at, &config, silence_ms);
        }
        world
    }

    /// A set in which nothing goes wrong by itself, with the timeouts of sets by default.
    pub(super) fn calm(seed: u64, members: &str, silence_ms: &[u32]) -> World {
        let mut world = World::empty(seed, Planted::Nothing);
        let mut config = names::config(members, names::config_id("1/0"));
        config.id = SET.into();
        config.settings.heartbeat_timeout_secs = 10;
        config.validate().expect("a set can have it");
        for at in 0..config.members.len() {
            let last = silence_ms.len() - 1;
            world.add(at, &config, silence_ms[at.min(last)]);
        }
        world
    }

    fn empty(seed: u64, planted: Planted) -> World {
        let mut world = World {
            now: Now {
                ms: 1_000,
                wall_ms: 1_000,
            },
            random: Random::new(seed),
            planted,
            events: BTreeMap::new(),
            order: 0,
            steps: 0,
            members: Vec::new(),
            cut: BTreeSet::new(),
            loss_percent: 0,
            slow: BTreeMap::new(),
            oracle: Oracle::default(),
            account: Account::default(),
            commands: 0,
            sessions: 0,
        };
        world.oracle.committed = vec![first_entry()];
        world
    }

    fn add(&mut self, at: usize, config: &Config, silence_ms: u32) {
        let is_member = at < config.members.len();
        let disk = Disk {
            config: is_member.then(|| config.clone()),
            log: is_member.then(first_entry).into_iter().collect(),
            rollback_id: 1,
            needs_initial_sync: !is_member,
            ..Disk::default()
        };
        let skew_secs = self.random.below(5) as u32;
        self.members.push(Member {
            disk,
            life: None,
            lives: 0,
            skew_secs,
            frozen_until_ms: 0,
            silence_ms,
        });
    }

    fn first_config(&mut self, count: usize) -> Config {
        // One that joins later.
        let count = match self.random.below(3) {
            0 if count >= 3 => count - 1,
            _ => count,
        };
        let names: Vec<String> = (0..count).map(name).collect();
        let id = names::config_id("1/0");
        let mut config = names::config(&names.join(","), id);
        config.id = SET.into();
        for member in &mut config.members {
            member.priority = 1.0 + self.random.below(2) as f64;
        }
        // One that has no vote, one that cannot be primary, and one that has no data.
        if count >= 4 && self.random.below(2) == 0 {
            config.members[2].votes = 0;
            config.members[2].priority = 0.0;
        }
        if count >= 3 && self.random.below(3) == 0 {
            config.members[count - 1].priority = 0.0;
        }
        if count >= 3 && self.random.below(4) == 0 {
            config.members[1].arbiter_only = true;
            config.members[1].priority = 0.0;
            config.members[1].tags.clear();
        }
        let settings = &mut config.settings;
        settings.election_timeout_ms = ELECTION_TIMEOUT_MS;
        settings.heartbeat_interval_ms = HEARTBEAT_INTERVAL_MS;
        settings.heartbeat_timeout_secs = 1;
        settings.catch_up_timeout_ms = [-1, 0, 400][self.random.below(3) as usize];
        settings.catch_up_takeover_delay_ms = 500;
        config.validate().expect("a set can have it");
        config
    }

    pub(super) fn run(&mut self) -> std::result::Result<Account, String> {
        self.start_all()?;
        self.at(0, 0, 500, Event::Chaos);
        self.run_until(CHAOS_MS)?;
        self.heal()?;
        self.run_until(CHAOS_MS + REST_MS)?;
        self.check_rest()?;
        self.account.elections = self.oracle.elections() as u64;
        self.account.committed = self.oracle.committed.len() as u64;
        Ok(self.account)
    }

    pub(super) fn start_all(&mut self) -> std::result::Result<(), String> {
        (0..self.members.len()).try_for_each(|at| self.start(at))
    }

    /// What happens in so long a time.
    pub(super) fn run_for(&mut self, ms: u64) -> std::result::Result<(), String> {
        let end_ms = self.now.ms + ms;
        self.run_until(end_ms)?;
        self.now.wall_ms += (end_ms - self.now.ms) as i64;
        self.now.ms = end_ms;
        Ok(())
    }

    pub(super) fn run_until(&mut self, end_ms: u64) -> std::result::Result<(), String> {
        while let Some(entry) = self.events.first_entry() {
            let at_ms = entry.key().0;
            if at_ms > end_ms {
                break;
            }
            let (at, life, event) = entry.remove();
            self.now.wall_ms += (at_ms - self.now.ms) as i64;
            self.now.ms = at_ms;
            self.happen(at, life, event)
                .map_err(|why| format!("at {at_ms}, member {at}: {why}"))?;
        }
        Ok(())
    }

    /// Something happens to a life of a member after a while.
    pub(super) fn at(&mut self, member: usize, life: u64, after_ms: u64, event: Event) {
        self.order += 1;
        let key = (self.now.ms + after_ms, self.order);
        self.events.insert(key, (member, life, event));
    }

    /// As [`World::at`], to the life that it lives now, after a random time up to this.
    pub(super) fn soon(&mut self, member: usize, within_ms: u64, event: Event) {
        let after_ms = 1 + self.random.below(within_ms);
        let life = self.members[member].lives;
        self.at(member, life, after_ms, event);
    }

    pub(super) fn life(&mut self, at: usize) -> &mut Life {
        self.members[at].life.as_mut().expect("the member lives")
    }

    pub(super) fn start(&mut self, at: usize) -> std::result::Result<(), String> {
        assert!(self.members[at].life.is_none(), "it was down");
        let seed = self.random.next();
        let member = &mut self.members[at];
        member.lives += 1;
        let disk = &member.disk;
        let config = disk.config.clone();
        let host = names::host(&name(at));
        let found = config.as_ref().and_then(|config| config.member_of(&host));
        let arbiter = found.is_some_and(|(_, member)| member.arbiter_only);
        let log = match arbiter {
            true => Vec::new(),
            false => disk.log.clone(),
        };
        let found = Persisted {
            self_index: found.map(|(at, _)| at),
            config,
            last_vote: disk.vote,
            progress: progress(&log, log.len(), log.len()),
            min_valid: OpTime::NULL,
            needs_initial_sync: disk.needs_initial_sync,
            rollback_id: disk.rollback_id,
        };
        let identity = Identity {
            set_name: SET.into(),
            host,
            seed,
            parameters: parameters(member.silence_ms, self.planted),
        };
        let node = Node::new(identity, found, self.now);
        member.life = Some(Life {
            node,
            applied: log.len(),
            durable: log.len(),
            log,
            writable: false,
            fetch: None,
            commands: BTreeMap::new(),
            reported: Reported::default(),
            tick_ms: None,
        });
        self.step(at, Input::Tick)
    }

    /// Lets the time that the member named come.
    pub(super) fn set_timer(&mut self, at: usize) {
        let now = self.now.ms;
        let life = self.life(at);
        let due = life.node.next_deadline_ms().map(|due| due.max(now + 1));
        let Some(due) = due else {
            return;
        };
        if life.tick_ms.is_some_and(|tick| tick <= due && tick > now) {
            return;
        }
        life.tick_ms = Some(due);
        let lives = self.members[at].lives;
        self.at(at, lives, due - now, Event::Tick);
    }

    /// How long a message takes; `None` if it does not arrive.
    pub(super) fn way(&mut self, from: usize, to: usize) -> Option<u64> {
        let lost = self.random.below(100) < self.loss_percent;
        let delay = match self.random.below(20) {
            0 => 1 + self.random.below(200),
            _ => 1 + self.random.below(10),
        };
        let slow = [from, to].into_iter().filter_map(|at| self.slow.get(&at));
        let delay = delay + slow.sum::<u64>();
        (!lost && !self.cut.contains(&(from, to))).then_some(delay)
    }

    pub(super) fn send(
        &mut self,
        from: usize,
        to: usize,
        id: RequestId,
        request: Request,
        timeout_ms: u64,
    ) {
        let life = self.members[from].lives;
        let failed = |code| Err(Error::new(code, "no answer"));
        let give_up = Event::Response {
            id,
            reply: failed(ErrorCode::NETWORK_INTERFACE_EXCEEDED_TIME_LIMIT),
        };
        self.at(from, life, timeout_ms.min(5_000), give_up);
        let Some(delay) = self.way(from, to) else {
            return;
        };
        if self
            .members
            .get(to)
            .is_none_or(|member| member.life.is_none())
        {
            return self.at(
                from,
                life,
                delay,
                Event::Response {
                    id,
                    reply: failed(ErrorCode::HOST_UNREACHABLE),
                },
            );
        }
        let lives = self.members[to].lives;
        let event = Event::Command {
            from,
            life,
            id,
            request,
        };
        self.at(to, lives, delay, event);
    }

    /// A new entry of a primary.
    pub(super) fn next_entry(&mut self, at: usize) -> OpTime {
        let secs = (self.now.ms / 1000) as u32 + self.members[at].skew_secs;
        let inc = (self.now.ms % 1000) as u32 + 1;
        let life = self.life(at);
        let last = life.log.last().map_or(Timestamp::MIN, |last| last.ts);
        let ts = Timestamp::new(secs, inc).max(last.next());
        OpTime::new(ts, life.node.term())
    }

    /// All is well again, and the set must find to itself.
    fn heal(&mut self) -> std::result::Result<(), String> {
        self.cut.clear();
        self.loss_percent = 0;
        for at in 0..self.members.len() {
            if self.members[at].life.is_none() {
                self.start(at)?;
            }
        }
        Ok(())
    }

    fn check_rest(&mut self) -> std::result::Result<(), String> {
        let primaries = self.members.iter().enumerate();
        let primaries = primaries.filter(|(_, member)| {
            let life = member.life.as_ref().expect("all live");
            life.node.is_writable_primary()
        });
        let primaries: Vec<usize> = primaries.map(|(at, _)| at).collect();
        let &[primary] = &primaries[..] else {
            let states = self.members.iter().map(|member| {
                let life = member.life.as_ref().expect("all live");
                (
                    life.node.state(),
                    life.node.term(),
                    life.log.last().copied(),
                )
            });
            return Err(format!(
                "{primaries:?} are primaries, {:?}",
                states.collect::<Vec<_>>()
            ));
        };
        let log = self.life(primary).log.clone();
        let config = self
            .life(primary)
            .node
            .config()
            .cloned()
            .expect("it is a member");
        // Clients write all the time, so others may lack the last second.
        let enough = log.len() - log.len().min(20);
        for at in 0..self.members.len() {
            let life = self.life(at);
            let host = names::host(&name(at));
            let is_member = config
                .member_of(&host)
                .is_some_and(|(_, m)| !m.arbiter_only);
            if is_member && (life.log.len() < enough || !log.starts_with(&life.log[..enough])) {
                return Err(format!(
                    "member {at} ({}) has not what the primary has: {} of {} entries, from {:?}",
                    life.node.state().name(),
                    life.log.len(),
                    log.len(),
                    life.node.sync_source(),
                ));
            }
        }
        match self.oracle.committed.len() >= enough {
            true => Ok(()),
            false => Err(format!(
                "{} entries are committed, and the primary has {}",
                self.oracle.committed.len(),
                log.len()
            )),
        }
    }
}

pub(super) fn name(at: usize) -> String {
    char::from(b'a' + at as u8).to_string()
}

pub(super) fn index(name: &str) -> usize {
    usize::from(name.as_bytes()[0] - b'a')
}

fn first_entry() -> OpTime {
    names::optime("-1.1")
}

pub(super) fn progress(log: &[OpTime], applied: usize, durable: usize) -> Progress {
    let last = |entries: usize| match entries.checked_sub(1) {
        Some(at) => OpTimeAndWallTime::new(log[at], 1),
        None => OpTimeAndWallTime::NULL,
    };
    Progress {
        written: last(log.len()),
        applied: last(applied),
        durable: last(durable),
    }
}
