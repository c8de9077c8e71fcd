//! The writers that wait until enough members hold what was written.

use std::collections::BTreeSet;

use pinion_bson::RawDocumentBuf;
use pinion_clock::{OpTime, Timestamp};
use pinion_wire::idl::{WriteConcern, WriteConcernW};
use pinion_wire::{Error, ErrorCode, Result};

use super::{CommandId, Node};
use crate::config::{Config, WriteMode};
use crate::decision::{
    Holders, MemberConcern, Position, check_satisfiable, find_mode, is_satisfied,
};

/// The waiters, by what is waited for: of those with the same concern the earliest is satisfied
/// first.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    groups: Vec<Group>,
    /// Whether some may be satisfied now.
    pub(super) look: bool,
}

#[derive(Debug)]
struct Group {
    concern: WriteConcern,
    waiting: BTreeSet<(OpTime, CommandId)>,
}

impl Node {
    pub(super) fn await_concern(&mut self, id: CommandId, ts: Timestamp, concern: WriteConcern) {
        if let Err(error) = self.check_concern(&concern) {
            return self.reply(id, Err(error));
        }
        // An entry of an earlier term has a smaller timestamp than those of this one.
        let optime = OpTime::new(ts, self.term);
        let concern = WriteConcern {
            timeout_ms: 0,
            ..concern
        };
        let groups = &mut self.waiters.groups;
        let at = match groups.iter().position(|group| group.concern == concern) {
            Some(at) => at,
            None => {
                groups.push(Group {
                    concern,
                    waiting: BTreeSet::new(),
                });
                groups.len() - 1
            }
        };
        groups[at].waiting.insert((optime, id));
        self.waiters.look = true;
    }

    /// Whether the concern could ever be satisfied, and by this node.
    fn check_concern(&self, concern: &WriteConcern) -> Result<()> {
        let Some(config) = self.config().filter(|_| self.is_primary()) else {
            return Err(Error::new(
                ErrorCode::PRIMARY_STEPPED_DOWN,
                "Primary stepped down while waiting for replication",
            ));
        };
        with_wanted(config, concern, |wanted| check_satisfiable(config, wanted))?
    }

    pub(super) fn withdraw(&mut self, id: CommandId) {
        for group in &mut self.waiters.groups {
            group.waiting.retain(|(_, waiting)| *waiting != id);
        }
        self.waiters
            .groups
            .retain(|group| !group.waiting.is_empty());
        self.awaits_commitment.retain(|waiting| waiting.id != id);
    }

    /// Answers those whose entries enough members hold.
    pub(super) fn answer_satisfied(&mut self) {
        let look = std::mem::take(&mut self.waiters.look);
        if !look || self.waiters.groups.is_empty() {
            return;
        }
        let mut groups = std::mem::take(&mut self.waiters.groups);
        let positions = self.positions();
        for group in &mut groups {
            while let Some((optime, id)) = group.waiting.first().copied() {
                let result = self.judge_concern(&positions, &group.concern, optime);
                if matches!(result, Ok(false)) {
                    break;
                }
                group.waiting.pop_first();
                self.reply(id, result.map(|_| RawDocumentBuf::new()));
            }
        }
        groups.retain(|group| !group.waiting.is_empty());
        self.waiters.groups = groups;
    }

    /// Whether enough members hold an entry.
    ///
    /// # Errors
    /// The configuration no longer has the mode.
    fn judge_concern(
        &self,
        positions: &[Position],
        concern: &WriteConcern,
        optime: OpTime,
    ) -> Result<bool> {
        let config = self.config().expect("a primary is a member");
        let me = self.self_index().expect("a primary is a member");
        // What a majority holds is only safe once an entry of this term is committed.
        if concern.w == Some(WriteConcernW::Majority) && self.commit_point.optime < optime {
            return Ok(false);
        }
        with_wanted(config, concern, |wanted| {
            is_satisfied(config, positions, me, optime, wanted)
        })
    }

    /// The waiters hear that this node is the primary no more: what they wrote may still be
    /// lost.
    pub(super) fn interrupt_waiters(&mut self) {
        for group in std::mem::take(&mut self.waiters.groups) {
            for (_, id) in group.waiting {
                let error = Error::new(
                    ErrorCode::PRIMARY_STEPPED_DOWN,
                    "Primary stepped down while waiting for replication",
                );
                self.reply(id, Err(error));
            }
        }
    }
}

/// Reads a concern as decisions take it.
fn with_wanted<T>(
    config: &Config,
    concern: &WriteConcern,
    judge: impl FnOnce(MemberConcern<'_>) -> T,
) -> Result<T> {
    let wanted = |holders| MemberConcern {
        holders,
        journaled: concern.journal,
    };
    Ok(match &concern.w {
        None => judge(wanted(Holders::Members(1))),
        Some(WriteConcernW::Members(count)) => judge(wanted(Holders::Members((*count).into()))),
        Some(WriteConcernW::Majority) => judge(wanted(Holders::Majority)),
        Some(WriteConcernW::Mode(name)) => judge(wanted(Holders::Mode(find_mode(config, name)?))),
        Some(WriteConcernW::Tags(tags)) => {
            let tags = RawDocumentBuf::try_from(tags)
                .map_err(|error| Error::bad_value(error.to_string()))?;
            let mode = WriteMode::parse("w", &tags)?;
            judge(wanted(Holders::Mode(&mode)))
        }
    })
}
