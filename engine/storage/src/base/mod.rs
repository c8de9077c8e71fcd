//! The base: one page file a partition, with a copy-on-write B+tree for each collection and index.

mod block_table;
mod cache;
mod cursor;
mod file;
mod hint;
mod merge;
mod options;
mod pace;
mod page;
mod prefetch;
mod roots;
mod space;
mod spilled;
mod store;
mod tree;
mod verify;

pub use options::PartitionOptions;
pub use roots::{Counts, PartitionRoots};
pub use verify::{LevelReport, TreeReport, VerifyReport, verify_partition};

pub(crate) use cursor::BaseCursor;
pub(crate) use file::{Access, is_page_file, page_file_name};
pub(crate) use hint::lines as fetch_lines;
pub(crate) use merge::{Change, Freed, free_tree, merge_tree, unreadable};
pub(crate) use pace::{Pace, Unpaced, rest};
pub(crate) use page::{OverflowRef, Page, common_prefix, head_of};
pub(crate) use prefetch::ChangedKeys;
pub(crate) use roots::TreeRoot;
pub(crate) use space::{Extent, FreeSpace};
pub(crate) use spilled::{
    SpilledRecord, encode_spilled_counts, encode_spilled_version, spilled_counts_key,
    spilled_version_key,
};
pub(crate) use store::{PageStore, PageWriter, TakenExtents};
pub(crate) use tree::Stored;
pub(crate) use verify::verify_and_collect;
