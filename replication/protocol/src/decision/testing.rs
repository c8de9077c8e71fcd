//! Configurations and optimes for the tables.

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::{OpTime, Term, Timestamp};

use super::Position;
use crate::config::Config;

/// The entry of a second, in a term.
pub(super) fn at(term: i64, secs: u32) -> OpTime {
    OpTime::new(Timestamp::new(secs, 1), Term(term))
}

/// Applied and durable up to the same entry.
pub(super) fn both(optime: OpTime) -> Position {
    Position {
        applied: optime,
        durable: optime,
    }
}

/// The set "rs", version 1 of term 1, of the members `host0`, `host1`, … with further fields.
pub(super) fn config(members: &[RawDocumentBuf]) -> Config {
    with_settings(members, RawDocumentBuf::new())
}

pub(super) fn with_settings(members: &[RawDocumentBuf], settings: RawDocumentBuf) -> Config {
    let mut out = DocBuilder::new();
    out.append("_id", "rs")
        .append("version", 1)
        .append("term", 1);
    out.start_array("members");
    for (id, more) in members.iter().enumerate() {
        let mut member = DocBuilder::new();
        member
            .append("_id", id as i32)
            .append("host", format!("host{id}:27017").as_str())
            .append_all(more);
        out.push(&*member.finish());
    }
    out.end().append("settings", &*settings);
    let config = Config::parse(&out.finish()).and_then(|config| {
        config.validate()?;
        Ok(config)
    });
    config.unwrap_or_else(|error| panic!("{}", error.message))
}

/// `count` members with no more than an id and a host.
pub(super) fn plain(count: usize) -> Config {
    config(&vec![RawDocumentBuf::new(); count])
}
