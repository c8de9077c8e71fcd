//! What members say to each other, in MongoDB's shapes: commands, their replies, and what travels
//! beside these.

mod commands;
mod heartbeat;
mod metadata;
mod optime;
mod position;
mod votes;

use pinion_bson::{DocBuilder, RawDocumentBuf};

pub use commands::{StepDown, parse_freeze, parse_maintenance, parse_step_up, parse_sync_from};
pub use heartbeat::{HeartbeatRequest, HeartbeatResponse, UNINITIALIZED_VERSION};
pub use metadata::{OPLOG_QUERY_DATA, OplogQueryMetadata, REPL_DATA, ReplSetMetadata};
pub(crate) use optime::append_date;
pub use optime::{MAX_TERM, OpTimeAndWallTime, append_optime, parse_optime};
pub use position::{MemberPosition, UpdatePosition};
pub use votes::{VoteRequest, VoteResponse};

/// A command that one member sends another.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    Heartbeat(HeartbeatRequest),
    Votes(VoteRequest),
    Position(UpdatePosition),
    /// `replSetStepUp` of one that steps down.
    StepUp {
        skip_dry_run: bool,
    },
}

impl Request {
    /// The command as it is sent, with its database.
    pub fn to_bson(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        match self {
            Request::Heartbeat(request) => {
                request.append_to(&mut out);
                out.append(REPL_DATA, 1);
            }
            Request::Votes(request) => request.append_to(&mut out),
            Request::Position(request) => request.append_to(&mut out),
            Request::StepUp { skip_dry_run } => {
                out.append("replSetStepUp", 1)
                    .append("skipDryRun", *skip_dry_run);
            }
        }
        out.append("$db", "admin");
        out.finish()
    }
}

#[cfg(test)]
mod tests;
