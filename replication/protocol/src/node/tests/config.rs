//! Configurations, optimes and hosts in the short form of scripts.

use pinion_bson::ObjectId;
use pinion_clock::{OpTime, Term, Timestamp};

use crate::config::{Config, ConfigVersion, FieldNames, HostPort, Member, Settings, WriteMode};
use crate::message::OpTimeAndWallTime;

pub(super) const SET: &str = "rs";

pub(super) fn host(name: &str) -> HostPort {
    HostPort::new(name, 27017)
}

/// `term.secs`, or `-` for none.
pub(super) fn optime(text: &str) -> OpTime {
    if text == "-" {
        return OpTime::NULL;
    }
    let (term, secs) = text.split_once('.').expect("an optime is term.secs");
    let secs = secs.parse().expect("seconds");
    OpTime::new(Timestamp::new(secs, 1), Term(number(term)))
}

pub(super) fn entry(text: &str) -> OpTimeAndWallTime {
    let optime = optime(text);
    OpTimeAndWallTime::new(optime, i64::from(optime.ts.secs()) * 1000)
}

pub(super) fn number(text: &str) -> i64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}

/// `version/term`.
pub(super) fn config_id(text: &str) -> ConfigVersion {
    let (version, term) = text
        .split_once('/')
        .expect("a configuration is version/term");
    ConfigVersion {
        version: number(version),
        term: number(term),
    }
}

/// Members as `a,b:p2,c:arb,d:v0:p0`, their numbers in this order unless `:i7` says another.
pub(super) fn config(members: &str, id: ConfigVersion) -> Config {
    let members = members.split(',').enumerate();
    Config {
        id: SET.into(),
        version: id.version,
        term: id.term,
        members: members.map(|(at, text)| member(at as i64, text)).collect(),
        protocol_version: 1,
        write_concern_majority_journal_default: true,
        config_server: false,
        settings: Settings {
            replica_set_id: Some(ObjectId::from_bytes([7; 12])),
            ..Settings::default()
        },
        names: FieldNames::default(),
    }
}

fn member(id: i64, text: &str) -> Member {
    let mut words = text.split(':');
    let name = words.next().expect("a member has a name");
    let mut member = Member {
        id,
        host: host(name),
        arbiter_only: false,
        build_indexes: true,
        hidden: false,
        priority: 1.0,
        tags: vec![("name".into(), name.into())],
        delay_secs: 0,
        votes: 1,
        newly_added: false,
    };
    for word in words {
        match word.split_at(1) {
            ("a", "rb") => {
                member.arbiter_only = true;
                member.priority = 0.0;
                member.tags.clear();
            }
            ("n", "ew") => member.newly_added = true,
            ("h", "idden") => member.hidden = true,
            ("p", priority) => member.priority = number(priority) as f64,
            ("v", votes) => member.votes = number(votes),
            ("i", id) => member.id = number(id),
            ("d", secs) => member.delay_secs = number(secs),
            _ => panic!("{word} says nothing of a member"),
        }
    }
    member
}

/// Settings as `heartbeat=500`.
pub(super) fn set(settings: &mut Settings, name: &str, value: &str) -> bool {
    match name {
        "election-timeout" => settings.election_timeout_ms = number(value),
        "catch-up" => settings.catch_up_timeout_ms = number(value),
        "takeover-delay" => settings.catch_up_takeover_delay_ms = number(value),
        "chaining" => settings.chaining_allowed = value == "yes",
        "mode" => settings.modes.push(WriteMode {
            name: value.into(),
            tags: vec![("name".into(), 2)],
        }),
        _ => return false,
    }
    true
}
