//! `$currentOp`

use bytes::Bytes;
use pinion_bson::RawBsonRef;
use pinion_wire::{Error, Result};

use super::super::current_op::operations;
use super::PipelineTarget;

/// What is shown beside the operations at work.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::commands) struct Shown {
    pub idle_cursors: bool,
    pub idle_connections: bool,
    /// Sessions whose transaction waits for its next statement.
    pub idle_sessions: bool,
    /// Whether large commands are cut.
    pub truncated: bool,
}

/// The stage's parsed specification.
#[derive(Clone, Debug)]
pub(in crate::commands) struct CurrentOp(Shown);

impl CurrentOp {
    pub(super) fn parse(spec: RawBsonRef<'_>, place: PipelineTarget<'_>) -> Result<CurrentOp> {
        let type_name = |value: RawBsonRef<'_>| pinion_bson::type_name(value.element_type());
        let RawBsonRef::Document(spec) = spec else {
            return Err(Error::type_mismatch(format!(
                "$currentOp options must be specified in an object, but found: {}",
                type_name(spec)
            )));
        };
        place.needs_admin("$currentOp")?;
        let mut shown = Shown {
            idle_sessions: true,
            ..Shown::default()
        };
        for (name, value) in pinion_bson::elements(spec) {
            let known = matches!(
                name,
                "allUsers"
                    | "backtrace"
                    | "idleConnections"
                    | "idleCursors"
                    | "idleSessions"
                    | "localOps"
                    | "targetAllNodes"
                    | "truncateOps"
            );
            if !known {
                return Err(Error::failed_to_parse(format!(
                    "Unrecognized option '{name}' in $currentOp stage."
                )));
            }
            let RawBsonRef::Boolean(value) = value else {
                let message = format!(
                    "The '{name}' parameter of the $currentOp stage must be a boolean value, but found: {}",
                    type_name(value)
                );
                // These two are examined before the stage is read, for what they allow a user to
                // see.
                return Err(match name {
                    "allUsers" | "localOps" => Error::type_mismatch(message),
                    _ => Error::failed_to_parse(message),
                });
            };
            match name {
                "idleConnections" => shown.idle_connections = value,
                "idleCursors" => shown.idle_cursors = value,
                "idleSessions" => shown.idle_sessions = value,
                "truncateOps" => shown.truncated = value,
                "targetAllNodes" if value => {
                    return Err(Error::failed_to_parse(
                        "$currentOp supports targetAllNodes parameter only for sharded clusters",
                    ));
                }
                // Nothing is denied to any user, and there are no other nodes.
                _ => {}
            }
        }
        Ok(CurrentOp(shown))
    }

    pub(super) async fn documents(&self) -> Vec<Bytes> {
        let operations = operations(self.0).await;
        let bytes = operations
            .into_iter()
            .map(|op| Bytes::from(op.into_bytes()));
        bytes.collect()
    }
}
