//! The monitor of one replica set as a state machine: which hosts are asked when, and what their
//! replies say of the set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use pinion_bson::{ObjectId, RawDocument};
use pinion_wire::{Category, ErrorCode, HostPort};

use super::hello::{HelloReply, TopologyVersion};
use super::topology::{Member, MemberKind, SetTopology};
use super::watch::{Check, Ping, Watch, ms};
use crate::connection_string::ConnectionString;
use crate::limits::{HEARTBEAT_TIMEOUT, MAX_SET_HOSTS, WAIT_LEASE};

/// How a command at a member has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The member is not what the command needs, or shuts down. The version is the reply's.
    Refused { version: Option<TopologyVersion> },
    /// It could not be reached, or the connection broke.
    Network,
    /// There was no connection or no reply in time, for which the command or this node may be the
    /// reason.
    TimedOut,
}

impl Failure {
    /// What it says of a member that a command was refused with this code; the reply may have a
    /// `topologyVersion`. `None` where it says nothing of the member.
    pub fn of_code(code: ErrorCode, reply: &RawDocument) -> Option<Failure> {
        let says_something = code.is(Category::NOT_PRIMARY.and(Category::SHUTDOWN));
        says_something.then(|| Failure::Refused {
            version: TopologyVersion::of(reply),
        })
    }
}

/// What happens to a monitor.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// The time that [`Monitor::next_ms`] named has come.
    Tick,
    /// A hello was answered.
    Replied {
        host: HostPort,
        check: u64,
        /// Of a hello that waited for nothing.
        rtt: Option<Duration>,
        reply: Box<HelloReply>,
        /// The member sends more replies to the same hello.
        more_to_come: bool,
    },
    Pinged {
        host: HostPort,
        check: u64,
        rtt: Duration,
    },
    /// A hello or ping has failed.
    Failed {
        host: HostPort,
        check: u64,
        why: String,
    },
    /// A command has failed at a member, which its sender chose by the topology of this number.
    CommandFailed {
        host: HostPort,
        number: u64,
        failure: Failure,
        why: String,
    },
    /// A reader waits for a member; repeated while it does.
    Wanted,
    /// Hosts at which the set is to be found, as another source says. They count while there is no
    /// primary, whose word outweighs them.
    Seeds(Vec<HostPort>),
}

/// What a monitor has its driver do.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a hello to a host; with a version, one that waits for a change of it, and whose replies
    /// may follow one another.
    Hello {
        host: HostPort,
        check: u64,
        awaits: Option<TopologyVersion>,
    },
    /// Measure a round trip to a host.
    Ping { host: HostPort, check: u64 },
    /// Give up what is under way with a host, and close the connection.
    Stop { host: HostPort },
    /// Give all readers this version.
    Publish(Arc<SetTopology>),
    /// The set has other hosts than before.
    NewString(ConnectionString),
}

/// Which primary is newer. Source: drivers' specification of server discovery and monitoring,
/// "updateRSFromPrimary".
#[derive(Debug, Default)]
struct NewestPrimary {
    election_id: Option<ObjectId>,
    set_version: Option<i64>,
}

/// From this wire version on the election counts before the version of the configuration.
const ELECTION_FIRST_WIRE_VERSION: i32 = 17;

impl NewestPrimary {
    /// Takes over what a primary says; false if a newer one was seen before.
    fn admits(&mut self, reply: &HelloReply) -> bool {
        if reply.max_wire_version >= ELECTION_FIRST_WIRE_VERSION {
            let known = (self.election_id, self.set_version);
            let is_newest = (reply.election_id, reply.set_version) >= known;
            if is_newest {
                (self.election_id, self.set_version) = (reply.election_id, reply.set_version);
            }
            return is_newest;
        }
        if reply.set_version.is_some() && reply.election_id.is_some() {
            let known = (self.set_version, self.election_id);
            let is_known = self.set_version.is_some() && self.election_id.is_some();
            if is_known && known > (reply.set_version, reply.election_id) {
                return false;
            }
            self.election_id = reply.election_id;
        }
        self.set_version = self.set_version.max(reply.set_version);
        true
    }
}

/// The monitor of one replica set.
#[derive(Debug)]
pub struct Monitor {
    hosts: BTreeMap<HostPort, Watch>,
    newest: NewestPrimary,
    /// The last one that a primary has confirmed; before that the one that it was made with.
    string: ConnectionString,
    published: Arc<SetTopology>,
    last_check: u64,
    wanted_until_ms: u64,
    effects: Vec<Effect>,
}

impl Monitor {
    /// The monitor of the set that a connection string names; its first step publishes. Its
    /// versions have numbers above `number`: those of an earlier monitor of the set are older.
    ///
    /// # Panics
    /// The string names no set, no host, or too many.
    pub fn new(string: ConnectionString, number: u64, now_ms: u64) -> Monitor {
        assert!(!string.set.is_empty(), "a set has a name");
        assert!((1..=MAX_SET_HOSTS).contains(&string.hosts.len()));
        let watches = string.hosts.iter();
        let watches = watches.map(|host| (host.clone(), Watch::new(now_ms, number + 1)));
        Monitor {
            hosts: watches.collect(),
            newest: NewestPrimary::default(),
            published: Arc::new(SetTopology {
                name: string.set.clone(),
                number,
                members: Vec::new(),
            }),
            string,
            last_check: 0,
            wanted_until_ms: 0,
            effects: Vec::new(),
        }
    }

    /// The newest version.
    pub fn topology(&self) -> &Arc<SetTopology> {
        &self.published
    }

    /// When it needs a tick, in milliseconds of its clock.
    pub fn next_ms(&self) -> u64 {
        let next = self.hosts.values().map(Watch::next_ms);
        next.min().unwrap_or(u64::MAX)
    }

    /// Takes in one input. What belongs to a check that was given up is passed over.
    pub fn step(&mut self, now_ms: u64, input: Input) -> Vec<Effect> {
        match input {
            Input::Tick => {}
            Input::Replied {
                host,
                check,
                rtt,
                reply,
                more_to_come,
            } => self.replied(now_ms, &host, check, rtt, &reply, more_to_come),
            Input::Pinged { host, check, rtt } => {
                if let Some(watch) = self.hosts.get_mut(&host)
                    && matches!(watch.ping, Ping::Asking { check: of, .. } if of == check)
                {
                    watch.measure(rtt, now_ms);
                }
            }
            Input::Failed { host, check, why } => {
                if self
                    .hosts
                    .get(&host)
                    .is_some_and(|watch| is_under_way(watch, check))
                {
                    self.check_failed(now_ms, &host, why);
                }
            }
            Input::CommandFailed {
                host,
                number,
                failure,
                why,
            } => self.command_failed(now_ms, &host, number, failure, why),
            Input::Wanted => {
                self.wanted_until_ms = now_ms + ms(WAIT_LEASE);
                self.expedite(now_ms);
            }
            Input::Seeds(hosts) => {
                if self.published.primary().is_none() {
                    self.add_hosts(now_ms, &hosts);
                }
            }
        }
        self.start_due(now_ms);
        self.publish();
        std::mem::take(&mut self.effects)
    }

    fn expedite(&mut self, now_ms: u64) {
        for watch in self.hosts.values_mut() {
            watch.expedite(now_ms);
        }
    }

    fn replied(
        &mut self,
        now_ms: u64,
        host: &HostPort,
        check: u64,
        rtt: Option<Duration>,
        reply: &HelloReply,
        more_to_come: bool,
    ) {
        let is_wanted = now_ms < self.wanted_until_ms;
        let Some(watch) = self.hosts.get_mut(host) else {
            return;
        };
        if !matches!(watch.check, Check::Asking { check: of, .. } if of == check) {
            return;
        }
        if let Some(rtt) = rtt {
            watch.measure(rtt, now_ms);
        }
        self.apply(now_ms, host, reply);
        // Unless the set does not have it any more.
        if let Some(watch) = self.hosts.get_mut(host) {
            watch.schedule(more_to_come, is_wanted, now_ms);
        }
    }

    /// Takes over what a host says of itself and its set.
    fn apply(&mut self, now_ms: u64, host: &HostPort, reply: &HelloReply) {
        let kind = match self.kind_of(host, reply) {
            Ok(kind) => kind,
            Err(why) => {
                self.change(now_ms, host, |watch| watch.reject(reply, why));
                // Those that it names are its set's all the same.
                if reply.set.as_ref() == Some(&self.string.set) && !reply.is_primary {
                    self.add_hosts(now_ms, &reply.hosts);
                }
                return;
            }
        };
        self.change(now_ms, host, |watch| watch.update(kind, reply, now_ms));
        self.add_hosts(now_ms, &reply.hosts);
        if kind == MemberKind::Primary {
            self.depose_others(now_ms, host);
            self.retain_hosts(&reply.hosts);
            self.compare_string();
        }
    }

    /// What a host is, or why it is no member of the set that counts.
    fn kind_of(&mut self, host: &HostPort, reply: &HelloReply) -> Result<MemberKind, String> {
        let name = &self.string.set;
        match &reply.set {
            Some(set) if set == name => {}
            Some(set) => return Err(format!("{host} is a member of set {set}, not of {name}")),
            None if reply.is_ghost => {
                return Err(format!("{host} has no configuration of a replica set yet"));
            }
            None => return Err(format!("{host} is no member of a replica set")),
        }
        if reply.is_primary {
            return match self.newest.admits(reply) {
                true => Ok(MemberKind::Primary),
                false => Err(format!("{host} is an older primary than one seen before")),
            };
        }
        if let Some(me) = &reply.me
            && me != host
        {
            return Err(format!("{host} calls itself {me}"));
        }
        Ok(match reply {
            reply if reply.is_hidden => MemberKind::Other,
            reply if reply.is_secondary => MemberKind::Secondary,
            reply if reply.is_arbiter => MemberKind::Arbiter,
            _ => MemberKind::Other,
        })
    }

    /// Changes what is known of a host. If a primary is lost with it, the others are asked soon.
    fn change(&mut self, now_ms: u64, host: &HostPort, change: impl FnOnce(&mut Watch)) {
        let Some(watch) = self.hosts.get_mut(host) else {
            return;
        };
        let before = watch.member.kind;
        change(watch);
        if watch.member.kind != before {
            watch.since = self.published.number + 1;
            if before == MemberKind::Primary {
                self.expedite(now_ms);
            }
        }
    }

    fn add_hosts(&mut self, now_ms: u64, hosts: &[HostPort]) {
        for host in hosts {
            if self.hosts.len() < MAX_SET_HOSTS && !self.hosts.contains_key(host) {
                let watch = Watch::new(now_ms, self.published.number + 1);
                self.hosts.insert(host.clone(), watch);
            }
        }
    }

    /// There is one primary at a time: this one.
    fn depose_others(&mut self, now_ms: u64, primary: &HostPort) {
        let is_other = |(host, watch): &(&HostPort, &Watch)| {
            *host != primary && watch.member.kind == MemberKind::Primary
        };
        let others = self.hosts.iter().filter(is_other);
        let others: Vec<HostPort> = others.map(|(host, _)| host.clone()).collect();
        for other in others {
            let why = format!("{primary} is a newer primary");
            self.change(now_ms, &other, |watch| {
                watch.member = Member {
                    error: Some(why),
                    rtt: watch.member.rtt,
                    least_rtt: watch.member.least_rtt,
                    ..Member::default()
                };
            });
        }
    }

    /// Forgets the hosts that the primary does not name.
    fn retain_hosts(&mut self, named: &[HostPort]) {
        if named.is_empty() {
            return;
        }
        let absent = self.hosts.keys().filter(|host| !named.contains(host));
        let absent: Vec<HostPort> = absent.cloned().collect();
        for host in absent {
            self.hosts.remove(&host);
            self.effects.push(Effect::Stop { host });
        }
    }

    fn compare_string(&mut self) {
        let hosts = self.hosts.keys().cloned().collect();
        let string = ConnectionString::new(self.string.set.clone(), hosts);
        if !string.is_same(&self.string) {
            self.string = string.clone();
            self.effects.push(Effect::NewString(string));
        }
    }

    /// A host did not answer: one that did before is asked again soon.
    fn check_failed(&mut self, now_ms: u64, host: &HostPort, why: String) {
        let Some(watch) = self.hosts.get_mut(host) else {
            return;
        };
        let is_soon = watch.member.kind != MemberKind::Unknown || now_ms < self.wanted_until_ms;
        let at_ms = match is_soon {
            true => watch.soon_ms(now_ms),
            false => watch.regular_ms(now_ms),
        };
        self.stop(now_ms, host, at_ms, why, true);
    }

    /// Gives up what is under way with a host, of which nothing is known from now on.
    fn stop(
        &mut self,
        now_ms: u64,
        host: &HostPort,
        next_ms: u64,
        why: String,
        is_unreachable: bool,
    ) {
        self.effects.push(Effect::Stop { host: host.clone() });
        self.change(now_ms, host, |watch| {
            watch.forget(why, is_unreachable);
            watch.check = Check::Waiting { at_ms: next_ms };
            watch.ping = Ping::Waiting { at_ms: next_ms };
        });
    }

    fn command_failed(
        &mut self,
        now_ms: u64,
        host: &HostPort,
        number: u64,
        failure: Failure,
        why: String,
    ) {
        let Some(watch) = self.hosts.get_mut(host) else {
            return;
        };
        // It became what it is after the command was sent.
        if number < watch.since {
            return;
        }
        match failure {
            Failure::TimedOut => {
                watch.expedite(now_ms);
                watch.ping_soon(now_ms);
                return;
            }
            Failure::Refused {
                version: Some(version),
            } if watch
                .topology_version
                .is_some_and(|of| version.is_at_most(&of)) =>
            {
                return;
            }
            Failure::Refused { .. } | Failure::Network => {}
        }
        // If nothing is known of it, that is no news.
        if watch.member.kind == MemberKind::Unknown {
            watch.expedite(now_ms);
            return;
        }
        let soon_ms = watch.soon_ms(now_ms);
        let is_unreachable = failure == Failure::Network;
        self.stop(now_ms, host, soon_ms, why, is_unreachable);
    }

    /// Starts what is due, and gives up what takes too long. If that is a primary, others become
    /// due.
    fn start_due(&mut self, now_ms: u64) {
        while let Some(host) = self.first_due(now_ms) {
            self.give_up_expired(now_ms, &host);
            self.start_checks(now_ms, &host);
            assert!(self.hosts[&host].next_ms() > now_ms, "what was due is done");
        }
    }

    fn first_due(&self, now_ms: u64) -> Option<HostPort> {
        let mut hosts = self.hosts.iter();
        let due = hosts.find(|(_, watch)| watch.next_ms() <= now_ms);
        due.map(|(host, _)| host.clone())
    }

    fn give_up_expired(&mut self, now_ms: u64, host: &HostPort) {
        let watch = &self.hosts[host];
        let is_late = matches!(watch.check, Check::Asking { expires_ms, .. } if expires_ms <= now_ms)
            || matches!(watch.ping, Ping::Asking { expires_ms, .. } if expires_ms <= now_ms);
        if is_late {
            let why = format!("{host} did not answer a heartbeat in time");
            self.check_failed(now_ms, host, why);
        }
    }

    fn start_checks(&mut self, now_ms: u64, host: &HostPort) {
        let Some(watch) = self.hosts.get_mut(host) else {
            return;
        };
        if matches!(watch.check, Check::Waiting { at_ms } if at_ms <= now_ms) {
            self.last_check += 1;
            let awaits = watch.start(self.last_check, now_ms);
            self.effects.push(Effect::Hello {
                host: host.clone(),
                check: self.last_check,
                awaits,
            });
        }
        if watch.is_streaming() && matches!(watch.ping, Ping::Waiting { at_ms } if at_ms <= now_ms)
        {
            self.last_check += 1;
            watch.ping = Ping::Asking {
                check: self.last_check,
                expires_ms: now_ms + ms(HEARTBEAT_TIMEOUT),
            };
            self.effects.push(Effect::Ping {
                host: host.clone(),
                check: self.last_check,
            });
        }
    }

    fn publish(&mut self) {
        let members = self.hosts.iter();
        let members = members.map(|(host, watch)| (host.clone(), watch.member.clone()));
        let members: Vec<(HostPort, Member)> = members.collect();
        let primaries = members
            .iter()
            .filter(|(_, m)| m.kind == MemberKind::Primary);
        assert!(primaries.count() <= 1, "a set has one primary");
        if members == self.published.members {
            return;
        }
        self.published = Arc::new(SetTopology {
            name: self.string.set.clone(),
            number: self.published.number + 1,
            members,
        });
        let published = Effect::Publish(self.published.clone());
        self.effects.push(published);
    }
}

fn is_under_way(watch: &Watch, check: u64) -> bool {
    matches!(watch.check, Check::Asking { check: of, .. } if of == check)
        || matches!(watch.ping, Ping::Asking { check: of, .. } if of == check)
}
