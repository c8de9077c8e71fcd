//! A transaction as the router sees it that all its statements come through: which shards take
//! part, what each is sent with a statement, and how the transaction ends.
//!
//! Source: sharding document, "Transactions", "Committing a Transaction", "Aborting a Transaction".

use std::collections::BTreeMap;

use pinion_bson::RawDocumentBuf;
use pinion_clock::Timestamp;

use super::tracking::{CommitType, Tracking};
use crate::ShardId;

/// A shard that takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Participant {
    /// The statement that it joined with.
    joined_at: u32,
    writes: bool,
    /// It has answered a statement, so its part has been started there.
    has_answered: bool,
}

/// What a statement carries to a shard.
#[derive(Clone, Debug, PartialEq)]
pub struct ParticipantFields {
    /// It takes part from this statement on.
    pub joins: bool,
    /// `startTransaction`: the shard takes part from here on.
    pub starts: bool,
    /// `coordinator`: the first shard, which decides if several write.
    pub is_coordinator: bool,
    /// The read concern of the transaction, where it starts.
    pub read_concern: Option<RawDocumentBuf>,
    /// What all shards read, for a transaction of level `snapshot` that starts there.
    pub at_cluster_time: Option<Timestamp>,
}

/// Why a statement is not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another shard has been written already.
    SecondWriter { first: ShardId, second: ShardId },
    /// The transaction has ended.
    Ended,
}

/// How a transaction is committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitPlan {
    /// No shard takes part.
    Nothing,
    /// `commitTransaction` to each of the first in any order, and then to the last.
    InTurn { first: Vec<ShardId>, last: ShardId },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// `readers_are_done`: all shards that only read have committed, so it is the last one's alone
    /// to say what becomes of the transaction.
    Committing {
        readers_are_done: bool,
    },
    Aborted,
}

/// One transaction.
#[derive(Clone, Debug)]
pub struct TransactionRouter {
    number: i64,
    participants: BTreeMap<ShardId, Participant>,
    coordinator: Option<ShardId>,
    /// The first shard that is written: it knows the outcome if this router is lost.
    recovery_shard: Option<ShardId>,
    read_concern: Option<RawDocumentBuf>,
    /// Set by the first statement of a transaction of level `snapshot`.
    at_cluster_time: Option<Timestamp>,
    statement: u32,
    /// Whether some of the statement was sent, and whether some was refused as that of a second
    /// writer.
    has_sent: bool,
    was_refused: bool,
    state: State,
    /// For metrics alone.
    pub tracking: Tracking,
}

impl TransactionRouter {
    /// The transaction of this number, whose first statement has this read concern. `snapshot_at`
    /// is the router's cluster time if its level is `snapshot`.
    pub fn new(
        number: i64,
        read_concern: Option<RawDocumentBuf>,
        snapshot_at: Option<Timestamp>,
    ) -> TransactionRouter {
        TransactionRouter {
            number,
            participants: BTreeMap::new(),
            coordinator: None,
            recovery_shard: None,
            read_concern,
            at_cluster_time: snapshot_at,
            statement: 0,
            has_sent: false,
            was_refused: false,
            state: State::Open,
            tracking: Tracking::default(),
        }
    }

    pub fn number(&self) -> i64 {
        self.number
    }

    /// What all shards read, where its level is `snapshot`.
    pub fn snapshot_time(&self) -> Option<Timestamp> {
        self.at_cluster_time
    }

    /// Whether it takes further statements.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub fn is_aborted(&self) -> bool {
        self.state == State::Aborted
    }

    /// The shard that a client's `recoveryToken` names.
    pub fn recovery_shard(&self) -> Option<&ShardId> {
        self.recovery_shard.as_ref()
    }

    pub fn participants(&self) -> impl Iterator<Item = &ShardId> {
        self.participants.keys()
    }

    /// Another statement of the client.
    pub fn next_statement(&mut self) {
        self.statement += 1;
        self.has_sent = false;
        self.was_refused = false;
    }

    /// Whether the statement was refused as that of a second writer before any of it was sent. No
    /// shard has said then whether it was routed by what the cluster has now, so it may be routed
    /// once more.
    pub fn may_be_routed_again(&mut self) -> bool {
        let was_refused = std::mem::take(&mut self.was_refused);
        was_refused && !self.has_sent && self.is_open()
    }

    /// What the statement carries to a shard, which takes part from here on.
    ///
    /// # Errors
    /// The statement would write on a second shard, or the transaction has ended.
    pub fn send_to(&mut self, shard: &ShardId, writes: bool) -> Result<ParticipantFields, Refusal> {
        if self.state != State::Open {
            return Err(Refusal::Ended);
        }
        if writes {
            let mut writers = self.participants.iter().filter(|(_, part)| part.writes);
            if let Some((first, _)) = writers.find(|(writer, _)| *writer != shard) {
                self.was_refused = true;
                return Err(Refusal::SecondWriter {
                    first: first.clone(),
                    second: shard.clone(),
                });
            }
        }
        self.has_sent = true;
        let coordinator = self.coordinator.get_or_insert_with(|| shard.clone());
        let is_coordinator = coordinator == shard;
        let joined_at = self.statement;
        let joins = !self.participants.contains_key(shard);
        let part = self.participants.entry(shard.clone());
        let part = part.or_insert(Participant {
            joined_at,
            writes: false,
            has_answered: false,
        });
        part.writes |= writes;
        if writes {
            self.recovery_shard.get_or_insert_with(|| shard.clone());
        }
        let starts = !part.has_answered;
        Ok(ParticipantFields {
            joins,
            starts,
            is_coordinator,
            read_concern: self.read_concern.clone().filter(|_| starts),
            at_cluster_time: self.at_cluster_time.filter(|_| starts),
        })
    }

    /// A shard has executed the statement.
    pub fn answered(&mut self, shard: &ShardId) {
        if let Some(part) = self.participants.get_mut(shard) {
            part.has_answered = true;
        }
    }

    /// A shard has refused the statement since the sender's routing table was old. Whether the
    /// statement may be sent once more: only if the shard joined with it, so that nothing that the
    /// client knows of is lost. The shard does not take part then.
    pub fn refused_as_stale(&mut self, shard: &ShardId) -> bool {
        let Some(part) = self.participants.get(shard).copied() else {
            return true;
        };
        if part.joined_at != self.statement || part.has_answered {
            return false;
        }
        self.participants.remove(shard);
        if self.coordinator.as_ref() == Some(shard) {
            self.coordinator = None;
        }
        if self.recovery_shard.as_ref() == Some(shard) {
            self.recovery_shard = None;
        }
        true
    }

    /// How a commit that starts now is counted.
    pub fn commit_type(&self) -> CommitType {
        let writers = self.participants.values().filter(|part| part.writes);
        CommitType::of(self.participants.len(), writers.count())
    }

    /// How it is committed. It takes no statement afterwards. Asked again, the answer is the same;
    /// once the readers have committed, the last shard alone.
    pub fn commit(&mut self) -> CommitPlan {
        let readers_are_done = matches!(
            self.state,
            State::Committing {
                readers_are_done: true
            }
        );
        self.state = State::Committing { readers_are_done };
        let writer = self.participants.iter().find(|(_, part)| part.writes);
        let last = writer.or(self.participants.iter().next());
        let Some((last, _)) = last else {
            return CommitPlan::Nothing;
        };
        let readers = self.participants.keys();
        let readers = readers.filter(|shard| *shard != last && !readers_are_done);
        CommitPlan::InTurn {
            first: readers.cloned().collect(),
            last: last.clone(),
        }
    }

    /// The shards that have only read have committed.
    pub fn readers_committed(&mut self) {
        if let State::Committing { readers_are_done } = &mut self.state {
            *readers_are_done = true;
        }
    }

    /// It is aborted, unless its commit has started: then its shards alone know what becomes of it.
    /// Gives those that are to know.
    pub fn abort(&mut self) -> Vec<ShardId> {
        if !self.is_open() {
            return Vec::new();
        }
        self.state = State::Aborted;
        self.participants.keys().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn shard(name: &str) -> ShardId {
        ShardId::new(name)
    }

    /// What is sent to a shard, which then answers.
    #[track_caller]
    fn check(
        txn: &mut TransactionRouter,
        name: &str,
        writes: bool,
        starts: bool,
        is_coordinator: bool,
    ) {
        txn.next_statement();
        let fields = txn.send_to(&shard(name), writes).expect("it is sent");
        assert_eq!(
            (fields.starts, fields.is_coordinator),
            (starts, is_coordinator)
        );
        assert_eq!(fields.read_concern.is_some(), starts);
        assert_eq!(fields.joins, starts, "each of them has answered");
        txn.answered(&shard(name));
    }

    fn started() -> TransactionRouter {
        TransactionRouter::new(7, Some(rawdoc! { "level": "local" }), None)
    }

    #[test]
    fn a_statement_of_which_nothing_was_sent_is_routed_again() {
        let mut txn = started();
        check(&mut txn, "a", true, true, true);
        assert!(!txn.may_be_routed_again());
        txn.next_statement();
        assert!(txn.send_to(&shard("b"), true).is_err());
        assert!(txn.may_be_routed_again() && !txn.may_be_routed_again());
        check(&mut txn, "a", true, false, true);
        assert!(txn.send_to(&shard("b"), true).is_err());
        assert!(!txn.may_be_routed_again(), "some of it was executed");
        txn.next_statement();
        assert!(txn.send_to(&shard("b"), true).is_err());
        txn.abort();
        assert!(!txn.may_be_routed_again());
    }

    #[test]
    fn a_reader_and_a_writer() {
        let mut txn = started();
        check(&mut txn, "a", false, true, true);
        check(&mut txn, "b", true, true, false);
        check(&mut txn, "a", false, false, true);
        check(&mut txn, "b", true, false, false);
        assert_eq!(txn.recovery_shard(), Some(&shard("b")));
        assert_eq!(txn.commit_type(), CommitType::SingleWriteShard);
        let second = txn.send_to(&shard("a"), true);
        let expected = Refusal::SecondWriter {
            first: shard("b"),
            second: shard("a"),
        };
        assert_eq!(second, Err(expected));
        let plan = CommitPlan::InTurn {
            first: vec![shard("a")],
            last: shard("b"),
        };
        assert_eq!(txn.commit(), plan);
        assert_eq!(txn.commit(), plan, "a commit may be repeated");
        assert!(txn.abort().is_empty() && !txn.is_aborted());
        txn.readers_committed();
        let last = CommitPlan::InTurn {
            first: Vec::new(),
            last: shard("b"),
        };
        assert_eq!(txn.commit(), last, "the writer alone knows");
        assert_eq!(txn.send_to(&shard("a"), false), Err(Refusal::Ended));
    }

    #[test]
    fn readers_and_none() {
        assert_eq!(started().commit(), CommitPlan::Nothing);
        assert_eq!(started().commit_type(), CommitType::NoShards);
        let mut txn = started();
        check(&mut txn, "b", false, true, true);
        check(&mut txn, "a", false, true, false);
        assert_eq!(txn.commit_type(), CommitType::ReadOnly);
        let CommitPlan::InTurn { first, last } = txn.commit() else {
            panic!("two shards take part");
        };
        assert_eq!((first, last), (vec![shard("b")], shard("a")));
    }

    #[test]
    fn stale_statements() {
        let mut txn = started();
        txn.next_statement();
        txn.send_to(&shard("a"), true).expect("it is sent");
        assert!(txn.refused_as_stale(&shard("a")), "nothing was done there");
        assert!(txn.recovery_shard().is_none() && txn.participants().count() == 0);
        check(&mut txn, "b", true, true, true);
        txn.next_statement();
        txn.send_to(&shard("b"), true).expect("it is sent");
        assert!(
            !txn.refused_as_stale(&shard("b")),
            "it has done a statement"
        );
        assert_eq!(txn.abort(), [shard("b")]);
        assert!(txn.is_aborted() && !txn.is_open());
    }

    #[test]
    fn a_snapshot_is_one_time() {
        let time = Timestamp::new(5, 1);
        let mut txn = TransactionRouter::new(1, None, Some(time));
        for name in ["a", "b"] {
            txn.next_statement();
            let fields = txn.send_to(&shard(name), false).expect("it is sent");
            assert_eq!(fields.at_cluster_time, Some(time));
        }
    }
}
