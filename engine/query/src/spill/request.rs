//! What a machine asks of a file, and what it is answered.

use bytes::Bytes;

/// Where a block lies in the file of the machine that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub bytes: u32,
    pub checksum: u32,
}

/// What spills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spiller {
    Sort,
    Group,
    BucketAuto,
    WindowFields,
}

/// What has to be done before a machine continues.
#[derive(Debug, PartialEq, Eq)]
pub enum DiskRequest {
    /// These bytes are to be kept: [`DiskReply::Written`].
    Write {
        block: Vec<u8>,
        /// How many entries are in it.
        records: u64,
        /// Whether memory becomes free with it. What is read only to be written in another order
        /// was counted before.
        spills: bool,
        /// Whether it is the first block of its run.
        begins: bool,
        by: Spiller,
    },
    /// A block is wanted back: [`DiskReply::Read`].
    Read(Place),
}

/// What has been done.
#[derive(Debug)]
pub enum DiskReply {
    Written(Place),
    Read(Bytes),
}
