//! What every core knows of its member: a copy of the machine's state that core 0 replaces whole.

use std::sync::Arc;

use pinion_clock::OpTime;
use pinion_exec::SetView;
use pinion_replication_protocol::message::{OplogQueryMetadata, ReplSetMetadata};
use pinion_replication_protocol::node::Node;
use pinion_wire::{Error, ErrorCode, MemberState, Result};

use crate::terms::Terms;

/// What is known of the set and of this member's place in it.
pub(crate) struct Known {
    pub(crate) view: Arc<SetView>,
    /// The last entry that a majority holds. It may lie ahead of what this node has.
    pub(crate) committed: OpTime,
    pub(crate) terms: Terms,
    /// What travels beside replies, where it is asked for; there is none while the machine does not run.
    pub(crate) metadata: Option<(ReplSetMetadata, OplogQueryMetadata)>,
}

impl Known {
    /// What is known before the machine runs.
    pub(crate) fn before_start(set_name: &str) -> Known {
        Known {
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
            }),
            committed: OpTime::NULL,
            terms: Terms::default(),
            metadata: None,
        }
    }

    pub(crate) fn of(node: &Node, terms: &Terms) -> Known {
        let view = node.view();
        Known {
            view: Arc::new(SetView {
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
            }),
            committed: node.commit_point().optime,
            terms: terms.clone(),
            metadata: Some((node.repl_metadata(), node.oplog_query_metadata())),
        }
    }

    /// Whether a majority holds the entry at `optime`, which this node wrote as a primary.
    ///
    /// # Errors
    /// It is no primary any more, so what it wrote may still be lost.
    pub(crate) fn is_committed(&self, optime: OpTime) -> Result<bool> {
        if self.committed >= optime {
            return Ok(true);
        }
        match self.view.state == MemberState::Primary && optime.term.0 == self.view.term {
            true => Ok(false),
            false => Err(Error::new(
                ErrorCode::PRIMARY_STEPPED_DOWN,
                "Primary stepped down while waiting for replication",
            )),
        }
    }
}
