//! Change streams: what an entry of the oplog records, as events with tokens to resume from.
//!
//! Nothing here reads a log or waits: the caller hands in entries in their order and performs the
//! look-ups that an event says it needs. The forms of events and tokens are MongoDB's.

mod description;
mod event;
mod explained;
mod merge;
mod options;
mod scope;
mod split;
mod stages;
mod token;
mod unwind;

#[cfg(test)]
mod tests;

pub use event::{Event, Image};
pub use explained::explained_stages;
pub use merge::{ChangeMerge, PartNumber, ReleasedEvent};
pub use options::{BeforeChange, ChangeStreamOptions, FullDocument, Start};
pub use scope::{CHANGE_STREAM_MARK, Concerned, Scope, concerned_by, is_mark};
pub use split::{MAX_CHANGE_EVENT_BYTES, split_event};
pub use stages::{check_event_id, check_stages};
pub use token::{Resume, ResumeToken, Seen, TokenData, TokenForm};
pub use unwind::{Change, TransactionEnd, changes_of, transaction_end};
