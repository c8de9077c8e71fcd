//! What the cores count of the transactions that clients run through this router: `transactions` of
//! `serverStatus`.
//!
//! Source: MongoDB's `RouterTransactionsMetrics`.

use std::collections::BTreeMap;

use pinion_bson::DocBuilder;
use pinion_sharding_protocol::txn::CommitType;

use crate::limits::MAX_ABORT_CAUSES;

/// Causes of aborts beyond [`MAX_ABORT_CAUSES`].
const OTHER_CAUSES: &str = "other";

/// What one core has counted, or all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransactionCounts {
    /// Those that are open now and run a statement, or none. The home core of each counts it.
    pub active: u64,
    pub inactive: u64,
    pub started: u64,
    pub committed: u64,
    pub contacted_participants: u64,
    pub participants_at_commit: u64,
    pub requests: u64,
    aborted: u64,
    /// By the name of the error.
    abort_causes: BTreeMap<String, u64>,
    commits: [CommitCounts; CommitType::ALL.len()],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct CommitCounts {
    initiated: u64,
    successful: u64,
    successful_micros: u64,
}

impl TransactionCounts {
    pub(crate) fn aborted(&mut self, cause: &str) {
        self.aborted += 1;
        self.add_cause(cause, 1);
    }

    fn add_cause(&mut self, cause: &str, count: u64) {
        let is_listed = self.abort_causes.contains_key(cause);
        let cause = match is_listed || self.abort_causes.len() < MAX_ABORT_CAUSES {
            true => cause,
            false => OTHER_CAUSES,
        };
        *self.abort_causes.entry(cause.to_owned()).or_default() += count;
    }

    pub(crate) fn commit_started(&mut self, commit_type: CommitType, participants: u64) {
        self.commits[commit_type as usize].initiated += 1;
        self.participants_at_commit += participants;
    }

    pub(crate) fn commit_succeeded(&mut self, commit_type: CommitType, micros: u64) {
        self.committed += 1;
        let counts = &mut self.commits[commit_type as usize];
        counts.successful += 1;
        counts.successful_micros += micros;
    }

    /// Adds what another core has counted.
    pub(crate) fn add(&mut self, other: &TransactionCounts) {
        let TransactionCounts {
            active,
            inactive,
            started,
            committed,
            contacted_participants,
            participants_at_commit,
            requests,
            aborted,
            abort_causes,
            commits,
        } = other;
        self.active += active;
        self.inactive += inactive;
        self.started += started;
        self.committed += committed;
        self.contacted_participants += contacted_participants;
        self.participants_at_commit += participants_at_commit;
        self.requests += requests;
        self.aborted += aborted;
        for (cause, count) in abort_causes {
            self.add_cause(cause, *count);
        }
        for (sum, counts) in self.commits.iter_mut().zip(commits) {
            sum.initiated += counts.initiated;
            sum.successful += counts.successful;
            sum.successful_micros += counts.successful_micros;
        }
    }

    pub(crate) fn append(&self, out: &mut DocBuilder) {
        let open = self.active + self.inactive;
        out.append("currentOpen", open as i64)
            .append("currentActive", self.active as i64)
            .append("currentInactive", self.inactive as i64)
            .append("totalStarted", self.started as i64)
            .append("totalAborted", self.aborted as i64);
        out.start_document("abortCause");
        for (cause, count) in &self.abort_causes {
            out.append(cause, *count as i64);
        }
        out.end()
            .append("totalCommitted", self.committed as i64)
            .append(
                "totalContactedParticipants",
                self.contacted_participants as i64,
            )
            .append(
                "totalParticipantsAtCommit",
                self.participants_at_commit as i64,
            )
            .append("totalRequestsTargeted", self.requests as i64);
        out.start_document("commitTypes");
        for commit_type in CommitType::ALL {
            let counts = self.commits[commit_type as usize];
            out.start_document(commit_type.name())
                .append("initiated", counts.initiated as i64)
                .append("successful", counts.successful as i64)
                .append("successfulDurationMicros", counts.successful_micros as i64)
                .end();
        }
        out.end();
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn sums_of_cores() {
        let mut one = TransactionCounts {
            active: 1,
            started: 4,
            requests: 9,
            contacted_participants: 5,
            ..TransactionCounts::default()
        };
        one.commit_started(CommitType::SingleWriteShard, 3);
        one.commit_succeeded(CommitType::SingleWriteShard, 70);
        one.aborted("abort");
        let mut other = TransactionCounts {
            inactive: 2,
            ..TransactionCounts::default()
        };
        other.commit_started(CommitType::SingleWriteShard, 2);
        other.aborted("abort");
        other.aborted("WriteConflict");
        let mut sum = TransactionCounts::default();
        sum.add(&one);
        sum.add(&other);
        let mut out = DocBuilder::new();
        sum.append(&mut out);
        let none =
            rawdoc! { "initiated": 0_i64, "successful": 0_i64, "successfulDurationMicros": 0_i64 };
        let expected = rawdoc! {
            "currentOpen": 3_i64, "currentActive": 1_i64, "currentInactive": 2_i64,
            "totalStarted": 4_i64, "totalAborted": 3_i64,
            "abortCause": { "WriteConflict": 1_i64, "abort": 2_i64 },
            "totalCommitted": 1_i64, "totalContactedParticipants": 5_i64,
            "totalParticipantsAtCommit": 5_i64, "totalRequestsTargeted": 9_i64,
            "commitTypes": {
                "noShards": none.clone(), "singleShard": none.clone(),
                "singleWriteShard": {
                    "initiated": 2_i64, "successful": 1_i64, "successfulDurationMicros": 70_i64,
                },
                "readOnly": none.clone(), "twoPhaseCommit": none.clone(),
                "recoverWithToken": none,
            },
        };
        assert_eq!(out.finish(), expected);
    }

    #[test]
    fn causes_are_limited() {
        let mut counts = TransactionCounts::default();
        for at in 0..MAX_ABORT_CAUSES + 10 {
            counts.aborted(&format!("Location{at}"));
        }
        counts.aborted("Location0");
        assert_eq!(counts.abort_causes.len(), MAX_ABORT_CAUSES + 1);
        assert_eq!(counts.abort_causes[OTHER_CAUSES], 10);
        assert_eq!(counts.abort_causes["Location0"], 2);
    }
}
