//! Whether a member's history has parted from its sync source's, and where.
//!
//! Source: replication document, "Oplog Fetching", "Sync Source Probing" and "Rollback".

use std::fmt;

use pinion_clock::OpTime;

/// What the sync source answers to the first request for its oplog from this member's last entry
/// on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstBatch {
    /// The oldest entry of the source's oplog.
    pub source_oldest: OpTime,
    pub source_last_applied: OpTime,
    /// The first and the last entry of the batch, none if it is empty.
    pub entries: Option<(OpTime, OpTime)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstBatchVerdict {
    /// The batch continues this member's last entry.
    Follow,
    /// The source is to be denied: it has nothing that this member lacks, or has lost it.
    SourceBehind,
    /// The source no longer has the entry after this member's last one.
    TooStale,
    /// This member's last entry is not in the source's history.
    Rollback,
    /// This member has no entry that a source could continue: the source is not at fault.
    NothingToContinue,
}

pub fn judge_first_batch(last_fetched: OpTime, batch: &FirstBatch) -> FirstBatchVerdict {
    if last_fetched.is_null() {
        return FirstBatchVerdict::NothingToContinue;
    }
    if batch.source_oldest > last_fetched {
        return FirstBatchVerdict::TooStale;
    }
    // What the source says that it has applied can be older than what it just sent.
    let last_sent = batch.entries.map_or(OpTime::NULL, |(_, last)| last);
    if batch.source_last_applied.max(last_sent) < last_fetched {
        return FirstBatchVerdict::SourceBehind;
    }
    // An empty batch of a source that is not behind: its last entry is of a later term and an
    // earlier timestamp.
    match batch.entries {
        Some((first, _)) if first == last_fetched => FirstBatchVerdict::Follow,
        Some(_) | None => FirstBatchVerdict::Rollback,
    }
}

/// One of the two oplogs that a search reads backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Oplog {
    Local,
    Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchStep {
    /// Feed the next older entry of this oplog.
    Read(Oplog),
    /// The newest entry that both have, and how many newer ones of the local oplog are to be rolled
    /// back.
    Found { common: OpTime, rolled_back: u64 },
}

/// Why a rollback cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommonPointError {
    /// It would undo entries that are committed.
    BeforeCommitPoint { commit_point: OpTime },
    /// An oplog ended before it was reached.
    BeforeOldest(Oplog),
    /// The source's entries do not go backwards.
    Unordered { newer: OpTime, older: OpTime },
}

impl fmt::Display for CommonPointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CommonPointError::BeforeCommitPoint { commit_point } => write!(
                f,
                "the common point with the sync source lies before the commit point {commit_point}"
            ),
            CommonPointError::BeforeOldest(Oplog::Local) => {
                f.write_str("reached the beginning of the local oplog before a common point")
            }
            CommonPointError::BeforeOldest(Oplog::Source) => f.write_str(
                "reached the beginning of the sync source's oplog before a common point",
            ),
            CommonPointError::Unordered { newer, older } => write!(
                f,
                "the sync source's oplog has {older} before {newer}, which is not the later one"
            ),
        }
    }
}

impl std::error::Error for CommonPointError {}

/// Finds the newest entry that two oplogs share. Both are in ascending order, so whichever is at
/// the newer entry goes one further back until they meet.
#[derive(Clone, Debug)]
pub struct CommonPointSearch {
    /// No common point may lie before it.
    floor: OpTime,
    local: Option<OpTime>,
    source: Option<OpTime>,
    rolled_back: u64,
    awaited: Oplog,
}

impl CommonPointSearch {
    /// Begins with the newest entry of the local oplog, so that [`Oplog::Local`] is to be fed
    /// first. A commit point that this member has heard of and has not reached holds no more back
    /// than its newest entry does.
    pub fn new(commit_point: OpTime, last_local: OpTime) -> CommonPointSearch {
        CommonPointSearch {
            floor: commit_point.min(last_local),
            local: None,
            source: None,
            rolled_back: 0,
            awaited: Oplog::Local,
        }
    }

    /// The oplog that is to be read next.
    pub fn awaited(&self) -> Oplog {
        self.awaited
    }

    /// Feeds the next older entry of the oplog that is awaited, `None` where it has no more.
    ///
    /// # Errors
    /// The search is over: there is no common point that a rollback could go to.
    ///
    /// # Panics
    /// If the local oplog is not in order.
    pub fn feed(&mut self, entry: Option<OpTime>) -> Result<SearchStep, CommonPointError> {
        let entry = entry.ok_or(CommonPointError::BeforeOldest(self.awaited))?;
        match self.awaited {
            Oplog::Local => {
                if let Some(newer) = self.local.replace(entry) {
                    assert!(entry < newer, "the local oplog is in order");
                    self.rolled_back += 1;
                }
                if entry < self.floor {
                    return Err(self.before_commit_point());
                }
            }
            Oplog::Source => {
                if let Some(newer) = self.source.replace(entry)
                    && entry >= newer
                {
                    return Err(CommonPointError::Unordered {
                        newer,
                        older: entry,
                    });
                }
                // The local entry, if it is above, is of another branch, and so is all down to the
                // floor.
                if entry < self.floor {
                    return Err(self.before_commit_point());
                }
            }
        }
        let (Some(local), Some(source)) = (self.local, self.source) else {
            self.awaited = match self.local {
                None => Oplog::Local,
                Some(_) => Oplog::Source,
            };
            return Ok(SearchStep::Read(self.awaited));
        };
        if local == source {
            return Ok(SearchStep::Found {
                common: local,
                rolled_back: self.rolled_back,
            });
        }
        self.awaited = match local > source {
            true => Oplog::Local,
            false => Oplog::Source,
        };
        Ok(SearchStep::Read(self.awaited))
    }

    fn before_commit_point(&self) -> CommonPointError {
        CommonPointError::BeforeCommitPoint {
            commit_point: self.floor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::at;
    use super::*;

    #[test]
    fn first_batches() {
        /// For a member whose last entry is of second 10 of term 2.
        #[track_caller]
        fn check(
            oldest: OpTime,
            applied: OpTime,
            entries: Option<(OpTime, OpTime)>,
            expected: FirstBatchVerdict,
        ) {
            let batch = FirstBatch {
                source_oldest: oldest,
                source_last_applied: applied,
                entries,
            };
            assert_eq!(judge_first_batch(at(2, 10), &batch), expected);
        }
        use FirstBatchVerdict::{Follow, Rollback, SourceBehind, TooStale};
        let last = at(2, 10);
        check(at(1, 1), at(2, 12), Some((last, at(2, 12))), Follow);
        check(last, last, Some((last, last)), Follow);
        check(at(1, 1), at(2, 9), Some((last, at(2, 12))), Follow);
        check(at(2, 11), at(2, 12), Some((at(2, 11), at(2, 12))), TooStale);
        check(at(3, 9), at(3, 12), Some((at(3, 11), at(3, 12))), TooStale);
        check(at(1, 1), at(2, 9), None, SourceBehind);
        check(
            at(1, 1),
            at(1, 99),
            Some((at(1, 50), at(1, 99))),
            SourceBehind,
        );
        check(at(1, 1), at(3, 9), None, Rollback);
        check(at(1, 1), at(3, 12), Some((at(3, 11), at(3, 12))), Rollback);
        check(at(1, 1), at(3, 12), Some((at(3, 10), at(3, 12))), Rollback);
    }

    #[test]
    fn a_member_without_a_log_finds_no_fault_with_its_source() {
        for entries in [None, Some((at(1, 1), at(2, 12)))] {
            let batch = FirstBatch {
                source_oldest: at(1, 1),
                source_last_applied: at(2, 12),
                entries,
            };
            assert_eq!(
                judge_first_batch(OpTime::NULL, &batch),
                FirstBatchVerdict::NothingToContinue
            );
        }
    }

    /// Runs the search over two oplogs, given from their oldest entries on.
    fn search(
        commit_point: OpTime,
        local: &[OpTime],
        source: &[OpTime],
    ) -> Result<SearchStep, CommonPointError> {
        let last_local = local.last().copied().unwrap_or(OpTime::NULL);
        let mut search = CommonPointSearch::new(commit_point, last_local);
        let (mut local, mut source) = (local.iter().rev(), source.iter().rev());
        loop {
            let entry = match search.awaited() {
                Oplog::Local => local.next(),
                Oplog::Source => source.next(),
            };
            let step = search.feed(entry.copied())?;
            if step != SearchStep::Read(search.awaited()) {
                return Ok(step);
            }
        }
    }

    #[track_caller]
    fn check(
        commit_point: OpTime,
        local: &[OpTime],
        source: &[OpTime],
        expected: Result<(OpTime, u64), CommonPointError>,
    ) {
        let expected = expected.map(|(common, rolled_back)| SearchStep::Found {
            common,
            rolled_back,
        });
        assert_eq!(search(commit_point, local, source), expected);
    }

    #[test]
    fn common_points() {
        let null = OpTime::NULL;
        let shared = [at(1, 1), at(1, 2), at(1, 3)];
        let local = [&shared[..], &[at(1, 4), at(1, 5)]].concat();
        let source = [&shared[..], &[at(2, 4), at(2, 5), at(2, 9)]].concat();
        check(null, &local, &source, Ok((at(1, 3), 2)));
        check(at(1, 3), &local, &source, Ok((at(1, 3), 2)));
        check(null, &local, &local, Ok((at(1, 5), 0)));
        check(null, &local, &shared, Ok((at(1, 3), 2)));
        check(null, &shared, &local, Ok((at(1, 3), 0)));
        // Heard of, not reached: the newest local entry is committed, and shared.
        check(at(1, 9), &shared, &local, Ok((at(1, 3), 0)));
        check(null, &local[2..], &source[2..], Ok((at(1, 3), 2)));
    }

    #[test]
    fn no_common_point() {
        use CommonPointError::{BeforeCommitPoint, BeforeOldest, Unordered};
        let null = OpTime::NULL;
        let local = [at(1, 1), at(1, 4), at(1, 5)];
        let source = [at(1, 1), at(2, 4), at(2, 5)];
        let commit_point = at(1, 4);
        check(
            commit_point,
            &local,
            &source,
            Err(BeforeCommitPoint { commit_point }),
        );
        check(null, &local[1..], &source, Err(BeforeOldest(Oplog::Local)));
        check(null, &local, &source[1..], Err(BeforeOldest(Oplog::Source)));
        check(null, &[], &source, Err(BeforeOldest(Oplog::Local)));
        check(null, &local, &[], Err(BeforeOldest(Oplog::Source)));
        check(
            null,
            &local,
            &[at(2, 7), at(2, 7)],
            Err(Unordered {
                newer: at(2, 7),
                older: at(2, 7),
            }),
        );
    }

    /// Every pair of branches of up to four entries each: the last shared entry is found.
    #[test]
    fn branches_meet_where_they_parted() {
        for (shared, local, source) in (1..4).flat_map(|s| {
            (0..4).flat_map(move |l| (0..4).map(move |r| (s as u32, l as u32, r as u32)))
        }) {
            let trunk: Vec<OpTime> = (1..=shared).map(|secs| at(1, secs)).collect();
            let branch = |term, length| (1..=length).map(move |i| at(term, shared + i));
            let local_log: Vec<OpTime> = trunk.iter().copied().chain(branch(2, local)).collect();
            let source_log: Vec<OpTime> = trunk.iter().copied().chain(branch(3, source)).collect();
            let common = at(1, shared);
            check(common, &local_log, &source_log, Ok((common, local.into())));
        }
    }
}
