//! The codes of errors in a `$group` at the front of a pipeline.
//!
//! MongoDB runs such a `$group`, behind what a find can do, in its slot-based engine, and what is
//! behind it in the classic one. Both report the same errors, but some of them under other codes.

use pinion_wire::{Error, ErrorCode};

use super::{Stage, StageKind};
use crate::error::error;

/// The engine of MongoDB's that would run a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Classic,
    SlotBased,
}

/// Marks the stages of a pipeline that the slot-based engine would run.
pub(super) fn mark(stages: &mut [Stage]) {
    for stage in stages {
        match &mut stage.kind {
            StageKind::Match(_) | StageKind::Sort(_) | StageKind::Skip(_) | StageKind::Limit(_) => {
            }
            StageKind::Group(group) => group.engine = Engine::SlotBased,
            _ => return,
        }
    }
}

/// The error of a `$group` whose memory is full, and that may not spill.
pub(super) fn no_disk_use(engine: Engine) -> Error {
    error(
        ErrorCode::QUERY_EXCEEDED_MEMORY_LIMIT_NO_DISK_USE_ALLOWED.0,
        match engine {
            Engine::Classic => {
                "Exceeded memory limit for $group, but didn't allow external sort. Pass allowDiskUse:true to opt in."
            }
            Engine::SlotBased => {
                "Exceeded memory limit for $group, but didn't allow external spilling; pass allowDiskUse:true to opt in"
            }
        },
    )
}

/// An error with the code that an engine reports it under.
pub(super) fn coded(mut e: Error, engine: Engine) -> Error {
    if engine == Engine::Classic {
        return e;
    }
    match e.code.0 {
        2 if e.message.contains("can't $divide by zero") => e.code = ErrorCode(4_848_401),
        16610 | 5_733_415 => e.code = ErrorCode(4_848_403),
        40400 => return error(5_911_200, "$mergeObjects only supports objects"),
        5_787_902 | 5_787_903 | 5_787_908 => {
            return error(
                7_548_606,
                "parameter 'n' must be coercible to a positive 64-bit integer",
            );
        }
        _ => {}
    }
    e
}
