//! The manifest: what is true of a data directory at a checkpoint, made true by a superblock.

mod body;
mod cuts;
mod store;
mod superblock;

pub use body::Manifest;
pub use cuts::{Cut, Cuts};
pub use superblock::Superblock;

pub(crate) use body::HASH_VERSION;
pub(crate) use store::{ManifestStore, ManifestWrite, manifest_path, superblock_path};
pub(crate) use superblock::{COPIES, SUPERBLOCK_BYTES};
