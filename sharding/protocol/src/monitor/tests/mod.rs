//! Tests of the monitor: what it learns and asks, and whom it chooses.

mod choices;
mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use pinion_bson::{ObjectId, RawDocument, rawdoc};
use pinion_wire::{ErrorCode, HostPort};

use super::*;
use crate::ConnectionString;
use crate::limits::MAX_SET_HOSTS;

fn host(name: &str) -> HostPort {
    HostPort::parse(&format!("{name}:1")).expect("it is well formed")
}

fn election(number: u8) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[0] = 0x7f;
    bytes[11] = number;
    ObjectId::from_bytes(bytes)
}

fn version(counter: i64) -> TopologyVersion {
    TopologyVersion {
        process: election(0),
        counter,
    }
}

/// A member of set `rs` with these hosts, each named by a letter.
fn member(kind: MemberKind, hosts: &str) -> HelloReply {
    HelloReply {
        set: Some("rs".to_owned()),
        is_primary: kind == MemberKind::Primary,
        is_secondary: kind == MemberKind::Secondary,
        is_arbiter: kind == MemberKind::Arbiter,
        hosts: hosts.chars().map(|name| host(&name.to_string())).collect(),
        max_wire_version: 25,
        set_version: Some(1),
        ..HelloReply::default()
    }
}

fn primary(election_number: u8, hosts: &str) -> HelloReply {
    HelloReply {
        election_id: Some(election(election_number)),
        ..member(MemberKind::Primary, hosts)
    }
}

fn secondary(hosts: &str) -> HelloReply {
    member(MemberKind::Secondary, hosts)
}

/// A monitor with what its driver has to do.
struct World {
    monitor: Monitor,
    now_ms: u64,
    asked: BTreeMap<HostPort, (u64, Option<TopologyVersion>)>,
    pings: BTreeMap<HostPort, u64>,
    strings: Vec<String>,
}

impl World {
    fn new(seeds: &str) -> World {
        let hosts = seeds.chars().map(|name| host(&name.to_string())).collect();
        let mut world = World {
            monitor: Monitor::new(ConnectionString::new("rs", hosts), 0, 0),
            now_ms: 0,
            asked: BTreeMap::new(),
            pings: BTreeMap::new(),
            strings: vec![],
        };
        world.step(Input::Tick);
        world
    }

    fn step(&mut self, input: Input) {
        for effect in self.monitor.step(self.now_ms, input) {
            match effect {
                Effect::Hello {
                    host,
                    check,
                    awaits,
                } => {
                    self.asked.insert(host, (check, awaits));
                }
                Effect::Ping { host, check } => {
                    self.pings.insert(host, check);
                }
                Effect::Stop { host } => {
                    self.asked.remove(&host);
                    self.pings.remove(&host);
                }
                Effect::Publish(topology) => assert_eq!(&topology, self.monitor.topology()),
                Effect::NewString(string) => self.strings.push(string.to_string()),
            }
        }
    }

    /// Answers the hello that a host was asked; one that waits for a change streams on.
    #[track_caller]
    fn reply(&mut self, name: &str, reply: HelloReply) {
        let host = host(name);
        let (check, awaits) = self.asked[&host];
        let more_to_come = awaits.is_some();
        if !more_to_come {
            self.asked.remove(&host);
        }
        self.step(Input::Replied {
            host,
            check,
            rtt: (!more_to_come).then_some(Duration::from_millis(2)),
            reply: Box::new(reply),
            more_to_come,
        });
    }

    #[track_caller]
    fn fail(&mut self, name: &str) {
        let host = host(name);
        let (check, _) = self.asked.remove(&host).expect("it is asked");
        let why = "broken".to_owned();
        self.step(Input::Failed { host, check, why });
    }

    fn fail_command(&mut self, name: &str, failure: Failure) {
        let number = self.monitor.topology().number;
        self.fail_command_of(name, number, failure);
    }

    fn fail_command_of(&mut self, name: &str, number: u64, failure: Failure) {
        self.step(Input::CommandFailed {
            host: host(name),
            number,
            failure,
            why: "it failed".to_owned(),
        });
    }

    /// Lets time pass, with a tick whenever one is due.
    fn pass(&mut self, ms: u64) {
        let until_ms = self.now_ms + ms;
        while self.monitor.next_ms() <= until_ms {
            self.now_ms = self.now_ms.max(self.monitor.next_ms());
            self.step(Input::Tick);
            assert!(self.monitor.next_ms() > self.now_ms, "what was due is done");
        }
        self.now_ms = until_ms;
    }

    fn shown(&self) -> String {
        let members = self.monitor.topology().members.iter();
        let shown = members.map(|(host, member)| {
            let kind = match member.kind {
                MemberKind::Unknown => '?',
                MemberKind::Primary => 'P',
                MemberKind::Secondary => 'S',
                MemberKind::Arbiter => 'A',
                MemberKind::Other => 'O',
            };
            format!("{}:{kind}", host.host)
        });
        shown.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(&self, expected: &str) {
        assert_eq!(self.shown(), expected);
    }

    /// The hosts that are asked for their state, with what they are to wait for a change of.
    fn asked(&self) -> String {
        let asked = self.asked.iter().map(|(host, (_, awaits))| match awaits {
            Some(version) => format!("{}>{}", host.host, version.counter),
            None => host.host.clone(),
        });
        asked.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check_asked(&self, expected: &str) {
        assert_eq!(self.asked(), expected);
    }
}

#[test]
fn members_are_found_and_forgotten() {
    let mut w = World::new("ab");
    w.check("a:? b:?");
    w.check_asked("a b");
    w.reply("a", secondary("abc"));
    w.check("a:S b:? c:?");
    w.check_asked("b c");
    assert!(w.strings.is_empty());
    // A secondary's word removes no member.
    w.reply("c", secondary("cd"));
    w.check("a:S b:? c:S d:?");
    w.reply("b", primary(1, "abd"));
    w.check("a:S b:P d:?");
    assert_eq!(w.strings, ["rs/a:1,b:1,d:1"]);
    w.reply("d", member(MemberKind::Arbiter, "abd"));
    w.check("a:S b:P d:A");
    // The same hosts are no news, and others are.
    w.pass(10_000);
    w.reply("b", primary(1, "dba"));
    assert_eq!(w.strings.len(), 1);
    w.reply("a", secondary("abd"));
    w.pass(10_000);
    w.reply("b", primary(1, "ab"));
    w.check("a:S b:P");
    assert_eq!(w.strings[1..], ["rs/a:1,b:1"]);
    // A primary that the set does not list is none of its members.
    w.reply("a", secondary("ab"));
    w.pass(10_000);
    w.reply("b", primary(1, "ac"));
    w.check("a:S c:?");
}

#[test]
fn what_is_no_member() {
    let check = |reply: HelloReply, expected: &str| {
        let mut w = World::new("a");
        w.reply("a", reply);
        w.check("a:?");
        let member = w
            .monitor
            .topology()
            .member(&host("a"))
            .expect("it is there");
        assert_eq!(member.error.as_deref(), Some(expected));
    };
    let of_set = |set: Option<&str>, is_ghost| HelloReply {
        set: set.map(str::to_owned),
        is_ghost,
        ..primary(1, "a")
    };
    check(
        of_set(Some("sr"), false),
        "a:1 is a member of set sr, not of rs",
    );
    check(of_set(None, false), "a:1 is no member of a replica set");
    let ghost = "a:1 has no configuration of a replica set yet";
    check(of_set(None, true), ghost);
    let alias = HelloReply {
        me: Some(host("b")),
        ..secondary("")
    };
    check(alias, "a:1 calls itself b:1");
}

#[test]
fn hidden_members_are_no_secondaries() {
    let mut w = World::new("a");
    let hidden = HelloReply {
        is_hidden: true,
        ..secondary("a")
    };
    w.reply("a", hidden);
    w.check("a:O");
}

#[test]
fn a_set_that_has_moved_is_found_at_other_hosts() {
    let mut w = World::new("a");
    let moved = ConnectionString::new("rs", vec![host("b")]);
    assert!(!w.monitor.topology().covers(&moved));
    w.step(Input::Seeds(moved.hosts.clone()));
    w.check("a:? b:?");
    assert!(w.monitor.topology().covers(&moved));
    w.reply("b", primary(1, "b"));
    w.check("b:P");
    // Against a primary's word the other source is of no use.
    let former = ConnectionString::new("rs", vec![host("a")]);
    assert!(w.monitor.topology().covers(&former));
    w.step(Input::Seeds(former.hosts));
    w.check("b:P");
}

#[test]
fn a_member_cannot_name_hosts_without_end() {
    let named = (0..MAX_SET_HOSTS as u16 * 2).map(|at| HostPort::new("h", 1 + at));
    let many = HelloReply {
        hosts: named.collect(),
        ..secondary("")
    };
    let mut w = World::new("ab");
    w.reply("a", many);
    assert_eq!(w.monitor.topology().members.len(), MAX_SET_HOSTS);
    assert_eq!(w.asked.len(), MAX_SET_HOSTS - 1);
}

/// Primaries that report one after another, each with election, version of the configuration and
/// wire version: what is seen in the end.
#[track_caller]
fn check_primaries(reports: &[(&str, Option<u8>, i64, i32)], expected: &str) {
    let mut w = World::new("ab");
    for (name, election_number, set_version, max_wire_version) in reports {
        w.pass(10_000);
        w.reply(
            name,
            HelloReply {
                election_id: election_number.map(election),
                set_version: Some(*set_version),
                max_wire_version: *max_wire_version,
                ..member(MemberKind::Primary, "ab")
            },
        );
    }
    assert_eq!(w.shown(), expected, "{reports:?}");
}

#[test]
fn the_newer_primary_counts() {
    check_primaries(&[("a", Some(1), 1, 25), ("b", Some(2), 1, 25)], "a:? b:P");
    check_primaries(&[("a", Some(2), 1, 25), ("b", Some(1), 1, 25)], "a:P b:?");
    // The election counts first.
    check_primaries(&[("a", Some(2), 1, 25), ("b", Some(1), 2, 25)], "a:P b:?");
    check_primaries(&[("a", Some(1), 2, 25), ("b", Some(2), 1, 25)], "a:? b:P");
    check_primaries(&[("a", Some(1), 2, 25), ("b", Some(1), 1, 25)], "a:P b:?");
    check_primaries(&[("a", Some(1), 1, 25), ("b", None, 1, 25)], "a:P b:?");
    // For those of MongoDB 5 and before it does not.
    check_primaries(&[("a", Some(2), 1, 9), ("b", Some(1), 2, 9)], "a:? b:P");
    check_primaries(&[("a", Some(1), 2, 9), ("b", Some(2), 1, 9)], "a:P b:?");
    check_primaries(&[("a", Some(2), 1, 9), ("b", None, 1, 9)], "a:? b:P");
}

#[test]
fn when_members_without_streams_are_asked() {
    let mut w = World::new("a");
    w.reply("a", secondary("a"));
    w.check_asked("");
    w.pass(9_999);
    w.check_asked("");
    w.pass(1);
    w.check_asked("a");
    w.reply("a", secondary("a"));
    // A reader that waits expedites it, as long as it waits.
    w.step(Input::Wanted);
    w.check_asked("");
    w.pass(500);
    w.check_asked("a");
    w.reply("a", secondary("a"));
    w.pass(500);
    w.check_asked("a");
    w.reply("a", secondary("a"));
    w.pass(9_999);
    w.check_asked("");
    w.pass(1);
    w.check_asked("a");
    // One that does not answer is given up, and asked again.
    w.pass(9_999);
    w.check("a:S");
    w.pass(1);
    w.check("a:?");
    w.check_asked("a");
    w.fail("a");
    // One that was unknown before is not asked sooner than otherwise.
    w.pass(9_999);
    w.check_asked("");
    w.pass(1);
    w.check_asked("a");
}

#[test]
fn members_stream_their_changes() {
    let at = |counter, reply| HelloReply {
        topology_version: Some(version(counter)),
        ..reply
    };
    let mut w = World::new("a");
    w.reply("a", at(3, secondary("a")));
    w.check_asked("a>3");
    w.pass(7_000);
    w.reply("a", at(4, primary(1, "a")));
    w.check("a:P");
    // Round trips are measured meanwhile.
    assert!(w.pings.is_empty());
    w.pass(3_000);
    let check = w.pings.remove(&host("a")).expect("it is measured");
    w.step(Input::Pinged {
        host: host("a"),
        check,
        rtt: Duration::from_millis(12),
    });
    let topology = w.monitor.topology().clone();
    let known = topology.member(&host("a")).expect("it is there");
    assert_eq!(known.rtt, Some(Duration::from_millis(4)));
    assert_eq!(known.least_rtt, Some(Duration::from_millis(2)));
    // A stream that falls silent is given up, and so is a host that does not answer a ping.
    w.pass(10_000);
    assert!(w.pings.contains_key(&host("a")));
    w.pass(6_999);
    w.check("a:P");
    w.pass(1);
    w.check("a:?");
    w.check_asked("a");
    w.reply("a", at(9, secondary("a")));
    w.pass(10_000);
    w.reply("a", at(9, secondary("a")));
    w.pass(9_999);
    w.check("a:S");
    w.pass(1);
    w.check("a:?");
}

#[test]
fn commands_that_fail() {
    let refused = Failure::Refused { version: None };
    let mut w = World::new("ab");
    w.reply("a", primary(1, "ab"));
    w.reply("b", secondary("ab"));
    w.pass(4_000);
    let before = w.monitor.topology().number;
    w.fail_command("a", refused);
    w.check("a:? b:S");
    // The other may be the primary by now.
    w.check_asked("a b");
    w.reply("b", primary(2, "ab"));
    w.reply("a", secondary("ab"));
    w.check("a:S b:P");
    // What was sent before the change says nothing.
    w.fail_command_of("a", before, refused);
    w.fail_command_of("b", before, Failure::Network);
    w.check("a:S b:P");
    w.fail_command("b", Failure::Network);
    w.check("a:S b:?");
    let lost = w
        .monitor
        .topology()
        .member(&host("b"))
        .expect("it is there");
    assert!(lost.is_unreachable);
    // It was asked just now.
    w.check_asked("");
    w.pass(500);
    w.check_asked("a b");
    w.fail_command("b", Failure::Network);
    w.fail("b");
    w.check("a:S b:?");
    // What a command may be the reason for does not count.
    w.reply("a", secondary("ab"));
    w.fail_command("a", Failure::TimedOut);
    w.check("a:S b:?");
    w.pass(500);
    assert!(w.asked().contains('a'));
}

#[test]
fn refusals_of_an_older_state_are_passed_over() {
    let mut w = World::new("a");
    let of_version = HelloReply {
        topology_version: Some(version(5)),
        ..primary(1, "a")
    };
    w.reply("a", of_version);
    for (counter, expected) in [(4, "a:P"), (5, "a:P"), (6, "a:?")] {
        let refused = Failure::Refused {
            version: Some(version(counter)),
        };
        w.fail_command("a", refused);
        w.check(expected);
    }
    w.pass(500);
    w.check_asked("a");
    // A command that times out has the round trip measured, if it was not just now.
    let of_version = HelloReply {
        topology_version: Some(version(6)),
        ..primary(1, "a")
    };
    w.reply("a", of_version);
    w.fail_command("a", Failure::TimedOut);
    assert!(w.pings.is_empty());
    w.pass(500);
    assert!(w.pings.contains_key(&host("a")));
    w.check("a:P");
}

#[test]
fn codes_of_failures() {
    let check = |code: ErrorCode, reply: &RawDocument, expected: Option<Failure>| {
        assert_eq!(Failure::of_code(code, reply), expected, "{code}");
    };
    let plain = rawdoc! { "ok": 0 };
    let refused = Some(Failure::Refused { version: None });
    check(ErrorCode::NOT_WRITABLE_PRIMARY, &plain, refused);
    check(ErrorCode::PRIMARY_STEPPED_DOWN, &plain, refused);
    check(ErrorCode::SHUTDOWN_IN_PROGRESS, &plain, refused);
    check(ErrorCode::NOT_PRIMARY_OR_SECONDARY, &plain, refused);
    check(ErrorCode::BAD_VALUE, &plain, None);
    let of_version = rawdoc! { "topologyVersion": version(7).to_document() };
    let refused = Failure::Refused {
        version: Some(version(7)),
    };
    check(ErrorCode::NOT_WRITABLE_PRIMARY, &of_version, Some(refused));
}

#[test]
fn replies_are_read() {
    let reply = rawdoc! {
        "ismaster": true, "setName": "rs", "setVersion": 4, "hosts": ["a:1", "b:1", 7, "a:1"],
        "passives": ["c:1"], "arbiters": ["d:1"], "me": "a:1", "electionId": election(3),
        "tags": { "dc": "x", "n": 1 }, "maxWireVersion": 25,
        "lastWrite": { "opTime": { "ts": pinion_bson::Timestamp { time: 9, increment: 1 }, "t": 2i64 },
            "lastWriteDate": pinion_bson::DateTime::from_millis(9_500) },
        "topologyVersion": version(8).to_document(),
    };
    let read = HelloReply::parse(&reply);
    assert!(read.is_primary && !read.is_secondary && !read.is_ghost);
    let names = read.hosts.iter().map(|host| &*host.host);
    assert_eq!(names.collect::<String>(), "abcd");
    assert_eq!(read.tags, [("dc".to_owned(), "x".to_owned())]);
    assert_eq!(read.topology_version, Some(version(8)));
    let last = read.last_write.expect("it is there");
    assert_eq!((last.date_ms, last.op_time.ts.secs()), (9_500, 9));
    assert_eq!(
        (read.set_version, read.election_id),
        (Some(4), Some(election(3)))
    );
}
