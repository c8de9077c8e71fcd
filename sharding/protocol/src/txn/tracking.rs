//! What metrics have counted of a transaction, so that each of its steps is counted once.
//!
//! Source: MongoDB's `TransactionRouter::MetricsTracker`.

/// How a transaction is committed, as `serverStatus` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitType {
    NoShards,
    SingleShard,
    SingleWriteShard,
    ReadOnly,
    /// Several shards are written.
    TwoPhaseCommit,
    /// Another router has run the transaction.
    RecoverWithToken,
}

impl CommitType {
    pub const ALL: [CommitType; 6] = [
        CommitType::NoShards,
        CommitType::SingleShard,
        CommitType::SingleWriteShard,
        CommitType::ReadOnly,
        CommitType::TwoPhaseCommit,
        CommitType::RecoverWithToken,
    ];

    pub fn name(self) -> &'static str {
        match self {
            CommitType::NoShards => "noShards",
            CommitType::SingleShard => "singleShard",
            CommitType::SingleWriteShard => "singleWriteShard",
            CommitType::ReadOnly => "readOnly",
            CommitType::TwoPhaseCommit => "twoPhaseCommit",
            CommitType::RecoverWithToken => "recoverWithToken",
        }
    }

    /// That of a transaction with this number of participants, and of those that are written.
    pub(super) fn of(participants: usize, writers: usize) -> CommitType {
        match (participants, writers) {
            (0, _) => CommitType::NoShards,
            (1, _) => CommitType::SingleShard,
            (_, 0) => CommitType::ReadOnly,
            (_, 1) => CommitType::SingleWriteShard,
            _ => CommitType::TwoPhaseCommit,
        }
    }
}

/// How far a transaction has come. Times are in microseconds of any one clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tracking {
    commit: Option<(CommitType, u64)>,
    is_over: bool,
}

impl Tracking {
    /// Whether it has been committed or aborted, or no client uses it any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Its commit starts. Returns whether that is new: a client may send the commit again.
    pub fn start_commit(&mut self, commit_type: CommitType, now_micros: u64) -> bool {
        if self.is_over || self.commit.is_some() {
            return false;
        }
        self.commit = Some((commit_type, now_micros));
        true
    }

    /// It is committed. Returns how, and how long that took since the commit started, the first
    /// time.
    pub fn committed(&mut self, now_micros: u64) -> Option<(CommitType, u64)> {
        if self.is_over {
            return None;
        }
        let (commit_type, started) = self.commit?;
        self.is_over = true;
        Some((commit_type, now_micros.saturating_sub(started)))
    }

    /// It is aborted, by its client or since its commit is refused. Returns whether that is new.
    pub fn aborted(&mut self) -> bool {
        !std::mem::replace(&mut self.is_over, true)
    }

    /// One of its statements has failed, which aborts it. Returns whether that is new. Once the
    /// commit has started, its shards alone know what becomes of it.
    pub fn statement_failed(&mut self) -> bool {
        self.commit.is_none() && self.aborted()
    }

    /// No client uses it any more. What becomes of it is not known.
    pub fn abandoned(&mut self) {
        self.is_over = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_commits() {
        let check = |participants, writers, expected: &str| {
            assert_eq!(CommitType::of(participants, writers).name(), expected);
        };
        check(0, 0, "noShards");
        check(1, 0, "singleShard");
        check(1, 1, "singleShard");
        check(2, 0, "readOnly");
        check(3, 1, "singleWriteShard");
        check(3, 2, "twoPhaseCommit");
        let names: std::collections::BTreeSet<&str> =
            CommitType::ALL.iter().map(|of| of.name()).collect();
        assert_eq!(names.len(), CommitType::ALL.len());
    }

    #[test]
    fn a_commit_is_counted_once() {
        let mut tracking = Tracking::default();
        assert_eq!(tracking.committed(5), None, "it has not started");
        assert!(tracking.start_commit(CommitType::ReadOnly, 10));
        // The outcome was not known, so the client sends it again.
        assert!(!tracking.start_commit(CommitType::ReadOnly, 20));
        assert!(!tracking.statement_failed() && !tracking.is_over());
        assert_eq!(tracking.committed(50), Some((CommitType::ReadOnly, 40)));
        assert!(tracking.is_over());
        assert_eq!(tracking.committed(60), None);
        assert!(!tracking.start_commit(CommitType::ReadOnly, 70));
        assert!(!tracking.aborted());
    }

    #[test]
    fn an_abort_is_counted_once() {
        let mut tracking = Tracking::default();
        assert!(tracking.statement_failed() && tracking.is_over());
        assert!(!tracking.statement_failed() && !tracking.aborted());
        assert!(!tracking.start_commit(CommitType::SingleShard, 1));
        let mut refused = Tracking::default();
        assert!(refused.start_commit(CommitType::SingleShard, 1));
        assert!(refused.aborted() && !refused.aborted());
        assert_eq!(refused.committed(2), None);
        let mut abandoned = Tracking::default();
        abandoned.abandoned();
        assert!(abandoned.is_over() && !abandoned.aborted());
    }
}
