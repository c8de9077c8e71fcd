//! What the operator of a set does to its configuration.

use std::net::SocketAddr;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::Rng;

/// A change of the configuration. Members are named by their places among all nodes of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Add(usize),
    Remove(usize),
    /// Another priority of some member, drawn with this seed.
    Priority(u64),
}

/// The hosts of a configuration.
pub fn hosts(config: &RawDocument) -> Vec<String> {
    let members = members(config);
    let hosts = members
        .iter()
        .filter_map(|member| member.get_str("host").ok());
    hosts.map(String::from).collect()
}

fn members(config: &RawDocument) -> Vec<&RawDocument> {
    let Ok(members) = config.get_array("members") else {
        return Vec::new();
    };
    let values = pinion_bson::values(members);
    values.filter_map(|value| value.as_document()).collect()
}

fn id(member: &RawDocument) -> i64 {
    match pinion_bson::get(member, "_id") {
        Some(RawBsonRef::Int32(id)) => i64::from(id),
        Some(RawBsonRef::Int64(id)) => id,
        other => panic!("a member has a number: {other:?}"),
    }
}

impl Change {
    /// Whether a configuration is as this change makes it.
    pub fn is_done(self, config: &RawDocument, nodes: &[SocketAddr]) -> bool {
        let has = |at: usize| hosts(config).contains(&nodes[at].to_string());
        match self {
            Change::Add(at) => has(at),
            Change::Remove(at) => !has(at),
            Change::Priority(_) => false,
        }
    }

    /// The configuration that follows this one.
    pub fn of(self, config: &RawDocument, nodes: &[SocketAddr]) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for (name, value) in pinion_bson::elements(config) {
            match (name, value) {
                ("version", RawBsonRef::Int32(version)) => {
                    out.append("version", version + 1);
                }
                ("term", _) => {}
                ("members", _) => self.append_members(&mut out, &members(config), nodes),
                _ => {
                    out.append_raw(name, value);
                }
            }
        }
        out.finish()
    }

    fn append_members(self, out: &mut DocBuilder, old: &[&RawDocument], nodes: &[SocketAddr]) {
        out.start_array("members");
        let mut rng = Rng::from_seed(match self {
            Change::Priority(seed) => seed,
            Change::Add(_) | Change::Remove(_) => 0,
        });
        let chosen = rng.below(old.len() as u64) as usize;
        for (at, member) in old.iter().enumerate() {
            let host = member.get_str("host").unwrap_or_default();
            if matches!(self, Change::Remove(gone) if nodes[gone].to_string() == host) {
                continue;
            }
            out.push_document();
            for (name, value) in pinion_bson::elements(member) {
                match (self, name) {
                    (Change::Priority(_), "priority") if at == chosen => {
                        out.append("priority", rng.between(1, 3) as f64);
                    }
                    _ => {
                        out.append_raw(name, value);
                    }
                }
            }
            out.end();
        }
        if let Change::Add(new) = self {
            let last = old.iter().map(|member| id(member)).max();
            out.push_document()
                .append("_id", last.map_or(0, |last| last + 1) as i32)
                .append("host", nodes[new].to_string().as_str())
                .end();
        }
        out.end();
    }
}
