//! What is recorded of statements that are executed once however often they are sent: the records
//! of retryable writes and of transactions, and what a session knows of them.
//!
//! Source: sharding document, "Retryable Writes".

mod history;
mod load;
mod records;
mod retries;

pub(crate) use pinion_command::syntax::{NO_STATEMENT, StatementIds};

pub(crate) use history::{Change as ExecutedChange, Executed, History, session_text};
pub(crate) use load::{for_each as for_each_record, image_of, load, load_statements};
pub use records::{
    RecordCollections, RecordedChange, RecordedEnd, Stamp, TransactionStamp, is_image_of,
    record_writes, stamp_of,
};
pub(crate) use retries::{Pending, Retries, check_images, twice};
