//! Observers: clients that no fault of the network reaches, which ask each member again and again
//! what it is.
//!
//! Asserted: a term has one primary at most, writable or not; terms, commit points and stable
//! timestamps of a life never go back. What a member was between two questions is not seen.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, Timestamp, rawdoc};
use pinion_runtime::sim::{NodeId, SimHandle};
use pinion_runtime::{Duration, Rng, sleep};

use super::PRIMARY;
use super::workload::Shared;
use crate::client::{Client, error_code};

const ANSWER: Duration = Duration::from_secs(2);

/// Term and timestamp, in the order in which optimes compare.
type At = (i64, Timestamp);

/// What is known of all members.
#[derive(Default)]
pub struct Sightings {
    primaries: BTreeMap<i64, usize>,
    members: BTreeMap<usize, MemberReport>,
}

/// What one member has last said.
#[derive(Clone, Copy, Default)]
pub struct MemberReport {
    /// Which of its lives said so.
    life: u64,
    term: i64,
    committed: Option<At>,
    stable: Option<At>,
    pub state: i32,
}

impl Sightings {
    /// What a member has last said.
    pub fn seen(&self, member: usize) -> MemberReport {
        self.members.get(&member).copied().unwrap_or_default()
    }

    /// Terms in which some member was seen to be primary.
    pub fn terms(&self) -> u64 {
        self.primaries.len() as u64
    }

    fn primary(&mut self, member: usize, term: i64) -> Result<(), String> {
        match *self.primaries.entry(term).or_insert(member) {
            first if first == member => Ok(()),
            first => Err(format!(
                "members {first} and {member} are both primary in term {term}"
            )),
        }
    }

    fn status(&mut self, member: usize, now: MemberReport) -> Result<(), String> {
        let before = self.members.insert(member, now).unwrap_or_default();
        if now.state == PRIMARY {
            self.primary(member, now.term)?;
        }
        if before.life != now.life {
            return Ok(());
        }
        let back = |what: &str, from: String, to: String| {
            Err(format!(
                "member {member}: its {what} went back from {from} to {to}"
            ))
        };
        let show = |at: Option<At>| format!("{at:?}");
        if now.term < before.term {
            return back("term", before.term.to_string(), now.term.to_string());
        }
        if now.committed < before.committed {
            return back("commit point", show(before.committed), show(now.committed));
        }
        if now.stable < before.stable {
            return back("stable timestamp", show(before.stable), show(now.stable));
        }
        Ok(())
    }
}

fn at(document: &RawDocument, name: &str) -> Option<At> {
    let Ok(Some(RawBsonRef::Document(at))) = document.get(name) else {
        return None;
    };
    Some((at.get_i64("t").ok()?, at.get_timestamp("ts").ok()?))
}

fn seen(status: &RawDocument, life: u64) -> Option<MemberReport> {
    let optimes = status.get_document("optimes").ok()?;
    Some(MemberReport {
        life,
        term: status.get_i64("term").ok()?,
        committed: at(optimes, "lastCommittedOpTime"),
        stable: at(optimes, "readConcernMajorityOpTime"),
        state: status.get_i32("myState").ok()?,
    })
}

/// The term of the election that a primary names in its `hello`.
fn election_term(hello: &RawDocument) -> Option<i64> {
    if !matches!(hello.get_bool("isWritablePrimary"), Ok(true)) {
        return None;
    }
    let id = hello.get_object_id("electionId").ok()?.bytes();
    id.last_chunk::<8>().map(|term| i64::from_be_bytes(*term))
}

/// Watches one member.
pub async fn observe(
    shared: Rc<Shared>,
    sightings: Rc<RefCell<Sightings>>,
    sim: SimHandle,
    (member, node): (usize, NodeId),
    (mut rng, (shortest_ms, longest_ms)): (Rng, (u64, u64)),
) {
    let mut client = Client::new(shared.members[member]).within(ANSWER);
    while !shared.stopped.get() {
        sleep(Duration::from_millis(rng.between(shortest_ms, longest_ms))).await;
        let life = sim.starts(node);
        let hello = client
            .command(&rawdoc! { "hello": 1_i32, "$db": "admin" })
            .await;
        if let Ok(Some(term)) = hello.map(|hello| election_term(&hello)) {
            let noted = sightings.borrow_mut().primary(member, term);
            noted.unwrap_or_else(|problem| shared.history.borrow_mut().fail(problem));
        }
        let status = rawdoc! { "replSetGetStatus": 1_i32, "$db": "admin" };
        let Ok(status) = client.command(&status).await else {
            continue;
        };
        if error_code(&status) != 0 || sim.starts(node) != life {
            continue;
        }
        let Some(seen) = seen(&status, life) else {
            let problem = format!("member {member}: {status:?}");
            shared.history.borrow_mut().fail(problem);
            continue;
        };
        let noted = sightings.borrow_mut().status(member, seen);
        noted.unwrap_or_else(|problem| shared.history.borrow_mut().fail(problem));
    }
}
