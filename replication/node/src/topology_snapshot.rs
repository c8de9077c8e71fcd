//! What every core knows of its member: a copy of the machine's state that core 0 replaces whole.

use std::sync::Arc;

use pinion_clock::OpTime;
use pinion_exec::SetView;
use pinion_replication_protocol::message::{OplogQueryMetadata, ReplSetMetadata};
use pinion_replication_protocol::node::Node;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use crate::terms::Terms;
use crate::walls::Walls;

/// What is known of the set and of this member's place in it.
pub(crate) struct TopologySnapshot {
    pub(crate) view: Arc<SetView>,
    /// The last entry that a majority holds. It may lie ahead of what this node has.
    pub(crate) committed: OpTime,
    pub(crate) terms: Terms,
    pub(crate) walls: Walls,
    /// What travels beside replies, where it is asked for; there is none while the machine does not
    /// run.
    pub(crate) metadata: Option<(ReplSetMetadata, OplogQueryMetadata)>,
}

impl TopologySnapshot {
    /// What is known before the machine runs.
    pub(crate) fn before_start(set_name: &str) -> TopologySnapshot {
        TopologySnapshot {
            view: Arc::new(SetView {
                set_name: set_name.to_owned(),
                state: MemberState::Startup,
                writable: false,
                term: -1,
                config_version: 0,
                config_term: -1,
                counter: 0,
                hello: pinion_bson::RawDocumentBuf::new(),
                modes: Vec::new(),
                data_members: 0,
                voters: 0,
                write_majority: 0,
                default_is_majority: true,
                journal_default: true,
                quiesces_until_ms: None,
            }),
            committed: OpTime::NULL,
            terms: Terms::default(),
            walls: Walls::default(),
            metadata: None,
        }
    }

    pub(crate) fn of(
        node: &Node,
        view: &Arc<SetView>,
        terms: &Terms,
        walls: &Walls,
    ) -> TopologySnapshot {
        TopologySnapshot {
            view: view.clone(),
            committed: node.commit_point().optime,
            terms: terms.clone(),
            walls: walls.clone(),
            metadata: Some((node.repl_metadata(), node.oplog_query_metadata())),
        }
    }

    /// Whether a majority holds the entry at `optime`, which is in the oplog of this node, asked
    /// first in the term `since`.
    ///
    /// # Errors
    /// It has ceased to be the primary of that term, so the entry may still be lost.
    pub(crate) fn is_committed(&self, optime: OpTime, since: i64) -> Result<bool> {
        // A term has one primary, so of two of its entries the later one is behind the earlier one
        // in every oplog.
        if self.committed.term == optime.term && self.committed.ts >= optime.ts {
            return Ok(true);
        }
        match self.view.state == MemberState::Primary && self.view.term == since {
            true => Ok(self.committed >= optime),
            false => Err(Error::new(
                ErrorCode::PRIMARY_STEPPED_DOWN,
                "Primary stepped down while waiting for replication",
            )),
        }
    }
}

/// What the machine's view says to the executor.
pub(crate) fn set_view(node: &Node) -> Arc<SetView> {
    let view = node.view();
    Arc::new(SetView {
        set_name: view.set_name,
        state: view.state,
        writable: view.writable,
        term: view.term.0,
        config_version: view.config_version,
        config_term: view.config_term,
        counter: view.counter,
        hello: view.hello,
        modes: view.modes,
        data_members: view.data_members as u32,
        voters: view.voters as u32,
        write_majority: view.write_majority as u32,
        default_is_majority: view.default_is_majority,
        journal_default: view.journal_default,
        quiesces_until_ms: view.quiesces_until_ms,
    })
}

#[cfg(test)]
mod tests {
    use pinion_clock::{Term, Timestamp};

    use super::*;

    fn snapshot(state: MemberState, term: i64, committed: OpTime) -> TopologySnapshot {
        let mut snapshot = TopologySnapshot::before_start("set");
        let view = Arc::get_mut(&mut snapshot.view).expect("nobody else has it");
        (view.state, view.term) = (state, term);
        snapshot.committed = committed;
        snapshot
    }

    #[test]
    fn what_a_primary_waits_for() {
        use MemberState::{Primary, Secondary};

        let at = |secs, term| OpTime::new(Timestamp::new(secs, 1), Term(term));
        let stepped_down = Err(ErrorCode::PRIMARY_STEPPED_DOWN);
        for (state, term, committed, optime, answer) in [
            (Primary, 3, at(10, 3), at(11, 3), Ok(false)),
            (Primary, 3, at(11, 3), at(11, 3), Ok(true)),
            // Written for a primary before, and asked for by a retry.
            (Primary, 3, at(10, 2), at(11, 2), Ok(false)),
            (Primary, 3, at(12, 3), at(11, 2), Ok(true)),
            // It has become primary again meanwhile, or is none any more.
            (Primary, 4, at(10, 2), at(11, 3), stepped_down),
            (Secondary, 3, at(10, 3), at(11, 3), stepped_down),
            (Secondary, 4, at(12, 4), at(11, 3), stepped_down),
            (Secondary, 4, at(12, 3), at(11, 3), Ok(true)),
        ] {
            let found = snapshot(state, term, committed).is_committed(optime, 3);
            assert_eq!(
                found.map_err(|error| error.code),
                answer,
                "{state:?} {term} {committed:?} {optime:?}"
            );
        }
    }
}
