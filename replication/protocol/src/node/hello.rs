//! What `hello` reports of the set.

use pinion_bson::{DocBuilder, ObjectId, RawDocumentBuf};
use pinion_clock::Term;
use pinion_wire::MemberState;

use super::Node;
use crate::config::{Config, Member};

/// The name of an election: it sorts by term, so that a driver can distinguish an old primary from
/// a new one.
fn election_id(term: Term) -> ObjectId {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
    bytes[4..].copy_from_slice(&term.0.to_be_bytes());
    ObjectId::from_bytes(bytes)
}

impl Node {
    /// The fields of the set in `hello`, in MongoDB's order; empty while no configuration names
    /// this node.
    pub(super) fn hello(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let (Some(config), Some(me)) = (self.config(), self.me()) else {
            return out.finish();
        };
        append_hosts(&mut out, "hosts", config, |member| {
            !member.arbiter_only && member.priority > 0.0
        });
        append_hosts(&mut out, "passives", config, is_passive);
        append_hosts(&mut out, "arbiters", config, |member| member.arbiter_only);
        out.append("setName", config.id.as_str())
            .append("setVersion", config.version as i32)
            .append("secondary", self.state() == MemberState::Secondary);
        if let Some(primary) = self.primary {
            out.append("primary", self.member(primary).host.to_string().as_str());
        }
        let flags = [
            ("arbiterOnly", me.arbiter_only),
            ("passive", is_passive(me)),
            ("hidden", me.hidden),
        ];
        for (name, holds) in flags {
            if holds {
                out.append(name, true);
            }
        }
        if me.delay_secs > 0 {
            out.append("secondaryDelaySecs", me.delay_secs);
        }
        if !me.tags.is_empty() {
            out.start_document("tags");
            for (name, tag) in &me.tags {
                out.append(name, tag.as_str());
            }
            out.end();
        }
        out.append("me", me.host.to_string().as_str());
        if self.is_writable_primary() {
            out.append("electionId", election_id(self.term));
        }
        out.finish()
    }
}

/// It has data and cannot be primary.
fn is_passive(member: &Member) -> bool {
    !member.arbiter_only && member.priority == 0.0
}

/// The members that are reported to clients. `hosts` is there even if it is empty.
fn append_hosts(
    out: &mut DocBuilder,
    name: &str,
    config: &Config,
    is_of: impl Fn(&Member) -> bool,
) {
    let members = config.members.iter();
    let mut members = members
        .filter(|member| !member.hidden && is_of(member))
        .peekable();
    if members.peek().is_none() && name != "hosts" {
        return;
    }
    out.start_array(name);
    for member in members {
        out.push(member.host.to_string().as_str());
    }
    out.end();
}
